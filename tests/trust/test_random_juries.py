"""Whole juries of 48 kinds of model against dense matrices and plain loops, drawn from seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from model_kinds import KINDS
from random_juries import Case, outcome

QUICK, MANY = 3 * len(KINDS), 5000


def outcomes(cases: Iterable[Case]) -> Counter[str]:
    """How often each outcome came; fails with a line for each case that is wrong or raises what is no JuryError."""
    found, lines = Counter[str](), []
    for case in cases:
        how, again = outcome(case)
        found[how] += 1
        lines += [again] if again else []
    assert not lines, "\n".join(["", *lines])
    return found


def test_there_are_enough_kinds():
    assert len(KINDS) >= 35


def test_random_juries_agree_with_plain_loops():
    found = outcomes(map(Case, range(QUICK)))
    assert found["right"] > 0.6 * QUICK
    assert found["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, MANY, 500))
def test_thousands_of_random_juries_agree_with_plain_loops(start: int):
    found = outcomes(map(Case, range(start, start + 500)))
    assert found["right"] > 300


def heard_by_many(kind: str) -> Case:
    """The first case of this kind with several jurors who vote by forward passes."""
    for seed in range(list(KINDS).index(kind), 10_000, len(KINDS)):
        case = Case(seed, parallel=2)
        if case.votes != "linearized" and len(case.nodes) > 3 and not case.nonsense and not case.whole_numbers:
            return case
    raise AssertionError(kind)


@pytest.mark.slow
def test_random_juries_heard_by_two_processes_agree_with_plain_loops():
    found = outcomes(map(heard_by_many, KINDS))
    assert found["right"] > 0.9 * len(KINDS)


def test_a_wrong_jury_is_noticed(monkeypatch):
    """The comparison itself can fail: jurors that step the other way are found out, with a line to see it again."""
    from jurygcn.leave_one_out import estimated as jurors

    monkeypatch.setattr(jurors.LeaveOneOut, "newton_jurors", jurors.LeaveOneOut.influence_jurors)
    failed = [again for how, again in map(outcome, map(Case, range(16))) if how == "wrong"]
    assert failed
    assert all("random_juries.py" in again and "\n" not in again for again in failed)
