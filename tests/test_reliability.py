"""docs/reliability.md: every test that it names is there, and no test of faults is left out."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
# Where all tests are about faults, so that each must stand in a row.
WHOLE = ("tests/faults", "tests/hostile", "tests/data/test_data_faults.py", "tests/test_determinism.py")
OTHER = {"test_sizes_are_those_of_the_tiny_graph"}  # about the tests' own tools


def named_tests(text: str) -> list[tuple[str, str]]:
    """File and name of each test that the page's rows name."""
    return [test for row in text.splitlines() if row.startswith("|") for test in NAME.findall(row)]


@cache
def defined(file: str) -> list[str]:
    """The tests that a file defines."""
    path = ROOT / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.parse("")
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_every_named_test_exists():
    found = named_tests(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 100
    assert [f"{file}::{name}" for file, name in found if name not in defined(file)] == []


def test_no_test_of_faults_is_left_out():
    named = set(named_tests(PAGE.read_text(encoding="utf-8")))
    there = [path for place in WHOLE for path in sorted((ROOT / place).rglob("test_*.py")) or [ROOT / place]]
    files = [path.relative_to(ROOT).as_posix() for path in there]
    assert [f"{f}::{n}" for f in files for n in defined(f) if (f, n) not in named and n not in OTHER] == []


@pytest.mark.parametrize("name", ["tests/test_docs.py::test_gone", "tests/gone.py::test_gone"])
def test_a_missing_test_would_be_seen(name: str):
    ((file, test),) = named_tests(f"| a | b | `{name}` |")
    assert test not in defined(file)


def test_the_mutants_are_those_of_the_run():
    found = json.loads((ROOT / "tools" / "mutants.json").read_text(encoding="utf-8"))
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"{found['caught']} of {found['tried']} mutants, drawn at random from {found['places']:,} places" in text
    assert found["caught"] >= 0.85 * found["tried"]
    survivors = {name: result for name, result in found["mutants"].items() if result["outcome"] == "survived"}
    assert all(result.get("equivalent") for result in survivors.values())  # each with the reason why
