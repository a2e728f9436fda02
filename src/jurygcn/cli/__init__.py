"""The command line. Bad input gives one sentence on stderr and exit code 2."""

from __future__ import annotations

from typing import Annotated

import typer

import jurygcn
from jurygcn.cli.reporting import MARKUP, Commands

# Each command is a module of this package with a function of that name or with an app, imported at first use.
COMMANDS = {
    "demo": "Download Cora, train a GCN on 100 random labels, and show which predictions to trust.",
    "train": "Train on some labelled nodes and print the test accuracy.",
    "quantify": "Train or load a GCN, and quantify the uncertainty of each of its predictions.",
    "doctor": "Check whether the verdict is reliable: convergence, curvature, solver, agreement with retrained jurors.",
    "why": "Say what drives the prediction of a node: labels, edges, neighbours and features, each taken away.",
    "select": "Choose among settings of a GCN by left-out labels, without a validation set.",
    "labels": "Find labels that are probably wrong.",
    "report": "Write the results in a folder as one HTML page with tables and charts. It works offline.",
    "evaluate": "Compare the jury with other methods on the same splits of a labelled graph.",
    "reproduce": "Regenerate the paper's tables and figures, with the paper's numbers for comparison.",
    "active": "Choose the next nodes to label, and add the answers.",
    "label": "Label a graph in the browser. The jury chooses the nodes while people work.",
    "label-studio": "Serve predictions and the choice of the next tasks to Label Studio.",
    "data": "List, inspect and download graphs.",
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
    app.command(_name, help=_help)(lambda: None)  # a placeholder; `Commands` loads the real command


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
    del version  # handled by the callback
