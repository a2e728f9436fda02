"""Models that users bring: every common message-passing layer, small."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch_geometric import nn as gnn

from jurygcn.models import GCN


class TwoLayers(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second, self.norm = first, second, norm or nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(functional.elu(self.norm(self.first(x, edge_index))), edge_index)


class PredictThenPropagate(nn.Module):
    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(F, 8), nn.Linear(8, C)
        self.propagate = gnn.APPNP(K=4, alpha=0.2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(self.second(torch.tanh(self.first(x))), edge_index)


class Weighted(nn.Module):
    """A GCN with biases that uses edge weights."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.first, self.second = gnn.GCNConv(F, 8), gnn.GCNConv(8, C)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.second(torch.relu(self.first(x, edge_index, edge_weight)), edge_index, edge_weight)


def mlp(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, 8), nn.Tanh(), nn.Linear(8, b))


def weight_normed(F: int, C: int) -> nn.Module:
    model = PredictThenPropagate(F, C)
    parametrizations.weight_norm(model.first)
    return model


ZOO: dict[str, Callable[[int, int], nn.Module]] = {
    "gat": lambda F, C: TwoLayers(gnn.GATConv(F, 4, heads=2), gnn.GATConv(8, C)),
    "gatv2": lambda F, C: TwoLayers(gnn.GATv2Conv(F, 4, heads=2), gnn.GATv2Conv(8, C)),
    "sage": lambda F, C: TwoLayers(gnn.SAGEConv(F, 8), gnn.SAGEConv(8, C)),
    "gin": lambda F, C: TwoLayers(gnn.GINConv(mlp(F, 8)), gnn.GINConv(mlp(8, C))),
    "appnp": PredictThenPropagate,
    "sgc": lambda F, C: gnn.SGConv(F, C, K=2),
    "gcn_with_bias": lambda F, C: TwoLayers(gnn.GCNConv(F, 8), gnn.GCNConv(8, C)),
    "batch_norm": lambda F, C: TwoLayers(gnn.GCNConv(F, 8), gnn.GCNConv(8, C), nn.BatchNorm1d(8)),
    "edge_weights": Weighted,
    "weight_norm": weight_normed,
    "gcn": lambda F, C: GCN(F, 8, C),
}
