"""Regression: jackknife+ intervals at the test nodes, against split conformal with the same number of labels.

100 random labels. The jury trains on all of them; split conformal trains on half and calibrates on half. Both choose
their weight decay by the jurors' leave-one-out error on the labels they train on; no test node is looked at.

Two graphs: US counties (the 2016 election margin; counties whose raw target is missing are left out) where its file
lies beside the project, and a synthetic graph whose target is a smooth function of features and neighbours plus noise.
"""

from __future__ import annotations

from statistics import mean

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from harness import options, save, table
from jurygcn import GCN, Jury, train
from jurygcn.conformal.intervals import upper_error
from jurygcn.data import synthetic
from protocol import extra, graph, spread

ALPHA, LABELS, EPOCHS, LR = 0.1, 100, 300, 0.01
DECAYS = (5e-4, 5e-3, 2e-2, 5e-2, 1e-1, 2e-1)


def counties() -> tuple[Data, Tensor]:
    """The graph and the nodes with a real target: missing ones were filled with one value, the mean."""
    data = graph("us_county_election")
    values, counts = np.unique(data.y.numpy(), return_counts=True)
    filled = torch.from_numpy(data.y.numpy() == values[counts.argmax()])
    assert int(filled.sum()) == 122  # as its description says
    return data, (~filled).nonzero().squeeze(1)


def smooth_target() -> tuple[Data, Tensor]:
    data = synthetic(num_nodes=3000, num_edges=18000, num_features=16, num_classes=4, seed=0)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(16, generator=generator)
    mine = data.x @ direction
    around = torch.zeros(3000).index_add_(0, data.edge_index[1], mine[data.edge_index[0]])
    degree = torch.bincount(data.edge_index[1], minlength=3000).clamp_min(1)
    y = torch.tanh(0.3 * (mine + around / degree)) + 0.2 * torch.randn(3000, generator=generator)
    data.y, data.num_classes = y, 0
    return data, torch.arange(3000)


def fit(data: Data, nodes: Tensor, seed: int) -> Jury:
    """The jury, and in it the model, with the smallest leave-one-out error over the weight decays."""
    juries = []
    for decay in DECAYS:
        model = GCN(data.num_features, 16, 1)
        train(model, data, nodes, loss="mse", epochs=EPOCHS, lr=LR, weight_decay=decay, seed=seed)
        jury = Jury(model, data, nodes, loss="mse", weight_decay=decay).fit()
        juries.append((float((jury.verdict(nodes, advice=None).loo_errors ** 2).mean()), decay, jury))
    return min(juries, key=lambda found: found[:2])[2]


def measure(name: str, data: Data, usable: Tensor, seed: int) -> list[dict[str, object]]:
    order = usable[torch.randperm(len(usable), generator=torch.Generator().manual_seed(seed))]
    labels, test = order[:LABELS], order[LABELS : LABELS + 1000]
    y = data.y[test]
    rows: list[dict[str, object]] = []

    def add(kind: str, lower: Tensor, upper: Tensor) -> None:
        covered = float(((lower <= y) & (y <= upper)).double().mean())
        width = float((upper - lower).mean())
        decay = jury.engine.weight_decay
        rows.append(
            {"graph": name, "seed": seed, "kind": kind, "coverage": covered, "width": width, "weight_decay": decay}
        )

    jury = fit(data, labels, seed)
    for interval in ("jackknife+", "jackknife", "minmax"):
        verdict = jury.verdict(test, alpha=ALPHA, interval=interval, advice=None)
        add(interval, verdict.lower, verdict.upper)
    half = LABELS // 2
    jury = fit(data, labels[:half], seed)
    z = jury.verdict(advice=None).outputs.squeeze(1)
    residuals = (data.y - z).abs()[labels[half:]]
    half_width = upper_error(residuals, alpha=ALPHA)
    add("split conformal", z[test] - half_width, z[test] + half_width)
    return rows


def main() -> None:
    chosen = options(__doc__)
    seeds = range(2 if chosen.quick else 20)
    graphs = {"synthetic": smooth_target()}
    if extra("us_county_election"):
        graphs["us_county_election"] = counties()
    rows = []
    for name, (data, usable) in graphs.items():
        for seed in seeds:
            rows += measure(name, data, usable, seed)
    for name in graphs:
        body = []
        for kind in ("jackknife+", "jackknife", "minmax", "split conformal"):
            mine = [row for row in rows if (row["graph"], row["kind"]) == (name, kind)]
            body.append([kind, spread([row["coverage"] for row in mine]), spread([row["width"] for row in mine])])
        plus, split = (
            mean(row["width"] for row in rows if (row["graph"], row["kind"]) == (name, kind))
            for kind in ("jackknife+", "split conformal")
        )
        table(
            f"{name}: {LABELS} labels, target coverage {1 - ALPHA:g}, {len(seeds)} splits",
            ["interval", "coverage", "mean width"],
            body,
            note=f"jackknife+ is {plus / split:.2f} times as wide as split conformal",
        )
    print(save("regression", rows, quick=chosen.quick, alpha=ALPHA, labels=LABELS, epochs=EPOCHS, weight_decays=DECAYS))


if __name__ == "__main__":
    main()
