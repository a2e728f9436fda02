"""Names, the embedded graphs, Reddit's files, and the synthetic graph."""

from __future__ import annotations

import io
import urllib.error
import zipfile

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.datasets import load_digits

from jurygcn.data import DATASETS, clean, load_dataset, public_split, reddit, sizes, synthetic
from jurygcn.data.places import REDDIT_SIZES
from jurygcn.errors import DataError, SettingError


@pytest.mark.parametrize(
    ("name", "hint"),
    [("coar", "'cora'"), ("Pub-Med", "'pubmed'"), ("karat", "'karate'"), ("citeseers", "'citeseer'")],
)
def test_unknown_name_with_the_nearest(name, hint):
    with pytest.raises(DataError, match=f"got '{name}'; did you mean .*{hint}"):
        load_dataset(name)


def test_unknown_name_without_a_near_one():
    with pytest.raises(DataError, match=r"out of cora, citeseer, .*got 'zzz'; use one of these or a path\."):
        load_dataset("zzz")


@pytest.mark.parametrize("path", ["no/such/place", "missing.npz", "table.csv"])
def test_paths_that_are_not_there(path):
    with pytest.raises(DataError, match="got nothing; check the path"):
        load_dataset(path)


def test_a_file_of_another_kind(tmp_path):
    (tmp_path / "graph.gml").write_text("graph []")
    with pytest.raises(DataError, match=r"expected an \.npz file or a folder .*graph\.gml"):
        load_dataset(tmp_path / "graph.gml")


@pytest.mark.parametrize("name", ["digits", "karate", "synthetic"])
def test_embedded_graphs_need_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("JURYGCN_DATA", str(tmp_path / "never"))
    data = load_dataset(name.upper())
    assert sizes(data) == DATASETS[name].sizes
    assert data.name == name
    again = clean(data)
    for key in ("x", "y", "edge_index"):
        assert again[key].equal(data[key])
    assert not (tmp_path / "never").exists()


def test_digits_are_joined_to_their_nearest():
    images = torch.from_numpy(load_digits().data)
    data = load_dataset("digits")
    assert torch.allclose(data.x.sum(dim=1), torch.ones(1797))
    for node in (0, 500, 1796):
        distance = (images - images[node]).norm(dim=1)
        distance[node] = torch.inf
        nearest = set(distance.argsort()[:10].tolist())
        assert nearest <= set(data.edge_index[1, data.edge_index[0] == node].tolist())
    same = data.y[data.edge_index[0]] == data.y[data.edge_index[1]]
    assert same.float().mean() > 0.9


def write_reddit(folder, count=6):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    np.savez(
        folder / "reddit_data.npz",
        feature=rng.normal(size=(count, 3)),
        label=np.arange(count) % 2,
        node_types=np.array([1, 1, 1, 2, 3, 3]),
        node_ids=np.arange(count),
    )
    ring = sparse.coo_matrix((np.ones(count), (np.arange(count), np.roll(np.arange(count), 1))))
    sparse.save_npz(folder / "reddit_graph.npz", ring + ring.T)


@pytest.mark.parametrize("place", [".", "raw", "Reddit/raw", "reddit"])
def test_reddit_from_its_two_files(tmp_path, place):
    write_reddit(tmp_path / place)
    data = load_dataset("reddit", root=tmp_path)
    assert sizes(data) == (6, 6, 3, 2)
    feature = np.load(tmp_path / place / "reddit_data.npz")["feature"]
    assert data.x.equal(torch.from_numpy(feature).float())  # signed features are not scaled
    split = public_split(data)
    assert (split.pool.tolist(), split.val.tolist(), split.test.tolist()) == ([0, 1, 2], [3], [4, 5])
    assert data.name == "reddit"


