"""A progress bar on stderr for work that takes over a second, and a line before work that takes long."""

from __future__ import annotations

import threading
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

    Without a total the bar is a spinner. Nothing is shown where stderr is not a terminal.
    """
    console = Console(stderr=True) if show else None
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
