"""`jurygcn quantify` by group, on graphs that grew and with drawn labels; `jurygcn active run --explore`."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest
import torch
from invoke import FAST, refuses, run, run_json

from jurygcn import Jury
from jurygcn.cli.groups import degree_bands, groups_of, read_groups
from jurygcn.data import load_dataset
from jurygcn.errors import DataError

LABELS = ("--labels", 14)


def write(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


# --- groups -------------------------------------------------------------------------------------------


def test_bands_of_degrees_are_about_equal_in_size():
    data = load_dataset("digits")
    bands = degree_bands(data)
    degrees = torch.bincount(data.edge_index[1], minlength=int(data.num_nodes))
    assert bands.unique().tolist() == [0, 1, 2, 3]
    for band in range(3):
        assert int(degrees[bands == band].max()) < int(degrees[bands == band + 1].min())
    assert int(torch.bincount(bands).max()) < 0.5 * len(bands)


@pytest.mark.parametrize("groups", ["degree", "file"])
def test_quantify_by_group_is_the_librarys_verdict(tmp_path, groups, monkeypatch):
    data = load_dataset("karate")
    given, expected = Path("degree"), degree_bands(data)
    if groups == "file":
        given = write(tmp_path / "g.csv", ["node", "group"], [[node, "ab"[node % 2]] for node in reversed(range(34))])
        expected = torch.tensor([1, 0]).repeat(17)  # in the order in which the file names them
        assert torch.equal(read_groups(given, data), expected)
    seen, verdict = [], Jury.verdict
    monkeypatch.setattr(Jury, "verdict", lambda jury, *a, **k: (seen.append(k["groups"]), verdict(jury, *a, **k))[1])
    found = run_json("quantify", "karate", *LABELS, "--by", "group", "--groups", given, *FAST, "--out", tmp_path / "o")
    assert torch.equal(seen[0], expected)
    assert found["jury"]["by"] == "group"
    plain = run_json("quantify", "karate", *LABELS, *FAST)
    assert found["test"]["mean_set_size"] != plain["test"]["mean_set_size"]
    shown = run("quantify", "karate", *LABELS, "--by", "group", "--groups", given, *FAST).stdout
    assert "by group" in shown


@pytest.mark.parametrize(
    ("rows", "header", "said"),
    [
        ([[0, "a"]], ["node", "group"], "expected a group for every node"),
        ([[0, "a"], [0, "b"]], ["node", "group"], "expected one group for node 0"),
        ([[0, ""]], ["node", "group"], "an empty cell"),
        ([[99, "a"]], ["node", "group"], "line 2"),
        ([[0, 1]], ["node", "label"], "expected the columns node and group"),
    ],
)
def test_wrong_files_of_groups_are_one_sentence(tmp_path, rows, header, said):
    path = write(tmp_path / "groups.csv", header, rows)
    assert said in refuses("quantify", "karate", *LABELS, "--by", "group", "--groups", path, *FAST)
    with pytest.raises(DataError):
        groups_of(path, "group", load_dataset("karate"))


def test_groups_need_their_other_half(tmp_path):
    assert "got --by group alone" in refuses("quantify", "karate", *LABELS, "--by", "group", *FAST)
    assert "got --groups alone" in refuses("quantify", "karate", *LABELS, "--groups", "degree", *FAST)
    missing = tmp_path / "none.csv"
    assert "expected a file of groups" in refuses(
        "quantify", "karate", *LABELS, "--by", "group", "--groups", missing, *FAST
    )


# --- new nodes ----------------------------------------------------------------------------------------


def folder(path: Path, nodes: int) -> Path:
    """The first nodes of a fixed graph, as CSV files."""
    path.mkdir()
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(3, (60,), generator=generator)
    x = (torch.rand(60, 5, generator=generator) < 0.2 + 0.5 * torch.nn.functional.one_hot(kinds, 5)).long()
    x[:, 4] = 1
    x = 2 * x - 1  # with a negative number rows are not scaled, and no note says so
    edges = torch.randint(60, (300, 2), generator=generator)
    edges = edges[(edges < nodes).all(dim=1) & (edges[:, 0] < edges[:, 1])].unique(dim=0)
    edges = torch.cat([edges, edges.flip(1)])
    rows = [[node, "abc"[kinds[node]], *x[node].tolist()] for node in range(nodes)]
    write(path / "nodes.csv", ["id", "label", *(f"f{k}" for k in range(5))], rows)
    write(path / "edges.csv", ["source", "target"], edges.tolist())
    return path


def test_new_nodes_have_a_verdict_without_training(tmp_path):
    old, new = folder(tmp_path / "old", 50), folder(tmp_path / "new", 60)
    before = run_json("quantify", old, *LABELS, *FAST, "--out", tmp_path / "before")
    found = run_json("quantify", old, *LABELS, *FAST, "--new-data", new, "--out", tmp_path / "out")
    assert (before["arrived"], found["arrived"]) == (None, 10)
    assert found["parameters"] == before["parameters"]
    assert found["train_nodes"] == before["train_nodes"]
    frame = pd.read_csv(tmp_path / "out" / "verdict.csv")
    assert frame["arrived"].tolist() == [False] * 50 + [True] * 10
    assert frame["true_class"][50:].isna().all()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["run.json", "verdict.csv"]
    assert "arrived" not in pd.read_csv(tmp_path / "before" / "verdict.csv")
    shown = run("quantify", old, *LABELS, *FAST, "--new-data", new).stdout
    assert "10 arrived after training" in shown
    assert "grew after" in " ".join(shown.split())


def test_what_does_not_go_with_new_nodes_is_one_sentence(tmp_path):
    old, new = folder(tmp_path / "old", 50), folder(tmp_path / "new", 60)
    start = ("quantify", old, *LABELS, *FAST)
    assert "got full" in refuses(*start, "--new-data", new, "--sets", "full")
    assert "--report" in refuses(*start, "--new-data", new, "--report", tmp_path / "page.html")
    assert "50 nodes first" in refuses(*start, "--new-data", "karate")
    assert "60 nodes first" in refuses("quantify", new, *LABELS, *FAST, "--new-data", old)
    assert "expected" in refuses(*start, "--new-data", tmp_path / "nothing.npz")


# --- after active learning ----------------------------------------------------------------------------


def test_drawn_labels_from_the_run_to_the_claim(tmp_path):
    out = tmp_path / "run"
    options = ("active", "run", "digits", "--strategy", "degree", "--initial", 5, "--budget", 100, "--step", 80)
    found = run_json(*options, "--explore", 0.2, "--out", out, *FAST)
    assert len(found["drawn"]) == 20
    assert set(found["drawn"]) <= set(found["nodes"])
    assert [Path(path).name for path in found["files"]] == ["history.json", "history.csv", "labels.csv", "drawn.csv"]
    assert sorted(pd.read_csv(out / "drawn.csv")["node"]) == sorted(found["drawn"])
    labels = pd.read_csv(out / "labels.csv")
    assert set(labels["chosen"]) == {"actively"}
    truth = load_dataset("digits").y
    assert labels["label"].tolist() == truth[labels["node"].tolist()].tolist()

    start = ("quantify", "digits", "--train-nodes", out / "labels.csv", *FAST)
    assert run_json(*start)["jury"]["claim"] == "none"
    jury = run_json(*start, "--drawn", out / "drawn.csv")["jury"]
    assert (jury["claim"], jury["jurors"], jury["drawn"]) == ("target", 20, 20)
    plain = run_json(*options, *FAST)
    assert plain["drawn"] == []


def test_wrong_shares_and_drawn_nodes_are_one_sentence(tmp_path):
    options = ("active", "run", "karate", "--initial", 4, "--budget", 12, "--step", 4, *FAST)
    assert "--explore" in refuses(*options, "--explore", 1.5)
    assert "lower it" in refuses(*options, "--explore", 0.95)
    assert "got both" in refuses(*options, "--explore", 0.2, "--stop-settled")
    drawn = write(tmp_path / "drawn.csv", ["node"], [[node] for node in range(34)])
    start = ("quantify", "karate", *LABELS, *FAST, "--drawn")
    assert "expected drawn to name training nodes" in refuses(*start, drawn)
    assert "--drawn" in refuses(*start, tmp_path / "none.csv")
    assert "--max-jurors" in refuses(*start, drawn, "--max-jurors", 3)
