"""Tasks for people: what is shown, what Label Studio gets, what comes back."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from scenes import FAST, tail_graph

from jurygcn.active import PoolStrategy, next_tasks
from jurygcn.active.labels import (
    class_number,
    merged,
    parse_labels,
    read_labels,
    read_origins,
    with_classes,
    write_labels,
)
from jurygcn.active.tasks import (
    label_studio_config,
    label_studio_tasks,
    read_answer_origins,
    read_answers,
    tasks_csv,
)
from jurygcn.data.names import Names
from jurygcn.errors import DataError, SettingError


@pytest.fixture
def town():
    data = tail_graph()
    data.name = "town"
    data.class_names = ["left & west", "right"]
    data.node_names = [f"house {i}" for i in range(8)]
    return data


def test_a_number_and_a_name_that_disagree_are_refused(town, tmp_path):
    """Tasks say twice which node they are about."""
    given = next_tasks(town, {0: 0, 7: 1}, "random", batch=2, recipe=FAST)
    rows = list(csv.DictReader(io.StringIO(tasks_csv(given))))
    first, other = (given[0].node, given[1].node)
    path = tmp_path / "answers.csv"
    for node, fine in ((first, True), (other, False)):
        row = {**rows[0], "node": str(node), "label": "right"}
        path.write_text(",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n")
        exports = [{"node": node, "name": f"house {first}", "label": "right"}]
        exports.append({"data": exports[0], "annotations": exported((node, ["right"], False))[0]["annotations"]})
        for number, task in enumerate(exports):
            (tmp_path / f"{number}.json").write_text(json.dumps([task]))
        for file in (path, tmp_path / "0.json", tmp_path / "1.json"):
            if fine:
                assert read_answers(file, town) == {first: 1}
                continue
            with pytest.raises(DataError, match=rf"whose name is 'house {first}', got '?{other}'?"):
                read_answers(file, town)
    path.write_text(f"node,label,name\n{first},right,Alice\n")  # the graph has names, and this is none of them
    with pytest.raises(DataError, match="whose name is 'Alice'"):
        read_answers(path, town)


def exported(*tasks: tuple[int, list[str], bool]) -> list[dict]:
    """A Label Studio export: node, choices, cancelled."""
    return [
        {
            "id": number,
            "data": {"node": node, "text": "..."},
            "annotations": [
                {
                    "was_cancelled": cancelled,
                    "result": [
                        {"from_name": "label", "to_name": "text", "type": "choices", "value": {"choices": choices}}
                    ],
                }
            ],
        }
        for number, (node, choices, cancelled) in enumerate(tasks)
    ]


def written(path, document) -> object:
    path.write_text(json.dumps(document))
    return path


def test_tasks_say_why_and_what_is_around(town):
    tasks = next_tasks(town, {0: 0, 5: 1, 7: 1}, "degree", batch=2, recipe=FAST)
    assert [task.node for task in tasks] in ([4, 6], [6, 4])
    four = next(task for task in tasks if task.node == 4)
    assert (four.name, four.score) == ("house 4", 2.0)
    assert four.reason.startswith("it has 2 neighbours; the model predicts ")
    assert four.prediction in town.class_names
    assert 0.5 <= four.probability <= 1.0
    assert four.neighbours == "0 left & west, 5 right (of 2)"


def test_the_graphs_own_labels_are_not_looked_at(town):
    labels = {0: 0, 5: 1, 7: 1}
    tasks = next_tasks(town, labels, batch=3, recipe=FAST)
    town.y = 1 - town.y
    assert next_tasks(town, labels, batch=3, recipe=FAST) == tasks
    town.y[:] = -1
    assert next_tasks(town, labels, batch=3, recipe=FAST) == tasks


def test_the_first_batch_needs_no_label(town):
    tasks = next_tasks(town, {}, batch=2, recipe=FAST)
    assert len({task.node for task in tasks}) == 2
    assert tasks[0].prediction == ""
    assert "without labels there is no prediction yet" in tasks[0].reason
    assert "predictions" not in label_studio_tasks(tasks)[0]


def test_candidates_limit_the_choice(town):
    tasks = next_tasks(town, {0: 0, 5: 1}, "degree", batch=2, candidates=torch.tensor([3, 1, 0]), recipe=FAST)
    assert sorted(task.node for task in tasks) == [1, 3]
    with pytest.raises(SettingError, match="2 candidates, got 3"):
        next_tasks(town, {0: 0, 5: 1}, "degree", batch=3, candidates=torch.tensor([3, 1, 0]), recipe=FAST)


def test_a_function_may_choose(town):
    tasks = next_tasks(town, {0: 0, 5: 1}, lambda scene: scene.choice([3], [0.5]), batch=1, recipe=FAST)
    assert "chosen by" in tasks[0].reason


@pytest.mark.parametrize(("strategy", "chosen"), [("random", "random"), ("degree", "actively")])
def test_tasks_remember_how_they_were_chosen(town, tmp_path, strategy, chosen):
    """In the CSV and in both exports of Label Studio, whose tasks keep all fields."""
    tasks = next_tasks(town, {0: 0, 7: 1}, strategy, batch=2, recipe=FAST)
    wanted = {task.node: chosen for task in tasks}
    (tmp_path / "tasks.csv").write_text(tasks_csv(tasks))
    full = [{"data": entry["data"], "annotations": []} for entry in label_studio_tasks(tasks)]
    written(tmp_path / "full.json", full)
    written(tmp_path / "min.json", [{**entry["data"], "label": "right"} for entry in full])
    for file in ("tasks.csv", "full.json", "min.json"):
        assert read_answer_origins(tmp_path / file, town) == wanted


def test_an_unknown_way_of_choosing_is_refused(town, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("node,label,chosen\n4,right,cleverly\n")
    with pytest.raises(DataError, match=r"line 2: expected chosen to be random, per class or actively, got 'cleverly'"):
        read_origins(path, town)


def test_reasons_differ_where_the_reason_differs(town):
    """Each node has its own share of the uncertainty, and all shares together are at most the whole."""
    tasks = next_tasks(town, {}, batch=4, recipe=FAST)
    shares = [task.score for task in tasks]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 1
    assert all(f"remove {task.score:.1%} of the graph's uncertainty" in task.reason for task in tasks)
    assert "jury" not in tasks[0].reason  # there is none before the first label


def test_label_studio_import(town):
    tasks = next_tasks(town, {0: 0, 5: 1}, batch=2, recipe=FAST)
    config = ElementTree.fromstring(label_studio_config(town))
    choices = config.find("Choices")
    assert [choice.get("value") for choice in choices] == ["left & west", "right"]
    for task, entry in zip(tasks, json.loads(json.dumps(label_studio_tasks(tasks)))):
        assert {"node", "name", "score", "reason", "neighbours", "text"} <= set(entry["data"])
        assert entry["data"]["node"] == task.node
        assert task.reason in entry["data"]["text"]
        (prediction,) = entry["predictions"]
        (result,) = prediction["result"]
        # the names must be those of the interface
        assert (result["from_name"], result["to_name"]) == (choices.get("name"), choices.get("toName"))
        assert config.find("Text").get("name") == choices.get("toName")
        assert config.find("Text").get("value") == "$text"
        assert result["value"]["choices"] == [task.prediction]
        assert prediction["score"] == task.probability


def test_csv_round_trip(town, tmp_path):
    tasks = next_tasks(town, {0: 0, 5: 1}, batch=3, recipe=FAST)
    rows = list(csv.DictReader(io.StringIO(tasks_csv(tasks))))
    assert [int(row["node"]) for row in rows] == [task.node for task in tasks]
    path = tmp_path / "answers.csv"
    path.write_text(tasks_csv(tasks))
    assert read_answers(path, town) == {}  # nothing filled in yet
    rows[0]["label"], rows[2]["label"] = "right", "0"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    assert read_answers(path, town) == {tasks[0].node: 1, tasks[2].node: 0}


def test_cells_cannot_be_formulas(town):
    town.node_names[4] = "=1+1"
    tasks = next_tasks(town, {0: 0, 5: 1}, "degree", batch=1, candidates=torch.tensor([4]), recipe=FAST)
    assert ",'=1+1," in tasks_csv(tasks)


def test_label_studio_exports(town, tmp_path):
    path = tmp_path / "export.json"
    written(path, exported((3, ["right"], False), (4, ["left & west"], False), (5, ["right"], True), (6, [], False)))
    assert read_answers(path, town) == {3: 1, 4: 0}
    written(
        path, [{"node": 3, "label": "right"}, {"node": "house 4", "label": {"choices": ["left & west"]}}, {"node": 5}]
    )
    assert read_answers(path, town) == {3: 1, 4: 0}
    two = exported((3, ["right"], False))
    two[0]["annotations"] *= 2  # two annotators who agree
    assert read_answers(written(path, two), town) == {3: 1}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "expected a list of tasks"),
        ([3], "task 1: expected a Label Studio task"),
        ([{"id": 1}], "task 1"),
        (exported((3, ["up"], False)), "task 1: expected one of the classes left & west, right, got 'up'"),
        (exported((3, ["right"], False), (99, ["right"], False)), "task 2: expected a node number 0..7"),
        (exported((3, ["right", "left & west"], False)), "2 choices"),
        (exported((3, ["right"], False), (3, ["left & west"], False)), "one label for node 3"),
    ],
)
def test_bad_exports_are_refused(document, message, town, tmp_path):
    with pytest.raises(DataError, match=message):
        read_answers(written(tmp_path / "export.json", document), town)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got nothing"),
        ("house,kind\n1,right\n", "got house, kind"),
        ("node,label\n1,up\n", "line 2: expected one of the classes"),
        ("node,label\n1,right\n1,0\n", "line 3: expected one label for node 1"),
        ("node,label\nhouse 9,right\n", "or a node name, got 'house 9'"),
        ("node,label\n-1,right\n", "got '-1'"),
    ],
)
def test_bad_files_of_labels_are_refused(text, message, town, tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_labels(path, town)


def test_files_that_are_not_there_or_not_text(town, tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read_labels(tmp_path / "none.csv", town)
    with pytest.raises(DataError, match="No such file"):
        read_answers(tmp_path / "none.json", town)
    path = tmp_path / "bytes.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="other bytes"):
        read_labels(path, town)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(DataError, match="expected JSON"):
        read_answers(tmp_path / "bad.json", town)


def test_labels_round_trip_and_merge(town, tmp_path):
    path = tmp_path / "labels.csv"
    write_labels(path, {4: 1, 2: 0}, town, {4: "actively"})
    assert path.read_text() == "node,name,label,chosen\n4,house 4,right,actively\n2,house 2,left & west,\n"
    assert read_origins(path, town) == {4: "actively"}
    nodes, labels = read_labels(path, town)
    assert (nodes.tolist(), labels.tolist()) == ([4, 2], [1, 0])
    assert merged({4: 1}, {4: 1, 2: 0}, town, "x") == {4: 1, 2: 0}
    town.node_names[4] = "=1+1"  # written so that no spreadsheet runs it, and read back
    write_labels(path, {4: 1}, town)
    assert path.read_text() == "node,name,label,chosen\n4,'=1+1,right,\n"
    assert read_labels(path, town)[0].tolist() == [4]
    with pytest.raises(DataError, match="keep its label 'right', got 'left & west'"):
        merged({4: 1}, {4: 0}, town, "x")


def test_names_and_numbers(town):
    assert [class_number(word, town) for word in ("right", "1", 0)] == [1, 1, 0]
    assert [Names.of_nodes(town).position(word) for word in ("house 3", "3", 3)] == [3, 3, 3]
    assert parse_labels([(1, None, None, ""), (2, None, " ", ""), (3, None, 1, "")], town, "x")[0].tolist() == [3]


def test_a_graph_without_labels_gets_its_classes(town, tmp_path):
    bare = tail_graph()
    bare.y[:], bare.num_classes = -1, 0
    path = tmp_path / "labels.csv"
    path.write_text("node,label\n0,sun\n5,moon\n1,sun\n")
    named = with_classes(bare, path)
    assert (named.num_classes, named.class_names) == (2, ["moon", "sun"])
    assert read_labels(path, named)[1].tolist() == [1, 0, 1]
    assert with_classes(bare, None, ["a", "b", "c"]).num_classes == 3
    assert with_classes(town, path) is town
    for classes in (None, ["one"], ["a", "a"], ["a", ""]):
        with pytest.raises(DataError, match="at least two different classes"):
            with_classes(bare, None, classes)
    with pytest.raises(DataError, match="2 classes, got 3"):
        with_classes(town, None, ["a", "b", "c"])


def test_the_interface_of_scikit_activeml(town):
    y = np.full(8, np.nan)
    y[[0, 5]] = [0, 1]
    expected = [task.node for task in next_tasks(town, {0: 0, 5: 1}, batch=3, recipe=FAST)]
    strategy = PoolStrategy(town, recipe=FAST)
    assert strategy.query(town.x, y, batch_size=3).tolist() == expected
    assert strategy.query(town.x, np.nan_to_num(y, nan=-1), batch_size=3).tolist() == expected
    assert strategy.query(town.x, y, candidates=[0, 3, 4]).tolist()[0] in (3, 4)
    with pytest.raises(SettingError, match="return_utilities=False"):
        strategy.query(town.x, y, return_utilities=True)
    with pytest.raises(DataError, match="each of the 8 nodes"):
        strategy.query(town.x[:3], y[:3])
