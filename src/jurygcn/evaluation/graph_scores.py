"""Nonconformity scores of rival methods: RAPS, DAPS, SNAPS, with the settings of their authors.

References: RAPS is Angelopoulos et al., "Uncertainty sets for image classifiers using conformal prediction". DAPS is
Zargarbashi, Antonelli and Bojchevski, "Conformal prediction sets for graph neural networks". SNAPS is Song et al.,
"Similarity-navigated conformal prediction for graph neural networks".
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from jurygcn.errors import SettingError

PENALTY, FREE_LABELS = 0.01, 5  # of RAPS: for every label after the first 5
NEIGHBOURS = 20  # most similar nodes of SNAPS
MIXINGS = tuple(round(0.05 * k, 2) for k in range(20))  # that DAPS tunes over
ROWS = 512  # of similarities at a time


def penalised_scores(scores: Tensor, probabilities: Tensor) -> Tensor:
    r"""RAPS: :math:`s(u, y) + 0.01 \max(0, rank(u, y) - \min(5, C))`, with ranks from 1. Shapes: (N, C) -> (N, C)."""
    rank = probabilities.argsort(dim=1, descending=True).argsort(dim=1) + 1
    free = min(FREE_LABELS, probabilities.shape[1])
    return scores + PENALTY * (rank - free).clamp_min(0).to(scores.dtype)


def neighbour_means(scores: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    """Mean scores over neighbours, and which nodes have any: (N, C) -> (N, C), (N,)."""
    source, target = edge_index
    degree = torch.zeros(len(scores), dtype=scores.dtype).index_add_(0, target, torch.ones_like(scores[source, 0]))
    around = torch.zeros_like(scores).index_add_(0, target, scores[source]) / degree.clamp_min(1)[:, None]
    return around, degree > 0


def diffuse_scores(scores: Tensor, edge_index: Tensor, *, mixing: float = 0.5) -> Tensor:
    r"""DAPS: scores mixed with their mean over neighbours; a node without neighbours keeps its own scores.

    .. math:: s'(u, y) = (1 - \lambda) s(u, y) + \frac{\lambda}{|N_u|} \sum_{v \in N_u} s(v, y)

    Shapes: scores (N, C), edge_index (2, E) in both directions -> (N, C).
    """
    if not 0.0 <= mixing <= 1.0:
        raise SettingError(f"expected mixing between 0 and 1, got {mixing}; change it")
    around, joined = neighbour_means(scores, edge_index)
    return torch.where(joined[:, None], (1 - mixing) * scores + mixing * around, scores)


def similar_nodes(features: Tensor, *, count: int = NEIGHBOURS) -> sp.csr_matrix:
    """Weights of the ``count`` most similar other nodes, by the cosine of which features are not 0; rows add to 1.

    A node that is similar to no other has an empty row.
    """
    there = sp.csr_matrix((features != 0).double().numpy())
    length = np.sqrt(np.asarray(there.sum(axis=1)).ravel())
    unit = sp.csr_matrix(sp.diags(np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)) @ there)
    parts = []
    for start in range(0, unit.shape[0], ROWS):
        similar = np.asarray((unit[start : start + ROWS] @ unit.T).todense())
        rows = np.arange(len(similar))
        similar[rows, start + rows] = 0.0
        few = min(count, similar.shape[1])
        kept = np.argpartition(-similar, few - 1, axis=1)[:, :few]
        weights = np.take_along_axis(similar, kept, axis=1)
        total = weights.sum(axis=1, keepdims=True)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
        placed = (weights.ravel(), (np.repeat(rows, kept.shape[1]), kept.ravel()))
        parts.append(sp.csr_matrix(placed, shape=similar.shape))
    return sp.vstack(parts, format="csr")


def navigated_scores(scores: Tensor, edge_index: Tensor, similar: sp.csr_matrix) -> Tensor:
    """SNAPS without tuning: a third each of a node's scores, of its most similar nodes' and of its neighbours'.

    What a node lacks, similar nodes or neighbours, is replaced by its own scores.

    Shapes: scores (N, C) -> (N, C).
    """
    around, joined = neighbour_means(scores, edge_index)
    alike = torch.from_numpy(np.asarray(similar @ scores.double().numpy())).to(scores.dtype)
    has = torch.from_numpy(np.diff(similar.indptr) > 0) & torch.from_numpy(np.asarray(similar.sum(axis=1)).ravel() > 0)
    return (scores + torch.where(joined[:, None], around, scores) + torch.where(has[:, None], alike, scores)) / 3
