"""A short form of benchmarks/endurance.py: what a process does over and over leaves nothing behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from children import in_child

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MOST_MB = 5.0  # a juror's matrices would be more than this within a few verdicts, were they kept


@pytest.fixture
def endurance(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import endurance

    yield endurance
    for name in ("endurance", "harness"):
        sys.modules.pop(name, None)


def test_memory_and_files_stay(endurance):
    for row in in_child(lambda: endurance.measure(4, 4, 60, 6)):
        assert row["growth_mb"] < MOST_MB, row
        assert row["files_most"] == row["files_before"], row


def test_a_leak_would_be_seen(endurance):
    """Keeping every juror of 60 juries."""

    def leaking():
        kept, fit = [], endurance.Jury.fit
        endurance.Jury.fit = lambda jury: kept.append(fit(jury)) or jury
        return endurance.measure(1, 2, 60, 6)

    learning, hearing = in_child(leaking)
    assert hearing["growth_mb"] > MOST_MB, (learning, hearing)


def test_the_full_run_was_flat():
    document = json.loads((BENCHMARKS / "results" / "endurance.json").read_text(encoding="utf-8"))
    assert [(row["what"], row["count"]) for row in document["rows"]] == [
        ("active-learning steps", 500),
        ("verdicts", 1000),
    ]
    for row in document["rows"]:
        assert row["growth_mb"] < MOST_MB
        assert row["files_most"] == row["files_before"]
