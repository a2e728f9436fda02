"""`jurygcn labels check`: find labels that are probably wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from jurygcn.choices import Recipe
from jurygcn.cli import options as given
from jurygcn.cli.reporting import print_json, shown

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from jurygcn.diagnostics.label_errors import LabelErrors

app = typer.Typer(help="Find labels that are probably wrong.", no_args_is_help=True)

LabelFile = Annotated[
    Path | None,
    typer.Option("--labels", help="CSV with the columns node and label; by default every label of the graph."),
]
SHOWN = 20


@app.callback()
def _group() -> None:
    """Find labels that are probably wrong."""


@app.command()
def check(
    data: given.Name,
    labels: LabelFile = None,
    threshold: Annotated[
        float, given.real("--threshold", "Flag labels that are wrong with a probability above this.", most=1.0)
    ] = 0.5,
    seed: given.Seed = 0,
    epochs: given.Epochs = Recipe.epochs,
    lr: given.LearningRate = Recipe.lr,
    weight_decay: given.WeightDecay = None,
    hidden: given.Hidden = Recipe.hidden,
    chosen: given.Chosen = None,
    out: given.Out = None,
    as_json: given.AsJson = False,
) -> None:
    """Rank labels by how implausible jurors that never saw them find them, and flag probable errors.

    Trains a GCN on all labels. Prints the flagged labels with the suggested class and the reasons. With --out, writes
    labels_check.csv (all labels) and run.json. It changes no label.
    """
    from jurygcn.cli.output import check_out, say_written, write_csv, write_run
    from jurygcn.cli.trained_model import Settings, open_session
    from jurygcn.cli.verdicts import fit_jury

    check_out(out)
    nodes = Path("all") if labels is None else labels
    settings = Settings(
        train_nodes=nodes, epochs=epochs, lr=lr, weight_decay=weight_decay, hidden=hidden, seed=seed, chosen=chosen
    )
    session = open_session(data, settings)
    found = fit_jury(session).label_errors(threshold=threshold)
    table = found.table.copy()
    names = getattr(session.data, "node_names", None)
    if names:
        table.insert(1, "name", [str(names[node]) for node in table["node"]])
    run: dict[str, Any] = {
        **session.describe("labels check"),
        "noise": found.noise,
        "false_discoveries": found.false_discoveries,
        "threshold": threshold,
        "of": found.of,
        "words": found.words,
        "flagged": table[table["flagged"]].drop(columns="flagged").to_dict(orient="records"),
    }
    files: list[Path] = []
    if out is not None:
        table["against"] = [" ".join(map(str, nodes)) for nodes in table["against"]]
        files = write_run(out, run, {"labels_check.csv": write_csv(table)})
    if as_json:
        print_json({**run, "files": [str(path) for path in files]})
        return
    console = Console()
    if len(found.flagged):
        console.print(flagged_table(found, session.data, title=f"Labels of {session.data.name} that may be wrong"))
    console.print(shown(found.words), soft_wrap=True, highlight=False)
    say_written(console, files)


def flagged_table(found: LabelErrors, data: Data, *, title: str) -> Table:
    """The flagged labels, the most suspicious first."""
    names = getattr(data, "node_names", None)
    table = Table(box=box.SIMPLE_HEAD, title=shown(title), title_justify="left", title_style="bold", pad_edge=False)
    for column in ("node", "label", "suggested"):
        table.add_column(column, overflow="fold")
    table.add_column("wrong", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    rows = found.table[found.table["flagged"]]
    for row in rows[:SHOWN].to_dict("records"):
        name = names[row["node"]] if names else row["node"]
        cells = (name, row["label"], row["suggested"])
        table.add_row(*map(shown, cells), f"{100 * row['wrong']:.0f} %", shown(row["why"]))
    if len(rows) > SHOWN:
        table.caption, table.caption_justify = f"{len(rows) - SHOWN} more are flagged", "left"
    return table
