"""Figure 3: sensitivity to the coverage parameter α in active learning, and to τ in reweighting."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from jurygcn import active, learning
from jurygcn.active.protocol import PAPER as PROTOCOL
from jurygcn.active.simple import widest
from jurygcn.canvas import canvas, legend_below, looks
from jurygcn.data import paper_split, random_labels
from jurygcn.evaluation import micro_f1
from jurygcn.experiments import figure1
from jurygcn.experiments.cells import Cell, Row
from jurygcn.experiments.curves import in_layout, over_runs
from jurygcn.experiments.experiment import Experiment, Scope
from jurygcn.experiments.graphs import CITATION, NAMES, counterpart, fourth_graph, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TWO_ALPHA, QUICK_TWO_ALPHA = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4), (0.05, 0.2, 0.4)
TAU, QUICK_TAU = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0), (0.0, 2.0, 3.0)
STEP = 3  # the paper uses its third query step and its third label count
PARTS = {"2α": "2α, active learning by width", "τ": "τ, reweighted training"}


def cells(scope: Scope) -> Iterator[Cell]:
    """All values on one split, then the next split."""
    names = ("cora",) if scope.quick else (*CITATION, fourth_graph())
    values = {"2α": QUICK_TWO_ALPHA, "τ": QUICK_TAU} if scope.quick else {"2α": TWO_ALPHA, "τ": TAU}
    for dataset in names:
        for seed in range(scope.runs):
            for part, several in values.items():
                yield from ({"part": part, "value": value, "dataset": dataset, "seed": seed} for value in several)


def measure(part: str, value: float, dataset: str, seed: int) -> Row:
    """Micro-F1 on the test nodes, in %."""
    return {"micro_f1": 100 * (by_alpha if part == "2α" else by_tau)(value, dataset, seed)}


def by_alpha(value: float, dataset: str, seed: int) -> float:
    """Active learning by the paper's width at level α = value / 2, up to the third query step."""
    initial, _, step = PROTOCOL[counterpart(dataset)]
    strategy = partial(widest, alpha=value / 2)
    history = active.run(load(dataset), strategy, seed=seed, initial=initial, step=step, budget=STEP * step)
    return history.steps[-1].micro_f1


def by_tau(value: float, dataset: str, seed: int) -> float:
    """The paper's reweighting with this τ, at the third label count."""
    data = load(dataset)
    split = paper_split(data, seed=seed)
    nodes = random_labels(split.pool, figure1.LABELS[counterpart(dataset)][STEP - 1], seed=seed)
    fitted = learning.Reweighting(tau=value).fit(data, nodes, seed=seed)
    return micro_f1(fitted.predict(split.test), data.y[split.test])


def summary(rows: list[Row]) -> pd.DataFrame:
    """Mean and spread for every value of the two parameters."""
    return over_runs([{**row, "method": row["part"]} for row in rows], x="value")


def shown(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """A table per parameter, a row per graph."""
    found = {}
    for part, title in PARTS.items():
        mine = frame[frame["method"] == part]
        runs = [
            "1 run" if count == 1 else f"{int(count)} runs"
            for count in mine.groupby("dataset", sort=False)["runs"].min()
        ]
        tables = zip(in_layout(mine, x="value").items(), runs)
        blocks = [table.assign(method=f"{name}, {count}") for (name, table), count in tables]
        found[title] = pd.concat(blocks, ignore_index=True).rename(columns={"method": "graph"})
    return found


def draw(frame: pd.DataFrame) -> Figure:
    """The two parameters side by side, a line per graph."""
    figure, panels = canvas(2, width=8.4, height=3.9, share_y=True)
    style = looks(frame["dataset"])
    for panel, (part, title) in zip(panels, PARTS.items()):
        for dataset, mine in frame[frame["method"] == part].groupby("dataset", sort=False):
            look: dict[str, Any] = style[str(dataset)]
            panel.plot(mine["value"], mine["mean"], label=NAMES[str(dataset)], markersize=5, linewidth=1.8, **look)
            low, high = mine["mean"] - mine["se"], mine["mean"] + mine["se"]
            panel.fill_between(mine["value"], low, high, color=look["color"], alpha=0.16, linewidth=0)
        panel.set(title=title, xlabel=part)
        panel.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    panels[0].set_ylabel("Micro-F1, %")
    legend_below(figure, panels)
    return figure


EXPERIMENT = Experiment(
    title="Figure 3: sensitivity to α and τ",
    about=(
        "Left: the paper's active learning (widest interval, influence jurors) at its third query step, by 2α; "
        "jackknife+ guarantees coverage 1 - 2α. Right: the paper's reweighting at the third label count of Figure "
        "1, by τ; 0 is ordinary training. The errata are corrected. Bands are standard errors over runs. The paper "
        "prints no numbers. It reports that Micro-F1 falls slightly with α and hardly depends on τ."
    ),
    cells=cells,
    measure=measure,
    stamp=lambda cell: f"1 {active.Recipe() if cell['part'] == '2α' else learning.Reweighting(tau=cell['value'])!r}",
    summary=summary,
    shown=shown,
    draw=draw,
)
