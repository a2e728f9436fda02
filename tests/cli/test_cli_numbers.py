"""Every option of every command that takes a number: what is no number, or an absurd one, is one sentence.

The commands are asked for their options, so that a new one is tested as well.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, get_args, get_type_hints

import pytest
from invoke import refuses
from typer import BadParameter, Context

from jurygcn.cli import COMMANDS
from jurygcn.cli.reporting import load
from jurygcn.errors import SettingError

HUGE = "9" * 20
ABSURD = (
    *("nan", "NaN", "inf", "-inf", "Infinity", "1e300", "-1e300", "1e999999", HUGE, f"-{HUGE}", "-1", "9" * 5000),
    *("1.2.3", "1,5", "1_000", "0x10", "1e", "e5", "--", "", " ", "two", "1 2", "1\n2", "\x00", "\x1b[31m"),
    *("٣", "３", "½", "²", "Ⅷ", "一", "1２", "\u2212" + "1", "\udcff"),
)
THROUGHOUT = ("nan", "-1e300", "9" * 5000, "", "\x1b[31m", "\udcff")
WRITTEN = {"--memory", "--parallel", "--diffusion"}  # numbers within words, parsed by the library
FINE = {("--parallel", "-1")}  # all cores
WORDS = {"report": ("nowhere",), "reproduce": ("table1",), "data list": (), "demo": ()}
LONGEST = 300  # characters of a sentence


@cache
def commands() -> dict[str, Any]:
    """Every command by its words, as in "active run"."""
    found = {name: load(name) for name in COMMANDS}
    groups = {name: group.commands for name, group in found.items() if hasattr(group, "commands")}
    plain = {name: command for name, command in found.items() if name not in groups}
    return plain | {f"{name} {word}": command for name, below in groups.items() for word, command in below.items()}


def is_number(annotation: Any) -> bool:
    """Whether the annotation is int or float, or None besides."""
    kinds = set(get_args(annotation)) or {annotation}
    return bool(kinds & {int, float}) and kinds <= {int, float, type(None)}


def numeric_options() -> list[tuple[str, str]]:
    """Command and option, wherever the command's function takes a number."""
    found = []
    for words, command in commands().items():
        hints = get_type_hints(inspect.unwrap(command.callback))
        for parameter in command.params:
            if parameter.opts[0] in WRITTEN or is_number(hints.get(parameter.name)):
                found.append((words, parameter.opts[0]))
    return found


OPTIONS = numeric_options()


def test_the_options_are_found():
    assert len({words for words, _ in OPTIONS}) >= 7
    assert {option for _, option in OPTIONS} >= {
        *("--labels", "--per-class", "--epochs", "--lr", "--weight-decay", "--dropout", "--hidden", "--layers"),
        *("--seed", "--alpha", "--max-jurors", "--retrain", "--batch", "--initial", "--budget", "--step", "--stop-at"),
        *("--splits", "--runs", *WRITTEN),
    }


@pytest.mark.parametrize(("words", "option"), OPTIONS)
def test_absurd_numbers_are_one_sentence(words, option, tmp_path, monkeypatch):
    """Every value as the option reads it; a few of them also through the whole command line."""
    monkeypatch.chdir(tmp_path)
    command = commands()[words]
    parameter = next(p for p in command.params if p.opts[0] == option)
    for value in ABSURD:
        if (option, value) not in FINE:
            with pytest.raises((SettingError, BadParameter)) as refused:
                parameter.process_value(Context(command), value)
            check_sentence(getattr(refused.value, "message", None) or str(refused.value))
    for value in THROUGHOUT:
        sentence = refuses(*words.split(), *WORDS.get(words, ("karate",)), f"{option}={value}")
        assert option.strip("-") in sentence
        check_sentence(sentence)
    assert list(tmp_path.iterdir()) == []


def check_sentence(sentence: str) -> None:
    assert len(sentence) < LONGEST
    assert sentence.isprintable()
    assert "expected" in sentence
    assert "got" in sentence


def test_a_command_says_what_the_bounds_are():
    assert refuses("train", "karate", "--hidden", HUGE) == (
        f"Error: Invalid value for '--hidden': expected a whole number between 1 and 65536, got '{HUGE}'; change it"
    )
    assert "expected a number between 0 and 1e+06, got '1e300'" in refuses("train", "karate", "--weight-decay", "1e300")
    assert "between 0 and 100, got '100000" in refuses("quantify", "karate", "--diffusion", 10**23)
    assert "up to 1024" in refuses("quantify", "karate", "--parallel", 99999999999)
    assert "'2GB' or '500MB', got '1.2.3GB'" in refuses("quantify", "karate", "--memory", "1.2.3GB")


def test_a_model_that_does_not_fit_is_refused():
    sentence = refuses("train", "karate", "--hidden", 65536, "--layers", 900)
    assert "got 3.86e+12 parameters, which need 5.75e+04 GiB" in sentence
    assert "use fewer hidden units or layers" in sentence
