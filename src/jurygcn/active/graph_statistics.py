"""Statistics of a graph without labels and model: centralities and propagated features, computed once per graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from jurygcn.graph.features import reduce_rows
from jurygcn.graph.propagation import Propagation

Array = NDArray[Any]
T = TypeVar("T")

EXACT_BETWEENNESS = 5000  # most nodes with exact betweenness; larger graphs use PIVOTS sources
PIVOTS = 1000
DIMENSIONS = 200  # of the reduced propagated features
_BLOCK = 128  # sources processed at a time


@dataclass(frozen=True, eq=False)
class GraphStatistics:
    """Statistics of a graph. Each is computed at first use and cached with the graph.

    Attributes:
        adjacency: A without self-loops, edge weights and duplicates.
        propagation: the cached propagation of the same graph.

    Shapes: adjacency (N, N).
    """

    adjacency: sp.csr_matrix
    propagation: Propagation
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def kept(self, name: str, compute: Callable[[], T]) -> T:
        """What ``compute`` returns, computed once for the graph; each strategy has names of its own."""
        if name not in self._kept:
            self._kept[name] = compute()
        found: T = self._kept[name]
        return found

    @staticmethod
    def of(data: Data) -> GraphStatistics:
        """The statistics of ``data``, cached until its features or edges change."""
        propagation = Propagation.of(data)
        statistics: GraphStatistics | None = _statistics.get(data.edge_index)
        if statistics is None or statistics.propagation is not propagation:
            statistics = GraphStatistics(plain_adjacency(data), propagation)
            _statistics[data.edge_index] = statistics
        return statistics

    @cached_property
    def degree(self) -> Array:
        """The number of neighbours of each node, (N,)."""
        return np.asarray(self.adjacency.sum(axis=1)).ravel()

    @cached_property
    def pagerank(self) -> Array:
        """PageRank with damping 0.85, (N,)."""
        return pagerank(self.adjacency)

    @cached_property
    def betweenness(self) -> Array:
        """Betweenness, (N,). On graphs with more than 5000 nodes it is estimated from 1000 sources."""
        count = self.adjacency.shape[0]
        return betweenness(self.adjacency, pivots=None if count <= EXACT_BETWEENNESS else PIVOTS)

    @cached_property
    def component(self) -> Array:
        """Which nodes are in the largest connected component, (N,) bool."""
        _, label = sp.csgraph.connected_components(self.adjacency, directed=False)
        return np.asarray(label == np.bincount(label).argmax())

    @cached_property
    def propagated_rows(self) -> Array:
        r"""The rows of :math:`\hat A^2 X`, dense, in float64, (N, F)."""
        rows: Any = self.propagation.propagated(2)
        return np.asarray(rows.toarray() if sp.issparse(rows) else rows, dtype=np.float64)

    @cached_property
    def propagated(self) -> Array:
        r"""Unit rows of :math:`\hat A^2 X`, reduced by a truncated SVD to at most 200 dimensions, (N, d)."""
        return reduce_rows(self.propagation.propagated(2), DIMENSIONS)


# an entry is removed when the graph's edge_index is deleted
_statistics: WeakIdKeyDictionary = WeakIdKeyDictionary()


def plain_adjacency(data: Data) -> sp.csr_matrix:
    """The adjacency matrix of ``data`` as an undirected, unweighted graph without self-loops."""
    count = int(data.num_nodes)
    source, target = data.edge_index.cpu().numpy()
    ones = np.ones(len(source))
    matrix = sp.coo_matrix((ones, (source, target)), shape=(count, count))
    matrix = sp.csr_matrix(matrix + matrix.T)
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    matrix.data[:] = 1.0
    return matrix


def pagerank(adjacency: sp.csr_matrix, *, damping: float = 0.85, tolerance: float = 1e-6) -> Array:
    r"""PageRank by power iteration, to an L1 change of N times ``tolerance``.

    .. math:: x \leftarrow d\,(P^\top x + \tfrac1N \textstyle\sum_{\deg v = 0} x_v) + (1 - d)/N

    Shapes: returns (N,).
    """
    count = adjacency.shape[0]
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    inverse = np.divide(1.0, degree, out=np.zeros(count), where=degree > 0)
    walk = sp.csr_matrix(adjacency.T @ sp.diags(inverse))
    x = np.full(count, 1.0 / count)
    for _ in range(1000):
        last = x
        x = damping * (walk @ x + x[degree == 0].sum() / count) + (1.0 - damping) / count
        if np.abs(x - last).sum() < count * tolerance:
            break
    return np.asarray(x)


def betweenness(adjacency: sp.csr_matrix, *, pivots: int | None = None) -> Array:
    r"""Shortest-path betweenness of an undirected, unweighted graph, not normalised (Brandes).

    .. math:: b(v) = \tfrac12 \sum_{s \ne v \ne t} \sigma_{st}(v) / \sigma_{st}

    Many sources are processed at a time, so that each step outwards or back is one sparse product. With ``pivots`` only
    so many sources are used, the same at every call, and the result is scaled up to all sources.

    Shapes: returns (N,).
    """
    count = adjacency.shape[0]
    sources = np.arange(count)
    if pivots is not None and pivots < count:
        sources = np.sort(np.random.default_rng(0).choice(count, pivots, replace=False))
    total = np.zeros(count)
    for start in range(0, len(sources), _BLOCK):
        total += _dependencies(adjacency, sources[start : start + _BLOCK])
    return np.asarray(total * (count / len(sources)) / 2.0)


def _dependencies(adjacency: sp.csr_matrix, sources: Array) -> Array:
    """Brandes' dependencies of every node, summed over these sources, (N,)."""
    columns = np.arange(len(sources))
    paths = np.zeros((adjacency.shape[0], len(sources)))
    paths[sources, columns] = 1.0
    seen = paths > 0
    frontiers = [paths * seen]
    while True:
        reached = adjacency @ frontiers[-1]
        reached[seen] = 0.0
        if not reached.any():
            break
        seen |= reached > 0
        paths += reached
        frontiers.append(reached)
    credit = np.zeros_like(paths)
    for outer, inner in zip(frontiers[:0:-1], frontiers[-2::-1]):
        share = np.divide(1.0 + credit, outer, out=np.zeros_like(paths), where=outer > 0)
        credit += inner * (adjacency @ share)
    credit[sources, columns] = 0.0
    return np.asarray(credit.sum(axis=1))
