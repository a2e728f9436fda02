"""What reaches the screen: errors as one sentence, warnings as notes, JSON."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Literal, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from typer.core import TyperGroup

from jurygcn import signals
from jurygcn.errors import DataNotice, JuryError, JuryWarning

BAD_INPUT, UNEXPECTED = 2, 1
MARKUP: Literal["markdown"] = "markdown"  # of help texts
STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control and format characters, lone surrogates, line ends


class Commands(TyperGroup):
    """The root command: whatever goes wrong below it ends here, with a sentence and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; in standalone mode, exit with its code."""
        with warnings_as_notes():
            try:
                code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            except Exception as error:  # the outermost handler
                code = report(error)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the words name, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        with signals.working(False):
            return name, command if name is None else load(name), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command; Ctrl-C and termination end it with a word."""
        try:
            with signals.working():
                return super().invoke(ctx)
        except BaseException as error:
            number = signals.received()  # other libraries turn KeyboardInterrupt into errors of their own
            if number is None and not isinstance(error, KeyboardInterrupt):
                raise
            number = number or signal.SIGINT
            say(signals.WORDS[signal.Signals(number)], style="red")
            raise typer.Exit(128 + number) from None


def load(name: str) -> Any:
    """The command or group that a module of this package holds, with all its options."""
    module = import_module(f"jurygcn.cli.{name}")
    whole = typer.Typer(rich_markup_mode=MARKUP)
    if hasattr(module, "app"):
        whole.add_typer(module.app, name=name)
    else:
        whole.command(name)(getattr(module, name))
    return typer.main.get_group(whole).commands[name]


def report(error: Exception) -> int:
    """Tell the user what went wrong, in a sentence, and return the exit code; when debugging, a bug is raised again."""
    if type(error).__name__ == "NoArgsIsHelpError":  # Click's way to show help; with Rich it is on the screen already
        typer.echo(str(error.format_message()), nl=False)  # type: ignore[attr-defined]
        return BAD_INPUT
    if isinstance(error, JuryError):
        say(f"Error: {error}", style="red")
        return BAD_INPUT
    if hasattr(error, "format_message"):  # a usage error of Click, or of Typer's own copy of it
        say(f"Error: {error.format_message()}", style="red")
        return int(getattr(error, "exit_code", BAD_INPUT))
    if debugging():
        raise error
    fault = environment_fault(error)
    if fault is not None:
        say(f"Error: {fault}", style="red")
        return BAD_INPUT
    say(
        f"Error: unexpected {type(error).__name__} ({error}); please report it with the command that you ran "
        "(JURYGCN_DEBUG=1 shows where it happened)",
        style="red",
    )
    return UNEXPECTED


def environment_fault(error: Exception) -> str | None:
    """A sentence about what the machine, not the program, lacks; None if the error is about something else."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error)):
        return "expected enough memory for this graph and model, got too little; take fewer labels or a larger machine"
    if isinstance(error, OSError):
        place = f" ({error.filename})" if error.filename else ""
        return f"expected to read and write files{place}, got {error.strerror or error}; make room or choose another"
    return None


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get("JURYGCN_DEBUG", "") not in ("", "0")


def say(sentence: str, *, style: str = "") -> None:
    """One line on stderr."""
    Console(stderr=True).print(Text(visible(" ".join(sentence.split())), style=style), soft_wrap=True)


def visible(text: object) -> str:
    """Text in which every character that would steer the terminal is shown as its code."""
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in STEERING else c for c in str(text))


def shown(text: object) -> str:
    """Text for Rich, which finds neither markup nor control characters in it."""
    return escape(visible(text))


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show the library's own warnings as one-line notes, and nobody else's unless debugging."""
    with warnings.catch_warnings():
        if not debugging():
            warnings.simplefilter("ignore")
        for category in (DataNotice, JuryWarning):
            warnings.simplefilter("always", category)
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, DataNotice | JuryWarning):
                say(f"Note: {message}", style="yellow")
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def print_json(value: Any) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(without_nan(value), allow_nan=False))


def without_nan(value: Any) -> Any:
    """The same value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
