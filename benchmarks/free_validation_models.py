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

UNDERFIT = {"amazon_photo": 0.05}  # learning rates of the GCN
PYG = ("GAT 8x8", "GraphSAGE 64")
EPOCHS = 100


@torch.no_grad()
def probabilities(model: nn.Module, data: Data) -> Tensor:
    return torch.softmax(model(data.x, data.edge_index).double(), dim=1)


@dataclass(frozen=True)
class Variant:
    """One training run of a PyG model; each of ``STOPS`` is a candidate."""

    kind: str
    dropout: float
    weight_decay: float

    @property
    def words(self) -> str:
        """Its settings."""
        return f"{self.kind}, dropout {self.dropout:g}, weight decay {self.weight_decay:g}"

    def make(self, data: Data) -> nn.Module:
        """The untrained model."""
        sizes = {"in_channels": data.num_features, "num_layers": 2, "out_channels": int(data.num_classes)}
        if self.kind == "GAT":
            return GAT(hidden_channels=64, heads=8, dropout=self.dropout, **sizes)
        return GraphSAGE(hidden_channels=64, dropout=self.dropout, **sizes)


STOPS = (50, 100, 200)
VARIANTS = [Variant(*setting) for setting in product(("GAT", "GraphSAGE"), (0.2, 0.6), (5e-4, 5e-3))]


def variant_names() -> list[str]:
    """The candidates that :func:`train_variants` trains."""
    return [f"{variant.words}, {epoch} epochs" for variant in VARIANTS for epoch in STOPS]


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
                    found[f"{variant.words}, {epoch} epochs"] = copy.deepcopy(model).eval(), variant.weight_decay
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
