"""Which node or class a user means: ids win over positions, and what could mean two things is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from typer.testing import CliRunner

from jurygcn.active.labels import class_number, read_labels, write_labels
from jurygcn.active.oracle import from_file
from jurygcn.active.tasks import read_answers
from jurygcn.cli import app
from jurygcn.cli.nodes import read_any_nodes, read_nodes
from jurygcn.data import clean, load_dataset
from jurygcn.data.package_index import read_cora
from jurygcn.errors import DataError

FAST = ("--epochs", "5", "--hidden", "2")


def run(*words: object) -> dict:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def folder_of(ids: list[str], path: Path) -> Path:
    """A ring of nodes with these ids; even ones are red, odd ones blue."""
    path.mkdir()
    rows = [f"{name},{k % 2},{1 - k % 2},{('red', 'blue')[k % 2]}" for k, name in enumerate(ids)]
    (path / "nodes.csv").write_text("\n".join(["id,a,b,label", *rows]) + "\n")
    pairs = [f"{one},{two}" for one, two in zip(ids, [*ids[1:], ids[0]])]
    (path / "edges.csv").write_text("\n".join(["source,target", *pairs]) + "\n")
    return path


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    return folder_of([str(k) for k in range(1, 41)], tmp_path / "ring")


# --- nodes.csv with the ids 1..40 -----------------------------------------------------------------------------


@pytest.mark.parametrize("last", [[], ["40"]], ids=["1..20", "1..20 and 40"])
def test_training_nodes_are_ids(ring: Path, tmp_path: Path, last: list[str]):
    """Whatever else the file names."""
    path = tmp_path / "nodes.txt"
    path.write_text("\n".join([*(str(k) for k in range(1, 21)), *last]))
    assert run("train", ring, "--train-nodes", path, *FAST)["train_nodes"] == [*range(20), *[39] * len(last)]


def test_labels_in_a_file_overwrite_no_others(ring: Path, tmp_path: Path):
    """Ids 1..20 with the labels that the graph has too: nothing changes, and nothing is contradicted."""
    path = tmp_path / "labels.csv"
    path.write_text("node,label\n" + "".join(f"{k},{'blue' if k % 2 == 0 else 'red'}\n" for k in range(1, 21)))
    out = tmp_path / "out"
    found = run("quantify", ring, "--train-nodes", path, *FAST, "--out", out)
    assert found["train_nodes"] == list(range(20))
    truth = load_dataset(ring).y.tolist()
    assert pd.read_csv(out / "verdict.csv")["true_class"].tolist() == truth


def test_candidates_are_ids(ring: Path, tmp_path: Path):
    path = tmp_path / "pool.txt"
    path.write_text("node\n1\n2\n3\n")
    shown = run("active", "next", ring, "--candidates", path, "--batch", 3, "--strategy", "degree", *FAST)
    assert {(task["node"], task["name"]) for task in shown["tasks"]} == {(0, "1"), (1, "2"), (2, "3")}


def test_an_oracle_in_a_file_knows_ids(ring: Path, tmp_path: Path):
    path = tmp_path / "truth.csv"
    path.write_text("node,label\n1,red\n2,blue\n")
    data = load_dataset(ring)
    red, blue = data.class_names.index("red"), data.class_names.index("blue")
    assert from_file(path, data)(torch.tensor([0, 1, 2])) == [red, blue, -1]


def test_answers_go_round(ring: Path, tmp_path: Path):
    """Tasks as CSV and as Label Studio's JSON have a position and an id: both ways back lead to the same nodes."""
    out, labels = tmp_path / "tasks.json", tmp_path / "labels.csv"
    labels.write_text("node,label\n1,red\n2,blue\n")
    tasks = run("active", "next", ring, "--labels", labels, "--batch", 4, "--out", out, *FAST)["tasks"]
    named = {task["name"] for task in tasks}
    assert all(int(task["name"]) == task["node"] + 1 for task in tasks)
    with out.with_suffix(".csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["label"] = "red"
    filled = tmp_path / "filled.csv"
    pd.DataFrame(rows).to_csv(filled, index=False)
    full, short = json.loads(out.read_text()), []
    for task in full:
        result = {"type": "choices", "value": {"choices": ["red"]}}
        task["annotations"] = [{"result": [result]}]
        short.append({**task["data"], "label": "red"})
    for name, document in (("full.json", full), ("short.json", short)):
        (tmp_path / name).write_text(json.dumps(document))
    for answers in ("filled.csv", "full.json", "short.json"):
        assert read_answers(tmp_path / answers, load_dataset(ring)).keys() == {task["node"] for task in tasks}
        added = run("active", "add", ring, "--labels", labels, "--answers", tmp_path / answers)
        assert added["labels"] == 6
    assert set(pd.read_csv(labels, dtype=str)["node"]) == {"1", "2", *named}, "the file keeps its ids"


def test_results_can_be_given_back(ring: Path, tmp_path: Path):
    """verdict.csv has positions in its first column, and ids in the second."""
    run("quantify", ring, "--labels", 10, *FAST, "--out", tmp_path / "out")
    frame = pd.read_csv(tmp_path / "out" / "verdict.csv").query("node in (4, 7, 30)")
    frame[["node", "name", "width"]].to_csv(tmp_path / "some.csv", index=False)
    assert read_any_nodes(tmp_path / "some.csv", load_dataset(ring), "--candidates").tolist() == [4, 7, 30]


def test_the_neighbours_of_a_task_have_their_ids(ring: Path, tmp_path: Path):
    labels, pool = tmp_path / "labels.csv", tmp_path / "pool.txt"
    labels.write_text("node,label\n1,red\n2,blue\n")
    pool.write_text("3\n")
    (task,) = run("active", "next", ring, "--labels", labels, "--candidates", pool, "--batch", 1, *FAST)["tasks"]
    assert (task["node"], task["neighbours"]) == (2, "2 blue (of 2)")


def test_papers_of_cora_are_ids(tmp_path: Path):
    """Papers 2, 0 and 1, in this order: each is another one's position."""
    content = "".join(f"{paper}\t{k}\t1\t{kind}\n" for k, (paper, kind) in enumerate(zip("201", ["A", "B", "A"])))
    data = clean(read_cora(content.encode(), b"2\t0\n0\t1\n"), quiet=True)
    path = tmp_path / "nodes.txt"
    path.write_text("0\n2\n")
    assert read_nodes(path, data).tolist() == [1, 0]


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0\n", "line 2: expected a node name such as 1, 2 .this graph's names are numbers., got '0'"),
        ("1\n41\n", "line 2: expected a node name"),
        ("node,name\n1,9\n", "line 2: expected the number or name of the node whose name is '9', got '1'"),
        ("node,name\n0,Ann\n", "whose name is 'Ann', got '0'"),
        ("node,name,name\n0,1,1\n", "'name'. more than once"),
        ('1,"x\n2,y\n3,z\n', "expected a CSV table"),
    ],
)
def test_what_names_no_node_is_refused(ring: Path, tmp_path: Path, text: str, message: str):
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_nodes(path, load_dataset(ring))


