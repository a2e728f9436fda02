"""Active learning: the paper's Table 2, every strategy, with the paper's own numbers beside ours.

The paper's protocol: 1000 random test nodes, a pool of all nodes outside test and validation, random initial labels
(10 on Cora and Citeseer, 5 on PubMed), a fresh two-layer GCN with 16 hidden units after each step, Adam with learning
rate 0.01, 100 epochs; ours where the paper says nothing: dropout 0.5, weight decay 5e-4, query sizes that count the
initial labels. All strategies share splits, initial labels, initial weights and training. The same labels are also
learned by the advised learner (the GCN and regressions on the graph, stacked), for some strategies. Five other
graphs come last, with fewer strategies and a longer training for all, since the paper's leaves a GCN unfitted there:
two real ones, and made ones where features lead, where structure leads, and where both mislead.
"two hops" is jury-design with the one window of its first version. Tests are paired Wilcoxon tests over the splits
that both strategies have. Interrupted runs go on where they stopped; the strategies with both learners come first.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from statistics import mean, pstdev
from typing import Any

import numpy as np
import torch
from scipy.stats import wilcoxon
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from active_design import TwoHops
from active_graphs import MADE, graph_named
from harness import options, publish, save, table, with_published
from jurygcn import active
from jurygcn.active.esp import LIMIT as ESP_LIMIT
from jurygcn.active.grain import LIMIT as GRAIN_LIMIT
from jurygcn.active.graph_statistics import GraphStatistics
from jurygcn.active.graphpart import parts_of
from jurygcn.active.lscale import infomax
from jurygcn.active.protocol import Schedule
from jurygcn.active.rim import similarities
from jurygcn.active.sopt import laplacian_of
from jurygcn.active.windows import SHORT, Windows
from jurygcn.data import paper_split, random_labels
from jurygcn.experiments import table2
from jurygcn.experiments.paper import ACTIVE
from jurygcn.experiments.table2 import OURS, SEVEN
from jurygcn.graph.similarity import Similarities
from protocol import CITATION, Cells, extra

PAPER_TRAINING = active.Recipe()
# found with random labels on splits of their own: the paper's training leaves these graphs far from fitted
LONGER = active.Recipe(epochs=200, lr=0.05, weight_decay=5e-5, dropout=0.0)
EXTRA = ("amazon_photo", "het_chameleon")
GAIN = "jury-gain"  # measured in active_design.py
FIRST = "two hops"  # the window of the first version of jury-design
RIVALS = ("featprop", "grain-nn", "grain-ball", "diffusal", "graphpart", "graphpart-far", "lscale", "rim", "esp")
ON_EXTRA = (OURS, FIRST, "jury", *SEVEN, *RIVALS)
ADVISED = (OURS, FIRST, "random", "age", "sopt", "featprop")  # strategies whose labels the advised learner gets too
LIMITS = {"grain-nn": GRAIN_LIMIT, "grain-ball": GRAIN_LIMIT, "esp": ESP_LIMIT}  # nodes
SPLITS, QUICK_SPLITS = 20, 2
QUICK = ("jury-design", "age", "random")
KEPT = (*table2.KEPT, "learner_accuracy", "expected_accuracy", "left_out_accuracy")
ALPHA = 0.05


def recipe_of(name: str) -> active.Recipe:
    return PAPER_TRAINING if name in CITATION else LONGER


def strategies_on(name: str, *, quick: bool) -> tuple[str, ...]:
    if quick:
        return QUICK
    others = (s for s in active.STRATEGIES if s not in (OURS, GAIN))
    chosen = (OURS, FIRST, *others) if name in CITATION else ON_EXTRA
    size = int(graph_named(name).num_nodes)
    return tuple(s for s in chosen if size <= LIMITS.get(s, size))


def stamp(cell: dict[str, Any]) -> str:
    design = repr(active.Design()) if cell["method"] in (OURS, FIRST) else ""
    design += f" {SHORT}" if cell["method"] == OURS else ""
    design += f" {active.Rim()!r}, shares of what others receive" if cell["method"] == "rim" else ""
    return f"2 {recipe_of(cell['dataset'])} {design}"


def one_run(dataset: str, method: str, seed: int) -> dict[str, Any]:
    history = active.run(
        graph_named(dataset),
        TwoHops() if method == FIRST else method,
        seed=seed,
        recipe=recipe_of(dataset),
        learner="advised" if method in ADVISED else "gcn",
    )
    return {key: [getattr(step, key) for step in history.steps] for key in KEPT}


def wanted_on(name: str, strategies: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{"dataset": name, "method": s, "seed": seed} for s in strategies for seed in range(SPLITS)]


def runs_of(name: str, strategies: tuple[str, ...], cells: Cells) -> list[dict[str, Any]]:
    """All finished runs on one graph, of the splits that jury-design has finished."""
    rows = [{**row, "strategy": row["method"]} for row in cells.rows(wanted_on(name, strategies))]
    ours = {row["seed"] for row in rows if row["strategy"] == OURS}
    return [row for row in rows if row["seed"] in ours]


# --- what is measured once per graph ------------------------------------------------------------------------------


class PlainGCN(nn.Module):
    """Two of PyG's own layers, the whole graph at once."""

    def __init__(self, data: Data) -> None:
        super().__init__()
        self.first, self.second = GCNConv(data.num_features, 16), GCNConv(16, int(data.num_classes))

    def forward(self, data: Data) -> torch.Tensor:
        """Logits of all nodes."""
        x = nn.functional.dropout(data.x, 0.5, self.training)
        x = nn.functional.dropout(self.first(x, data.edge_index).relu(), 0.5, self.training)
        return self.second(x, data.edge_index)


