"""The same model on another graph: for edits of the graph and of the parameters."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import contains_self_loops

from jurygcn.data import check_graph
from jurygcn.graph.ego import ego_graphs
from jurygcn.graph.neighbourhood import local_graph, num_hops
from jurygcn.graph.typed import local_view
from jurygcn.models.copies import independent_copy

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

FEW, MOST = 32, 20_000_000  # neighbourhoods that are copied to test locality, and numbers in their features
FEWEST = 8  # neighbourhoods that other tests need

# What an engine computes once from its graph and its parameters; an engine with others computes it again.
OF_GRAPH = (
    *("trained_outputs", "train_outputs", "_train_graph", "_inputs", "near"),
    *("probed", "_probes", "_stream", "_casts"),
)


def elsewhere(engine: GenericEngine, data: Data, nodes: Tensor, targets: Tensor, theta: Tensor | None) -> GenericEngine:
    """The engine on another graph with other training nodes, and with the parameters ``theta`` if given."""
    part = copy.copy(engine)
    part._clear_cached(*OF_GRAPH)
    part.data, part.train_nodes, part.targets = check_graph(data), nodes, targets
    if contains_self_loops(data.edge_index) and not contains_self_loops(engine.data.edge_index):
        part.takes_sparse = False  # it was tested without loops, which some layers treat in another way
    if theta is not None:
        part.model = independent_copy(engine.model)
        part.parameters = {name: p.detach() for name, p in part.model.named_parameters() if p.requires_grad}
        for name, value in engine.unflatten(theta).items():
            part.parameters[name].copy_(value)
    return part


def near_training(engine: GenericEngine) -> Data:
    """The neighbourhood of a few training nodes, for tests of the model; the whole graph if the model needs it."""
    part = local_view if engine.typed else local_graph
    graph, _ = part(engine._inputs, engine.train_nodes[:FEWEST], num_hops(engine.model))
    try:
        with torch.no_grad():
            engine.called(engine.parameters, graph)
    except Exception:  # a model that has something for each node does not run on a part
        return engine._inputs
    return graph


def separable(engine: GenericEngine) -> bool:
    """Whether copies of neighbourhoods determine the outputs at their centres, found on a few training nodes."""
    if engine.forward is not None or engine.typed:
        return False
    some = engine.train_nodes[:FEW]
    found = ego_graphs(engine._inputs, some, num_hops(engine.model), most_rows=MOST // engine.data.x.shape[1])
    return found is not None and engine._suffices(found.graph, found.centres, some)
