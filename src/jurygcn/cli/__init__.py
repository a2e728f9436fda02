"""The command line: parses, calls the library, prints. Bad input is one sentence and exit code 2."""

from __future__ import annotations

from typing import Annotated

import typer

import jurygcn
from jurygcn.cli import active, data, demo, doctor, evaluate, quantify, report, reproduce, train
from jurygcn.cli.reporting import Commands

app = typer.Typer(
    name="jurygcn",
    cls=Commands,
    help="Which of my GNN's predictions can I trust?",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)
app.command()(demo.demo)
app.command()(train.train)
app.command()(quantify.quantify)
app.command()(doctor.doctor)
app.command()(report.report)
app.command()(evaluate.evaluate)
app.command()(reproduce.reproduce)
app.add_typer(active.app, name="active")
app.add_typer(data.app, name="data")


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


def main() -> None:
    """The console script."""
    app()
