r"""DiffusAL's score: uncertain, central under diffusion, and from a cluster with few labels.

.. math:: \frac{H(v)}{\max H} \cdot \frac{\sum_u \Pi_{uv}}{\max_w \sum_u \Pi_{uw}} \cdot
    \Bigl(1 - \frac{|L \cap c(v)|}{|L|}\Bigr), \qquad \Pi = \tfrac13 \sum_{\alpha} \alpha (I - (1 - \alpha) P)^{-1}

with :math:`\alpha` = 0.05, 0.1, 0.2 and P the random walk. Two things differ from the authors' code: the entropy H is
that of the GCN of this run, not of their committee of MLPs, and there are as many k-means clusters c of diffused
features as classes, which is a choice of this file. Sums are found by iteration, not cut off at :math:`\epsilon`.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from jurygcn.active.clusters import kmeans
from jurygcn.active.graph_statistics import Array, GraphStatistics
from jurygcn.active.scene import Choice, Scene
from jurygcn.graph.features import reduce_rows

ALPHAS = (0.05, 0.1, 0.2)  # probabilities of return, as the authors set them
TOLERANCE = 1e-6


def diffusal(scene: Scene) -> Choice:
    """The product of the three scores."""
    importance, points = _facts(scene.statistics)
    _, owner = kmeans(points, scene.num_classes, seed=0)
    share = np.bincount(owner[scene.labelled.cpu().numpy()], minlength=scene.num_classes) / len(scene.labelled)
    entropy = scene.entropy / max(float(scene.entropy.max()), 1e-300)
    return scene.top(entropy * (importance / importance.max()) * (1.0 - share[owner]))


def _facts(statistics: GraphStatistics) -> tuple[Array, Array]:
    """Column sums of the diffusion, (N,), and diffused features in few dimensions, (N, d); kept with the graph."""

    def compute() -> tuple[Array, Array]:
        walk = random_walk(statistics.adjacency)
        rows = reduce_rows(statistics.propagation.propagated(1), 100)
        sums = diffused(walk.T, np.ones((len(rows), 1)))[:, 0]
        return sums, diffused(walk, rows)

    return statistics.kept("diffusal", compute)


def random_walk(adjacency: sp.csr_matrix) -> sp.csr_matrix:
    """P with rows that add to 1; a node without neighbours stays where it is."""
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    inverse = np.divide(1.0, degree, out=np.zeros_like(degree), where=degree > 0)
    return sp.csr_matrix(sp.diags(inverse) @ adjacency + sp.diags((degree == 0).astype(float)))


def diffused(walk: sp.csr_matrix, values: Array) -> Array:
    r"""The mean of :math:`\alpha (I - (1 - \alpha) P)^{-1}` over all :math:`\alpha`, times values, by iteration."""
    total = np.zeros_like(values, dtype=float)
    for alpha in ALPHAS:
        part, left = np.zeros_like(total), 1.0
        term = alpha * values
        while left > TOLERANCE:
            part += term
            term, left = (1.0 - alpha) * (walk @ term), (1.0 - alpha) * left
        total += part / len(ALPHAS)
    return total
