"""Active learning by other people's protocols, beside their published numbers.

DiffusAL: the largest component, 2C labels a round for ten rounds, 500 validation and 1000 test nodes at random, seeds 1
to 10. jury-design chooses from the first label on, without initial random ones. No validation label is read, except in
"by validation": candidates are the GCN, the advised and the self-trained learner, GCNs of two other recipes with the
epoch of their lowest validation loss, and the mean probabilities of each of these and one of the two learners; the best
at the 500 validation nodes is taken. Self-training's settings were chosen on other splits of these graphs (seeds from
1000 on), so some nodes that chose them are test nodes here. DiffusAL's numbers are read off its figures.

RIM: 30 % of the oracle's answers are wrong, drawn evenly among the other classes; 20 labels per class. RIM knows the
oracle's accuracy and tests at the best of 500 clean validation labels. "weighted" and "screened" estimate which labels
are wrong from the labels alone. "by validation" has the same 500 clean validation labels, and these two learners and
weighted losses as further candidates. The strategy "rim" is RIM as implemented here, with its known accuracy; its
column "by validation" is RIM's own training: its weights of labels, the epoch of the best validation accuracy. RIM's
numbers are its GCN's. Interrupted runs go on where they stopped. A row of an earlier publication stays where it has
more seeds of the same settings.
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

from harness import earlier, longest, options, publish, save, table, with_published
from jurygcn import GCN, active
from jurygcn.active.learners import (
    LabelledGraph,
    averaged_probabilities,
    find_learner,
    label_weights,
    left_out_scores,
    self_trained,
    stacked_probabilities,
    suspicion,
)
from jurygcn.active.scene import Strategy, hide_labels
from jurygcn.data import Split
from jurygcn.models import fit_gcn, train
from jurygcn.models.training import new_gcn
from protocol import CITATION, Cells, graph

SEEDS, QUICK_SEEDS = range(1, 11), range(1, 2)
ROUNDS, PER_CLASS, WRONG = 10, 20, 0.3
DIFFUSAL = {
    "cora": {28: 75.5, 56: 80.0, 98: 82.3, 140: 83.6},
    "citeseer": {24: 66.6, 48: 70.0, 120: 72.5},
    "pubmed": {12: 72.0, 30: 80.9, 60: 81.4},
}
RIM = {"cora": 77.9, "citeseer": 67.5, "pubmed": 73.2}
LEARNERS = {
    "diffusal": ("gcn", "advised", "self-trained", "by validation"),
    "noise": ("gcn", "advised", "weighted", "screened", "by validation"),
}
OURS = "jury-design"
STRATEGIES = {"diffusal": (OURS, "random"), "noise": (OURS, "random", "rim")}
# what a validation set chooses among, each at the epoch of its lowest validation loss
VALIDATED = (
    active.Recipe(hidden=64, epochs=300),
    active.Recipe(hidden=128, epochs=300, lr=0.05, dropout=0.85),
)
PATIENCE = 50
RIM_TRAINING = active.Recipe(hidden=128, epochs=400, lr=0.05, dropout=0.85)  # the authors'


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


def stamp(cell: dict[str, Any]) -> str:
    """The settings of a run, and the version of its learners."""
    version = {"diffusal": 3, "noise": 2}[cell["protocol"]]
    return f"{version} {active.Design() if cell.get('method', cell.get('strategy')) == OURS else ''}".strip()


def sizes_of(protocol: str, name: str) -> list[int]:
    """The numbers of labels at which results are published."""
    return list(DIFFUSAL[name]) if protocol == "diffusal" else [PER_CLASS * int(graph(name).num_classes)]


def one_run(protocol: str, dataset: str, method: str, seed: int) -> dict[str, Any]:
    """Test and validation accuracy by number of labels and learner."""
    diffusal = protocol == "diffusal"
    data = component_of(dataset) if diffusal else graph(dataset)
    classes, split = int(data.num_classes), split_of(data, seed)
    rim = active.Rim(oracle_accuracy=1.0 - WRONG) if method == "rim" else None
    strategy: str | Strategy = rim or method
    history = active.run(
        data,
        strategy,
        initial=0,
        budget=2 * ROUNDS * classes if diffusal else PER_CLASS * classes,
        step=2 * classes if diffusal else 5 if rim else 4 * classes,  # RIM looks at its labels after every five
        seed=seed,
        split=split,
        oracle=None if diffusal else wrong_at(data, seed),
    )
    found = {}
    for size in sizes_of(protocol, dataset):
        step = max(k for k, step in enumerate(history.steps) if step.labels <= size)
        count = history.steps[step].labels
        found[str(size)] = learned(data, split, history.labelled[:count], history.labels[:count], protocol, seed, rim)
    return {"found": found, "seconds": [step.seconds for step in history.steps[1:]]}


def learned(
    data: Data, split: Split, nodes: Tensor, labels: Tensor, protocol: str, seed: int, rim: active.Rim | None
) -> dict[str, dict[str, float]]:
    """Test and validation accuracy of every learner and of every candidate."""
    seen = hide_labels(data, nodes, labels)
    checked = hide_labels(data, torch.cat([nodes, split.val]), torch.cat([labels, data.y[split.val]]))
    model, _ = fit_gcn(seen, nodes, active.Recipe(), seed=seed)
    given = LabelledGraph(seen, nodes, model, active.Recipe(), seed)
    noise = suspicion(given) if protocol == "noise" else None
    advice, _ = left_out_scores(given)
    said = {"gcn": probabilities(model, data), "advised": stacked_probabilities(advice, given)}
    pooled = [("advised", said["advised"])]
    if noise is None:
        said["self-trained"] = probabilities(self_trained(given), data)
        pooled.append(("self-trained", said["self-trained"]))
    else:
        for name in ("weighted", "screened"):
            said[name] = torch.nn.functional.one_hot(find_learner(name)[1](given).classes, int(data.num_classes))
    for number, recipe in enumerate(VALIDATED if rim is None else ()):
        for weights in (None,) if noise is None else (None, label_weights(noise)):
            trained, _ = fit_gcn(
                *(checked, nodes, recipe), seed=seed, node_weights=weights, val_nodes=split.val, patience=PATIENCE
            )
            name, own = f"recipe {number}{'' if weights is None else ', weighted'}", probabilities(trained, data)
            said |= {name: own} | {f"{name}, {other}": (own + p) / 2 for other, p in pooled}
    found = {name: reached(p, data, split) for name, p in said.items()}
    if rim is None:
        own = max(found.values(), key=lambda one: one["val"])
    else:
        own = rim_training(seen, data, split, nodes, rim.weights(seen, nodes), seed)
    return {**found, "by validation": own}


def rim_training(seen: Data, data: Data, split: Split, nodes: Tensor, weights: Tensor, seed: int) -> dict[str, float]:
    """RIM's weighted training, at the epoch of its best validation accuracy."""
    model, found = new_gcn(seen, RIM_TRAINING), list[dict[str, float]]()

    def look(_: int) -> None:
        model.eval()
        found.append(reached(probabilities(model, data), data, split))

    r = RIM_TRAINING
    train(
        *(model, seen, nodes), epochs=r.epochs, lr=r.lr, weight_decay=r.weight_decay, seed=seed, node_weights=weights,
        after_epoch=look,
    )  # fmt: skip
    return max(found, key=lambda one: one["val"])


