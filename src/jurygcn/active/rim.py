r"""RIM: the nodes that reliably influence most of the graph, for an oracle that is right with a known probability.

A labelled node i activates j if :math:`r_i (P^2)_{ji} > 0.05`, with :math:`P = D^{-1}(A + I)`: the share of node i in
what node j receives over two hops. Nodes are chosen greedily by how many nodes they newly activate. The reliability
of a label is

.. math:: r_i = \frac{\sum_k r_k\, q(s_{ik})}{\sum_k r_k}, \qquad
    q(s) = \frac{a s}{a s + (1 - a)(1 - s) / (C - 1)}

over the other labels k of the same class, where s is the cosine of the rows of :math:`P^2 X`, scaled to 0 .. 1 over all
pairs of nodes, and a the oracle's accuracy. A label that is the only one of its class, and a node without a label, have
r = a. The loss of each label is multiplied by r.

Four things differ from the released code. It has :math:`(P^2)_{ij}`, what node i receives from j; the paper defines the
influence of the labelled node on others, and on two development graphs that chose better labels. A label does not
support itself here with s = 1. Reliabilities are computed anew from all labels at each step, not refreshed in place
after five. Where no node activates others any more, the rest of the batch is drawn at random; the code stops before the
budget is used up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.active.grain import covering
from jurygcn.active.graph_statistics import Array, GraphStatistics
from jurygcn.active.scene import Choice, Scene
from jurygcn.errors import SettingError

THRESHOLD = 0.05 * (1.0 + 1e-9)  # of the influence that activates, as the authors set it; equality does not
BLOCK = 1000  # rows whose similarities are computed at a time
PASSES, TOLERANCE = 100, 1e-9  # of the reliabilities, which weight each other


@dataclass(frozen=True)
class Rim:
    """RIM's choice of nodes, and its weights of labels.

    Args:
        oracle_accuracy: a, the probability that the oracle is right. It is not estimated.
    """

    oracle_accuracy: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.oracle_accuracy <= 1:
            raise SettingError(
                f"expected an oracle_accuracy above 0 and at most 1, got {self.oracle_accuracy}; change it"
            )

    def __call__(self, scene: Scene) -> Choice:
        """The batch. The score of a node is the number of nodes that it newly activates."""
        influence = influence_of(scene.statistics)
        known = scene.labelled.cpu().numpy()
        reliability = self.weights(scene.data, scene.labelled).numpy()
        reached = sp.diags(reliability) @ influence[known] > THRESHOLD
        left = np.asarray(reached.sum(axis=0)).ravel() == 0
        pool = sp.csr_matrix(self.oracle_accuracy * influence[scene.pool] > THRESHOLD, dtype=float)
        return covering(scene, pool, left)

    def weights(self, data: Data, nodes: Tensor) -> Tensor:
        """The reliability of the labels of these nodes. Shapes: nodes (n,) -> (n,)."""
        statistics, labels = GraphStatistics.of(data), data.y[nodes].cpu().numpy()
        similar = similarities(statistics, data, nodes.cpu().numpy())
        supports = self.posterior(similar, int(data.num_classes))
        together = (labels[:, None] == labels).astype(float)
        np.fill_diagonal(together, 0.0)
        reliability = np.where(together.any(axis=1), 1.0, self.oracle_accuracy)
        for _ in range(PASSES):
            before, weights = reliability, together * reliability
            total = weights.sum(axis=1)
            mean = np.divide((weights * supports).sum(axis=1), total, out=np.zeros(len(total)), where=total > 0)
            reliability = np.where(total > 0, mean, self.oracle_accuracy)
            if np.abs(reliability - before).max(initial=0.0) < TOLERANCE:
                break
        return torch.from_numpy(reliability).float()

    def posterior(self, similar: Array, classes: int) -> Array:
        """The probability that a label is right, given its similarity to another with the same class."""
        right, wrong = self.oracle_accuracy * similar, (1.0 - self.oracle_accuracy) * (1.0 - similar) / (classes - 1)
        return np.asarray(np.divide(right, right + wrong, out=np.zeros_like(right), where=right + wrong > 0))


def influence_of(statistics: GraphStatistics) -> sp.csr_matrix:
    """The transpose of P²: the share of each node (row) in what others (columns) receive over two hops, (N, N)."""

    def compute() -> sp.csr_matrix:
        closed = sp.csr_matrix(statistics.propagation.averaging, dtype=float)
        degree = np.diff(closed.indptr)
        closed.data = np.repeat(1.0 / degree, degree)  # in float64
        return sp.csr_matrix((closed @ closed).T)

    return statistics.kept("rim influence", compute)


def similarities(statistics: GraphStatistics, data: Data, nodes: Array) -> Array:
    """Cosines of the rows of P²X of these nodes, scaled so that the least of all pairs is 0 and the most 1, (n, n)."""

    def compute() -> tuple[Array, float]:
        rows = influence_of(statistics).T @ data.x.detach().cpu().double().numpy()
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0).astype(np.float32)
        least = min(float((rows[start : start + BLOCK] @ rows.T).min()) for start in range(0, len(rows), BLOCK))
        return rows, least

    rows, least = statistics.kept("rim rows", compute)
    own = rows[nodes].astype(float)
    return np.asarray(np.clip((own @ own.T - least) / max(1.0 - least, 1e-300), 0.0, 1.0))
