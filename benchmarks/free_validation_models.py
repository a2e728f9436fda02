"""PyG models of the benchmark of left-out labels, trained as PyG's examples train them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from real_models import CASES

PYG = ("GAT 8x8", "GraphSAGE 64")
EPOCHS = 100


def train_pyg(kind: str, data: Data, nodes: Tensor, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The trained model, and its optimizer."""
    case = CASES[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = case.make(data.num_features, int(data.num_classes))
        optimizer = case.optimizer(model)
        for _ in range(EPOCHS):
            model.train()
            optimizer.zero_grad()
            functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes]).backward()
            optimizer.step()
    return model.eval(), optimizer
