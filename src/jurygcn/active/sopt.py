"""Sigma-optimal design on the graph Laplacian: the acquisition function behind SOPT-GCN."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch

from jurygcn.active.graph_statistics import Array, GraphStatistics
from jurygcn.active.scene import Choice, Scene
from jurygcn.errors import SettingError

DENSE = 8000  # most nodes for which the dense inverse is computed
LIMIT = 50_000  # most nodes; beyond, the diagonal of the inverse takes too long
_BLOCK = 256  # columns solved at a time


def sopt(scene: Scene) -> Choice:
    r"""Greedily minimise :math:`1^\top C 1`. C is the covariance of a Gaussian field given the labelled nodes.

    .. math:: v^* = \arg\max_v \Bigl(\sum_u C_{uv}\Bigr)^2 / C_{vv}, \quad C = (L_{UU})^{-1}

    The field covers the largest connected component and has no ridge, as in its authors' work. It uses neither labels
    nor a model.
    """
    laplacian = laplacian_of(scene.statistics)
    inside = np.flatnonzero(scene.statistics.component)
    place = np.full(int(scene.data.num_nodes), -1)
    place[inside] = np.arange(len(inside))
    known = [int(i) for i in place[scene.labelled.cpu().numpy()] if i >= 0]
    available = np.zeros(len(inside), dtype=bool)
    available[place[scene.pool][place[scene.pool] >= 0]] = True
    field = GaussianField(laplacian, known)
    picked: list[int] = []
    scores: list[float] = []
    while len(picked) < scene.batch and available.any():
        gain = np.where(available, field.gains(), -np.inf)
        best = int(gain.argmax())
        picked.append(best)
        scores.append(float(gain[best]))
        available[best] = False
        field.add(best)
    nodes = inside[picked]
    if len(nodes) < scene.batch:  # no candidates are left in the component: draw the rest at random
        rest = np.setdiff1d(scene.pool, nodes)
        more = scene.generator.choice(rest, scene.batch - len(nodes), replace=False)
        nodes, scores = np.concatenate([nodes, more]), [*scores, *np.zeros(len(more))]
    return scene.choice(nodes, scores)


class Laplacian:
    """The inverse G of a connected graph's Laplacian without its first node: diagonal, row sums, columns on demand.

    G has a row and a column of zeros for that node. On small graphs G is computed as a dense matrix, on larger ones
    columns are solved with a sparse factorisation.

    Shapes: adjacency (N, N), diagonal (N,), sums (N,).
    """

    def __init__(self, adjacency: sp.csr_matrix) -> None:
        count = adjacency.shape[0]
        if count > LIMIT:
            raise SettingError(
                f"expected at most {LIMIT:,} nodes in the largest component for sopt, got {count:,}; choose another "
                "strategy"
            )
        self.size = count
        self._columns: dict[int, Array] = {}
        self._solve: Callable[[Array], Array]
        matrix = sp.csc_matrix(sp.diags(np.asarray(adjacency.sum(axis=1)).ravel()) - adjacency)[1:, 1:]
        if count <= DENSE:
            root = torch.linalg.cholesky(torch.from_numpy(matrix.toarray()))
            inverse = torch.cholesky_inverse(root).numpy()
            self._solve = lambda right: inverse @ right
            inner = np.diag(inverse).copy()
        else:
            factor = sp.linalg.splu(matrix, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
            self._solve = factor.solve
            starts = range(0, count - 1, _BLOCK)
            inner = np.concatenate([self._diagonal_block(s, min(s + _BLOCK, count - 1)) for s in starts])
        self.diagonal = np.concatenate([[0.0], inner])
        self.sums = np.concatenate([[0.0], self._solve(np.ones(count - 1))])

    def column(self, node: int) -> Array:
        """One column of G, (N,)."""
        if node not in self._columns:
            unit = np.zeros(self.size)
            unit[node] = 1.0
            self._columns[node] = np.concatenate([[0.0], self._solve(unit[1:])])
        return self._columns[node]

    def _diagonal_block(self, start: int, stop: int) -> Array:
        width = np.arange(stop - start)
        unit = np.zeros((self.size - 1, len(width)))
        unit[start + width, width] = 1.0
        return np.asarray(self._solve(unit)[start + width, width])


class GaussianField:
    r"""The Gaussian field conditioned on some nodes. Its N × N covariance is not stored.

    Given the first node g, :math:`C_{uv} = G_{uv} - G_{ug} - G_{gv} + G_{gg}` for any generalised inverse G of the
    Laplacian. Each further node k subtracts the outer product of its current column, :math:`C_{:k} C_{k:} / C_{kk}`.
    """

    def __init__(self, laplacian: Laplacian, known: list[int]) -> None:
        self.laplacian, self.ground = laplacian, -1
        self.variance, self.sums = np.zeros(laplacian.size), np.zeros(laplacian.size)
        self._factors: list[Array] = []
        for node in known:
            self.add(node)

    def gains(self) -> Array:
        r""":math:`(\sum_u C_{uv})^2 / C_{vv}`; before the first node, minus the value of :math:`1^\top C 1` given v."""
        G = self.laplacian
        if self.ground < 0:
            return np.asarray(2 * G.size * G.sums - G.size**2 * G.diagonal - G.sums.sum())
        available = self.variance > 1e-9
        return np.asarray(np.divide(self.sums**2, self.variance, out=np.zeros_like(self.sums), where=available))

    def add(self, node: int) -> None:
        """Condition on one more node."""
        G = self.laplacian
        if self.ground < 0:
            column = G.column(node)
            self.ground = node
            self.variance = G.diagonal - 2 * column + G.diagonal[node]
            self.sums = G.sums - G.sums[node] + G.size * (G.diagonal[node] - column)
            return
        column = self._column(node)
        if column[node] <= 1e-9:
            return
        factor = column / np.sqrt(column[node])
        self._factors.append(factor)
        self.variance = self.variance - factor**2
        self.sums = self.sums - factor * factor.sum()

    def _column(self, node: int) -> Array:
        """The current covariance of all nodes with ``node``, (N,)."""
        own, ground = self.laplacian.column(node), self.laplacian.column(self.ground)
        column = own - ground - own[self.ground] + ground[self.ground]
        for factor in self._factors:
            column = column - factor * factor[node]
        return np.asarray(column)


def laplacian_of(statistics: GraphStatistics) -> Laplacian:
    """The Laplacian of the largest component, cached with the graph's statistics."""

    def compute() -> Laplacian:
        inside = np.flatnonzero(statistics.component)
        return Laplacian(sp.csr_matrix(statistics.adjacency[inside][:, inside]))

    return statistics.kept("laplacian", compute)
