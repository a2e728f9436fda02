"""Training on every label, and on labels that people gave in a file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from invoke import FAST, refuses, run, run_json

from jurygcn.data import load_dataset
from jurygcn.data.npz import write_npz

NAMES = ("left", "right")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Two rings of 20 nodes with names, joined by an edge; half of the nodes have a label."""
    folder = tmp_path / "rings"
    folder.mkdir()
    ids = [f"v{number:02d}" for number in range(40)]
    sides = [NAMES[number // 20] for number in range(40)]
    nodes = pd.DataFrame({"id": ids, "label": [s if n % 2 else "" for n, s in enumerate(sides)]})
    nodes["a"], nodes["b"] = [float(s == "left") for s in sides], 1.0
    nodes.to_csv(folder / "nodes.csv", index=False)
    ring = [(20 * side + k, 20 * side + (k + 1) % 20) for side in range(2) for k in range(20)] + [(0, 20)]
    pd.DataFrame([(ids[u], ids[v]) for a, b in ring for u, v in ((a, b), (b, a))], columns=["source", "target"]).to_csv(
        folder / "edges.csv", index=False
    )
    return folder


def without_labels(graph: Path) -> Path:
    nodes = pd.read_csv(graph / "nodes.csv").drop(columns="label")
    nodes.to_csv(graph / "nodes.csv", index=False)
    return graph


@pytest.mark.parametrize("command", ["train", "quantify", "doctor"])
def test_every_label(graph: Path, command: str):
    more = ("--retrain", 0) if command == "doctor" else ()
    found = run_json(command, graph, "--train-nodes", "all", *FAST, *more)
    assert found["train_nodes"] == list(range(1, 40, 2))


def test_labels_from_a_file_take_the_place_of_the_graphs(graph: Path, tmp_path: Path):
    labels = tmp_path / "labels.csv"
    labels.write_text("node,label\nv00,left\n2,left\nv20,right\nv22,right\nv01,right\n", encoding="utf-8")
    found = run_json("quantify", graph, "--train-nodes", labels, *FAST, "--out", tmp_path / "out")
    assert found["train_nodes"] == [0, 1, 2, 20, 22]
    frame = pd.read_csv(tmp_path / "out" / "verdict.csv").set_index("name")
    classes = load_dataset(graph).class_names
    assert frame.loc["v01", "true_class"] == classes.index("right"), "the file is believed"
    assert frame.loc["v03", "true_class"] == classes.index("left")
    assert pd.isna(frame.loc["v04", "true_class"])


@pytest.mark.parametrize("method", ["gcn", "reweight"])
def test_a_graph_without_labels_learns_those_of_a_file(graph: Path, tmp_path: Path, method: str):
    labels = tmp_path / "labels.csv"
    labels.write_text("node,label\nv00,left\nv05,left\nv20,right\nv25,right\n", encoding="utf-8")
    bare = without_labels(graph)
    found = run_json(
        "train", bare, "--method", method, "--train-nodes", labels, "--epochs", 100, "--out", tmp_path / "m"
    )
    assert found["train_nodes"] == [0, 5, 20, 25]
    assert found["data"]["classes"] == 2
    if method == "gcn":
        again = run_json("quantify", bare, "--model", tmp_path / "m" / "model.pt", "--train-nodes", labels)
        assert again["train_nodes"] == [0, 5, 20, 25]
        state = torch.load(tmp_path / "m" / "model.pt", weights_only=True)
        assert [tuple(W.shape) for W in state.values()][-1][1] == 2


def test_too_many_labels_name_the_way_out(graph: Path):
    said = refuses("train", graph, "--labels", 19)
    assert "are for testing" in said
    assert "--train-nodes all" in said


def test_tables_show_names_and_advice_line_by_line(graph: Path):
    shown = run("quantify", graph, "--train-nodes", "all", *FAST)
    assert "v20" in shown.stdout  # beside the edge that joins the rings
    report = run("doctor", graph, "--train-nodes", "all", "--retrain", 3, *FAST)
    assert report.exit_code == 0, report.output
    assert r"\x0a" not in report.stdout


def test_the_graphs_own_mask(tmp_path):
    data = load_dataset("karate")
    data.train_mask = torch.zeros(34, dtype=torch.bool)
    data.train_mask[::3] = True
    data.test_mask = torch.zeros(34, dtype=torch.bool)
    data.test_mask[1::3] = True
    write_npz(tmp_path / "masked.npz", data)
    found = run_json("quantify", tmp_path / "masked.npz", "--train-nodes", "mask", *FAST)
    assert found["train_nodes"] == list(range(0, 34, 3))
    assert found["test"]["nodes"] == 11
    assert "expected a train_mask in karate" in refuses("quantify", "karate", "--train-nodes", "mask")
