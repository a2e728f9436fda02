"""GEBM: energies of evidence that is lowered far from the labelled nodes, on three scales of the graph.

Fuchsgruber, Wollschläger and Günnemann, "Energy-based epistemic uncertainty for graph neural networks".
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS, KEPT = 10, 0.5  # of the diffusion: h <- KEPT h + (1 - KEPT) D^-1 (A + I) h
CENTRAL = 0.95  # of the values, whose range is that of a class
SMALLEST = 1e-6  # variance, where all labelled nodes of a class agree or there is only one


def gebm_energy(
    fitted: tuple[Tensor, Tensor], scored: tuple[Tensor, Tensor], nodes: Tensor, labels: Tensor, edge_index: Tensor
) -> Tensor:
    r"""The sum of the energies of the evidence, of these energies diffused, and of the diffused evidence.

    .. math::
        f_y = z_y - M_y, \qquad U = E(f) + P E(f) + E(P f), \qquad E(f) = -\log \sum_y e^{f_y}

    M is the squared Mahalanobis distance of the last hidden layer to the labelled nodes of class y (diagonal
    covariances), moved linearly so that its central 95 percent have the range of the logits of that class. Classes
    without labels get no evidence. The authors fit with the outputs of the graph and score outputs without edges.

    Shapes: fitted and scored (hidden (N, h), logits (N, C)), nodes (n,), labels (n,), edge_index (2, E) -> (N,).
    """
    hidden, logits = (part.double() for part in fitted)
    there = labels.unique()
    low, high = _central(logits[:, there])
    nearest, farthest = _central(_distances(hidden, hidden[nodes], labels, there))
    h, z = (part.double() for part in scored)
    far = (_distances(h, hidden[nodes], labels, there) - nearest) / (farthest - nearest).clamp_min(SMALLEST)
    evidence = z[:, there] - (far * (high - low) + low)
    energy = -evidence.logsumexp(dim=1)
    spread = -_diffused(evidence, edge_index).logsumexp(dim=1)
    return energy + _diffused(energy[:, None], edge_index).squeeze(1) + spread


def _distances(x: Tensor, labelled: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Squared Mahalanobis distances to the Gaussians of the classes, (N, classes)."""
    found = []
    for c in classes:
        own = labelled[labels == c]
        variance = own.var(dim=0, unbiased=False).clamp_min(SMALLEST)
        found.append(((x - own.mean(dim=0)).square() / variance).sum(dim=1))
    return torch.stack(found, dim=1)


def _central(values: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the central 95 percent of each column, by the authors' ranks."""
    count, outside = len(values), (1 - CENTRAL) / 2
    ranked = values.sort(dim=0).values
    first, last = int(outside * count), max(int((1 - outside) * count) - 1, 0)
    return ranked[first], ranked[max(last, first)]


def _diffused(values: Tensor, edge_index: Tensor) -> Tensor:
    """Values averaged with those of closed neighbourhoods, ten times, (N, K) -> (N, K)."""
    source, target = edge_index[:, edge_index[0] != edge_index[1]]
    degree = torch.ones(len(values), 1, dtype=values.dtype).index_add_(0, target, torch.ones_like(values[source, :1]))
    for _ in range(STEPS):
        around = values.clone().index_add_(0, target, values[source]) / degree
        values = KEPT * values + (1 - KEPT) * around
    return values
