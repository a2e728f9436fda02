"""`jurygcn why`: what drives the prediction of one node."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from jurygcn.choices import TAKEN_AWAY, Recipe
from jurygcn.cli import options as given
from jurygcn.cli.reporting import print_json, shown

if TYPE_CHECKING:
    import pandas as pd

    from jurygcn.cli.trained_model import Session
    from jurygcn.data.names import Names
    from jurygcn.jury import Jury

MOST_SHOWN = 1000
TITLES = {
    "labels": "Labels: if they had not been learned",
    "edges": "Edges within reach: if they were not there",
    "nodes": "Nodes within reach: if they were not there",
    "features": "Features of the node: if they were zero",
}
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's number or name.")]
Check = Annotated[
    int, given.whole("--check", "Train again without this many of the largest, each.", least=0, most=MOST_SHOWN)
]
Top = Annotated[int, given.whole("--top", "The number of rows in each table.", most=MOST_SHOWN)]


def why(
    data: given.Name,
    node: NodeName,
    labels: given.Labels = None,
    train_nodes: given.TrainNodes = None,
    model: given.Checkpoint = None,
    top: Top = 5,
    seed: given.Seed = 0,
    epochs: given.Epochs = Recipe.epochs,
    weight_decay: given.WeightDecay = None,
    hidden: given.Hidden = Recipe.hidden,
    check: Check = 0,
    as_json: given.AsJson = False,
) -> None:
    """Say what drives the prediction of a node: labels, edges, neighbours and features, each taken away.

    Nothing is retrained. The direct effect is exact message passing; the effect through training is one Newton step.
    """
    from jurygcn.cli.tables import facts_table
    from jurygcn.cli.trained_model import Settings, open_session
    from jurygcn.cli.verdicts import fit_jury
    from jurygcn.data.names import Names
    from jurygcn.settings import LeaveOut

    settings = Settings(
        labels=labels,
        train_nodes=train_nodes,
        checkpoint=model,
        epochs=epochs,
        weight_decay=weight_decay,
        hidden=hidden,
        seed=seed,
    )
    session = open_session(data, settings)
    asked = Names.of_nodes(session.data).position(node)
    jury = fit_jury(session, leave_out=LeaveOut())
    with session.timed("influence", "Taking things away"):
        tables = {of: jury.influence_on(asked, of=of, check=check) for of in TAKEN_AWAY}
    found = prediction_of(jury, asked)
    if as_json:
        rows = {of: _records(frame.head(top)) for of, frame in tables.items()}
        print_json({**session.describe("why"), "node": asked, "prediction": found, "influence": rows})
        return
    console = Console()
    classes = Names.of_classes(session.data)
    said = f"{_class(classes, found['class'])}, probability {found['probability']:.3f}"
    console.print(facts_table({"prediction": said}, title=f"Why {_node(session, asked)}"))
    for of, frame in tables.items():
        console.print(influence_table(frame.head(top), TITLES[of], session, classes))
    console.print(
        "Support is the drop of the predicted class's probability without it: minus opposes the prediction.",
        style="dim",
        highlight=False,
    )


def prediction_of(jury: Jury, node: int) -> dict[str, Any]:
    """The predicted class of a node and its probability."""
    row = jury.what_if([node]).before[0]
    return {"class": int(row.argmax()), "probability": float(row.max())}


def _records(frame: pd.DataFrame) -> list[dict[Any, Any]]:
    """The rows of a table; what was not trained again has no number."""
    missing = frame.isna().to_numpy()
    return frame.astype(object).mask(missing, None).to_dict("records")


def influence_table(frame: pd.DataFrame, title: str, session: Session, classes: Names) -> Table:
    """One kind of influence as a table."""
    table = Table(title=shown(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("taken away")
    names = {"support": "support", "direct": "direct", "through_parameters": "through training"}
    names |= {"retrained": "trained again"} if "retrained" in frame else {}
    for name in names.values():
        table.add_column(name, justify="right")
    table.add_column("prediction without")
    for row in frame.to_dict("records"):
        numbers = ["" if math.isnan(row[key]) else f"{row[key]:+.3f}" for key in names]
        table.add_row(shown(_thing(row, session, classes)), *numbers, shown(_class(classes, row["prediction_without"])))
    if frame.empty:
        table.add_row("nothing", *[""] * len(names), "")
    return table


def _thing(row: dict[Any, Any], session: Session, classes: Names) -> str:
    if "source" in row:
        return f"{_node(session, row['source'])} - {_node(session, row['target'])}"
    if "train_node" in row:
        return f"{_class(classes, row['label'])} of {_node(session, row['train_node'])}"
    if "feature" not in row:
        return _node(session, row["node"])
    names, number = session.data.get("feature_names"), int(row["feature"])
    return str(names[number]) if names is not None else f"feature {number}"


def _node(session: Session, node: float) -> str:
    names = getattr(session.data, "node_names", None)
    return str(names[int(node)]) if names and str(names[int(node)]) != str(int(node)) else f"node {int(node)}"


def _class(classes: Names, number: float) -> str:
    return classes.names[int(number)] if classes.names is not None else f"class {int(number)}"
