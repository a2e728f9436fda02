"""The same model and training nodes on a graph that has grown."""

from __future__ import annotations

import copy
from functools import cached_property

import torch
from torch_geometric.data import Data

from jurygcn.data import check_graph
from jurygcn.data.heterogeneous import layout_of
from jurygcn.engine.protocol import Engine
from jurygcn.errors import DataError


def moved(engine: Engine, data: Data) -> Engine:
    """The engine on ``data``: the nodes of its own graph first, new ones after them.

    Labels of new nodes are not read. Nothing is trained again.
    """
    old = engine.data
    check_grown(old, data)
    count, grown = int(old.num_nodes), copy.copy(data)
    missing = torch.full((int(data.num_nodes) - count, *old.y.shape[1:]), torch.nan if _real(old) else -1.0)
    grown.y = torch.cat([old.y, missing.to(old.y)])
    for name in ("num_classes", "class_names"):
        if name in old:
            grown[name] = old[name]
    part = copy.copy(engine)
    for name in tuple(vars(part)):
        if isinstance(getattr(type(part), name, None), cached_property):
            delattr(part, name)
    part.data = check_graph(grown)
    return part


def _real(data: Data) -> bool:
    return bool(data.y.is_floating_point())


def check_grown(old: Data, data: Data) -> None:
    """Raise DataError unless ``data`` has the nodes of ``old`` first, with the same features."""
    if layout_of(old) is not None or not isinstance(data, Data):
        raise DataError("expected new_data as a Data, like the jury's own graph, got a graph with types of nodes")
    count = int(old.num_nodes)
    if "x" not in data or data.x.shape[0] < count or not torch.equal(data.x[:count].to(old.x), old.x):
        raise DataError(
            f"expected new_data to have the jury's {count} nodes first, with the same features, got others; append the "
            "new nodes to the graph"
        )
