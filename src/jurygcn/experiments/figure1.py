"""Figure 1: semi-supervised classification, Micro-F1 by number of labels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import learning
from jurygcn.data import Split, paper_split, random_labels
from jurygcn.evaluation import error_auroc, micro_f1
from jurygcn.experiments.cells import Cell, Row
from jurygcn.experiments.curves import bars, in_layout, over_runs, with_paper
from jurygcn.experiments.experiment import Experiment, Scope
from jurygcn.experiments.graphs import CITATION, counterpart, fourth_graph, load
from jurygcn.experiments.paper import SEMI_SUPERVISED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "cora": (20, 40, 60, 80, 100),
    "citeseer": (20, 40, 60, 80, 100),
    "pubmed": (10, 20, 30, 40, 50),
    "reddit": (40, 80, 120, 160, 200),
}
OURS, PAPERS = "self-train", "reweight"
METHODS = (OURS, PAPERS, "gcn", "gat", "sgnn", "gpn")
DETAILS = ("weight_sd", "hops")  # details of a fit to save, if it has them
BLOCK = 5  # runs of all methods before the next runs, so that an interrupted run can be compared


def cells(scope: Scope) -> Iterator[Cell]:
    """All methods and label counts of some runs before the next runs."""
    names = ("cora",) if scope.quick else (*CITATION, fourth_graph())
    for start in range(0, scope.runs, BLOCK):
        for dataset in names:
            counts = LABELS[counterpart(dataset)]
            for seed in range(start, min(start + BLOCK, scope.runs)):
                for labels in (counts[0], counts[-1]) if scope.quick else counts:
                    for method in METHODS:
                        yield {"dataset": dataset, "labels": labels, "seed": seed, "method": method}


def measure(dataset: str, labels: int, seed: int, method: str) -> Row:
    """One fit on random labels of the paper's split."""
    data = load(dataset)
    split = paper_split(data, seed=seed)
    nodes = random_labels(split.pool, labels, seed=seed)
    return scored(learning.METHODS[method](learning.preset_for(dataset)), data, split, nodes, seed=seed)


def scored(method: learning.Method, data: Data, split: Split, nodes: Tensor, *, seed: int) -> Row:
    """Micro-F1 on the test nodes in %, the AUROC of detecting errors by the method's uncertainty, and the time."""
    started = time.perf_counter()
    fitted = method.fit(data, nodes, val_nodes=split.val, seed=seed)
    seconds = time.perf_counter() - started
    guess, truth = fitted.predict(split.test), data.y[split.test]
    wrong = error_auroc(fitted.uncertainty(nodes=split.test), guess != truth)
    found = {"micro_f1": 100 * micro_f1(guess, truth), "auroc": wrong, "seconds": seconds}
    return found | {key: fitted.details[key] for key in DETAILS if key in fitted.details}


def stamp(cell: Cell) -> str:
    """The settings of the method on this graph."""
    return stamp_of(learning.METHODS[cell["method"]](learning.preset_for(cell["dataset"])))


def stamp_of(method: learning.Method) -> str:
    """The method's settings; the number is increased by hand when the code of a method changes."""
    return f"1 {method!r}"


def summary(rows: list[Row]) -> pd.DataFrame:
    """Mean and spread at every label count, with the paper's mean at the largest."""
    found = over_runs(rows, x="labels")
    paper = {
        (dataset, method, LABELS[dataset][-1]): numbers[dataset]
        for dataset in found["dataset"].unique()
        for method, numbers in SEMI_SUPERVISED.items()
        if dataset in numbers  # Reddit's numbers do not apply to its stand-in
    }
    return with_paper(found, paper, x="labels")


def draw(frame: pd.DataFrame) -> Figure:
    """Bars, as in the paper."""
    return bars(frame, x="labels", xlabel="labels", first=(OURS, PAPERS))


EXPERIMENT = Experiment(
    title="Figure 1: semi-supervised classification",
    about=(
        "Random labels and test nodes. The GCN is the paper's: two layers, 16 hidden units, Adam with learning rate "
        "0.01, 100 epochs. The paper does not state dropout and weight decay; here they are 0.5 and 5e-4. GAT, "
        "S-GNN and GPN have their authors' settings; only GAT and GPN use validation labels, to stop early. "
        "reweight is the paper's JuryGCN, self-train ours. The paper's numbers are in brackets and as lines across "
        "the bars; it has numbers for the largest count only."
    ),
    cells=cells,
    measure=measure,
    stamp=stamp,
    summary=summary,
    shown=lambda frame: in_layout(frame, x="labels"),
    draw=draw,
)
