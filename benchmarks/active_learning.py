"""Active learning: the paper's Table 2, every strategy, with the paper's own numbers beside ours.

The paper's protocol: 1000 random test nodes, a pool of all nodes outside test and validation, random initial labels
(10 on Cora and Citeseer, 5 on PubMed), a fresh two-layer GCN with 16 hidden units after each step, Adam with learning
rate 0.01, 100 epochs; ours where the paper says nothing: dropout 0.5, weight decay 5e-4, query sizes that count the
initial labels. All strategies share splits, initial labels, initial weights and training. The same labels are also
learned by the advised learner (the GCN and regressions on the graph, stacked), for some strategies. Five other
graphs come last, with fewer strategies and a longer training for all, since the paper's leaves a GCN unfitted there:
two real ones, and made ones where features lead, where structure leads, and where both mislead.
"two hops" is jury-design with the one window of its first version. Tests are paired Wilcoxon tests over the splits
that both strategies have; differences are means over these splits, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
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
from harness import earlier, options, publish, save, table, with_published
from jurygcn import active
from jurygcn.active.esp import LIMIT as ESP_LIMIT
from jurygcn.active.grain import LIMIT as GRAIN_LIMIT
from jurygcn.active.graph_statistics import DIMENSIONS, GraphStatistics, pagerank
from jurygcn.active.graphpart import parts_of
from jurygcn.active.lscale import infomax
from jurygcn.active.protocol import Schedule
from jurygcn.active.rim import similarities
from jurygcn.active.scene import Strategy
from jurygcn.active.sopt import laplacian_of
from jurygcn.active.tasks import scene_of
from jurygcn.active.windows import SHORT, Windows
from jurygcn.data import paper_split, random_labels
from jurygcn.experiments import table2
from jurygcn.experiments.paper import ACTIVE
from jurygcn.experiments.table2 import OURS, SEVEN
from jurygcn.graph.features import reduce_rows
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
PLAIN, WORTH_TWICE = "training a plain PyG GCN", 1.0  # seconds


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
    usual = active.Design()
    window = f" {SHORT}, seen {usual.seen}" if cell["method"] == OURS else ""
    numbers = f"Design(directions={usual.directions}, trust={usual.trust}, evidence={usual.evidence})"
    design = numbers + window if cell["method"] in (OURS, FIRST) else ""
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
    """All finished runs on one graph, of the splits that all strategies with both learners have finished."""
    rows = [{**row, "strategy": row["method"]} for row in cells.rows(wanted_on(name, strategies))]
    finished = [{row["seed"] for row in rows if row["strategy"] == s} for s in strategies if s in (OURS, *ADVISED)]
    shared = set.intersection(*finished)
    return [row for row in rows if row["seed"] in shared]


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


def plain_training(data: Data) -> None:
    """Train an ordinary full-batch PyG GCN for 100 epochs."""
    nodes = random_labels(paper_split(data, seed=0).pool, 50, seed=0)
    model = PlainGCN(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=PAPER_TRAINING.lr, weight_decay=PAPER_TRAINING.weight_decay)
    for _ in range(PAPER_TRAINING.epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data)[nodes], data.y[nodes]).backward()
        optimizer.step()


def once_per_graph(data: Data) -> dict[str, Callable[[], object]]:
    """What is computed once and then serves every step, by the strategies that need it."""
    statistics = GraphStatistics.of(data)
    found: dict[str, Callable[[], object]] = {
        **dict.fromkeys(("pagerank", "age", "anrmab"), lambda: pagerank(statistics.adjacency)),
        "centrality": lambda: statistics.betweenness,
        "sopt": lambda: laplacian_of(statistics),
        **dict.fromkeys(("featprop", FIRST), lambda: reduce_rows(statistics.propagation.propagated(2), DIMENSIONS)),
        **dict.fromkeys(("graphpart", "graphpart-far"), lambda: parts_of(statistics, data, int(data.num_classes))),
        "lscale": lambda: infomax(data),
        "rim": lambda: similarities(statistics, data, np.arange(1)),
        OURS: lambda: Windows(Similarities.of(data)),
    }
    return found


def processor_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def timings(name: str, strategies: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Seconds of processor time once per graph and of one step: the batch after the run's second, random labels."""
    data = graph_named(name)
    size, batch = (40, 20) if name != "pubmed" else (20, 10)
    nodes = random_labels(paper_split(data, seed=0).pool, size, seed=0)
    known, once, found = dict(zip(nodes.tolist(), data.y[nodes].tolist())), once_per_graph(data), {}
    for strategy in strategies:
        fixed = processor_seconds(once[strategy]) if strategy in once else 0.0
        chooser = TwoHops() if strategy == FIRST else active.STRATEGIES[strategy].choose

        def step(chooser: Strategy = chooser) -> float:
            scene = scene_of(data, known, batch=batch, candidates=None, recipe=recipe_of(name), seed=0)
            return processor_seconds(lambda: chooser(scene))

        first = step()  # computes what is kept with the graph, too
        found[strategy] = {"once": fixed, "step": step() if strategy in once or first < WORTH_TWICE else first}
    found[PLAIN] = {"once": 0.0, "step": processor_seconds(lambda: plain_training(data))}
    return found


