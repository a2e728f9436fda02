"""Who gets which node."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurygcn.app.scheduling import LEASE, Chosen, Desk
from jurygcn.app.store import Answer, Answers


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


def desk_of(path, count: int = 10, *, overlap: int = 1, ranking: tuple[int, ...] = ()) -> Desk:
    desk = Desk(Answers(path / "answers.sqlite"), range(count), overlap, Clock())
    desk.renew(Chosen(node, f"because {node}") for node in ranking)
    return desk


def answer(desk: Desk, annotator: str, tab: str, kind: str = "label") -> int:
    entry = desk.next_for(annotator, tab)
    assert entry is not None
    desk.answers.record(Answer(entry.node, annotator, kind, 0 if kind == "label" else None))
    desk.release(annotator, entry.node)
    return entry.node


def test_the_choice_comes_first_then_the_previous_one_then_all(tmp_path):
    desk = desk_of(tmp_path, ranking=(7, 5))
    assert answer(desk, "ann", "1") == 7
    desk.renew([Chosen(3, "new")])
    assert [answer(desk, "ann", "1") for _ in range(4)] == [3, 5, 0, 1]
    assert desk.entry(3).reason == "new"
    assert "not ready" in desk.entry(9).reason


def test_the_same_tab_keeps_its_node_and_others_get_other_ones(tmp_path):
    desk = desk_of(tmp_path, ranking=(7, 5, 3))
    assert desk.next_for("ann", "1").node == 7
    assert desk.next_for("ann", "1").node == 7  # reload
    assert desk.next_for("ann", "2").node == 5  # a second tab
    assert desk.next_for("bob", "1").node == 3
    assert desk.pending() == [3, 5, 7]
    assert desk.ready() == 0


def test_a_node_is_free_again_without_a_sign_of_life(tmp_path):
    desk = desk_of(tmp_path, ranking=(7, 5))
    desk.next_for("ann", "1")
    desk.now.time = LEASE - 1
    desk.still_there("ann", "1")
    desk.now.time = LEASE + 1
    assert desk.next_for("bob", "1").node == 5
    desk.now.time = 3 * LEASE
    assert desk.next_for("eve", "1").node == 7


def test_skipped_nodes_go_to_others(tmp_path):
    desk = desk_of(tmp_path, ranking=(7,))
    assert answer(desk, "ann", "1", "skip") == 7
    assert desk.next_for("ann", "1").node == 0
    assert 7 not in desk.open_nodes()  # ann is the only annotator
    assert desk.next_for("bob", "1").node == 7
    assert answer(desk, "bob", "1", "unknown") == 7
    assert desk.settled(7)
    assert 7 not in desk.open_nodes()


def test_overlap(tmp_path):
    desk = desk_of(tmp_path, overlap=2, ranking=(7, 5))
    assert answer(desk, "ann", "1") == 7
    assert desk.next_for("ann", "1").node == 5
    assert desk.next_for("bob", "1").node == 7  # begun nodes first
    assert desk.next_for("eve", "1").node == 5
    assert answer(desk, "bob", "1") == 7
    assert desk.settled(7)
    assert answer(desk, "bob", "1") == 0  # 5 is with ann and eve


def test_labels_from_a_file_are_not_asked(tmp_path):
    desk = desk_of(tmp_path, 4, ranking=(1, 2))
    desk.answers.add_given({1: 0, 3: 0}, {})
    assert [answer(desk, "ann", "1") for _ in range(2)] == [2, 0]
    assert desk.next_for("ann", "1") is None


@settings(max_examples=15, deadline=None)
@given(overlap=st.integers(1, 3), steps=st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40))
def test_nobody_gets_a_node_too_often(tmp_path_factory, overlap, steps):
    desk = desk_of(tmp_path_factory.mktemp("desk"), 12, overlap=overlap, ranking=(4, 2, 9))
    for who, answers in steps:
        entry = desk.next_for(f"annotator {who}", "1")
        if entry is None or not answers:
            continue
        desk.answers.record(Answer(entry.node, f"annotator {who}", "label", 0))
        desk.release(f"annotator {who}", entry.node)
    held = [node for node, _ in desk.held.values()]
    for node in range(12):
        assert len(desk.answers.by_node.get(node, {})) + held.count(node) <= overlap


@pytest.mark.parametrize("annotators", [1, 3])
def test_every_node_is_labelled_once_in_the_end(tmp_path, annotators):
    desk = desk_of(tmp_path, 30, ranking=(4, 2, 9))
    seen = []
    while len(seen) < 30:
        seen += [answer(desk, f"annotator {len(seen) % annotators}", "1")]
    assert sorted(seen) == list(range(30))
    assert desk.next_for("annotator 0", "1") is None
