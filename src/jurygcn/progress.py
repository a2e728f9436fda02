"""A progress bar on stderr for work that takes over a second, and a line before work that takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

SHOWN_AFTER = 1.0  # seconds; shorter work shows no bar


def announce(words: str) -> None:
    """Print a line on stderr, for terminals and logs alike."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(words, markup=False)


@contextmanager
def progress_bar(
    what: str, *, total: int | None = None, unit: str = "", show: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show the progress of the block; yields a function to call with the number of finished units.

    Without a total the bar is a spinner. In a notebook the bar is a line of text. Nothing is shown where stderr is
    neither a terminal nor a notebook.
    """
    console = Console(stderr=True) if show else None
    if console is not None and console.is_jupyter:
        with _line(what, total, unit) as advance:
            yield advance
        return
    if console is None or not console.is_terminal:
        yield lambda _: None
        return
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}")]
    if total is not None:
        columns += [BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn()]
    bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
    task = bar.add_task(what, total=total)
    timer = threading.Timer(SHOWN_AFTER, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda units: bar.advance(task, units)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


@contextmanager
def _line(what: str, total: int | None, unit: str) -> Iterator[Callable[[int], None]]:
    """One line of text that is written again every second: Rich's bar needs ipywidgets in a notebook."""
    done, finished, start = [0], threading.Event(), time.monotonic()

    def write() -> None:
        longest = 0
        while not finished.wait(SHOWN_AFTER):
            count = "" if total is None else f", {done[0]:,} of {total:,} {unit}".rstrip()
            words = f"{what}{count}, {time.monotonic() - start:.0f} s"
            longest = max(longest, len(words))
            print(f"\r{words:<{longest}}", end="", file=sys.stderr, flush=True)
        if longest:
            print("\r" + " " * longest + "\r", end="", file=sys.stderr, flush=True)

    def advance(units: int) -> None:
        done[0] += units

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield advance
    finally:
        finished.set()
        writer.join()
