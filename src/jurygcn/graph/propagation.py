"""Matrices that many computations on a graph share: Â, ÂX and averages over neighbourhoods.

They are cached per graph, with a checksum of the graph's contents, so that every edit is noticed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from jurygcn.data.checked_input import check_graph
from jurygcn.data.contents import Contents, check_same, contents
from jurygcn.graph.sparse import SparseMatrix

# Below this share of non-zeros, a sparse product is faster than a dense one on CPUs.
SPARSE_DENSITY = 0.25


def normalized_adjacency(data: Data, *, dtype: Any = np.float32) -> sp.csr_matrix:
    r"""Renormalised adjacency :math:`\hat A = \tilde D^{-1/2}(A + I)\tilde D^{-1/2}` of ``data``.

    Shapes: (N, N) sparse; row v holds the weights of the messages to node v.
    """
    num_nodes = int(data.num_nodes)
    source, target = data.edge_index.cpu().numpy()
    loops = source == target
    weight = getattr(data, "edge_weight", None)
    values = (
        np.ones(len(source), dtype=dtype) if weight is None else weight.detach().cpu().double().numpy().astype(dtype)
    )
    self_weight = np.ones(num_nodes, dtype=dtype)
    if loops.any():  # an existing self-loop replaces the added one, as in PyG
        self_weight[source[loops]] = values[loops]
    carrying = ~loops & (values != 0)  # an edge of weight 0 carries no message
    nodes = np.arange(num_nodes)
    rows, columns = np.concatenate([target[carrying], nodes]), np.concatenate([source[carrying], nodes])
    entries = np.concatenate([values[carrying], self_weight])
    # The diagonal stays even where it is 0: a node is in its own closed neighbourhood.
    adjacency = sp.csr_matrix((entries, (rows, columns)), shape=(num_nodes, num_nodes))
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    scale = np.zeros_like(degree)
    np.power(degree, -0.5, out=scale, where=degree > 0)
    adjacency.data *= np.repeat(scale, np.diff(adjacency.indptr)) * scale[adjacency.indices]
    return adjacency


@dataclass(frozen=True, eq=False)
class Propagation:
    r"""A graph's :math:`\hat A`, X and :math:`\hat A X`, computed once and shared.

    Features and their propagation stay sparse where they are mostly zeros (bags of words).
    """

    adjacency: sp.csr_matrix
    features: sp.csr_matrix | None
    inputs: sp.csr_matrix | np.ndarray[Any, Any]

    @staticmethod
    def of(data: Data) -> Propagation:
        """The propagation of ``data``, from the cache."""
        return graph_cache(data).propagation

    @staticmethod
    def _compute(data: Data) -> Propagation:
        # float64 features (tests, careful users) keep their precision; everything else is float32
        kind = torch.float64 if data.x.dtype == torch.float64 else torch.float32
        x = data.x.detach().cpu().to(kind).numpy()
        adjacency = normalized_adjacency(data, dtype=x.dtype)
        if np.count_nonzero(x) > SPARSE_DENSITY * x.size:
            product = SparseMatrix(adjacency, dtype=kind, device=torch.device("cpu")) @ torch.from_numpy(x)
            return Propagation(adjacency, None, product.numpy())
        features = sp.csr_matrix(x)
        inputs = sp.csr_matrix(adjacency @ features)
        dense_enough = inputs.nnz > SPARSE_DENSITY * x.size
        return Propagation(adjacency, features, inputs.toarray() if dense_enough else inputs)

    def propagated(self, steps: int) -> sp.csr_matrix | np.ndarray[Any, Any]:
        r""":math:`\hat A^{steps} X`, at least one step, (N, F), dense or sparse as the first step is."""
        x = self.inputs
        for _ in range(steps - 1):
            x = self.adjacency @ x
        return x

    @cached_property
    def averaging(self) -> sp.csr_matrix:
        r"""The mean over closed neighbourhoods, :math:`\tilde D^{-1}(A + I)` without edge weights."""
        A = self.adjacency
        values = np.repeat((1.0 / np.diff(A.indptr)).astype(A.dtype), np.diff(A.indptr))
        return sp.csr_matrix((values, A.indices, A.indptr), shape=A.shape)


@dataclass(frozen=True, eq=False)
class GraphCache:
    """The cached values of one graph.

    Attributes:
        contents: the checksums of the graph that the cache belongs to.
        propagation: its products.
        whole: receptive fields of all nodes, keyed by the model's settings; they hold no reference to this object, so
            that all memory is freed with the graph.
    """

    contents: Contents
    propagation: Propagation
    whole: dict[Any, Any] = field(default_factory=dict)


# The entry is dropped when the graph's edge_index is freed.
_caches: WeakIdKeyDictionary = WeakIdKeyDictionary()


def graph_cache(data: Data) -> GraphCache:
    """The cache of ``data``; recomputed if features, edges or weights have changed."""
    data = check_graph(data)
    found: GraphCache | None = _caches.get(data.edge_index)
    if found is None or found.contents != contents(data):
        check_same(data)
        found = _caches[data.edge_index] = GraphCache(contents(data), Propagation._compute(data))
    return found


def is_everything(nodes: Tensor, num_nodes: int) -> bool:
    """Whether ``nodes`` are all nodes in order."""
    return len(nodes) == num_nodes and bool((nodes == torch.arange(num_nodes, device=nodes.device)).all())


def reached_rows(
    matrix: sp.csr_matrix, nodes: np.ndarray[Any, Any], *, everything: bool = False
) -> tuple[sp.csr_matrix, np.ndarray[Any, Any]]:
    """The rows of ``nodes``, cut to the columns they reach, and those columns."""
    if everything:
        return matrix, nodes
    rows = matrix[nodes]
    below = np.unique(rows.indices)
    return rows[:, below], below