def test_reddit_without_network_names_files_and_folder(tmp_path, monkeypatch):
    def refuse(url, timeout):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(reddit.urllib.request, "urlopen", refuse)
    with pytest.raises(DataError) as caught:
        load_dataset("reddit", root=tmp_path)
    for part in (
        "reddit_data.npz",
        "reddit_graph.npz",
        str(tmp_path / "reddit"),
        "no route",
        "put the two files",
    ):
        assert part in str(caught.value)
    assert list((tmp_path / "reddit").iterdir()) == []


def test_reddit_download_takes_the_two_members_only(tmp_path, monkeypatch):
    write_reddit(tmp_path / "origin")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        for name in reddit.FILES:
            members.write(tmp_path / "origin" / name, name)
        members.writestr("../escaped", "x")

    def answer(url, timeout):
        return io.BytesIO(archive.getvalue())

    monkeypatch.setattr(reddit.urllib.request, "urlopen", answer)
    assert sizes(load_dataset("reddit", root=tmp_path / "here")) == (6, 6, 3, 2)
    assert sorted(p.name for p in (tmp_path / "here" / "reddit").iterdir()) == sorted(reddit.FILES)
    assert not list(tmp_path.rglob("escaped"))


@pytest.mark.parametrize("file", reddit.FILES)
def test_reddit_with_a_broken_file(tmp_path, file):
    write_reddit(tmp_path)
    (tmp_path / file).write_bytes(b"PK broken")
    with pytest.raises(DataError, match=file):
        load_dataset("reddit", root=tmp_path)


def test_synthetic_is_seeded_and_as_asked():
    options = {"num_nodes": 2000, "num_edges": 30_000, "num_features": 8, "num_classes": 4, "homophily": 0.7}
    first, same, other = (synthetic(**options, seed=seed) for seed in (3, 3, 4))
    assert first.x.equal(same.x)
    assert first.edge_index.equal(same.edge_index)
    assert not first.edge_index.equal(other.edge_index)
    assert first.num_edges == 30_000
    cleaned = clean(first)
    assert cleaned.edge_index.equal(first.edge_index)  # already symmetric, sorted, simple
    assert torch.bincount(first.y).tolist() == [500] * 4
    source, target = first.edge_index
    assert abs((first.y[source] == first.y[target]).float().mean() - 0.7) < 0.02
    degree = torch.bincount(source, minlength=2000).float()
    assert degree.max() > 8 * degree.mean()  # a Poisson graph of mean 15 would stay below 3 times
    assert degree.median() < degree.mean()


def test_synthetic_features_follow_the_class():
    far = synthetic(num_nodes=600, num_edges=2000, num_classes=3, separation=20.0)
    means = torch.stack([far.x[far.y == c].mean(dim=0) for c in range(3)])
    assert torch.cdist(far.x, means).argmin(dim=1).equal(far.y)
    none = synthetic(num_nodes=600, num_edges=2000, num_classes=3, separation=0.0)
    assert abs(none.x.mean()) < 0.03
    assert abs(none.x.std() - 1) < 0.03


@pytest.mark.parametrize("homophily", [0.0, 1.0])
def test_synthetic_at_the_ends_of_homophily(homophily):
    data = synthetic(num_nodes=300, num_edges=1000, homophily=homophily)
    same = data.y[data.edge_index[0]] == data.y[data.edge_index[1]]
    assert same.float().mean() == homophily


@pytest.mark.parametrize(
    "change",
    [
        {"num_nodes": 1},
        {"num_classes": 0},
        {"num_features": 0},
        {"num_edges": 7},
        {"num_edges": 3000 * 2999},
        {"homophily": 1.5},
        {"homophily": float("nan")},
        {"degree_exponent": 2.0},
        {"num_nodes": 40, "num_edges": 700, "num_classes": 20, "homophily": 1.0},
    ],
)
def test_synthetic_refuses_the_impossible(change):
    with pytest.raises(SettingError, match=r"expected .* got .*;"):
        synthetic(**change)


@pytest.mark.slow
def test_synthetic_reaches_reddits_size():
    data = synthetic(num_nodes=232_965, num_edges=114_615_892, num_features=602, num_classes=41)
    assert sizes(data) == REDDIT_SIZES
