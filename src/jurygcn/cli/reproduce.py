"""`jurygcn reproduce`: the paper's tables and figures, with the paper's numbers and ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from jurygcn.checks import MOST_REPEATS
from jurygcn.choices import EXPERIMENTS
from jurygcn.cli import options as given
from jurygcn.cli.output import check_out, say_written
from jurygcn.cli.reporting import print_json, shown

if TYPE_CHECKING:
    import pandas as pd

    from jurygcn.experiments import Reproduced

EVERYTHING = "all"


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            metavar="|".join((*EXPERIMENTS, EVERYTHING)),
            callback=given.one_of("the table or figure", (*EXPERIMENTS, EVERYTHING)),
            help="What to regenerate.",
        ),
    ],
    runs: Annotated[
        int | None,
        given.whole("--runs", "Splits to average over; 20 by default, 2 with --quick.", most=MOST_REPEATS),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of hours: Cora, few runs.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for CSV, JSON and PNG files.")] = Path("reproduced"),
    as_json: given.AsJson = False,
) -> None:
    """Regenerate the paper's tables and figures, with the paper's numbers for comparison.

    Every measured cell is saved in OUT/NAME.jsonl, so the same command continues after an interruption. Reddit is used
    if its files are in the data folder; otherwise a synthetic stand-in, named as such.
    """
    from jurygcn.experiments import reproduce as run
    from jurygcn.experiments.experiment import records

    check_out(out)
    names = EXPERIMENTS if what == EVERYTHING else (what,)
    console = Console()
    found = []
    for name in names:
        found.append(run(name, out=out, runs=runs, quick=quick, progress=True))
        if not as_json:
            present(found[-1], console)
    if as_json:
        files = [str(path) for one in found for path in one.files]
        tables = {one.name: records(one.summary) for one in found}
        print_json({"command": "reproduce", "tables": tables, "files": files})


def present(found: Reproduced, console: Console) -> None:
    """Print the tables in the paper's layout, how they were measured, and the files."""
    console.print(f"\n[bold]{shown(found.experiment.title)}[/bold]")
    for title, frame in found.shown.items():
        console.print(text_table(frame, title=title))
    console.print(shown(found.experiment.about), style="dim")
    say_written(console, found.files)


def text_table(frame: pd.DataFrame, *, title: str) -> Table:
    """A table of a frame's text; text columns are left-aligned, numbers right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, title=shown(title), title_justify="left", title_style="bold", pad_edge=False)
    for place, column in enumerate(frame.columns):
        words = place == 0 or str(column) in ("method", "graph", "score", "errors of")
        table.add_column(shown(str(column)), justify="left" if words else "right", no_wrap=words)
    for row in frame.itertuples(index=False):
        table.add_row(*(shown(str(cell)) for cell in row))
    return table
