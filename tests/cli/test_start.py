"""What starting a command imports: help texts and the list of graphs need neither torch nor scikit-learn.

Modules are counted, not seconds, so that a loaded machine changes nothing.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from jurygcn import active, choices, experiments, learning
from jurygcn.cli import COMMANDS
from jurygcn.cli.reporting import load
from jurygcn.experiments import comparison
from jurygcn.linalg import SOLVERS

LARGE = {"torch", "torch_geometric", "sklearn", "scipy", "pandas", "networkx", "matplotlib", "joblib"}
SCRIPT = """
import runpy, sys
sys.argv = ["jurygcn", *sys.argv[1:]]
try:
    runpy.run_module("jurygcn", run_name="__main__")
finally:
    print("\\nIMPORTED", *sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
"""
GROUPS = {name: load(name).commands for name in COMMANDS if hasattr(load(name), "commands")}
PAGES = [
    [],
    *([name] for name in COMMANDS),
    *([group, name] for group, commands in GROUPS.items() for name in commands),
]


def start(*words: str) -> tuple[subprocess.CompletedProcess[str], set[str]]:
    """The finished command, and the packages that it imported."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=False)
    return done, set(done.stderr.rpartition("IMPORTED")[2].split())


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_help_needs_no_large_package(page: list[str]):
    done, imported = start(*page, "--help")
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout
    assert "typer" in imported
    assert not imported & LARGE


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_the_list_of_graphs_needs_no_large_package(options: list[str]):
    done, imported = start("data", "list", *options)
    assert done.returncode == 0, done.stderr
    assert "pubmed" in done.stdout
    assert not imported & LARGE


def test_a_wrong_option_is_refused_before_torch_is_imported():
    done, imported = start("quantify", "cora", "--epochs", "many")
    assert done.returncode == 2
    assert "expected a whole number" in done.stderr
    assert not imported & LARGE


def test_describing_a_graph_needs_no_learning_package():
    done, imported = start("data", "info", "karate")
    assert done.returncode == 0, done.stderr
    assert "torch" in imported  # the test sees what is imported
    assert not imported & {"sklearn", "matplotlib", "joblib"}


def test_the_names_are_those_of_the_registers():
    assert tuple(SOLVERS) == choices.SOLVERS
    assert tuple(learning.METHODS) == choices.METHODS
    assert tuple(active.STRATEGIES) == choices.STRATEGIES
    assert comparison.METHODS == choices.COMPARED
    assert tuple(experiments.EXPERIMENTS) == choices.EXPERIMENTS
