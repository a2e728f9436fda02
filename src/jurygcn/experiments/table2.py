"""Table 2: active learning, Micro-F1 by query size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pandas as pd
from torch_geometric.data import Data

from jurygcn import active
from jurygcn.active.protocol import PAPER as PROTOCOL
from jurygcn.experiments.cells import Cell, Row
from jurygcn.experiments.curves import curves, in_layout, over_runs, with_paper
from jurygcn.experiments.experiment import Experiment, Scope
from jurygcn.experiments.graphs import CITATION, counterpart, fourth_graph, load
from jurygcn.experiments.paper import ACTIVE

OURS, PAPERS = "jury-design", "jury"
SEVEN = ("anrmab", "age", "coreset", "centrality", "degree", "random", "sopt")  # the paper's baselines
STRATEGIES = (OURS, PAPERS, *SEVEN)
KEPT = ("labels", "accuracy", "micro_f1", "seconds")
VERSION = 1  # increased by hand when older runs are no longer valid


def cells(scope: Scope) -> Iterator[Cell]:
    """All strategies on one split, then the next split, so that an interrupted run can be compared."""
    for dataset in ("cora",) if scope.quick else (*CITATION, fourth_graph()):
        for seed in range(scope.runs):
            yield from ({"dataset": dataset, "method": strategy, "seed": seed} for strategy in STRATEGIES)


def measure(dataset: str, method: str, seed: int) -> Row:
    """One run of the paper's protocol."""
    return run_on(load(dataset), method, seed, dataset=dataset)


def run_on(data: Data, strategy: str, seed: int, *, dataset: str, recipe: active.Recipe | None = None) -> Row:
    """One run: labels, accuracy, Micro-F1 and the time to choose nodes at every step; the initial labels first."""
    initial, budget, step = PROTOCOL.get(counterpart(dataset), (None, None, None))
    history = active.run(data, strategy, seed=seed, initial=initial, budget=budget, step=step, recipe=recipe)
    return {key: [getattr(step, key) for step in history.steps] for key in KEPT}


def stamp(cell: Cell) -> str:
    """The recipe, and for jury-design its settings."""
    design = repr(active.STRATEGIES[OURS].choose) if cell["method"] == OURS else ""
    return f"{VERSION} {asdict(active.Recipe())} {design}"


def by_step(rows: list[Row]) -> list[Row]:
    """A row per run and query size, Micro-F1 in %."""
    return [
        {**{key: row[key] for key in ("dataset", "method", "seed")}, "labels": labels, "micro_f1": 100 * score}
        for row in rows
        for labels, score in list(zip(row["labels"], row["micro_f1"]))[1:]
    ]


def summary(rows: list[Row]) -> pd.DataFrame:
    """Mean and spread at every query size, with the paper's mean."""
    found = over_runs(by_step(rows), x="labels")
    paper = {
        (dataset, strategy, labels): numbers[0]
        for dataset in found["dataset"].unique()
        for strategy, by_labels in ACTIVE.get(counterpart(dataset), {}).items()
        for labels, numbers in by_labels.items()
    }
    return with_paper(found, paper, x="labels")


EXPERIMENT = Experiment(
    title="Table 2: active learning",
    about=(
        "The paper's protocol: random test nodes, random initial labels, a new two-layer GCN with 16 hidden units "
        "after each step, Adam with learning rate 0.01, 100 epochs. The paper does not state dropout, weight decay "
        "and whether query sizes count the initial labels; here dropout is 0.5, weight decay 5e-4, and they do. "
        "jury is the paper's strategy, jury-design ours."
    ),
    cells=cells,
    measure=measure,
    stamp=stamp,
    summary=summary,
    shown=lambda frame: in_layout(frame, x="labels"),
    draw=lambda frame: curves(
        frame, x="labels", xlabel="labels", first=(OURS, PAPERS), dashed={PAPERS: "jury, the paper's numbers"}
    ),
)
