"""A verdict as tables: for the terminal, as rows, as a data frame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich import box
from rich.table import Table
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.cli.reporting import shown, visible
from jurygcn.data import labelled
from jurygcn.verdict import Verdict

WIDE = 100  # columns of a terminal from which on the paper's width and kinds are shown
SET_ALPHA = 0.1  # the level of the label sets shown; their target coverage is 90 %
COLUMNS = (
    "node",
    "name",
    "predicted_class",
    "predicted_name",
    "true_class",
    "trained_on",
    "doubt",
    "jury_class",
    "prediction_in_set",
    "ambiguity",
    "width",
    "kinds",
)


def facts_table(facts: Mapping[str, str], *, title: str) -> Table:
    """A table with two columns: name and value."""
    table = Table(box=box.SIMPLE, show_header=False, title=shown(title), title_justify="left", title_style="bold")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for what, value in facts.items():
        table.add_row(what, "\n".join(map(shown, value.split("\n"))))
    return table


def in_words(seconds: Mapping[str, float]) -> str:
    """Stages and their seconds in one line."""
    return ", ".join(f"{stage} {spent:.2f} s" for stage, spent in seconds.items())


def verdict_frame(verdict: Verdict, data: Data, train_nodes: Tensor) -> pd.DataFrame:
    """The rows of verdict.csv: the verdict's frame with names, true classes (empty if unknown) and trained nodes."""
    frame = verdict.to_frame(SET_ALPHA)
    # a JSON list: no class name, whatever is in it, can be taken for two
    frame["label_set"] = [json.dumps(labels, ensure_ascii=False) for labels in frame["label_set"]]
    nodes = verdict.nodes
    truth = [number if known else None for number, known in zip(data.y[nodes].tolist(), labelled(data)[nodes].tolist())]
    frame.insert(1, "true_class", pd.Series(truth, dtype="Int64"))
    trained = set(train_nodes.tolist())
    frame.insert(2, "trained_on", [node in trained for node in nodes.tolist()])
    position = frame.columns.get_loc("predicted_class")
    names = getattr(data, "class_names", None)
    if names:
        frame.insert(int(position) + 1, "predicted_name", [names[c] for c in verdict.predicted_class.tolist()])  # type: ignore[arg-type]
    if getattr(data, "node_names", None):
        frame.insert(1, "name", [str(data.node_names[node]) for node in nodes.tolist()])
    return frame


def extremes(verdict: Verdict, frame: pd.DataFrame, count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The ``count`` most and the ``count`` least uncertain nodes, most extreme first, as plain values."""
    order = verdict.ranking().tolist()
    rows = frame.drop(columns="label_set").set_index("node", drop=False)
    rows = rows[[column for column in COLUMNS if column in rows]].astype(object)
    position = {node: row for row, node in enumerate(verdict.nodes.tolist())}
    sets = verdict.label_sets(SET_ALPHA)

    def plain(node: int) -> dict[str, Any]:
        cells = {str(key): None if pd.isna(value) else value for key, value in rows.loc[node].items()}
        return {**cells, "label_set": sets[position[node]].nonzero()[:, 0].tolist()}

    return [plain(node) for node in order[:count]], [plain(node) for node in order[: -count - 1 : -1]]


def node_table(rows: list[dict[str, Any]], *, title: str, width: int) -> Table:
    """A table of nodes with their verdicts; classes by number, so that sets fit on a line.

    The paper's columns are shown where the terminal is wide enough for them.
    """
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    table.add_column("node", justify="right", no_wrap=True, max_width=max(20, width - 55))
    for column in ("predicted", "true"):
        table.add_column(column, justify="right", no_wrap=True, min_width=len(column))
    table.add_column("label set", overflow="fold", min_width=9)
    score = "doubt" if rows and "doubt" in rows[0] else "ambiguity"
    table.add_column(score, justify="right", no_wrap=True, min_width=9)
    wide = width >= WIDE
    if wide:
        table.add_column("width", justify="right", no_wrap=True)
        table.add_column("kinds", no_wrap=True)
    for row in rows:
        table.add_row(
            shown(row.get("name", row["node"])) + ("*" if row["trained_on"] else " "),
            str(row["predicted_class"]),
            "?" if row["true_class"] is None else str(row["true_class"]),
            (" ".join(map(str, row["label_set"])) or "none") + ("" if row["prediction_in_set"] else " !"),
            f"{row[score]:.3f}",
            *((f"{row['width']:.3f}", row["kinds"]) if wide else ()),
        )
    return table


def marks_in_words(rows: list[dict[str, Any]], diffusion: int) -> list[str]:
    """What the marks in these rows mean."""
    said = [f"label sets at alpha {SET_ALPHA:g}"]
    if any(row["trained_on"] for row in rows):
        said.append("*: the model was trained on this node's label")
    if any(not row["prediction_in_set"] for row in rows):
        why = "the votes were averaged over neighbours, who disagree" if diffusion else "its probability is too low"
        if "doubt" in rows[0]:
            why = "the stacked jury prefers another class"
        others = any(row["label_set"] and not row["prediction_in_set"] for row in rows)
        empty = any(not row["label_set"] for row in rows)
        reasons = [why] * others + ["no label fits"] * empty
        said.append(f"!: the set lacks the model's own prediction, because {' or '.join(reasons)}")
    return said


def class_legend(data: Data) -> str | None:
    """The numbers and names of the classes, if they have names."""
    names = getattr(data, "class_names", None)
    if not names or names == [str(number) for number in range(len(names))]:
        return None
    return visible("classes: " + ", ".join(f"{number} {name}" for number, name in enumerate(names)))
