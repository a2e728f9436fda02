"""The file of answers: what is written stays, what contradicts is refused."""

from __future__ import annotations

import random
import sqlite3

import pytest

from jurygcn.app.store import Answer, Answers, Point
from jurygcn.errors import DataError, SettingError

FACTS = {"nodes": 10, "classes": ["a", "b", "c"]}


@pytest.fixture
def answers(tmp_path):
    made = Answers(tmp_path / "answers.sqlite")
    made.bind(FACTS)
    return made


def reopened(answers: Answers) -> Answers:
    answers.close()
    return Answers(answers.path)


def test_everything_is_there_after_closing(answers):
    answers.add_given({7: 2}, {7: "random"})
    first = answers.record(Answer(3, "ann", "label", 1, comment="sure; 'quoted' \u2028 <b>", request="r1"))
    answers.record(Answer(4, "ann", "unknown"))
    answers.record(Answer(4, "bob", "skip"))
    answers.add_point(Point(2, 0.5, 0.25, 0.75))
    again = reopened(answers)
    assert again.by_node == answers.by_node
    assert again.by_node[3]["ann"] == first
    assert again.labels == {3: 1, 7: 2}
    assert again.curve == [Point(2, 0.5, 0.25, 0.75)]
    assert again.facts["classes"] == ["a", "b", "c"]
    assert [path.name for path in again.path.parent.iterdir() if "wal" in path.name and path.stat().st_size] == []


def test_the_file_is_written_ahead_and_synchronised(answers):
    assert answers._file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert answers._file.execute("PRAGMA synchronous").fetchone() == (2,)


def test_one_answer_per_node_and_annotator(answers):
    answers.record(Answer(3, "ann", "label", 1))
    answers.record(Answer(3, "ann", "label", 2))
    assert [(a.label, a.number) for a in answers] == [(2, 2)]
    assert [(a.label, a.number) for a in reopened(answers)] == [(2, 2)]


def test_removing_the_last_answer(answers):
    answers.record(Answer(3, "ann", "label", 1))
    answers.record(Answer(4, "bob", "label", 1))
    answers.record(Answer(5, "ann", "skip"))
    last = answers.last_of("ann")
    assert last is not None
    assert last.node == 5
    answers.remove(last)
    assert answers.last_of("ann").node == 3
    assert answers.last_of("nobody") is None
    assert sorted(a.node for a in reopened(answers)) == [3, 4]


def test_labels_are_the_majority(answers):
    answers.add_given({1: 0, 2: 0}, {1: "random"})
    for annotator, label in (("ann", 1), ("bob", 2)):
        answers.record(Answer(1, annotator, "label", label))
    assert answers.label(1) is None  # a tie, although the file had a label
    answers.record(Answer(1, "eve", "label", 2))
    answers.record(Answer(5, "eve", "unknown"))
    assert answers.labels == {1: 2, 2: 0}
    assert answers.disagreements() == {1: {"ann": 1, "bob": 2, "eve": 2}}
    assert answers.origin(1) == "random"
    answers.record(Answer(6, "eve", "label", 0))
    assert answers.origin(6) == "actively"
    assert answers.counts["eve"] == {"label": 2, "unknown": 1, "skip": 0}


def test_memory_and_file_agree_after_many_changes(answers):
    draw = random.Random(1)
    for _ in range(150):
        node, who, kind = draw.randrange(6), draw.choice("abc"), draw.choice(("label", "label", "unknown", "skip"))
        there = answers.by_node.get(node, {}).get(who)
        if there is not None and draw.random() < 0.4:
            answers.remove(there)
        else:
            answers.record(Answer(node, who, kind, draw.randrange(3) if kind == "label" else None))
    kept = {node: given for node, given in answers.by_node.items() if given}
    counts = {who: found for who, found in answers.counts.items() if sum(found.values())}
    again = reopened(answers)
    assert again.by_node == kept
    assert again.labels == answers.labels
    assert again.counts == counts
    assert again.disagreements() == answers.disagreements()
    for node, given in kept.items():  # the labels, counted by hand
        votes = [a.label for a in given.values() if a.label is not None]
        best = [label for label in set(votes) if votes.count(label) == max(map(votes.count, votes))]
        assert answers.labels.get(node) == (best[0] if len(best) == 1 else None)
        assert (node in answers.disagreements()) == (len(set(votes)) > 1)


def test_another_graph_is_refused(answers):
    with pytest.raises(DataError, match=r"classes.*--answers"):
        answers.bind({**FACTS, "classes": ["a", "b"]})
    answers.bind(FACTS)


def test_contradicting_labels_are_refused_as_a_whole(answers):
    assert answers.add_given({1: 0, 2: 1}, {}) == 2
    assert answers.add_given({1: 0, 3: 1}, {}) == 1
    with pytest.raises(DataError, match="node 1 to keep its label 'a', got 'b'"):
        answers.add_given({8: 1, 1: 1}, {})
    assert 8 not in reopened(answers).given


@pytest.mark.parametrize(("kind", "label"), [("label", None), ("skip", 1), ("maybe", None)])
def test_impossible_answers(kind, label):
    with pytest.raises(DataError, match="expected an answer of kind"):
        Answer(0, "ann", kind, label)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "notes.sqlite"
    path.write_text("these are no answers" * 100)
    with pytest.raises(DataError, match="--answers"):
        Answers(path)


def test_a_failed_write_keeps_nothing(answers):
    other = sqlite3.connect(answers.path, timeout=0, isolation_level=None)
    answers._file.execute("PRAGMA busy_timeout = 0")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(SettingError, match="expected to write the answer"):
        answers.record(Answer(3, "ann", "label", 1))
    assert list(answers) == []
    other.execute("ROLLBACK")
    answers.record(Answer(3, "ann", "label", 1))
    assert len(list(reopened(answers))) == 1
