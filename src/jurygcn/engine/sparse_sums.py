"""Sums of messages by one sparse product, for models that take a sparse adjacency in place of a list of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from jurygcn.graph.fused import SparseProducts, has_values, with_sparse_adjacency

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

# Outputs that are computed in two ways count as equal up to this share of the largest (rounding).
SAME = {torch.float64: 1e-8, torch.float32: 1e-4}


class SparseGraphs:
    """Graphs with a sparse adjacency, made once for each graph."""

    def __init__(self) -> None:
        self._known = WeakIdKeyDictionary()

    def __reduce__(self) -> tuple[type[SparseGraphs], tuple[()]]:
        return SparseGraphs, ()  # another process makes its own

    def of(self, graph: Data) -> Data:
        """The graph with a sparse adjacency."""
        if graph not in self._known:
            self._known[graph] = with_sparse_adjacency(graph)
        found: Data = self._known[graph]
        return found


def takes_sparse(engine: GenericEngine) -> bool:
    """Whether the model gives the same outputs with a sparse adjacency, at random parameters near the training nodes.

    :func:`jurygcn.engine.acceptance.check_outputs` compares them at the trained parameters, on the whole graph.
    """
    if engine.forward is not None or has_values(engine.data):
        return False
    parameters = engine.unflatten(engine.probed[-1])
    try:
        with torch.no_grad():
            listed = engine.called(parameters, engine.near)
            with SparseProducts(strict=True):
                summed = engine.called(parameters, with_sparse_adjacency(engine.near))
    except Exception:  # the model takes edges only as a list, or does not run at all
        return False
    return close(listed, summed, SAME[engine.dtype])


def close(first: Tensor, second: Tensor, share: float) -> bool:
    """Whether outputs that were computed in two ways are equal up to this share of the largest."""
    return bool((first - second).abs().max() <= share * first.abs().max())
