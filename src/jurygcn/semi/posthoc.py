"""What a user might do instead of convening a jury: methods that take a trained GCN and add an uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.errors import SettingError
from jurygcn.models.dirichlet import spread
from jurygcn.semi.fitted import Fitted, check_labels, check_validation, logits_of, softmax_scores
from jurygcn.semi.networks import GCNClassifier
from jurygcn.semi.sampling import dropout_samples


@dataclass(frozen=True)
class MCDropout:
    """Probabilities averaged over forward passes with dropout left on; validation nodes are not used."""

    network: GCNClassifier = field(default_factory=GCNClassifier)
    samples: int = 100

    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train the GCN, then draw."""
        if not self.network.dropout > 0 or self.samples < 2:
            got = f"dropout {self.network.dropout:g}, samples {self.samples}"
            raise SettingError(f"expected dropout above 0 and at least 2 samples, got {got}; raise them")
        model, _ = self.network.train(data, train_nodes, seed=seed)
        return _mixture(torch.softmax(dropout_samples(model, data, samples=self.samples, seed=seed), dim=-1), model)


@dataclass(frozen=True)
class DeepEnsemble:
    """Probabilities averaged over GCNs that start from different weights; validation nodes are not used."""

    network: GCNClassifier = field(default_factory=GCNClassifier)
    members: int = 10

    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train every member."""
        if self.members < 2:
            raise SettingError(f"expected at least 2 members, got {self.members}; raise members")
        # far apart, so that the members of one run are not those of the next
        models = [self.network.train(data, train_nodes, seed=seed + 10_007 * k)[0] for k in range(self.members)]
        return _mixture(torch.stack([torch.softmax(logits_of(model, data), dim=1) for model in models]), models[0])


def _mixture(probabilities: Tensor, model: torch.nn.Module) -> Fitted:
    """From the probabilities of several models, (T, N, C)."""
    mean = probabilities.mean(dim=0)
    aleatoric, epistemic = spread(probabilities)
    return Fitted(mean, softmax_scores(mean) | {"aleatoric": aleatoric, "epistemic": epistemic}, model)


@dataclass(frozen=True)
class TemperatureScaling:
    r"""Probabilities softmax(z / T), with the T of least cross-entropy on the validation nodes."""

    network: GCNClassifier = field(default_factory=GCNClassifier)
    steps: int = 100

    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Train the GCN, then find the temperature."""
        nodes = check_labels(data, train_nodes)
        held_out = check_validation(data, val_nodes, nodes, why="the temperature is fitted on them")
        model, _ = self.network.train(data, nodes, seed=seed)
        logits = logits_of(model, data)
        temperature = best_temperature(logits[held_out], data.y[held_out], steps=self.steps)
        probabilities = torch.softmax(logits / temperature, dim=1)
        return Fitted(probabilities, softmax_scores(probabilities), model, {"temperature": temperature})


def best_temperature(logits: Tensor, y: Tensor, *, steps: int = 100) -> float:
    """The T that minimises the cross-entropy of logits / T; a convex problem in 1 / T. Shapes: (m, C), (m,)."""
    z = logits.detach().double()
    log_inverse = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([log_inverse], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(z * log_inverse.exp(), y)
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return float((-log_inverse).exp().detach())


@dataclass(frozen=True)
class Energy:
    r"""The GCN with the energy score :math:`-\ln \sum_c e^{z_c}`; validation nodes are not used."""

    network: GCNClassifier = field(default_factory=GCNClassifier)

    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train the GCN."""
        model, _ = self.network.train(data, train_nodes, seed=seed)
        logits = logits_of(model, data)
        probabilities = torch.softmax(logits, dim=1)
        return Fitted(probabilities, {"energy": -logits.logsumexp(dim=1), **softmax_scores(probabilities)}, model)
