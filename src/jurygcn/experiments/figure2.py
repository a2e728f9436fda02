"""Figure 2: running time compared with retraining, by number of labels, and Micro-F1 against peak memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.canvas import canvas, legend_below, looks
from jurygcn.choices import Recipe
from jurygcn.experiments import figure1, graphs
from jurygcn.experiments.cells import Cell, Row
from jurygcn.experiments.experiment import Experiment, Scope
from jurygcn.experiments.memory import VERDICT, measured_apart
from jurygcn.experiments.paper import SPEEDUP, SPEEDUP_LABELS
from jurygcn.jury import Jury
from jurygcn.models.gcn import GCN
from jurygcn.models.receptive_field import ReceptiveField
from jurygcn.models.training import train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 10  # the stand-in has a tenth of Reddit's nodes
LABELS, QUICK_LABELS = (100, 300, 1000, 3000, 10_000), (25, 50, 100, 200, 400)
QUICK_GRAPH = "pubmed"
METHODS = (figure1.PAPERS, figure1.OURS, VERDICT, "gpn", "sgnn")
MEMORY_RUNS = 3  # memory hardly differs between runs
DECAY, HIDDEN, EPOCHS = Recipe.weight_decay, Recipe.hidden, Recipe.epochs
EPOCHS_TIMED, REPEATS = 5, 3


def cells(scope: Scope) -> Iterator[Cell]:
    """The time of every label count, then every method's memory."""
    for labels in QUICK_LABELS if scope.quick else LABELS:
        yield {"part": "time", "dataset": QUICK_GRAPH if scope.quick else graphs.fourth_graph(), "labels": labels}
    for dataset in ("cora",) if scope.quick else graphs.CITATION:
        for seed in range(1 if scope.quick else min(scope.runs, MEMORY_RUNS)):
            for method in METHODS:
                labels = figure1.LABELS[dataset][-1]
                yield {"part": "memory", "dataset": dataset, "labels": labels, "method": method, "seed": seed}


def measure(part: str, **cell: Any) -> Row:
    """One label count's times, or one method's memory."""
    return measured_apart(**cell) if part == "memory" else timed(**cell)


def timed(dataset: str, labels: int) -> Row:
    """Seconds for jurors and verdicts of all nodes, and for retraining one juror; alternating, the best of each."""
    data = timing_graph(dataset)
    votes = "auto" if dataset in graphs.CITATION else "linearized"
    nodes = torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(0))[:labels]
    model, juror = (GCN(data.x.shape[1], HIDDEN, int(data.num_classes)) for _ in range(2))
    train(model, data, nodes, epochs=EPOCHS, weight_decay=DECAY)
    without = torch.ones(labels).index_fill_(0, torch.tensor([0]), 0.0)
    calls: dict[str, Callable[[], object]] = {
        "jury": lambda: Jury(model, data, nodes, weight_decay=DECAY, votes=votes).fit().verdict(advice=None),
        "own": lambda: train(juror, data, nodes, epochs=EPOCHS, weight_decay=DECAY, node_weights=without),
        "whole": lambda: full_batch_epochs(data, nodes[1:], EPOCHS_TIMED),
    }
    turns = [{name: seconds(call) for name, call in calls.items()} for _ in range(REPEATS)]
    best = {name: min(turn[name] for turn in turns) for name in calls}
    own, whole = labels * best["own"], labels * best["whole"] * EPOCHS / EPOCHS_TIMED
    return {
        "nodes": int(data.num_nodes),
        "edges": int(data.num_edges),
        "jury_s": best["jury"],
        "retraining_s": own,
        "speedup": own / best["jury"],
        "whole_graph_s": whole,
        "speedup_whole_graph": whole / best["jury"],
    }


def full_batch_epochs(data: Data, nodes: Tensor, epochs: int) -> None:
    """Full-batch training: a forward and backward pass of the whole graph in every epoch."""
    model = GCN(data.x.shape[1], HIDDEN, int(data.num_classes))
    everyone = ReceptiveField.of(model, data, torch.arange(int(data.num_nodes)))
    optimizer = torch.optim.Adam(model.parameters(), lr=Recipe.lr, weight_decay=DECAY)
    for _ in range(epochs):
        optimizer.zero_grad()
        functional.cross_entropy(everyone.logits(list(model.weights))[nodes], data.y[nodes]).backward()
        optimizer.step()


@lru_cache(maxsize=1)
def timing_graph(dataset: str) -> Data:
    """The graph, or a stand-in with Reddit's mean degree; ÂX is computed before anything is timed."""
    data = graphs.stand_in(share=SHARE) if dataset == graphs.STAND_IN else graphs.load(dataset)
    field = ReceptiveField.of(
        GCN(data.x.shape[1], HIDDEN, int(data.num_classes)), data, torch.arange(int(data.num_nodes))
    )
    _ = field.inputs
    return data


