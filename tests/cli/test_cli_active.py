"""`jurygcn active`: the next nodes, answers back, whole runs; and what they refuse."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pandas as pd
import pytest
from invoke import FAST, refuses, run, run_json

from jurygcn.active import History
from jurygcn.data import load_dataset


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("node,label\n0,0\n33,1\n8,2\n24,3\n")
    return path


def test_next_then_label_studio_then_add_then_next(tmp_path, labels):
    out = tmp_path / "tasks.json"
    shown = run_json("active", "next", "karate", "--labels", labels, "--batch", 3, "--out", out, *FAST)
    nodes = [task["node"] for task in shown["tasks"]]
    assert len(set(nodes) - {0, 33, 8, 24}) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels.csv", "tasks.csv", "tasks.json", "tasks.xml"]
    tasks = json.loads(out.read_text())
    assert [task["data"]["node"] for task in tasks] == nodes
    with (tmp_path / "tasks.csv").open() as file:
        assert [int(row["node"]) for row in csv.DictReader(file)] == nodes

    # what Label Studio would export: the same tasks with annotations; the last one was skipped
    truth = load_dataset("karate").y
    for task in tasks[:2]:
        choice = str(int(truth[task["data"]["node"]]))
        result = {**task["predictions"][0]["result"][0], "value": {"choices": [choice]}}
        task["annotations"] = [{"was_cancelled": False, "result": [result]}]
    tasks[2]["annotations"] = []
    export = tmp_path / "export.json"
    export.write_text(json.dumps(tasks))
    added = run_json("active", "add", "karate", "--labels", labels, "--answers", export)
    assert (added["answers"], added["added"], added["labels"]) == (2, 2, 6)
    frame = pd.read_csv(labels)
    assert frame["node"].tolist() == [0, 33, 8, 24, *nodes[:2]]
    assert frame["label"].tolist() == [0, 1, 2, 3, *truth[nodes[:2]].tolist()]
    assert frame["chosen"].fillna("").tolist() == ["", "", "", "", "actively", "actively"]

    again = run_json("active", "next", "karate", "--labels", labels, "--batch", 3, *FAST)
    assert not {task["node"] for task in again["tasks"]} & set(frame["node"])
    # the same answers once more change nothing
    assert run_json("active", "add", "karate", "--labels", labels, "--answers", export)["added"] == 0


@pytest.mark.parametrize(("strategy", "claim"), [("jury-design", "none"), ("random", "target")])
def test_quantify_knows_how_the_labels_came_about(tmp_path, strategy, claim):
    """active next, active add, quantify: nothing is claimed of labels that were chosen, and random ones stay random."""
    collected, tasks, truth = tmp_path / "labels.csv", tmp_path / "tasks.json", load_dataset("karate").y
    run_json("active", "next", "karate", "--batch", 20, "--strategy", strategy, "--out", tasks, *FAST)
    answers = pd.read_csv(tmp_path / "tasks.csv")
    answers["label"] = truth[answers["node"].tolist()].numpy()
    answers.to_csv(tmp_path / "tasks.csv", index=False)
    run_json("active", "add", "karate", "--labels", collected, "--answers", tmp_path / "tasks.csv")
    found = run_json("quantify", "karate", "--train-nodes", collected, "--out", tmp_path / "run", *FAST)
    assert found["jury"]["claim"] == claim
    again = run_json("quantify", "karate", "--train-nodes", tmp_path / "run" / "run.json", *FAST)
    assert again["jury"]["claim"] == claim  # a run remembers it, and a model that was trained on them
    run_json("train", "karate", "--train-nodes", collected, "--out", tmp_path / "model", *FAST)
    loaded = run_json("quantify", "karate", "--model", tmp_path / "model" / "model.pt")
    assert loaded["jury"]["claim"] == claim
    words = run("quantify", "karate", "--train-nodes", collected, *FAST).stdout
    assert words.startswith("Caution: No coverage is claimed. The labels were chosen actively") == (claim == "none")


def test_a_contradiction_about_the_labels_is_refused(tmp_path):
    collected = tmp_path / "labels.csv"
    collected.write_text("node,label,chosen\n0,0,actively\n33,1,\n")
    said = refuses("quantify", "karate", "--train-nodes", collected, "--chosen", "random")
    assert "expected --chosen actively, because the training nodes were chosen actively" in said


def test_scores_are_readable(tmp_path):
    said = run("active", "next", "karate", "--batch", 3, *FAST).stdout
    assert "e+" not in said
    assert said.count("of the graph's") == 3


def test_next_for_people(labels):
    result = run("active", "next", "karate", "--labels", labels, "--batch", 2, "--strategy", "degree", *FAST)
    assert result.exit_code == 0, result.output
    assert "Label next on karate: degree, 4 labels so far" in result.stdout
    assert "it has 12 neighbours" in " ".join(result.stdout.split())


def test_next_from_candidates_and_from_nothing(tmp_path):
    pool = tmp_path / "pool.txt"
    pool.write_text("node\n5\n6\n7\n")
    shown = run_json("active", "next", "karate", "--candidates", pool, "--batch", 2)
    assert {task["node"] for task in shown["tasks"]} < {5, 6, 7}
    assert shown["labels"] == 0


def test_the_labels_of_a_graphs_own_table(tmp_path):
    """The column id of nodes.csv names the node; empty labels are none; other columns are features, not answers."""
    (tmp_path / "nodes.csv").write_text("id,label,name,b\nx 1,cat,q,-1\nx 2,,q,1\nx 3,dog,r,0\nx 4,,r,1\n")
    (tmp_path / "edges.csv").write_text("source,target\nx 1,x 2\nx 2,x 3\nx 3,x 4\n")
    shown = run_json("active", "next", tmp_path, "--labels", tmp_path / "nodes.csv", "--batch", 2, *FAST)
    assert shown["labels"] == 2
    assert sorted(task["name"] for task in shown["tasks"]) == ["x 2", "x 4"]


NODES = "id,label,size\na,cat,1\nb,dog,2\nc,,3\nd,,4\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "nodes.csv").write_text(NODES)
    (tmp_path / "graph" / "edges.csv").write_text("source,target\na,b\nb,c\nc,d\n")
    return tmp_path / "graph"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_add_never_writes_over_a_table_of_the_graph(tmp_path, folder):
    """nodes.csv can be read as labels; written, it would lose its features. The same by another way to the file."""
    (tmp_path / "answers.csv").write_text("node,label\nc,cat\n")
    (tmp_path / "link.csv").symlink_to(folder / "nodes.csv")
    (tmp_path / "hard.csv").hardlink_to(folder / "nodes.csv")
    before = contents(tmp_path)
    tables = (folder / "nodes.csv", folder / "edges.csv", tmp_path / "link.csv", tmp_path / "hard.csv")
    for labels in tables:
        said = refuses("active", "add", folder, "--labels", labels, "--answers", tmp_path / "answers.csv")
        assert "got the graph's table" in said
        assert contents(tmp_path) == before
    # that holds for a table without features and for another graph, too
    (folder / "nodes.csv").write_text("id,label\na,cat\n")
    for graph in (folder, "karate"):
        words = ("--labels", folder / "nodes.csv", "--answers", tmp_path / "answers.csv")
        assert "got the graph's table" in refuses("active", "add", graph, *words)


@pytest.mark.parametrize(
    "header", ["id,label,size", "node,label,size", "node,name,annotator,label", "id,label,chosen", "node,label,score"]
)
def test_add_refuses_labels_with_columns_that_would_be_lost(header, tmp_path, folder):
    labels, answers = tmp_path / "labels.csv", tmp_path / "answers.csv"
    labels.write_text(f"{header}\n")
    answers.write_text("node,label\nc,cat\n")
    said = refuses("active", "add", folder, "--labels", labels, "--answers", answers)
    assert f"got one with the columns {header.replace(',', ', ')}" in said
    assert labels.read_text() == f"{header}\n"


def test_add_to_labels_of_every_kind(tmp_path, folder):
    labels, answers = tmp_path / "labels.csv", tmp_path / "answers.csv"
    answers.write_text("node,label\nc,cat\n")
    for text in ("node,label\na,cat\n", "id,label\na,cat\n", "node,name,label,chosen\na,a,cat,random\n"):
        labels.write_text(text)
        assert run_json("active", "add", folder, "--labels", labels, "--answers", answers)["labels"] == 2


def test_next_replaces_its_own_files_only(tmp_path, folder):
    words = ("active", "next", folder, "--batch", 2)
    for _ in range(2):
        run_json(*words, "--out", tmp_path / "tasks.json")
    assert "got the graph's table" in refuses(*words, "--out", folder / "nodes.json")
    (tmp_path / "labels.csv").write_text("node,label\na,cat\n")
    assert "got one with the columns node, label" in refuses(*words, "--out", tmp_path / "labels.json")
    (tmp_path / "page.xml").write_text("<html/>")
    assert "got other content" in refuses(*words, "--out", tmp_path / "page.json")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    for text in (json.dumps([{**tasks[0], "annotations": [{"result": []}]}]), '{"a": 1}', "[1]", "{"):
        (tmp_path / "tasks.json").write_text(text)
        before = contents(tmp_path)
        assert "move it away" in refuses(*words, "--out", tmp_path / "tasks.json")
        assert contents(tmp_path) == before


def test_next_says_that_labels_of_the_graph_are_not_used(folder):
    """They are hidden, so all four nodes are candidates; with --labels two are left, and there is nothing to say."""
    result = run("active", "next", folder, "--batch", 4, "--strategy", "degree")
    assert (result.exit_code, "0 labels so far" in result.stdout) == (0, True)
    note = "Note: 2 labels of the graph are not used, and their nodes can be chosen again; add --labels "
    assert f"{note}{folder / 'nodes.csv'} to use them\n" in result.stderr
    used = run("active", "next", folder, "--batch", 2, "--labels", folder / "nodes.csv", *FAST)
    assert (used.exit_code, "2 labels so far" in used.stdout) == (0, True)
    assert "are not used" not in used.stderr
    (folder / "nodes.csv").write_text("id,size\na,1\nb,2\nc,3\nd,4\n")
    bare = run("active", "next", folder, "--classes", "cat,dog", "--batch", 1)
    assert (bare.exit_code, "are not used" in bare.stderr) == (0, False)


@pytest.mark.parametrize("name", ["labels.csv", "drawn.csv", "history.csv"])
def test_run_leaves_files_alone_that_no_run_wrote(name, tmp_path):
    (tmp_path / name).write_text("node,label\n3,0\n")
    before = contents(tmp_path)
    said = refuses("active", "run", "karate", *SHORT, "--explore", 0.5, "--out", tmp_path)
    assert "without the history.json of a run" in said
    assert contents(tmp_path) == before


def test_add_makes_the_file(tmp_path):
    answers, labels = tmp_path / "answers.csv", tmp_path / "new" / "labels.csv"
    answers.write_text("node,label\n3,0\n4,\n")
    result = run("active", "add", "karate", "--labels", labels, "--answers", answers)
    assert result.exit_code == 0, result.output
    assert labels.read_text() == "node,label,chosen\n3,0,actively\n"
    assert "1 new labels of 1 answered nodes" in result.stdout


def test_a_refused_answer_leaves_the_labels_alone(tmp_path, labels):
    before = labels.read_text()
    answers = tmp_path / "answers.csv"
    for text, message in (
        ("node,label\n5,1\n0,3\n", "keep its label '0', got '3'"),
        ("node,label\n5,9\n", "expected one of the classes"),
        ("node,label\n99,1\n", "line 2: expected a node number 0..33"),
        ("house,label\n5,1\n", "the columns node and label"),
    ):
        answers.write_text(text)
        assert message in refuses("active", "add", "karate", "--labels", labels, "--answers", answers)
        assert labels.read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.csv", "labels.csv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("next", "karate", "--strategy", "jurry"), "expected --strategy to be one of jury-design"),
        (("next", "karate", "--labels", "missing.csv"), "No such file"),
        (("next", "karate", "--batch", 0), "--batch"),
        (("next", "karate", "--batch", 99), "34 candidates, got 99"),
        (("next", "karate", "--strategy", "entropy"), "label some at random first"),
        (("next", "karate", "--candidates", "missing.txt"), "check --candidates"),
        (("next", "karate", "--classes", "a,b"), "4 classes, got 2"),
        (("next", "karat"), "did you mean 'karate'"),
        (("add", "karate"), "Missing option"),
        (("run", "karate", "--strategy", "magic"), "got 'magic'"),
        (("run", "karate", "--budget", 5), "above the 10 initial labels"),
        (("run", "karate", "--budget", 30), "15 labels of the pool"),
        (("run", "karate", "--initial", 2, "--budget", 4, "--stop-at", 7), "between 0 and 1"),
        (("run", "karate", "--initial", 2, "--budget", 4, "--oracle", "missing.csv"), "No such file"),
    ],
)
def test_refusals(arguments, message, tmp_path):
    out = tmp_path / "out" / ("tasks.json" if arguments[0] == "next" else "")
    given = arguments if arguments[0] == "add" else (*arguments, "--out", out)
    assert message in refuses("active", *given)
    assert not (tmp_path / "out").exists()


def test_next_refuses_an_out_that_is_no_json_file(tmp_path, labels):
    assert "to be a .json file" in refuses("active", "next", "karate", "--labels", labels, "--out", tmp_path / "tasks")
    assert "to be a .json file" in refuses("active", "next", "karate", "--labels", labels, "--out", tmp_path)


SHORT = ("--initial", 4, "--budget", 10, "--step", 3, *FAST)


def test_run_goes_on_from_its_folder(tmp_path):
    out = tmp_path / "out"
    first = run_json("active", "run", "karate", "--strategy", "margin", *SHORT, "--out", out)
    assert [row["labels"] for row in first["steps"]] == [4, 6, 9, 10]
    assert first["stopped"] == "budget"
    assert sorted(path.name for path in out.iterdir()) == ["history.csv", "history.json"]
    assert pd.read_csv(out / "history.csv")["labels"].tolist() == [4, 6, 9, 10]
    # as if it had been interrupted after two steps
    whole = History.load(out / "history.json")
    replace(whole, steps=whole.steps[:2], stopped="").save(out / "history.json")
    again = run_json("active", "run", "karate", "--strategy", "margin", *SHORT, "--out", out)
    assert again["nodes"] == first["nodes"]
    assert "seed 5 instead of 0" in refuses(
        "active", "run", "karate", "--strategy", "margin", *SHORT, "--out", out, "--seed", 5
    )


def test_run_for_people(tmp_path):
    result = run("active", "run", "karate", "--strategy", "random", *SHORT, "--initial-on-top", "--stop-settled")
    assert result.exit_code == 0, result.output
    assert "Active learning on karate: random" in result.stdout
    assert "initial labels on top" in result.stdout


def test_run_with_answers_from_a_file(tmp_path):
    truth = load_dataset("karate").y
    path = tmp_path / "truth.csv"
    path.write_text("node,label\n" + "".join(f"{node},{int(label)}\n" for node, label in enumerate(truth)))
    with_file = run_json("active", "run", "karate", "--strategy", "degree", *SHORT, "--oracle", path)
    without = run_json("active", "run", "karate", "--strategy", "degree", *SHORT)
    assert with_file["nodes"] == without["nodes"]
    assert [row["accuracy"] for row in with_file["steps"]] == [row["accuracy"] for row in without["steps"]]
