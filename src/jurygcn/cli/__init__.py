"""The command line: parses, calls the library, prints. Bad input is one sentence and exit code 2."""

from __future__ import annotations

from typing import Annotated

import typer

import jurygcn
from jurygcn.cli.reporting import MARKUP, Commands

# Each is a module here, with a function of its name or with an app. It is imported when it is asked for.
COMMANDS = {
    "demo": "Fetch Cora, train a GCN on 100 random labels, and show which predictions to trust.",
    "train": "Train on some labelled nodes and print the test accuracy.",
    "quantify": "Train or load a GCN, and let the jury say how far to trust each of its predictions.",
    "doctor": "Check what the verdict rests on: convergence, curvature, solver, and agreement with retrained jurors.",
    "report": "Write one HTML page about the results in a folder: tables, charts, neighbourhoods. It works offline.",
    "evaluate": "Compare the jury with other methods on the same splits of a graph whose labels are known.",
    "reproduce": "Regenerate the paper's tables and figures, with the paper's numbers beside ours.",
    "active": "Choose the next nodes to label, and learn from the answers.",
    "data": "List, inspect and fetch graphs.",
}

app = typer.Typer(
    name="jurygcn",
    cls=Commands,
    help="Which of my GNN's predictions can I trust?",
    no_args_is_help=True,
    rich_markup_mode=MARKUP,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)
for _name, _help in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)  # `Commands` puts the real one in its place


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jurygcn {jurygcn.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version  # its callback has printed it
