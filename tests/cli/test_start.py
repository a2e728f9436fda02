"""What starting a command imports: help texts and the list of graphs need neither torch nor scikit-learn.

Modules are counted, not seconds, so that a loaded machine changes nothing.
"""

from __future__ import annotations

import json
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
# Several commands in one process, so what one imports is there for those after it.
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, sys
from jurygcn.__main__ import main
found = []
for words in json.loads(sys.argv[1]):
    sys.argv, out, code = ["jurygcn", *words], io.TextIOWrapper(io.BytesIO(), "utf-8"), None
    with contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            code = end.code
    out.seek(0)
    found.append([code, out.read(), sorted({name.split(".")[0] for name in sys.modules})])
print(json.dumps(found))
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


def test_help_needs_no_large_package():
    words = json.dumps([[*page, "--help"] for page in PAGES])
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, words], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert len(found) == len(PAGES)
    for page, (code, text, imported) in zip(PAGES, found, strict=True):
        assert code == 0, page
        assert "--help" in text, page
        assert "typer" in imported
        assert not set(imported) & LARGE, page


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
