"""Output to the terminal: errors as one sentence, warnings as notes, JSON."""

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
from typing import Annotated, Any, Literal, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from typer.core import TyperGroup

from jurygcn import signals
from jurygcn.errors import DataNotice, JuryError, JuryWarning

BAD_INPUT, UNEXPECTED = 2, 1
MARKUP: Literal["markdown"] = "markdown"  # of help texts
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")  # Unicode: control and format characters, surrogates, line ends


class Commands(TyperGroup):
    """The root command; it turns every exception into one sentence and an exit code."""

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
        """The command with this name, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        with signals.working(False):
            return name, command if name is None else load(name), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; Ctrl-C and SIGTERM end it with one word."""
        try:
            with signals.working():
                result = super().invoke(ctx)
            if signals.received() is None:  # other libraries may swallow KeyboardInterrupt
                return result
        except BaseException as error:
            # other libraries turn KeyboardInterrupt into other errors
            if signals.received() is None and not isinstance(error, KeyboardInterrupt):
                raise
        number = signals.received() or signal.SIGINT
        say(signals.WORDS[signal.Signals(number)], style="red")
        signals.handled()
        raise typer.Exit(128 + number)


def load(name: str) -> Any:
    """The command or group of a module of this package, with all its options."""
    function = name.replace("-", "_")
    module = import_module(f"jurygcn.cli.{function}")
    whole = typer.Typer(rich_markup_mode=MARKUP)
    if hasattr(module, "app"):
        whole.add_typer(module.app, name=name)
    else:
        whole.command(name)(getattr(module, function))
    return typer.main.get_group(whole).commands[name]


def report(error: Exception) -> int:
    """Print the error as one sentence and return the exit code; with JURYGCN_DEBUG, re-raise unexpected errors."""
    if type(error).__name__ == "NoArgsIsHelpError":  # Click's signal to show help
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
    """A sentence about missing memory or files that cannot be used; None for other errors."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error)):
        return "expected enough memory for this graph and model, got too little; use fewer labels or a larger machine"
    if isinstance(error, OSError):
        place = f" ({error.filename})" if error.filename else ""
        return f"expected to read and write files{place}, got {error.strerror or error}; free space or use another file"
    return None


def debugging() -> bool:
    """Whether JURYGCN_DEBUG asks for tracebacks."""
    return os.environ.get("JURYGCN_DEBUG", "") not in ("", "0")


def say(sentence: str, *, style: str = "") -> None:
    """Print one line on stderr."""
    Console(stderr=True).print(Text(visible(" ".join(sentence.split())), style=style), soft_wrap=True)


def visible(text: object) -> str:
    """The text with control characters replaced by their codes."""
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) in CONTROL else c for c in str(text))


def shown(text: object) -> str:
    """The text for Rich, with markup escaped and control characters replaced."""
    return escape(visible(text))


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show the library's warnings as one-line notes, each once; hide other warnings unless debugging."""
    shown_before: set[str] = set()
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
                if str(message) not in shown_before:
                    say(f"Note: {message}", style="yellow")
                shown_before.add(str(message))
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield


def print_json(value: Any) -> None:
    """Print one JSON object on stdout."""
    typer.echo(json.dumps(without_nan(value), allow_nan=False))


def without_nan(value: Any) -> Any:
    """The value with None instead of NaN and infinity, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
