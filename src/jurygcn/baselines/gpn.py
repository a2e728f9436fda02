"""Graph posterior network: evidence from densities in a learnt space, diffused over the graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.baselines import dirichlet
from jurygcn.baselines.flows import RadialFlows
from jurygcn.checks import MOST_HIDDEN, check_count, check_dropout
from jurygcn.graph.propagation import Propagation
from jurygcn.graph.sparse import SparseMatrix
from jurygcn.models.dropout_field import drop

LARGEST_LOG_EVIDENCE = 30.0  # keeps evidence finite in float32


@dataclass(frozen=True)
class Evidence:
    r"""The evidence :math:`\beta` of a graph posterior network for every node and class; :math:`\alpha = 1 + \beta`.

    Shapes: features (N, C), from the node's own features; diffused (N, C), after diffusion over the graph.
    """

    features: Tensor
    diffused: Tensor

    @property
    def alpha(self) -> Tensor:
        """Dirichlet parameters after diffusion."""
        return 1.0 + self.diffused


class GPN(nn.Module):
    r"""An encoder of single nodes, one radial flow per class, and evidence diffused by personalised PageRank.

    .. math::
        \ln \beta^{ft}_{vc} = \ln q(z_v \mid c) + \ln p(c) + B, \qquad
        \beta \leftarrow (1 - t)\,\hat A \beta + t\,\beta^{ft}, \qquad \alpha = 1 + \beta

    p(c) is the share of class c among the training nodes, and B is the certainty budget.

    Shapes: x (N, F) -> evidence (N, C).
    """

    class_shares: Tensor

    def __init__(
        self,
        in_channels: int,
        classes: int,
        *,
        hidden: int = 64,
        latent: int = 16,
        flow_length: int = 10,
        dropout: float = 0.5,
        steps: int = 10,
        teleport: float = 0.1,
        budget: float | None = None,
    ) -> None:
        super().__init__()
        check_count(hidden, "hidden", most=MOST_HIDDEN)
        check_dropout(dropout)
        self.encoder = nn.ModuleList([nn.Linear(in_channels, hidden), nn.Linear(hidden, latent)])
        self.flows = RadialFlows(classes, latent, length=flow_length)
        self.dropout, self.steps, self.teleport = dropout, steps, teleport
        self.budget = 0.5 * latent * math.log(4 * math.pi) if budget is None else budget
        self.register_buffer("class_shares", torch.full((classes,), 1.0 / classes))

    def reset_parameters(self) -> None:
        """Draw new values for every parameter."""
        for layer in self.encoder:
            layer.reset_parameters()  # type: ignore[operator]
        self.flows.reset_parameters()

    def encode(self, x: Tensor | SparseMatrix) -> Tensor:
        """Latent positions z of all nodes, (N, latent)."""
        first, second = self.encoder
        z = torch.relu(x @ first.weight.T + first.bias)  # type: ignore[operator]
        out: Tensor = second(drop(z, self.dropout) if self.training else z)
        return out

    def forward(self, x: Tensor | SparseMatrix, adjacency: SparseMatrix) -> Evidence:
        """Evidence of all nodes for all classes. A class without training nodes gets almost none."""
        log_evidence = self.flows(self.encode(x)) + self.class_shares.log() + self.budget
        evidence = log_evidence.clamp(-LARGEST_LOG_EVIDENCE, LARGEST_LOG_EVIDENCE).exp()
        return Evidence(evidence, diffuse(evidence, adjacency, steps=self.steps, teleport=self.teleport))


def diffuse(evidence: Tensor, adjacency: SparseMatrix, *, steps: int, teleport: float) -> Tensor:
    r"""Personalised PageRank by ``steps`` rounds of :math:`\beta \leftarrow (1 - t) \hat A \beta + t \beta^{ft}`.

    Shapes: (N, C) -> (N, C).
    """
    diffused = evidence
    for _ in range(steps):
        diffused = (1 - teleport) * (adjacency @ diffused) + teleport * evidence
    return diffused


def uncertain_cross_entropy(alpha: Tensor, y: Tensor, *, entropy_weight: float) -> Tensor:
    r"""The network's loss at each node, :math:`\psi(S) - \psi(\alpha_y) - \lambda H(Dir(\alpha))`.

    Shapes: alpha (m, C), y (m,) -> (m,).
    """
    a = alpha.double()  # evidence reaches e^30
    return dirichlet.cross_entropy(a, y) - entropy_weight * dirichlet.entropy(a)


def graph_inputs(data: Data, *, binarize: bool = False) -> tuple[Tensor | SparseMatrix, SparseMatrix]:
    r"""The features and :math:`\hat A`. Sparse features stay sparse.

    ``binarize`` sets every nonzero feature to 1 and then scales each row to sum 1.
    """
    graph = Propagation.of(data)
    place: dict[str, Any] = {"dtype": torch.float32, "device": data.x.device}
    adjacency = SparseMatrix(graph.adjacency, **place)
    x = data.x.float()
    if binarize:
        x = (x != 0).float()
        x = x / x.sum(dim=1, keepdim=True).clamp_min(1.0)
    if graph.features is None:
        return x, adjacency
    features = graph.features.copy()
    if binarize:
        features.data = x.cpu().numpy()[features.nonzero()]
    return SparseMatrix(features, **place), adjacency
