"""`jurygcn select`: choose the settings of a GCN by left-out labels."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from jurygcn.checks import MOST_DECAY, MOST_EPOCHS, MOST_HIDDEN, MOST_LAYERS, in_short
from jurygcn.choices import LEFT_OUT_BY, RANKED_BY, Recipe
from jurygcn.cli import options as given
from jurygcn.cli.reporting import print_json, shown
from jurygcn.errors import SettingError

if TYPE_CHECKING:
    from jurygcn.selection import Selection

MOST_CANDIDATES = 10_000
MOST_FOLDS = 1_000
SHOWN = 12


WHOLE, REAL = r"[0-9]{1,20}", r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"


def several(option: str, about: str, number: type, low: float, most: float) -> Any:
    """An option for several numbers, separated by commas and written in the digits 0 to 9."""

    def parse(text: Any) -> list[Any]:
        parts = [part.strip() for part in str(text).split(",")]
        written = all(re.fullmatch(WHOLE if number is int else REAL, part) for part in parts)
        found = [number(part) for part in parts] if written else []
        if not found or not all(low <= value <= most for value in found):
            raise typer.BadParameter(
                f"expected numbers between {low:g} and {most:g}, separated by commas, got {in_short(text)}; change them"
            )
        return list(dict.fromkeys(found))

    return typer.Option(option, parser=parse, metavar="NUMBERS", help=about)


Hidden = Annotated[Any, several("--hidden", "Hidden units.", int, 1, MOST_HIDDEN)]
Epochs = Annotated[Any, several("--epochs", "Training epochs; they share one run.", int, 1, MOST_EPOCHS)]
Decays = Annotated[Any, several("--weight-decay", "L2 penalties.", float, 0.0, MOST_DECAY)]
Dropouts = Annotated[Any, several("--dropout", "Dropout.", float, 0.0, 0.99)]
Layers = Annotated[Any, several("--layers", "Graph convolutions.", int, 1, MOST_LAYERS)]
Measure = Annotated[
    str,
    typer.Option(
        "--by",
        callback=given.one_of("--by", RANKED_BY),
        help=f"What ranks: {', '.join(RANKED_BY)}; all but the first are of left-out labels alone.",
    ),
]

LeaveOut = Annotated[
    str,
    typer.Option(
        "--leave-out",
        callback=given.one_of("--leave-out", LEFT_OUT_BY),
        help="How labels are left out: jurors trains every setting once; folds once more for each fold.",
    ),
]
Folds = Annotated[int, given.whole("--folds", "Folds of the labels.", least=2, most=MOST_FOLDS)]


def select(
    data: given.Name,
    labels: given.Labels = None,
    per_class: given.PerClass = None,
    train_nodes: given.TrainNodes = None,
    hidden: Hidden = "16",
    epochs: Epochs = "50,100,200",
    weight_decay: Decays = "0.00005,0.0005,0.005",
    dropout: Dropouts = "0,0.5",
    layers: Layers = "1,2",
    lr: given.LearningRate = Recipe.lr,
    by: Measure = RANKED_BY[0],
    leave_out: LeaveOut = LEFT_OUT_BY[0],
    folds: Folds = 5,
    seed: given.Seed = 0,
    out: given.Out = None,
    as_json: given.AsJson = False,
) -> None:
    """Choose among settings of a GCN by left-out labels, without a validation set.

    Every setting is trained once, on all labels; settings that differ only in --epochs share one run. With
    --leave-out folds it is trained once more for each fold, without the labels of the fold. The differences to the best
    are paired, label by label, and the table says which settings the labels cannot tell apart. With --out, writes
    selection.csv and run.json; after an interruption the same command goes on where it stopped.
    """
    from jurygcn.cli.nodes import Recorded
    from jurygcn.cli.output import check_out, say_written, write_csv, write_run
    from jurygcn.cli.trained_model import Settings, choose_nodes, load_graph, with_labels_from
    from jurygcn.selection import select as select_best

    check_out(out)
    grid = list(product(hidden, epochs, weight_decay, dropout, layers))
    if len(grid) > MOST_CANDIDATES:
        raise SettingError(f"expected at most {MOST_CANDIDATES:,} settings, got {len(grid):,}; give fewer values")
    recipes = [Recipe(h, e, lr, decay, drop, depth) for h, e, decay, drop, depth in grid]
    settings = Settings(labels=labels, per_class=per_class, train_nodes=train_nodes, lr=lr, seed=seed)
    graph, _ = load_graph(data)
    graph = with_labels_from(train_nodes, graph)
    nodes, _ = choose_nodes(graph, settings, Recorded())
    how: dict[str, Any] = {"by": by, "leave_out": leave_out, "folds": folds}
    found = select_best(recipes, graph, nodes, **how, seed=seed, resume=out, progress=True)
    facts = {
        "command": "select",
        "data": str(graph.name),
        "labels": len(nodes),
        "by": by,
        "leave_out": found.leave_out,
        "folds": found.folds,
        "seed": seed,
        "best": found.best,
        "tied": found.tied,
        "words": found.words,
        "train_nodes": nodes.tolist(),
    }
    files: list[Path] = []
    if out is not None:
        files = write_run(out, facts, {"selection.csv": write_csv(found.table)})
    if as_json:
        rows = found.table.to_dict(orient="records")
        print_json({**facts, "candidates": rows, "files": [str(path) for path in files]})
        return
    console = Console()
    console.print(ranking_table(found, title=f"Settings of a GCN on {graph.name}, {len(nodes)} labels"))
    console.print(shown(found.words), soft_wrap=True, highlight=False)
    say_written(console, files)


def ranking_table(found: Selection, *, title: str) -> Table:
    """The best settings, with their differences to the best."""
    table = Table(box=box.SIMPLE_HEAD, title=shown(title), title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("settings", overflow="fold")
    for column in ("expected accuracy", "log loss", "accuracy", "worse by", "tied"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = found.table[:SHOWN]
    for row in rows.to_dict("records"):
        worse = f"{row['difference']:.3f} ± {row['error']:.3f}" if row["difference"] or row["error"] else ""
        shares = (f"{100 * row['accuracy']:.0f} %", worse, "yes" if row["tied"] else "no")
        expected = f"{100 * row['expected_accuracy']:.1f} %"
        table.add_row(shown(row["candidate"]), expected, f"{row['log_loss']:.3f}", *shares)
    if len(found.table) > SHOWN:
        table.caption, table.caption_justify = f"{len(found.table) - SHOWN} more are worse", "left"
    return table
