"""A short form of benchmarks/endurance.py: what a process does over and over leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
MOST_MB = 5.0  # 60 juries of this size take almost twice as much, were they kept

# In a process of its own: a large one has room to hide in. First as it should be, then with all juries kept.
SCRIPT = """
import json, endurance
calm = endurance.measure(4, 4, 60, 6)
kept, fit = [], endurance.Jury.fit
endurance.Jury.fit = lambda jury: kept.append(fit(jury)) or kept.append(open("/dev/null")) or jury
print(json.dumps([calm, endurance.measure(1, 2, 60, 6)]))
"""


@pytest.fixture(scope="module")
def measured() -> list[list[dict]]:
    path = os.pathsep.join([str(BENCHMARKS), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_memory_and_files_stay(measured):
    for row in measured[0]:
        assert row["growth_mb"] < MOST_MB
        assert row["files_most"] == row["files_before"]


def test_a_leak_would_be_seen(measured):
    verdicts = measured[1][1]
    assert verdicts["growth_mb"] > MOST_MB
    assert verdicts["files_most"] > verdicts["files_before"]


def test_the_full_run_was_flat():
    document = json.loads((BENCHMARKS / "results" / "endurance.json").read_text(encoding="utf-8"))
    assert [(row["what"], row["count"]) for row in document["rows"]] == [
        ("active-learning steps", 500),
        ("verdicts", 1000),
    ]
    for row in document["rows"]:
        assert row["growth_mb"] < MOST_MB
        assert row["files_most"] == row["files_before"]