# --- tables ---------------------------------------------------------------------------------------------------------


def p_value(ours: list[float], others: list[float]) -> float:
    """Two-sided paired Wilcoxon test; 1 if nothing differs."""
    if all(a == b for a, b in zip(ours, others)):
        return 1.0
    return float(wilcoxon(ours, others).pvalue)


def summaries(name: str, runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
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
                }


def expectations(name: str, runs: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """How far what is expected is from the test accuracy of the advised learner, over all steps after the first."""
    for strategy in ADVISED:
        mine = [run for run in runs if run["strategy"] == strategy]
        if not mine:
            continue
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


def show(name: str, rows: list[dict[str, Any]]) -> None:
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
        body.append([strategy, *cells, mine[sizes[0]]["splits"]])
    note = (
        f"Mean ± sd of test accuracy in % at each number of labels (all are counted); in brackets the paper's; * "
        f"differs from {OURS}, p < {ALPHA:g}."
    )
    table(name, ["strategy", *map(str, sizes), "splits"], body, note=note)


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is finished", timed="measure seconds again")
    names = CITATION[:1] if chosen.quick else (*CITATION, *extra(*EXTRA), *MADE)
    cells = with_published(Cells("active_learning_quick" if chosen.quick else "active_learning", stamp))
    strategies = {name: strategies_on(name, quick=chosen.quick) for name in names}
    if not chosen.finished:  # splits outside, so that an interrupted benchmark has strategies on the same splits
        for first in (True, False):
            for seed in range(QUICK_SPLITS if chosen.quick else SPLITS):
                for name in names:
                    some = [s for s in strategies[name] if (s in ADVISED) == first]
                    cells.measure([{"dataset": name, "method": s, "seed": seed} for s in some], one_run)
    rows: list[dict[str, Any]] = []
    expected: list[dict[str, Any]] = []
    before = {} if chosen.quick else earlier("active_learning")
    seconds = {} if chosen.timed else before.get("seconds", {})
    for name in names:
        runs = runs_of(name, strategies[name], cells)
        rows += list(summaries(name, runs)) if runs else []
        expected += list(expectations(name, runs)) if runs else []
        if chosen.timed and name in CITATION:
            seconds[name] = timings(name, tuple(dict.fromkeys(run["strategy"] for run in runs)))
    for name in names:
        show(name, [row for row in rows if row["dataset"] == name and row["learner"] == "gcn"])
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
        before=before,
        settings={"splits": SPLITS, "count_initial": True, **asdict(PAPER_TRAINING)},
        longer_training=asdict(LONGER),
        expectations=expected,
        seconds=seconds,
        claims=found,
    )


if __name__ == "__main__":
    main()
