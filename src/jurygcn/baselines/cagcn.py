r"""CaGCN (Wang et al., 2021): a GCN on the logits gives every node its own factor.

.. math:: z'_v = t_v z_v, \qquad t_v = \log(e^{GCN(z)_v} + 1.1)

The loss is the cross-entropy plus half the mean of :math:`1 - p_1 + p_2` over right and of :math:`p_1 - p_2` over wrong
predictions, for the two largest probabilities.

The released code trains and stops early on the same validation labels. Here a fifth of them stops.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from jurygcn.ambient import plain_torch
from jurygcn.baselines.classifier import Fitted, check_labels, check_validation, logits_of, softmax_scores
from jurygcn.baselines.networks import GCNClassifier
from jurygcn.models.training import Stopping, descend


class Factors(nn.Module):
    """The factor of every node. Shapes: logits (N, C), edge_index (2, E) -> (N, 1)."""

    def __init__(self, classes: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = GCNConv(classes, hidden), GCNConv(hidden, 1)
        self.dropout = dropout

    def forward(self, logits: Tensor, edge_index: Tensor) -> Tensor:
        """The factors."""
        h = torch.relu(self.first(logits, edge_index))
        h = functional.dropout(h, self.dropout, self.training)
        raw: Tensor = self.second(h, edge_index)
        return torch.logaddexp(raw, raw.new_tensor(math.log(1.1)))  # no overflow where the GCN's output is large


@dataclass(frozen=True)
class CaGCN:
    """The GCN with calibrated probabilities, by its authors' settings. It uses validation nodes."""

    network: GCNClassifier = field(default_factory=GCNClassifier)
    hidden: int = 16
    dropout: float = 0.5
    lr: float = 0.01
    weight_decay: float = 5e-3
    margin: float = 0.5
    patience: int = 100
    epochs: int = 2000
    held_out: int = 5

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Train the GCN, then the factors."""
        nodes = check_labels(data, train_nodes)
        known = check_validation(data, val_nodes, nodes, why="the factors are fitted on them")
        model, _ = self.network.train(data, nodes, seed=seed)
        logits = logits_of(model, data)
        drawn = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
        stop, fit = drawn[:: self.held_out], drawn[torch.arange(len(drawn)) % self.held_out != 0]
        fit = fit if len(fit) else stop
        factors = Factors(logits.shape[1], self.hidden, self.dropout).to(logits)

        def calibrated() -> Tensor:
            scaled: Tensor = logits * factors(logits, data.edge_index)
            return scaled

        def objective(_: int) -> Tensor:
            z, y = calibrated()[fit], data.y[fit]
            return functional.cross_entropy(z, y) + self.margin * margins(torch.softmax(z, dim=1), y).mean()

        training = descend(
            factors,
            objective,
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            stopping=Stopping(
                lambda: (float(functional.cross_entropy(calibrated()[stop], data.y[stop])),), self.patience
            ),
            seed=seed,
        )
        with torch.no_grad():
            probabilities = torch.softmax(calibrated(), dim=1)
        return Fitted(probabilities, softmax_scores(probabilities), model, {"epochs": training.epochs})


def margins(probabilities: Tensor, y: Tensor) -> Tensor:
    """One minus the gap of the two largest probabilities where the prediction is right, the gap elsewhere, (m,)."""
    top = probabilities.topk(min(2, probabilities.shape[1]), dim=1)
    gap = 2 * top.values[:, 0] - top.values.sum(dim=1)  # a single class has no second largest
    return torch.where(top.indices[:, 0] == y, 1 - gap, gap)
