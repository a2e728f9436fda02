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

# Each in a child of a new process: a large one has room to hide in, as learning leaves it. Juries as they should be,
# then with all of them kept.
SCRIPT = """
import json, endurance
from children import in_child

data = endurance.synthetic(**endurance.GRAPH)

def learning():
    return endurance.observe("active-learning steps", endurance.learning(data, 4, 4))

def juries():
    return endurance.observe("verdicts", endurance.hearing(data, 60, 6))

def kept_juries():
    kept, fit = [], endurance.Jury.fit
    endurance.Jury.fit = lambda jury: kept.append(fit(jury)) or kept.append(open("/dev/null")) or jury
    return juries()

print(json.dumps({work.__name__: in_child(work) for work in (learning, juries, kept_juries)}))
"""


@pytest.fixture(scope="module")
def observed() -> dict[str, dict]:
    path = os.pathsep.join([str(BENCHMARKS), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("what", ["learning", "juries"])
def test_memory_and_files_stay(observed, what):
    row = observed[what]
    assert row["growth_mb"] < MOST_MB
    assert row["files_most"] == row["files_before"]


def test_a_leak_would_be_seen(observed):
    verdicts = observed["kept_juries"]
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
