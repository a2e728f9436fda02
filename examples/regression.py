"""Prediction intervals for a target on the nodes, with loss="mse" and no calibration split.

The graph is synthetic. The target is a smooth function of a node's neighbourhood plus noise.
"""

from __future__ import annotations

import torch
from torch_geometric.data import Data

import jurygcn
from jurygcn.data import paper_split, random_labels, synthetic
from jurygcn.graph.propagation import normalized_adjacency

ALPHA, WEIGHT_DECAY = 0.1, 1e-2


def make_graph(*, seed: int = 0) -> Data:
    """A synthetic graph. The target is a random linear function of the twice propagated features, plus noise."""
    graph = synthetic(num_nodes=1500, num_edges=9000, num_features=16, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    propagate = normalized_adjacency(graph)
    smooth = torch.from_numpy(propagate @ (propagate @ graph.x.numpy())) @ torch.randn(16, generator=generator)
    graph.y = smooth / smooth.std() + 0.2 * torch.randn(graph.num_nodes, generator=generator)
    del graph.num_classes
    return jurygcn.load_dataset(graph)


def main() -> None:
    """Compare the three intervals on test nodes."""
    data = make_graph()
    split = paper_split(data, seed=0)
    train_nodes = random_labels(split.pool, 100, seed=0)

    model = jurygcn.GCN(data.num_features, 16, 1)
    jurygcn.train(model, data, train_nodes, epochs=500, loss="mse", weight_decay=WEIGHT_DECAY)
    jury = jurygcn.Jury(model, data, train_nodes, loss="mse", weight_decay=WEIGHT_DECAY).fit()

    truth = data.y[split.test]
    print(f"{len(train_nodes)} labels, {len(truth)} test nodes, alpha = {ALPHA}")
    print(f"standard deviation of the target: {truth.std():.2f}")
    print(f"{'interval':<12}{'coverage':>9}{'mean width':>12}")
    for interval in ("jackknife+", "jackknife", "minmax"):
        verdict = jury.verdict(split.test, alpha=ALPHA, interval=interval)
        covered = ((verdict.lower <= truth) & (truth <= verdict.upper)).double().mean()
        print(f"{interval:<12}{covered:>9.1%}{verdict.width.mean():>12.2f}")
    widest = verdict.ranking()[:5].tolist()
    print(f"the five test nodes with the widest intervals: {widest}")


if __name__ == "__main__":
    main()
