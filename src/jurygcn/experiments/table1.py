"""Table 1: statistics of the datasets."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from jurygcn.data import sizes
from jurygcn.experiments.cells import Cell, Row
from jurygcn.experiments.experiment import Experiment, Scope
from jurygcn.experiments.graphs import CITATION, NAMES, counterpart, fourth_graph, load
from jurygcn.experiments.paper import STATISTICS

COLUMNS = ("nodes", "edges", "features", "classes")


def cells(scope: Scope) -> Iterator[Cell]:
    """One per graph; the number of runs does not matter."""
    del scope
    yield from ({"dataset": name} for name in (*CITATION, fourth_graph()))


def measure(dataset: str) -> Row:
    """Sizes of the graph as it is loaded."""
    return sizes(load(dataset))._asdict()


def summary(rows: list[Row]) -> pd.DataFrame:
    """Ours and the paper's, side by side."""
    paper = [STATISTICS[counterpart(row["dataset"])] for row in rows]
    ours = pd.DataFrame(rows)[["dataset", *COLUMNS]]
    return ours.join(pd.DataFrame(paper, columns=list(COLUMNS)).add_suffix("_paper"))


def shown(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Two rows per graph."""
    lines = []
    for row in frame.to_dict("records"):
        name = NAMES[row["dataset"]]
        lines.append({"graph": name, **{key: f"{row[key]:,}" for key in COLUMNS}})
        paper = NAMES[counterpart(row["dataset"])]
        lines.append({"graph": f"  {paper} in the paper", **{key: f"{row[f'{key}_paper']:,}" for key in COLUMNS}})
    return {"Sizes": pd.DataFrame(lines)}


EXPERIMENT = Experiment(
    title="Table 1: statistics of the datasets",
    about=(
        "Undirected edges without self-loops and duplicates, each counted once. The paper counts the source's links "
        "for the citation graphs, and both directions for Reddit."
    ),
    cells=cells,
    measure=measure,
    stamp=lambda _: "1",
    summary=summary,
    shown=shown,
)
