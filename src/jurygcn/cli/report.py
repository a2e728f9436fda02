"""`jurygcn report`: write the HTML page of saved results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jurygcn.cli.output import check_page, say_written, write_page
from jurygcn.cli.reporting import AsJson, print_json
from jurygcn.report import Report

PAGE = "report.html"


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The --out folder of jurygcn quantify.")],
    out: Annotated[Path | None, typer.Option("--out", help=f"The file to write; {PAGE} in DIR by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the results in a folder as one HTML page with tables and charts. It works offline.

    Nothing is recomputed.
    """
    check_page(out, "--out")
    found = Report.load(folder)
    beside = folder if folder.is_dir() else folder.parent
    path = write_page(found, beside / PAGE if out is None else out)
    if as_json:
        print_json({"command": "report", "files": [str(path)]})
        return
    say_written(Console(), [path])
