"""Active learning by other people's protocols, beside their published numbers.

DiffusAL: the largest component, 2C labels a round for ten rounds, 500 validation and 1000 test nodes at random, seeds 1
to 10. jury-design chooses from the first label on, without initial random ones. No validation label is read, except in
the rows "by validation": the better of the GCN and the advised learner at the 500 validation nodes is taken. DiffusAL's
numbers are read off its figures.

RIM: 30 % of the oracle's answers are wrong, drawn evenly among the other classes; 20 labels per class. RIM knows the
oracle's accuracy and tests at the best of 500 clean validation labels. Ours knows neither. RIM's numbers are its GCN's.
Interrupted runs go on where they stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, pstdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import LargestConnectedComponents

from harness import options, save, table
from jurygcn import active
from jurygcn.data import Split
from protocol import CITATION, Cells, graph

SEEDS, QUICK_SEEDS = range(1, 11), range(1, 2)
ROUNDS, PER_CLASS, WRONG = 10, 20, 0.3
DIFFUSAL = {
    "cora": {28: 75.5, 56: 80.0, 98: 82.3, 140: 83.6},
    "citeseer": {24: 66.6, 48: 70.0, 120: 72.5},
    "pubmed": {12: 72.0, 30: 80.9, 60: 81.4},
}
RIM = {"cora": 77.9, "citeseer": 67.5, "pubmed": 73.2}
KEPT = ("labels", "accuracy", "val_accuracy", "learner_accuracy", "learner_val_accuracy", "seconds")
LEARNERS = ("gcn", "advised", "by validation")
STRATEGIES = ("jury-design", "random")


def component_of(name: str) -> Data:
    data = graph(name)
    return LargestConnectedComponents()(
        Data(x=data.x, edge_index=data.edge_index, y=data.y, num_classes=data.num_classes, name=f"{name}, component")
    )


def split_of(data: Data, seed: int) -> Split:
    """1000 test and 500 validation nodes at random; all others are the pool."""
    order = torch.from_numpy(np.random.default_rng(seed).permutation(int(data.num_nodes)))
    order = order[data.y[order] >= 0]
    return Split(*(part.sort().values for part in (order[1500:], order[1000:1500], order[:1000])))


def wrong_at(data: Data, seed: int) -> Callable[[Tensor], Tensor]:
    """An oracle that is wrong at 30 % of all nodes, always in the same way."""
    rng, classes = np.random.default_rng([seed, 1]), int(data.num_classes)
    flipped = torch.from_numpy(rng.random(int(data.num_nodes)) < WRONG)
    other = torch.from_numpy(rng.integers(1, classes, size=int(data.num_nodes)))
    answers = torch.where(flipped, (data.y.clamp_min(0) + other) % classes, data.y)
    return lambda nodes: answers[nodes]


def one_run(protocol: str, dataset: str, method: str, seed: int) -> dict[str, Any]:
    diffusal = protocol == "diffusal"
    data = component_of(dataset) if diffusal else graph(dataset)
    classes = int(data.num_classes)
    history = active.run(
        data,
        method,
        initial=0,
        budget=2 * ROUNDS * classes if diffusal else PER_CLASS * classes,
        step=2 * classes if diffusal else 4 * classes,
        seed=seed,
        split=split_of(data, seed),
        learner="advised",
        oracle=None if diffusal else wrong_at(data, seed),
    )
    return {key: [getattr(step, key) for step in history.steps[1:]] for key in KEPT}


def reached(row: dict[str, Any], labels: int, learner: str) -> float:
    """Test accuracy in percent at so many labels: of the last round with at most so many."""
    step = max(k for k, count in enumerate(row["labels"]) if count <= labels)
    better = row["learner_val_accuracy"][step] >= row["val_accuracy"][step]
    advised = learner == "advised" or (learner == "by validation" and better)
    return float(100 * row["learner_accuracy" if advised else "accuracy"][step])


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is finished")
    names, seeds = (CITATION[:1], QUICK_SEEDS) if chosen.quick else (CITATION, SEEDS)
    cells = Cells("active_protocols_quick" if chosen.quick else "active_protocols", lambda _: f"1 {active.Design()!r}")
    kinds = [(p, name, s) for p in ("diffusal", "noise") for name in names for s in STRATEGIES]
    if not chosen.finished:
        for seed in seeds:
            cells.measure([{"protocol": p, "dataset": d, "method": s, "seed": seed} for p, d, s in kinds], one_run)
    rows = []
    for protocol, name, strategy in kinds:
        wanted = [{"protocol": protocol, "dataset": name, "method": strategy, "seed": seed} for seed in seeds]
        runs = cells.rows(wanted)
        published = DIFFUSAL[name] if protocol == "diffusal" else {PER_CLASS * int(graph(name).num_classes): RIM[name]}
        for labels, theirs in published.items() if runs else ():
            for learner in LEARNERS:
                values = [reached(row, labels, learner) for row in runs]
                rows.append(
                    {
                        **{"protocol": protocol, "dataset": name, "strategy": strategy, "learner": learner},
                        **{"labels": labels, "seeds": len(values), "mean": mean(values), "sd": pstdev(values)},
                        "published": theirs,
                    }
                )
    for protocol in ("diffusal", "noise"):
        body = [
            [r["dataset"], r["strategy"], r["learner"], r["labels"], f"{r['mean']:.1f} ± {r['sd']:.1f}", r["published"]]
            for r in rows
            if r["protocol"] == protocol
        ]
        table(protocol, ["graph", "strategy", "learner", "labels", "accuracy", "published"], body)
    save("active_protocols", rows, quick=chosen.quick, wrong=WRONG, per_class=PER_CLASS)


if __name__ == "__main__":
    main()
