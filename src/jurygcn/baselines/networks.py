"""Plain classifiers: the GCN with the paper's settings, and the GAT with its authors' settings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.baselines.classifier import (
    Fitted,
    check_labels,
    check_preset,
    check_validation,
    classes_of,
    logits_of,
    softmax_scores,
)
from jurygcn.baselines.gat import GAT
from jurygcn.choices import Recipe
from jurygcn.models.gcn import GCN
from jurygcn.models.training import Stopping, Training, descend, fit_gcn, outputs_at


@dataclass(frozen=True)
class GCNClassifier:
    """The paper's GCN. It does not use validation nodes."""

    hidden: int = Recipe.hidden
    dropout: float = Recipe.dropout
    epochs: int = Recipe.epochs
    lr: float = Recipe.lr
    weight_decay: float = Recipe.weight_decay
    first_layer_only: bool = False

    def train(
        self, data: Data, train_nodes: Tensor, *, seed: int, node_weights: Tensor | None = None
    ) -> tuple[GCN, Training]:
        """The trained model and the record of its training."""
        recipe = Recipe(self.hidden, self.epochs, self.lr, self.weight_decay, self.dropout)
        return fit_gcn(
            data,
            check_labels(data, train_nodes),
            recipe,
            seed=seed,
            outputs=classes_of(data),
            weight_decay={"weights.0": self.weight_decay} if self.first_layer_only else None,
            node_weights=node_weights,
        )

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train for a fixed number of epochs."""
        model, training = self.train(data, train_nodes, seed=seed)
        probabilities = torch.softmax(logits_of(model, data), dim=1)
        return Fitted(probabilities, softmax_scores(probabilities), model, {"epochs": training.epochs})


# The settings of Kipf and Welling: weight decay on the first layer only, and twice the epochs.
WELL_TRAINED_GCN = GCNClassifier(epochs=200, first_layer_only=True)


@dataclass(frozen=True)
class GATClassifier:
    """Graph attention network with its authors' settings. It stops early by validation loss and accuracy.

    The patience count restarts when the loss or the accuracy equals or improves on its best value. The parameters are
    saved when both do.
    """

    hidden: int = 8
    heads: int = 8
    out_heads: int = 1
    dropout: float = 0.6
    lr: float = 0.005
    weight_decay: float = 5e-4
    patience: int = 100
    epochs: int = 100_000

    @classmethod
    def preset(cls, name: str | None) -> GATClassifier:
        """The authors' settings. The preset "pubmed" has the settings they use for that graph."""
        return cls(out_heads=8, lr=0.01, weight_decay=1e-3) if check_preset(name) == "pubmed" else cls()

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Train until early stopping."""
        nodes = check_labels(data, train_nodes)
        held_out = check_validation(data, val_nodes, nodes, why="GAT stops early")
        model = GAT(
            data.x.shape[1],
            classes_of(data),
            hidden=self.hidden,
            heads=self.heads,
            out_heads=self.out_heads,
            dropout=self.dropout,
        )
        outputs, checked = outputs_at(model, data, nodes), outputs_at(model, data, held_out)
        labels, truth = data.y[nodes], data.y[held_out]

        def measure() -> tuple[float, float]:
            z = checked()
            return float(functional.cross_entropy(z, truth)), float((z.argmax(dim=1) != truth).float().mean())

        training = descend(
            model,
            lambda _: functional.cross_entropy(outputs(), labels),
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            stopping=Stopping(measure, self.patience),
            seed=seed,
        )
        probabilities = torch.softmax(logits_of(model, data), dim=1)
        details = {"epochs": training.epochs, "best_epoch": training.best_epoch}
        return Fitted(probabilities, softmax_scores(probabilities), model, details)
