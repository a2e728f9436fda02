"""Models that stopped before a minimum: how far do estimated jurors differ from retrained ones?

Two questions, on small graphs, with every juror retrained from scratch. Does the relative gradient tell good jurors
from bad ones? Which damping suits a model without any weight decay?
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import mean, median
from typing import Any

import torch
from torch_geometric.data import Data

from harness import options, save, table
from jurygcn import GCN, Jury, LeaveOut, Retraining, load_dataset, train
from jurygcn.data import paper_split, random_labels, synthetic
from jurygcn.diagnostics.fidelity import compare_jurors
from jurygcn.leave_one_out.retraining import retrained_parameters

BINS = (0.0, 0.05, 0.25, 0.5, 1.0)  # of the relative gradient
MULTIPLES = (0.5, 1.0, 2.0, 4.0)  # of the weight decay that the parameters fit best
SHARE = 1e-8  # of the largest eigenvalue: as good as no damping
EPOCHS = (50, 100, 200, 500, 1000)


def graphs(*, quick: bool) -> Iterator[tuple[str, Data, int]]:
    yield "synthetic, 4 classes", synthetic(num_nodes=1000, num_edges=4000, num_features=32, num_classes=4), 60
    if quick:
        return
    yield "synthetic, 3 classes", synthetic(num_nodes=600, num_edges=4000, num_features=8, num_classes=3), 100
    yield "digits", load_dataset("digits"), 60
    yield "karate", load_dataset("karate"), 12


def train_one(data: Data, count: int, *, epochs: int, decay: float, seed: int) -> tuple[GCN, torch.Tensor]:
    pool = torch.arange(int(data.num_nodes)) if int(data.num_nodes) < 100 else paper_split(data, seed=seed).pool
    nodes = random_labels(pool, count, seed=seed)
    torch.manual_seed(seed)
    model = GCN(data.num_features, 16, int(data.num_classes))
    train(model, data, nodes, epochs=epochs, weight_decay=decay, seed=seed)
    return model, nodes


def agreement(jury: Jury, retrained: torch.Tensor) -> dict[str, float]:
    found = compare_jurors(jury.fit(), jury.positions, retrained)
    return {"correlation": found.correlation, "error_ratio": found.loo_error[0] / found.loo_error[1]}


def with_decay(name: str, data: Data, count: int, **how: Any) -> dict[str, Any]:
    model, nodes = train_one(data, count, **how)
    jury = Jury(model, data, nodes, weight_decay=how["decay"], leave_out=LeaveOut(decay="stated"))
    retrained = retrained_parameters(jury.engine, Retraining(epochs=how["epochs"], seed=how["seed"]))
    effective = Jury(model, data, nodes, weight_decay=how["decay"], leave_out=LeaveOut(decay="effective"))
    return {
        **{"graph": name, **how},
        **agreement(jury, retrained),
        **{f"effective_{key}": value for key, value in agreement(effective, retrained).items()},
        "relative_gradient": jury.health().relative_gradient,
    }


def without_decay(name: str, data: Data, count: int, **how: Any) -> list[dict[str, Any]]:
    model, nodes = train_one(data, count, decay=0.0, **how)
    jury = Jury(model, data, nodes, weight_decay=0.0).fit()
    retrained = retrained_parameters(jury.engine, Retraining(epochs=how["epochs"], seed=how["seed"]))
    gradient, theta = jury.engine.gradient(), jury.engine.theta
    fitting = max(0.0, -float(gradient @ theta) / float(theta @ theta))
    dampings = {f"{multiple:g} x the fitting decay": multiple * fitting for multiple in MULTIPLES}
    dampings["1e-8 of the curvature"] = SHARE * jury.health().eigenvalues[1]
    rows = [{"graph": name, **how, "damping": "effective decay", "value": None, **agreement(jury, retrained)}]
    for words, damping in dampings.items():
        damped = Jury(model, data, nodes, weight_decay=0.0, leave_out=LeaveOut(decay="stated", damping=damping))
        rows.append({"graph": name, **how, "damping": words, "value": damping, **agreement(damped, retrained)})
    return rows


def by_gradient(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for low, high in pairwise(BINS):
        mine = [row for row in rows if low <= row["relative_gradient"] < high]
        if mine:
            correlations = [row["correlation"] for row in mine]
            ratios = [row["error_ratio"] for row in mine]
            more = sum(ratio > 1 for ratio in ratios) / len(ratios)
            effective = [row["effective_correlation"] for row in mine], [row["effective_error_ratio"] for row in mine]
            yield [
                f"{low:.0%} to {high:.0%}",
                str(len(mine)),
                *(f"{value:.3f}" for value in (min(correlations), median(correlations))),
                *(f"{value:.2f}" for value in (min(ratios), median(ratios), max(ratios))),
                f"{more:.0%}",
                *(f"{value:.3f}" for value in (min(effective[0]), median(effective[0]))),
                *(f"{value:.2f}" for value in (min(effective[1]), median(effective[1]), max(effective[1]))),
            ]


def by_damping(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    for words in dict.fromkeys(row["damping"] for row in rows):
        mine = [row for row in rows if row["damping"] == words]
        off = [abs(math.log(row["error_ratio"])) for row in mine]
        close = sum(row["correlation"] >= 0.9 and abs(row["error_ratio"] - 1) <= 0.1 for row in mine)
        yield [words, f"{mean(row['correlation'] for row in mine):.3f}", f"{mean(off):.2f}", f"{close} of {len(mine)}"]


def main() -> None:
    chosen = options(__doc__)
    seeds = range(10, 11 if chosen.quick else 13)
    epochs = EPOCHS[1:3] if chosen.quick else EPOCHS
    decayed, undecayed = [], []
    for name, data, count in graphs(quick=chosen.quick):
        for seed in seeds:
            for number in epochs:
                how = {"epochs": number, "seed": seed}
                decayed += [with_decay(name, data, count, decay=decay, **how) for decay in (5e-4, 5e-3)]
                undecayed += without_decay(name, data, count, **how)
    table(
        "Jurors against retrained ones, by the relative gradient",
        [
            "gradient",
            "runs",
            "lowest corr.",
            "median",
            "lowest error ratio",
            "median",
            "highest",
            "above 1",
            "effective: lowest corr.",
            "median",
            "lowest error ratio",
            "median",
            "highest",
        ],
        by_gradient(decayed),
        note="error ratio: mean leave-one-out error of the estimated jurors over that of the retrained ones",
    )
    table(
        "Models without weight decay: jurors by their damping",
        ["damping", "mean corr.", "mean |log error ratio|", "trusted"],
        by_damping(undecayed),
        note="trusted: correlation of 0.9 and an error ratio within a tenth, as jury.fidelity() asks",
    )
    print(save("stopped_early", [*decayed, *undecayed], quick=chosen.quick))


if __name__ == "__main__":
    main()
