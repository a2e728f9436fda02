"""What happens between the page, the answers and the worker, without any of the three."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from light_server import CLASSES, ring

from jurygcn.app import exports, label_studio
from jurygcn.app.rounds import Doubtful, Failed, Job, Loaded, Round, View
from jurygcn.app.scheduling import Chosen
from jurygcn.app.session import Caller, Gone, Session, thinned
from jurygcn.app.store import Answers, Point
from jurygcn.errors import DataError

NODES = 40
ANN, BOB = Caller("ann", "1"), Caller("bob", "1")


@pytest.fixture
def jobs() -> list[Job]:
    return []


@pytest.fixture
def session(tmp_path, jobs) -> Session:
    made = Session(Answers(tmp_path / "answers.sqlite"), batch=4, submit=jobs.append)
    made.hear(Loaded(ring(NODES)))
    made.hear(Round(0, [Chosen(node, "first") for node in (9, 8, 7, 6)]))
    return made


def view(prediction: int = 1) -> View:
    return View(
        np.full(NODES, prediction, np.int16),
        np.full(NODES, 0.8, np.float32),
        np.tile([False, True, True], (NODES, 1)),
        np.tile(np.float32([0.05, 0.6, 0.4]), (NODES, 1)),
    )


def answer(session: Session, caller: Caller, label: int | None = 0, **more: object):
    page = session.next(caller)
    assert page is not None
    kind = "unknown" if label is None else "label"
    return session.answer(caller, {"node": page["node"], "kind": kind, "label": label, "request": "r", **more})


def test_nothing_is_asked_before_the_graph_is_there(tmp_path):
    session = Session(Answers(tmp_path / "answers.sqlite"))
    assert session.state()["stage"] == "Loading the graph"
    with pytest.raises(Gone):
        session.next(ANN)
    session.hear(Loaded(ring(NODES)))
    assert session.state()["stage"] == "Choosing the first nodes"


def test_the_first_job_does_not_train(jobs, session):
    assert [job.train for job in jobs] == [False]
    assert jobs[0].size == 8
    assert len(jobs[0].candidates) == NODES


def test_a_job_after_half_a_batch_and_one_at_a_time(jobs, session):
    answer(session, ANN)
    assert len(jobs) == 1
    answer(session, ANN, 1)
    assert jobs[1].train
    assert jobs[1].labels == {8: 1, 9: 0}
    session.next(BOB)
    for _ in range(4):  # the worker is busy
        answer(session, ANN)
    assert len(jobs) == 2
    session.hear(Round(2, [Chosen(30, "second")], view(), Point(2, 0.5, 0.1, 0.9)))
    assert len(jobs) == 3  # enough has changed meanwhile
    assert jobs[2].pending == [7]  # bob's node
    assert not set(jobs[2].labels) & set(jobs[2].candidates.tolist())
    assert 7 not in jobs[2].candidates
    assert session.next(ANN)["node"] == 30


def test_pages_never_wait_for_the_worker(session):
    """The worker never answers again: all nodes are handed out all the same."""
    seen = {answer(session, ANN).node for _ in range(NODES)}
    assert seen == set(range(NODES))
    assert session.next(ANN) is None
    assert session.state(ANN)["labels"] == NODES


def test_the_page_of_a_node(session):
    answer(session, ANN, 2)  # node 9
    session.hear(Round(1, [Chosen(8, "why")], view()))
    page = session.next(ANN)
    assert page["node"] == 8
    assert page["reason"] == "why"
    near = {entry["node"]: entry for entry in page["near"]}
    assert near.keys() == {7, 8, 9}
    assert near[9]["label"] == 2
    assert near[8] == {"node": 8, "name": "<b>node</b> 8", "label": None, "prediction": 1}
    assert page["verdict"]["set"] == [1, 2]
    json.dumps(page, allow_nan=False)


def test_an_annotator_does_not_see_answers_of_others_for_the_node(tmp_path, jobs):
    session = Session(Answers(tmp_path / "answers.sqlite"), batch=4, overlap=2, submit=jobs.append)
    session.hear(Loaded(ring(NODES)))
    session.hear(Round(0, [Chosen(5, "first")]))
    assert answer(session, ANN, 2, comment="secret").node == 5
    page = session.next(BOB)
    assert page["node"] == 5
    assert page["near"][0]["label"] is None
    assert "secret" not in json.dumps(page)


def test_the_same_request_again_changes_nothing(session):
    page = session.next(ANN)
    request = {"node": page["node"], "kind": "label", "label": 1, "request": "once"}
    first = session.answer(ANN, request)
    assert session.answer(ANN, request) == first
    assert session.changes == 1
    with pytest.raises(Gone, match="already"):
        session.answer(ANN, {**request, "request": "another", "label": 2})
    assert session.answers.labels == {page["node"]: 1}
    session.answer(ANN, {**request, "request": "another", "label": 2, "revise": True})
    assert session.answers.labels == {page["node"]: 2}


def test_undo(session):
    node = answer(session, ANN, 2, comment="hm").node
    answer(session, BOB, 1)
    page = session.undo(ANN)
    assert page["node"] == node
    assert page["before"] == {"kind": "label", "label": 2, "comment": "hm"}
    assert session.next(ANN)["node"] == node
    assert session.next(BOB)["node"] != node
    with pytest.raises(Gone, match="nothing to undo"):
        session.undo(ANN)


def test_answers_worth_a_second_look(tmp_path):
    session = Session(Answers(tmp_path / "answers.sqlite"), batch=4, overlap=2)
    session.hear(Loaded(ring(NODES)))
    session.hear(Round(0, [Chosen(5, "first"), Chosen(6, "second")]))
    for caller, label in ((ANN, 0), (BOB, 1)):
        answer(session, caller, label)
        answer(session, caller, 2)
    session.hear(Round(1, [], view(), doubtful=[Doubtful(6, 2, 1, 0.02), Doubtful(5, 0, 1, 0.1)]))
    found = session.state(ANN)["again"]
    assert [(entry["node"], entry["why"]) for entry in found] == [(5, "disagreement"), (6, "doubtful")]
    assert found[0]["said"] == {"ann": 0, "bob": 1}
    session.answer(ANN, {"node": 6, "kind": "label", "label": 1, "request": "x", "revise": True})
    assert [entry["node"] for entry in session.state(ANN)["again"]] == [5, 6]  # now they disagree


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 1234])
def test_a_long_curve_is_thinned(count):
    points = [Point(k, 0.5, 0.4, 0.6) for k in range(count)]
    kept = thinned(points)
    assert len(kept) <= 100
    assert len(kept) >= min(count, 50)
    assert kept[-1:] == points[-1:]
    assert kept == sorted(kept, key=lambda point: point.labels)


def test_another_graph_or_a_failed_worker_ends_the_session(session, tmp_path):
    session.answers.close()
    other = Session(Answers(tmp_path / "answers.sqlite"))
    other.hear(Loaded(ring(NODES + 1)))
    assert "--answers" in other.failed
    broken = Session(Answers(tmp_path / "other.sqlite"))
    broken.hear(Failed("expected a graph"))
    broken.hear(None)
    assert broken.failed == "expected a graph"


def test_the_worker_may_end_while_people_label(session):
    session.hear(None)
    assert "Start again" in session.state(ANN)["note"]
    for _ in range(10):
        answer(session, ANN)
    assert session.state(ANN)["labels"] == 10


def test_labels_of_a_file(tmp_path, jobs):
    session = Session(Answers(tmp_path / "answers.sqlite"), batch=4, submit=jobs.append)
    session.hear(Loaded(ring(NODES), {3: 1, 4: 0}, {3: "random"}))
    session.hear(Round(2, []))
    assert jobs[1].train
    assert jobs[1].labels == {3: 1, 4: 0}
    assert session.state(ANN)["given"] == 2


# --- exports ----------------------------------------------------------------------------------------------------


def test_exports(session):
    session.answers.add_given({1: 2}, {1: "random"})
    answer(session, ANN, 2, comment="=1+1")
    answer(session, BOB, None)
    rows = list(csv.DictReader(io.StringIO(exports.labels_csv(session.answers, session.table))))
    assert rows == [
        {"node": "1", "name": session.table.name(1), "label": CLASSES[2], "chosen": "random"},
        {"node": "9", "name": session.table.name(9), "label": CLASSES[2], "chosen": "actively"},
    ]
    everything = list(csv.DictReader(io.StringIO(exports.answers_csv(session.answers, session.table))))
    assert [(row["node"], row["annotator"], row["answer"], row["comment"]) for row in everything] == [
        ("9", "ann", "label", "'=1+1"),  # no spreadsheet runs it
        ("8", "bob", "unknown", ""),
    ]
    tasks = json.loads(exports.label_studio_json(session.answers, session.table))
    assert [task["data"]["node"] for task in tasks] == ["1", "8", "9"]
    assert tasks[1]["annotations"][0]["was_cancelled"]
    assert tasks[2]["annotations"][0]["result"][0]["value"]["choices"] == [CLASSES[2]]


def test_nodes_with_numbers_as_names():
    table = replace(ring(3), names=["2", "0", "1"], written_by_name=True)
    assert [table.written(node) for node in range(3)] == ["2", "0", "1"]
    assert table.find("0") == 1
    assert table.find("0", "2") == 0  # number and name of one node
    assert table.find("2", "2") == 0
    assert table.find("1", "2") is None
    assert table.find("7") is None


# --- Label Studio -----------------------------------------------------------------------------------------------


def task(node: int) -> dict:
    return {"id": 100 + node, "data": {"node": node, "name": f"<b>node</b> {node}"}}


def annotation(word: str | None, number: int = 5) -> dict:
    result = [] if word is None else [{"type": "choices", "value": {"choices": [word]}}]
    return {"id": number, "result": result, "completed_by": {"id": 7}, "was_cancelled": False}


def test_predictions_and_scores(session):
    """Chosen nodes have the lowest scores, in the order of the choice."""
    found = label_studio.predict(session, {"tasks": [task(node) for node in (0, 9, 8)]})["results"]
    assert [entry["result"] for entry in found] == [[], [], []]
    session.hear(Round(3, [Chosen(8, ""), Chosen(9, "")], view()))
    found = label_studio.predict(session, {"tasks": [task(node) for node in (0, 9, 8)]})["results"]
    assert [entry["result"][0]["value"]["choices"] for entry in found] == [["b"]] * 3
    scores = [entry["score"] for entry in found]
    assert scores[2] < scores[1] < 0.5 < scores[0] <= 1
    assert scores[0] == pytest.approx(0.9)


def test_webhooks(session, jobs):
    for node, word, number in ((3, "a", 5), (4, CLASSES[2], 6), (5, None, 7)):
        event = {"action": "ANNOTATION_CREATED", "task": task(node), "annotation": annotation(word, number)}
        label_studio.listen(session, event)
    assert session.answers.labels == {3: 0, 4: 2}
    assert jobs[-1].train
    event = {"action": "ANNOTATION_UPDATED", "task": task(3), "annotation": annotation("b", 5)}
    label_studio.listen(session, event)
    assert session.answers.labels == {3: 1, 4: 2}
    label_studio.listen(session, {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 6}]})
    assert session.answers.labels == {3: 1}
    assert label_studio.listen(session, {"action": "PROJECT_UPDATED"}) == {"status": "ok"}


def test_training_takes_all_annotations_once(session):
    tasks = [{**task(node), "annotations": [annotation("a", node)]} for node in range(4)]
    label_studio.train(session, {"annotations": tasks})
    numbers = [answer.number for answer in session.answers]
    label_studio.train(session, {"annotations": tasks})
    assert session.answers.labels == dict.fromkeys(range(4), 0)
    assert [answer.number for answer in session.answers] == numbers


@pytest.mark.parametrize(
    "event",
    [
        {"action": "ANNOTATION_CREATED"},
        {"action": "ANNOTATION_CREATED", "task": task(3), "annotation": annotation("unheard of")},
        {"action": "ANNOTATION_CREATED", "task": {"data": {"node": 999}}, "annotation": annotation("a")},
        {"action": "ANNOTATION_CREATED", "task": {"data": "x"}, "annotation": annotation("a")},
    ],
)
def test_webhooks_that_do_not_fit(session, event):
    with pytest.raises(DataError, match="expected"):
        label_studio.listen(session, event)
    assert session.answers.labels == {}
