"""Alternatives to the jury that add an uncertainty to a trained GCN."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.baselines.classifier import Fitted, all_nodes, check_labels, check_validation, logits_of, softmax_scores
from jurygcn.baselines.dirichlet import split_entropy
from jurygcn.baselines.gebm import gebm_energy
from jurygcn.baselines.gnnsafe import propagated_energy
from jurygcn.baselines.networks import GCNClassifier
from jurygcn.baselines.sampling import dropout_samples
from jurygcn.checks import all_finite
from jurygcn.errors import ModelError, SettingError
from jurygcn.models import GCN
from jurygcn.models.receptive_field import ReceptiveField


@dataclass(frozen=True)
class MCDropout:
    """Probabilities averaged over forward passes with dropout. It does not use validation nodes."""

    network: GCNClassifier = field(default_factory=GCNClassifier)
    samples: int = 100

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train the GCN, then average samples."""
        if not self.network.dropout > 0 or self.samples < 2:
            got = f"dropout {self.network.dropout:g}, samples {self.samples}"
            raise SettingError(f"expected dropout above 0 and at least 2 samples, got {got}; raise them")
        model, _ = self.network.train(data, train_nodes, seed=seed)
        return _mixture(torch.softmax(dropout_samples(model, data, samples=self.samples, seed=seed), dim=-1), model)


@dataclass(frozen=True)
class DeepEnsemble:
    """Probabilities averaged over GCNs with different initial weights. It does not use validation nodes."""

    network: GCNClassifier = field(default_factory=GCNClassifier)
    members: int = 10

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train every member."""
        if self.members < 2:
            raise SettingError(f"expected at least 2 members, got {self.members}; raise members")
        # the seeds are far apart, so that runs with neighbouring seeds share no member
        models = [self.network.train(data, train_nodes, seed=seed + 10_007 * k)[0] for k in range(self.members)]
        return _mixture(torch.stack([torch.softmax(logits_of(model, data), dim=1) for model in models]), models[0])


def _mixture(probabilities: Tensor, model: torch.nn.Module) -> Fitted:
    """The mean of several models' probabilities, (T, N, C), with uncertainty scores."""
    mean = probabilities.mean(dim=0)
    aleatoric, epistemic = split_entropy(probabilities)
    return Fitted(mean, softmax_scores(mean) | {"aleatoric": aleatoric, "epistemic": epistemic}, model)


@dataclass(frozen=True)
class TemperatureScaling:
    """Probabilities softmax(z / T). T minimises the cross-entropy at the validation nodes."""

    network: GCNClassifier = field(default_factory=GCNClassifier)
    steps: int = 100

    @plain_torch()
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
    """The T that minimises the cross-entropy of logits / T. The problem is convex in 1 / T. Shapes: (m, C), (m,)."""
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
    r"""The GCN with the energy score :math:`-\ln \sum_c e^{z_c}`, GNNSafe's average of it over neighbours, and GEBM's.

    It does not use validation nodes.
    """

    network: GCNClassifier = field(default_factory=GCNClassifier)

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train the GCN."""
        nodes = check_labels(data, train_nodes)
        model, _ = self.network.train(data, nodes, seed=seed)
        probabilities = torch.softmax(logits_of(model, data), dim=1)
        return Fitted(probabilities, {**energies(model, data, nodes), **softmax_scores(probabilities)}, model)


@torch.no_grad()
def energies(model: GCN, data: Data, nodes: Tensor) -> dict[str, Tensor]:
    """The energies of a trained GCN at all nodes, (N,) each: its own, GNNSafe's and GEBM's."""
    edges, alone = data.edge_index.cpu(), copy(data)
    alone.edge_index, alone.edge_weight = data.edge_index[:, :0], None
    outputs, apart = (_last_layers(model, graph) for graph in (data, alone))
    energy = -outputs[1].logsumexp(dim=1)
    distant = gebm_energy(outputs, apart, nodes, data.y[nodes].cpu(), edges)
    return {"energy": energy, "gnnsafe": propagated_energy(energy, edges), "gebm": distant}


def _last_layers(model: GCN, data: Data) -> tuple[Tensor, Tensor]:
    """The last hidden layer and the logits of all nodes, (N, h) and (N, C), on the CPU."""
    model.eval()
    reached = ReceptiveField.of(model, data, all_nodes(data))
    *_, hidden, logits = reached.pre_activations(list(model.weights))
    return reached.sigma(hidden).cpu(), logits.cpu()


@dataclass(frozen=True)
class Laplace:
    r"""The GCN with Laplace's approximation of its last layer: a normal posterior. It does not use validation nodes.

    The last layer is linear in its weights, so its Gauss-Newton matrix equals its Hessian. The posterior's precision is
    the Hessian of n times the objective. Logits with variances v give the probabilities
    :math:`softmax(z / \sqrt{1 + \pi v / 8})`.
    """

    network: GCNClassifier = field(default_factory=GCNClassifier)

    @torch.no_grad()
    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train the GCN, then find the posterior."""
        if self.network.first_layer_only or not self.network.weight_decay > 0:
            raise SettingError(
                "expected weight decay on the last layer, because it is the prior, got none; set weight_decay above 0 "
                "and first_layer_only to False"
            )
        nodes = check_labels(data, train_nodes)
        with torch.enable_grad():
            model, _ = self.network.train(data, nodes, seed=seed)
        model.eval()
        receptive_field = ReceptiveField.of(model, data, all_nodes(data))
        *_, hidden, logits = receptive_field.pre_activations(list(model.weights))
        inputs = receptive_field.hops[-1] @ receptive_field.sigma(hidden)  # inputs of the last layer's weights
        v = logit_variances(inputs, nodes, torch.softmax(logits[nodes], dim=1), decay=self.network.weight_decay)
        if not all_finite(v):
            raise ModelError("expected finite variances of the posterior, got infinity or NaN; scale the features down")
        probabilities = torch.softmax(logits / (1 + math.pi / 8 * v).sqrt().to(logits.dtype), dim=1)
        return Fitted(probabilities, softmax_scores(probabilities) | {"epistemic": v.sum(dim=1)}, model)


def logit_variances(inputs: Tensor, nodes: Tensor, probabilities: Tensor, *, decay: float) -> Tensor:
    r"""Variances of the logits :math:`W^T x_u`. The precision of W is
    :math:`\sum_i x_i x_i^T \otimes S_i + n \lambda I`.

    Shapes: inputs (N, h), nodes (n,), probabilities (n, C) at those -> (N, C).
    """
    x, p = inputs.double(), probabilities.double()
    n, C = p.shape
    S = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    precision = torch.einsum("ia,ib,icd->acbd", x[nodes], x[nodes], S).reshape(x.shape[1] * C, -1)
    covariance = torch.linalg.inv(precision + n * decay * torch.eye(len(precision), dtype=x.dtype, device=x.device))
    own = covariance.view(x.shape[1], C, -1, C).diagonal(dim1=1, dim2=3)  # (h, h, C)
    variances = torch.einsum("ua,abc,ub->uc", x, own, x)
    return variances.clamp_min(0.0)  # rounding can make variances negative if the precision is nearly singular
