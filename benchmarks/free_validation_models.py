"""PyG models of the benchmark of left-out labels, trained as PyG's examples train them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT, GraphSAGE

from real_models import CASES

PYG = ("GAT 8x8", "GraphSAGE 64")
EPOCHS = 100


@dataclass(frozen=True)
class Variant:
    """One training run of a PyG model; each of ``STOPS`` is a candidate."""

    kind: str
    dropout: float
    weight_decay: float

    def make(self, data: Data) -> nn.Module:
        """The untrained model."""
        sizes = {"in_channels": data.num_features, "num_layers": 2, "out_channels": int(data.num_classes)}
        if self.kind == "GAT":
            return GAT(hidden_channels=64, heads=8, dropout=self.dropout, **sizes)
        return GraphSAGE(hidden_channels=64, dropout=self.dropout, **sizes)


STOPS = (50, 100, 200)
VARIANTS = [Variant(*setting) for setting in product(("GAT", "GraphSAGE"), (0.2, 0.6), (5e-4, 5e-3))]


def train_variants(data: Data, nodes: Tensor, seed: int) -> dict[str, tuple[nn.Module, float]]:
    """All candidates, each with its weight decay: two kinds of models, 24 candidates in eight training runs."""
    found: dict[str, tuple[nn.Module, float]] = {}
    for variant in VARIANTS:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = variant.make(data)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=variant.weight_decay)
            for epoch in range(1, STOPS[-1] + 1):
                model.train()
                optimizer.zero_grad()
                functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes]).backward()
                optimizer.step()
                if epoch in STOPS:
                    about = f"{variant.kind}, dropout {variant.dropout:g}, weight decay {variant.weight_decay:g}"
                    found[f"{about}, {epoch} epochs"] = copy.deepcopy(model).eval(), variant.weight_decay
    return found


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
