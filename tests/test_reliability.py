"""docs/reliability.md: every test that it names is there, every count is right, and no test of faults is left out.

`python tests/test_reliability.py` writes the counts anew.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from conftest import CASES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
ROW = re.compile(r"^(\|.*`tests/.*\|) (\d+) \|$", flags=re.MULTILINE)
# Where all tests are about faults, so that each must stand in a row.
WHOLE = ("tests/faults", "tests/hostile", "tests/data/test_data_faults.py", "tests/test_determinism.py")
OTHER = {"test_sizes_are_those_of_the_tiny_graph"}  # about the tests' own tools


def rows(text: str) -> list[tuple[str, list[tuple[str, str]], int]]:
    """The words of each row, the tests it names and the count it gives."""
    return [(match[1], NAME.findall(match[1]), int(match[2])) for match in ROW.finditer(text)]


@cache
def defined(file: str) -> list[str]:
    """The tests that a file defines."""
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.parse("")
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_every_named_test_exists():
    text = PAGE.read_text(encoding="utf-8")
    found = rows(text)
    assert len(found) > 30
    assert [row for row in text.splitlines() if "`tests/" in row and not ROW.match(row)] == [], "a row without a count"
    assert [f"{file}::{name}" for _, tests, _ in found for file, name in tests if name not in defined(file)] == []


def test_every_count_is_right(request: pytest.FixtureRequest):
    """Of the rows whose files are part of this run, as all are when all tests run."""
    cases = request.config.stash[CASES]
    there = {test.partition("::")[0] for test in cases}
    wrong = {}
    for words, tests, count in rows(PAGE.read_text(encoding="utf-8")):
        found = sum(cases[f"{file}::{name}"] for file, name in tests)
        if all(file in there for file, _ in tests) and found != count:
            wrong[words[:60]] = (count, found)
    if any("::" in argument for argument in request.config.args):
        pytest.skip("single tests were asked for")
    assert wrong == {}, "run python tests/test_reliability.py"


def test_no_test_of_faults_is_left_out():
    named = {test for _, tests, _ in rows(PAGE.read_text(encoding="utf-8")) for test in tests}
    there = [path for place in WHOLE for path in sorted((ROOT / place).rglob("test_*.py")) or [ROOT / place]]
    files = [path.relative_to(ROOT).as_posix() for path in there]
    assert [f"{f}::{n}" for f in files for n in defined(f) if (f, n) not in named and n not in OTHER] == []


@pytest.mark.parametrize("name", ["tests/test_docs.py::test_gone", "tests/gone.py::test_gone"])
def test_a_missing_test_would_be_seen(name: str):
    ((_, tests, count),) = rows(f"| a | b | `{name}` | 1 |")
    assert count == 1
    assert [name for file, name in tests if name not in defined(file)]


def test_the_mutants_are_those_of_the_run():
    found = json.loads((ROOT / "tools" / "mutants.json").read_text(encoding="utf-8"))
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{found['caught']} of {found['tried']} mutants, drawn at random from {found['places']:,} places" in text
    assert found["caught"] >= 0.85 * found["tried"]
    survivors = {name: result for name, result in found["mutants"].items() if result["outcome"] == "survived"}
    assert all(result.get("equivalent") for result in survivors.values())  # each with the reason why


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    files = sorted({file for _, tests, _ in rows(page) for file, _ in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    cases = Counter(re.findall(r"^(tests/\S+?\.py)::(test_\w+)", listed, flags=re.MULTILINE))
    PAGE.write_text(ROW.sub(lambda row: f"{row[1]} {sum(cases[t] for t in NAME.findall(row[1]))} |", page), "utf-8")
