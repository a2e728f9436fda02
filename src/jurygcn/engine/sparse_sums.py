"""Sums of messages by one sparse product, for models that take a sparse adjacency in place of a list of edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from jurygcn.graph.fused import SparseProducts, has_values, with_sparse_adjacency
from jurygcn.graph.neighbourhood import local_graph, num_hops
from jurygcn.graph.typed import local_view

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

FEW = 8  # training nodes on whose neighbourhood the two are compared

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
    part = local_view if engine.typed else local_graph
    near, _ = part(engine._inputs, engine.train_nodes[:FEW], num_hops(engine.model))
    parameters = engine.unflatten(engine.probed[-1])
    for graph in (near, engine._inputs):
        try:
            with torch.no_grad():
                listed = engine.called(parameters, graph)
        except Exception:  # a model that has something for each node does not run on a part
            continue
        try:
            with torch.no_grad(), SparseProducts(strict=True):
                summed = engine.called(parameters, with_sparse_adjacency(graph))
        except Exception:  # the model takes edges only as a list
            return False
        return bool((listed - summed).abs().max() <= SAME[engine.dtype] * listed.abs().max())
    return False
