"""Classifiers that learn a Dirichlet distribution per node: S-GNN and GPN, with their authors' settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.baselines import dirichlet
from jurygcn.baselines.classifier import (
    Fitted,
    all_nodes,
    check_labels,
    check_preset,
    check_validation,
    classes_of,
    logits_of,
)
from jurygcn.baselines.gpn import GPN, graph_inputs, uncertain_cross_entropy
from jurygcn.baselines.networks import WELL_TRAINED_GCN, GCNClassifier
from jurygcn.baselines.sampling import dropout_samples
from jurygcn.baselines.sgnn import EvidenceLoss, concentrations, graph_kernel_prior
from jurygcn.choices import Recipe
from jurygcn.models.gcn import GCN
from jurygcn.models.training import Stopping, descend, outputs_at


@dataclass(frozen=True)
class SGNNClassifier:
    """S-GNN (S-BGCN-T-K): Dirichlet evidence with a graph-kernel prior, a GCN teacher and dropout samples.

    It does not use validation nodes.
    """

    hidden: int = Recipe.hidden
    dropout: float = Recipe.dropout
    epochs: int = 1000
    lr: float = Recipe.lr
    weight_decay: float = Recipe.weight_decay  # on the first layer
    prior_weight: float = 1e-3
    kernel_width: float = 1.0
    samples: int = 100
    teacher: GCNClassifier = field(default=WELL_TRAINED_GCN)

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train the teacher, then the network that predicts evidence."""
        nodes = check_labels(data, train_nodes)
        classes = classes_of(data)
        teacher, _ = self.teacher.train(data, nodes, seed=seed)
        loss = EvidenceLoss(
            nodes,
            data.y[nodes],
            prior=graph_kernel_prior(data, nodes, classes=classes, width=self.kernel_width),
            teacher=torch.softmax(logits_of(teacher, data), dim=1),
            prior_weight=self.prior_weight,
        )
        model = GCN(data.x.shape[1], self.hidden, classes, dropout=self.dropout)
        outputs = outputs_at(model, data, all_nodes(data))
        descend(
            model,
            lambda epoch: loss(outputs(), epoch),
            epochs=self.epochs,
            lr=self.lr,
            weight_decay={"weights.0": self.weight_decay},
            seed=seed,
        )
        samples = dropout_samples(model, data, samples=self.samples, seed=seed)
        alpha = concentrations(samples.mean(dim=0))
        drawn = concentrations(samples)
        aleatoric, epistemic = dirichlet.split_entropy(drawn / drawn.sum(dim=-1, keepdim=True))
        scores = {
            "vacuity": dirichlet.vacuity(alpha),
            "dissonance": dirichlet.dissonance(alpha),
            "aleatoric": aleatoric,
            "epistemic": epistemic,
        }
        return Fitted(alpha / alpha.sum(dim=1, keepdim=True), scores, model)


@dataclass(frozen=True)
class GPNClassifier:
    """Graph posterior network. It stops early by validation loss. ``small()`` is the authors' second configuration."""

    hidden: int = 64
    latent: int = 16
    flow_length: int = 10
    dropout: float = 0.5
    steps: int = 10
    teleport: float = 0.1
    entropy_weight: float = 1e-4
    budget_for_classes: bool = False
    lr: float = 0.01
    weight_decay: float = 1e-3  # on the encoder; none on the flows
    warm_up: int = 5
    patience: int = 50
    epochs: int = 100_000
    binarize: bool = False

    @classmethod
    def small(cls, *, binarize: bool = False) -> GPNClassifier:
        """Ten latent dimensions, a budget that grows with the number of classes, more teleport, less weight decay."""
        return cls(
            latent=10,
            budget_for_classes=True,
            teleport=0.2,
            entropy_weight=1e-5,
            weight_decay=5e-4,
            binarize=binarize,
        )

    @classmethod
    def preset(cls, name: str | None) -> GPNClassifier:
        """The authors' settings. The preset "pubmed" makes features binary, as the authors do for that graph."""
        return cls(binarize=check_preset(name) == "pubmed")

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Train the flows alone for ``warm_up`` epochs, then all parameters until early stopping."""
        nodes = check_labels(data, train_nodes)
        held_out = check_validation(data, val_nodes, nodes, why="GPN stops early")
        model = self._model(data, nodes)
        x, adjacency = graph_inputs(data, binarize=self.binarize)
        labels, truth = data.y[nodes], data.y[held_out]

        def loss(_: int) -> Tensor:
            alpha = model(x, adjacency).alpha[nodes]
            return uncertain_cross_entropy(alpha, labels, entropy_weight=self.entropy_weight).sum()

        def measure() -> tuple[float]:
            alpha = model(x, adjacency).alpha[held_out]
            return (float(functional.nll_loss((alpha / alpha.sum(dim=1, keepdim=True)).log(), truth)),)

        model.encoder.requires_grad_(False)
        descend(model, loss, epochs=self.warm_up, lr=self.lr, seed=seed)
        model.encoder.requires_grad_(True)
        training = descend(
            model,
            loss,
            epochs=self.epochs,
            lr=self.lr,
            weight_decay={f"encoder.{name}": self.weight_decay for name, _ in model.encoder.named_parameters()},
            stopping=Stopping(measure, self.patience),
            warm_start=True,
            seed=seed,
        )
        with torch.no_grad():
            evidence = model(x, adjacency)
        alpha = evidence.alpha
        probabilities = alpha / alpha.sum(dim=1, keepdim=True)
        scores = {
            "epistemic": -alpha.sum(dim=1).log(),
            "aleatoric": 1 - probabilities.amax(dim=1),
            "features_only": -(1 + evidence.features).sum(dim=1).log(),
        }
        details = {"epochs": training.epochs, "best_epoch": training.best_epoch}
        return Fitted(probabilities, scores, model, details)

    def _model(self, data: Data, nodes: Tensor) -> GPN:
        classes = classes_of(data)
        model = GPN(
            data.x.shape[1],
            classes,
            hidden=self.hidden,
            latent=self.latent,
            flow_length=self.flow_length,
            dropout=self.dropout,
            steps=self.steps,
            teleport=self.teleport,
            budget=0.5 * self.latent * math.log(4 * math.pi) + self.budget_for_classes * math.log(classes),
        )
        model.class_shares = torch.bincount(data.y[nodes], minlength=classes).float() / len(nodes)
        return model
