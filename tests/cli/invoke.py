"""Running commands as a user would, shared by the command line's tests."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner, Result

from jurygcn.cli import app

FAST = ("--epochs", "20", "--hidden", "4")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: object) -> dict:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def refuses(*arguments: object) -> str:
    """The sentence that the command ends with; notes about what was repaired in the data may stand before it."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.strip().splitlines() if not line.startswith("Note: ")]
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    return lines[0]
