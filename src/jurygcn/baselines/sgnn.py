"""Loss and prior of S-GNN, the subjective Bayesian GCN with a teacher and a graph-kernel prior.

The network is the paper's GCN. Its logits f give the evidence e = exp(f) of a Dirichlet with alpha = 1 + e.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.csgraph import dijkstra
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.baselines import dirichlet
from jurygcn.graph.propagation import Propagation

FARTHEST_HOP = 10  # beyond this distance the kernel is below 1e-21
LARGEST_LOGIT = 30.0  # keeps evidence finite in float32


def graph_kernel_prior(data: Data, train_nodes: Tensor, *, classes: int, width: float = 1.0) -> Tensor:
    r"""Dirichlet prior of every node from its hop distances d to the labelled nodes.

    .. math:: \alpha^0_{vc} = 1 + \sum_{l : y_l = c} \exp\left(-\frac{d(v, l)^2}{2\sigma^2}\right)

    Labelled nodes from which v cannot be reached add nothing. The prior depends on the labels, so compute it again
    when they change.

    Shapes: -> (N, C).
    """
    adjacency = Propagation.of(data).adjacency
    sources = train_nodes.cpu().numpy()
    # distances follow the direction of messages; row v of the adjacency holds the senders to v
    hops = dijkstra(adjacency.T, directed=True, unweighted=True, indices=sources, limit=FARTHEST_HOP)
    kernel = np.exp(-(hops**2) / (2 * width**2))  # exp(-inf) = 0
    prior = torch.ones(int(data.num_nodes), classes, dtype=torch.float64)
    prior.index_add_(1, data.y[train_nodes].cpu(), torch.from_numpy(kernel.T))
    return prior.to(data.x.dtype)


def concentrations(logits: Tensor) -> Tensor:
    """Dirichlet parameters 1 + exp(f)."""
    return 1.0 + logits.clamp(max=LARGEST_LOGIT).exp()


@dataclass(frozen=True)
class EvidenceLoss:
    r"""The loss of S-GNN as a function of the logits of all nodes.

    .. math::
        \frac1n \sum_{i} E_{Dir(\alpha_i)}\|p - y_i\|^2
        + \frac{\lambda_1}{N} \sum_v KL(Dir(\alpha_v) \| Dir(\alpha^0_v))
        + \frac{\min(1, t/200)}{N} \sum_v KL(\bar p_v \| p^{GCN}_v)

    Shapes: prior (N, C), teacher (N, C) probabilities.
    """

    train_nodes: Tensor
    y: Tensor
    prior: Tensor
    teacher: Tensor
    prior_weight: float = 1e-3
    teacher_epochs: int = 200

    def __call__(self, logits: Tensor, epoch: int) -> Tensor:
        """The loss in epoch t, counted from 1."""
        alpha = concentrations(logits)
        p = alpha / alpha.sum(dim=-1, keepdim=True)
        fit = dirichlet.squared_error(alpha[self.train_nodes], self.y).mean()
        prior = dirichlet.divergence(alpha, self.prior).mean()
        teacher = (p * (p.log() - self.teacher.clamp_min(1e-12).log())).sum(dim=-1).mean()
        return fit + self.prior_weight * prior + min(1.0, epoch / self.teacher_epochs) * teacher