def test_a_name_of_several_nodes_is_refused(tmp_path: Path):
    data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 0]), num_classes=2)
    data.node_names = ["ann", "ann", "bob"]
    path = tmp_path / "labels.csv"
    path.write_text("node,label\nann,1\n")
    with pytest.raises(DataError, match="line 2: expected the name of one node, got 'ann'"):
        read_labels(path, data)
    path.write_text("node,name,label\n1,ann,1\nbob,,0\n")
    assert read_labels(path, data)[0].tolist() == [1, 2]


def test_a_name_that_begins_like_a_comment_is_a_node(tmp_path: Path):
    data = load_dataset(folder_of([f"#{k}" for k in range(8)], tmp_path / "g"))
    path = tmp_path / "nodes.txt"
    path.write_text("# two nodes\n#3\n#5\n")
    assert read_nodes(path, data).tolist() == [3, 5]


def test_numbers_of_classes_that_have_numbers_for_names():
    """Classes called 1, 2, 3: an answer of 0 is none of them, not the first."""
    data = Data(x=torch.eye(3), num_classes=3, class_names=["1", "2", "3"])
    assert [class_number(word, data) for word in ("1", 2, " 3 ")] == [0, 1, 2]
    with pytest.raises(DataError, match="one of the classes 1, 2, 3, got '0'"):
        class_number("0", data)


# --- any names at all -----------------------------------------------------------------------------------------

names = st.lists(
    st.text(alphabet="0123456789abz.+-='# ,\"\n", min_size=1, max_size=3).filter(str.strip),
    min_size=2,
    max_size=8,
    unique=True,
)


@given(names, st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_labels_are_read_as_they_were_written(tmp_path_factory, given_names, random):
    count = len(given_names)
    data = Data(x=torch.eye(count), y=torch.zeros(count).long(), num_classes=2, node_names=given_names)
    chosen = random.sample(range(count), random.randint(1, count))
    labels = {node: node % 2 for node in chosen}
    path = tmp_path_factory.mktemp("labels") / "labels.csv"
    write_labels(path, labels, data)
    nodes, classes = read_labels(path, data)
    assert dict(zip(nodes.tolist(), classes.tolist())) == labels


def test_names_are_found_in_linear_time(tmp_path: Path):
    """A hundred thousand labels of as many nodes: a search through all names for each would take minutes."""
    count = 100_000
    data = Data(x=torch.zeros(count, 1), y=torch.zeros(count).long(), num_classes=2)
    data.node_names = [str(7 * k) for k in range(count)]
    path = tmp_path / "labels.csv"
    write_labels(path, dict.fromkeys(range(count), 1), data)
    assert np.array_equal(read_labels(path, data)[0].numpy(), np.arange(count))