def plain_training(data: Data) -> float:
    """Seconds of training an ordinary full-batch PyG GCN for 100 epochs."""
    nodes = random_labels(paper_split(data, seed=0).pool, 50, seed=0)
    model = PlainGCN(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=PAPER_TRAINING.lr, weight_decay=PAPER_TRAINING.weight_decay)
    started = time.perf_counter()
    for _ in range(PAPER_TRAINING.epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data)[nodes], data.y[nodes]).backward()
        optimizer.step()
    return time.perf_counter() - started


def once_per_graph(data: Data, strategies: set[str]) -> dict[str, float]:
    """Seconds of what is computed once and then serves every step, by the strategy that needs it."""
    statistics, seconds = GraphStatistics.of(data), {}
    needs = {
        "pagerank": lambda: statistics.pagerank,
        "centrality": lambda: statistics.betweenness,
        "sopt": lambda: laplacian_of(statistics),
        "featprop": lambda: statistics.propagated,
        "graphpart": lambda: parts_of(statistics, data, int(data.num_classes)),
        "lscale": lambda: infomax(data),
        "rim": lambda: similarities(statistics, data, np.arange(1)),
        OURS: lambda: Windows(Similarities.of(data)).unlabelled,
    }
    for strategy, compute in needs.items():
        if strategy in strategies:
            started = time.perf_counter()
            compute()
            seconds[strategy] = time.perf_counter() - started
    shared = {"age": "pagerank", "anrmab": "pagerank", FIRST: "featprop", "graphpart-far": "graphpart"}
    return {**seconds, **{strategy: seconds[need] for strategy, need in shared.items() if need in seconds}}


# --- tables ---------------------------------------------------------------------------------------------------------


def p_value(ours: list[float], others: list[float]) -> float:
    """Two-sided paired Wilcoxon test; 1 if nothing differs."""
    if all(a == b for a, b in zip(ours, others)):
        return 1.0
    return float(wilcoxon(ours, others).pvalue)


def summaries(name: str, runs: list[dict[str, Any]], once: dict[str, float]) -> Iterator[dict[str, Any]]:
    """One row per strategy, learner and query size."""
    sizes = Schedule.of(graph_named(name), initial=None, budget=None, step=None, count_initial=True).sizes[1:]
    for learner, key in (("gcn", "accuracy"), ("advised", "learner_accuracy")):
        strategies = [s for s in dict.fromkeys(run["strategy"] for run in runs) if learner == "gcn" or s in ADVISED]
        for position, labels in enumerate(sizes, start=1):
            cell = {
                s: {run["seed"]: 100 * run[key][position] for run in runs if run["strategy"] == s} for s in strategies
            }
            for strategy, by_seed in cell.items():
                values, ours = list(by_seed.values()), [cell[OURS][seed] for seed in by_seed]  # of the same splits
                paper = ACTIVE.get(name, {}).get(strategy, {}).get(labels) if learner == "gcn" else None
                seconds = [t for run in runs if run["strategy"] == strategy for t in run["seconds"][1:]]
                yield {
                    "dataset": name,
                    "learner": learner,
                    "strategy": strategy,
                    "labels": labels,
                    "splits": len(values),
                    "mean": mean(values),
                    "sd": pstdev(values),
                    "paper": None if paper is None else paper[0],
                    "paper_sd": None if paper is None else paper[1],
                    "ours_minus_it": mean(ours) - mean(values),
                    "p": p_value(ours, values),
                    "seconds_per_step": mean(seconds),
                    "seconds_once": once.get(strategy, 0.0),
                }


