"""A jury for your own model: here a graph attention network from PyG.

You can use any ``torch.nn.Module`` that returns one row of logits per node. Derivatives come from automatic
differentiation instead of the paper's closed forms, and ``vmap`` computes the jurors' predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import GATConv

import jurygcn
from jurygcn.data import paper_split, random_labels, synthetic
from jurygcn.evaluation import accuracy, mean_set_size, set_coverage

WEIGHT_DECAY = 5e-3


class GAT(nn.Module):
    """Two attention layers."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, heads: int = 4) -> None:
        super().__init__()
        self.first = GATConv(in_channels, hidden_channels, heads=heads)
        self.second = GATConv(heads * hidden_channels, out_channels, heads=1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes."""
        return self.second(torch.nn.functional.elu(self.first(x, edge_index)), edge_index)


def main() -> None:
    """Quantify a GAT on a synthetic graph with 60 labels."""
    data = synthetic(num_nodes=1000, num_edges=8000, num_features=16, num_classes=4)
    split = paper_split(data, seed=0)
    train_nodes = random_labels(split.pool, 60, seed=0)

    model = GAT(data.num_features, 8, data.num_classes)
    run = jurygcn.train(model, data, train_nodes, epochs=200, weight_decay=WEIGHT_DECAY)
    print(f"trained {type(model).__name__} in {run.seconds:.1f} s, last loss {run.losses[-1]:.3f}")

    # pass the same weight decay as in training: it is part of the objective
    jury = jurygcn.Jury(model, data, train_nodes, weight_decay=WEIGHT_DECAY).fit()
    print(f"{jury.engine.num_parameters} parameters; {jury.jurors.reason}")

    verdict = jury.verdict(split.test)
    truth = data.y[split.test]
    sets = verdict.label_sets(alpha=0.1)
    print(f"accuracy {accuracy(verdict.predicted_class, truth):.1%}")
    print(f"label sets at alpha = 0.1: coverage {set_coverage(sets, truth):.1%}, mean size {mean_set_size(sets):.2f}")
    right = verdict.predicted_class == truth
    print(f"mean doubt about correct predictions: {verdict.doubt[right].mean():.3f}, of wrong ones: ", end="")
    print(f"{verdict.doubt[~right].mean():.3f}")


if __name__ == "__main__":
    main()