def seconds(call: Callable[[], object]) -> float:
    """The seconds that the call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def summary(rows: list[Row]) -> pd.DataFrame:
    """The measured times; memory and Micro-F1 as means over runs."""
    times = [{key: value for key, value in row.items() if key != "stamp"} for row in rows if row["part"] == "time"]
    made = []
    frame = pd.DataFrame([row for row in rows if row["part"] == "memory"])
    for (dataset, method), part in frame.groupby(["dataset", "method"], sort=False):
        found = {"part": "memory", "dataset": dataset, "method": method, "labels": int(part["labels"].iloc[0])}
        found |= {"runs": len(part), "micro_f1": part["micro_f1"].mean(), "sd": part["micro_f1"].std(ddof=0)}
        found |= {"peak_mb": part["peak_mb"].mean(), "added_mb": (part["peak_mb"] - part["before_mb"]).mean()}
        made.append(found)
    return pd.DataFrame([*times, *made])


def shown(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """A table of times, a table of memory."""
    times, memory = (frame[frame["part"] == part] for part in ("time", "memory"))
    first = times.iloc[0]
    name = f"{graphs.NAMES[first['dataset']]}, {first['nodes']:,.0f} nodes, {first['edges']:,.0f} directed edges"
    clock = [
        {
            "labels": f"{row.labels:,}",
            "jury": f"{row.jury_s:.2f} s",
            "retraining": f"{row.retraining_s:,.0f} s",
            "speed-up": f"{row.speedup:,.0f}",
            "whole-graph retraining": f"{row.whole_graph_s:,.0f} s",
            "its speed-up": f"{row.speedup_whole_graph:,.0f}",
            "the paper's": f"over {SPEEDUP}" if row.labels == SPEEDUP_LABELS else "",
        }
        for row in times.itertuples()
    ]
    lines = [
        {
            "graph": graphs.NAMES[str(row.dataset)],
            "method": row.method,
            "Micro-F1": f"{row.micro_f1:.1f} ± {row.sd:.1f}",
            "peak memory": f"{row.peak_mb:,.0f} MB",
            "above graph and libraries": f"{row.added_mb:,.0f} MB",
        }
        for row in memory.itertuples()
    ]
    return {f"Running time: {name}": pd.DataFrame(clock), "Micro-F1 and memory": pd.DataFrame(lines)}


def draw(frame: pd.DataFrame) -> Figure:
    """Time in the first panel, then memory in a panel per graph."""
    times, memory = (frame[frame["part"] == part] for part in ("time", "memory"))
    datasets = list(dict.fromkeys(memory["dataset"]))
    figure, (clock, *panels) = canvas(1 + len(datasets), width=9, height=3.6, columns=2)
    lines = {
        "jury_s": "jury, all nodes",
        "retraining_s": "retraining, on receptive fields",
        "whole_graph_s": "retraining, on the whole graph",
    }
    for key, words in lines.items():
        look: dict[str, Any] = looks(lines)[key]
        clock.plot(times["labels"], times[key], label=words, markersize=5, linewidth=1.8, **look)
    for row in times.itertuples():
        below, above = (row.retraining_s, row.speedup, -14), (row.whole_graph_s, row.speedup_whole_graph, 6)
        for seconds_, speedup, away in (below, above):  # numbers below the lower line and above the upper one
            where: dict[str, Any] = {"xytext": (0, away), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            clock.annotate(f"{speedup:,.0f}×", (row.labels, seconds_), **where)
    name = graphs.NAMES[times.iloc[0]["dataset"]]
    clock.set(xscale="log", yscale="log", xlabel="labels", ylabel="seconds", title=f"Running time, {name}")
    clock.set_xticks(times["labels"], [f"{labels:,}" for labels in times["labels"]])
    clock.minorticks_off()
    clock.margins(x=0.08, y=0.12)
    clock.set_ylim(top=60 * times[["retraining_s", "whole_graph_s"]].to_numpy().max())  # room for the legend
    clock.legend(frameon=False, loc="upper left", fontsize=8)
    style = looks(METHODS)
    for panel, dataset in zip(panels, datasets):
        for row in memory[memory["dataset"] == dataset].itertuples():
            panel.errorbar(
                row.peak_mb, row.micro_f1, yerr=row.sd, fmt=style[row.method]["marker"], markersize=7,
                color=style[row.method]["color"], label=row.method, capsize=2, elinewidth=1,
            )  # fmt: skip
        panel.set(title=graphs.NAMES[dataset], xlabel="peak memory, MB", ylabel="Micro-F1, %")
        panel.margins(x=0.15)
    legend_below(figure, panels)
    return figure


EXPERIMENT = Experiment(
    title="Figure 2: running time and memory",
    about=(
        "Time: jurors and verdicts of all nodes, compared with retraining every juror for 100 epochs, on the "
        "receptive field of its labels (this library's training) and full-batch on the whole graph (ordinary "
        f"training, {EPOCHS_TIMED} epochs timed). One juror is timed and multiplied by the number of labels. All are "
        f"timed alternately in one process, the best of {REPEATS}. Jurors are linearised on Reddit and its stand-in, "
        f"which has Reddit's features, classes and mean degree, and a {SHARE}th of its nodes. Memory: the peak of a "
        "process that loads the graph and fits the method at the largest label count of Figure 1. reweight is the "
        "paper's JuryGCN; gcn + verdict is a GCN with the verdict of its jury."
    ),
    cells=cells,
    measure=measure,
    stamp=lambda cell: f"1 {REPEATS if cell['part'] == 'time' else ''}",
    summary=summary,
    shown=shown,
    draw=draw,
)