def expectations(name: str, runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """How far what is expected is from the test accuracy of the advised learner, over all steps after the first."""
    for strategy in ADVISED:
        mine = [run for run in runs if run["strategy"] == strategy]
        found: dict[str, Any] = {"dataset": name, "strategy": strategy, "splits": len(mine)}
        for key in ("expected_accuracy", "left_out_accuracy"):
            gaps = [100 * (e - a) for run in mine for e, a in list(zip(run[key], run["learner_accuracy"]))[1:]]
            found[key] = {"error": mean(map(abs, gaps)), "bias": mean(gaps)}
        yield found


def claims(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The claims, counted: never significantly worse than another strategy; better than each of the paper's seven."""
    cells = list(dict.fromkeys((row["dataset"], row["labels"]) for row in rows))
    worse, better, first = [], dict.fromkeys(SEVEN, 0), 0
    for cell in cells:
        here = {row["strategy"]: row for row in rows if (row["dataset"], row["labels"]) == cell}
        worse += [(*cell, s) for s, row in here.items() if row["ours_minus_it"] < 0 and row["p"] < ALPHA]
        first += all(row["ours_minus_it"] >= 0 for s, row in here.items() if s != FIRST)
        for name in SEVEN:
            if name in here:
                better[name] += here[name]["ours_minus_it"] > 0 and here[name]["p"] < ALPHA
    return {"cells": len(cells), "first": first, "significantly_worse_than": worse, "significantly_better_than": better}


def show(name: str, rows: list[dict[str, Any]], plain: float, choosing: float) -> None:
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    sizes = list(dict.fromkeys(row["labels"] for row in rows))
    body = []
    for strategy in strategies:
        mine = {row["labels"]: row for row in rows if row["strategy"] == strategy}
        cells = [
            f"{mine[n]['mean']:.1f} ± {mine[n]['sd']:.1f}{'*' if mine[n]['p'] < ALPHA and strategy != OURS else ' '}"
            + (f"[{mine[n]['paper']:.1f}]" if mine[n]["paper"] else "")
            for n in sizes
        ]
        first = mine[sizes[0]]
        body.append([strategy, *cells, f"{first['seconds_per_step']:.3f}", f"{first['seconds_once']:.2f}"])
    note = (
        f"Mean ± sd of test accuracy in % over {rows[0]['splits']} splits at each number of labels (all are counted); "
        f"in brackets the paper's; * differs from {OURS}, p < {ALPHA:g}. Seconds per step, and once per graph. An "
        f"ordinary full-batch PyG GCN trains 100 epochs in {plain:.2f} s; {OURS}, timed beside it, needs "
        f"{choosing:.2f} s per step."
    )
    columns = ["strategy", *map(str, sizes), "s/step", "s once"]
    table(name, columns, body, note=note)


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is finished")
    names = CITATION[:1] if chosen.quick else (*CITATION, *extra(*EXTRA), *MADE)
    cells = with_published(Cells("active_learning_quick" if chosen.quick else "active_learning", stamp))
    strategies = {name: strategies_on(name, quick=chosen.quick) for name in names}
    if not chosen.finished:  # splits outside, so that an interrupted benchmark has strategies on the same splits
        for first in (True, False):
            for seed in range(QUICK_SPLITS if chosen.quick else SPLITS):
                for name in names:
                    some = [s for s in strategies[name] if (s in ADVISED) == first]
                    cells.measure([{"dataset": name, "method": s, "seed": seed} for s in some], one_run)
    rows, expected, plain, choosing = [], [], {}, {}
    for name in names:
        runs = runs_of(name, strategies[name], cells)
        if not runs:
            continue
        once = once_per_graph(graph_named(name), {run["strategy"] for run in runs})
        plain[name] = plain_training(graph_named(name))
        choosing[name] = mean(one_run(name, OURS, 0)["seconds"][2:])
        here = list(summaries(name, runs, once))
        show(name, [row for row in here if row["learner"] == "gcn"], plain[name], choosing[name])
        rows += here
        expected += [] if chosen.quick else list(expectations(name, runs))
    found = {
        f"{where}, {learner}": claims(
            [r for r in rows if r["learner"] == learner and (r["dataset"] in CITATION) == paper]
        )
        for where, paper in (("paper's graphs", True), ("other graphs", False))
        for learner in ("gcn", "advised")
    }
    print(json.dumps(found, indent=2))
    if not chosen.quick:
        publish(cells, (cell for name in names for cell in wanted_on(name, strategies[name])))
    save(
        "active_learning",
        rows,
        quick=chosen.quick,
        settings={"splits": SPLITS, "count_initial": True, **asdict(PAPER_TRAINING)},
        longer_training=asdict(LONGER),
        expectations=expected,
        plain_training_seconds=plain,
        choosing_seconds=choosing,
        claims=found,
    )


if __name__ == "__main__":
    main()