def probabilities(model: GCN, data: Data) -> Tensor:
    """Class probabilities of all nodes, (N, C)."""
    return averaged_probabilities(model, data, 0)[0]


def reached(said: Tensor, data: Data, split: Split) -> dict[str, float]:
    """Test and validation accuracy in percent."""
    right = said.argmax(dim=1) == data.y
    return {
        part: 100 * float(right[nodes].double().mean()) for part, nodes in (("test", split.test), ("val", split.val))
    }


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is finished")
    names, seeds = (CITATION[:1], QUICK_SEEDS) if chosen.quick else (CITATION, SEEDS)
    name = "active_protocols_quick" if chosen.quick else "active_protocols"
    cells = with_published(Cells(name, stamp))
    kinds = [(p, name, s) for p in STRATEGIES for name in names for s in STRATEGIES[p]]
    if not chosen.finished:
        for first in (OURS, "rim", "random"):  # so that an interruption costs the last one's splits
            for seed in seeds:
                some = [(p, name, s) for p, name, s in kinds if s == first]
                cells.measure([{"protocol": p, "dataset": d, "method": s, "seed": seed} for p, d, s in some], one_run)
    rows: list[dict[str, Any]] = []
    everything: list[dict[str, Any]] = []
    for protocol, name, strategy in kinds:
        wanted = [{"protocol": protocol, "dataset": name, "method": strategy, "seed": seed} for seed in seeds]
        everything += wanted
        runs = cells.rows(wanted)
        for labels in sizes_of(protocol, name) if runs else ():
            for learner in LEARNERS[protocol]:
                values = [row["found"][str(labels)][learner]["test"] for row in runs]
                rows.append(
                    {
                        **{"protocol": protocol, "dataset": name, "strategy": strategy, "learner": learner},
                        **{"labels": labels, "seeds": len(values), "mean": mean(values), "sd": pstdev(values)},
                        "published": DIFFUSAL[name][labels] if protocol == "diffusal" else RIM[name],
                        "stamp": stamp({"protocol": protocol, "method": strategy}),
                    }
                )
    before: dict[str, Any] = {}
    if not chosen.quick:
        publish(cells, everything)
        before = earlier("active_protocols")
        kept = [row for row in before.get("rows", []) if row["stamp"] == stamp(row)]
        rows = longest(rows, kept, "protocol", "dataset", "strategy", "learner", "labels", by="seeds")
        order = {kind: position for position, kind in enumerate(kinds)}
        rows.sort(key=lambda row: (order[row["protocol"], row["dataset"], row["strategy"]], row["labels"]))
    for protocol in STRATEGIES:
        body = [
            [r["dataset"], r["strategy"], r["learner"], r["labels"], f"{r['mean']:.1f} ± {r['sd']:.1f}", r["published"]]
            for r in rows
            if r["protocol"] == protocol
        ]
        table(protocol, ["graph", "strategy", "learner", "labels", "accuracy", "published"], body)
    save("active_protocols", rows, quick=chosen.quick, before=before, wrong=WRONG, per_class=PER_CLASS)


if __name__ == "__main__":
    main()
