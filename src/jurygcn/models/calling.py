"""How a model is called on a graph, and which rows of its output belong to the nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, fx, nn
from torch.func import functional_call
from torch_geometric.data import Data, HeteroData

from jurygcn.data.contents import EDGE_VALUES
from jurygcn.data.heterogeneous import as_given, first_row, layout_of
from jurygcn.errors import ModelError

# A caller's function from the model and the graph to the logits of all nodes.
Forward = Callable[[nn.Module, Any], Any]

TYPES = ("edge_type", "node_type")  # arguments of a model that takes all types as one graph


def graph_arguments(model: nn.Module, data: Data) -> tuple[Any, ...]:
    """The positional arguments of ``model(x, edge_index[, edge_weight, edge_attr or edge_type])`` for ``data``.

    For a view of a `HeteroData` they are ``x_dict`` and ``edge_index_dict``, and further dictionaries that the model
    names (``edge_attr_dict``). A model that names ``edge_type`` gets the graph of all types as one.
    """
    further = list(inspect.signature(model.forward).parameters)[2:]
    whole = as_given(data)
    if isinstance(whole, HeteroData):
        return _merged(whole, further) if _takes_types(further) else _dictionaries(model, whole, further)
    arguments = [data.x, data.edge_index]
    if further and further[0] in EDGE_VALUES and getattr(data, further[0], None) is not None:
        arguments.append(getattr(data, further[0]))
    return tuple(arguments)


def _takes_types(further: list[str]) -> bool:
    return further[:1] == ["edge_type"]


def _dictionaries(model: nn.Module, data: HeteroData, further: list[str]) -> tuple[Any, ...]:
    """Features and edges by type, and what else the model asks for; it stops at the first that the graph lacks."""
    arguments = [_by_type(data, "x"), _by_type(data, "edge_index")]
    for name in further:
        found = _by_type(data, name.removesuffix("_dict"))
        if not found and not isinstance(model, fx.GraphModule):
            break
        arguments.append(found)  # to_hetero reads a missing dictionary as an empty one
    return tuple(arguments)


def _by_type(data: HeteroData, name: str) -> dict[Any, Any]:
    return data.collect(name) if any(name in store for store in [*data.node_stores, *data.edge_stores]) else {}


def _merged(data: HeteroData, further: list[str]) -> tuple[Any, ...]:
    """All types as one graph, as ``data.to_homogeneous()`` makes it."""
    bare = [name for name in data.node_types if "x" not in data[name]]
    if bare:
        raise ModelError(
            f"expected features on all node types for a model that takes edge_type, got none on {', '.join(bare)}; add "
            "them, or pass forward=lambda model, data: ... that calls the model"
        )
    graph = data.to_homogeneous(node_attrs=["x"], edge_attrs=[])
    asked = [name for name in further if name in TYPES]
    return (graph.x, graph.edge_index, *(graph[name] for name in asked))


def node_rows(raw: Any, model: nn.Module, data: Data, forward: Forward | None = None) -> Tensor:
    """The rows of a model's output that belong to the nodes of ``data``, (N, C)."""
    layout = layout_of(data)
    if layout is not None and isinstance(raw, Mapping):
        if layout.node_type not in raw:
            raise ModelError(
                f"expected outputs for {layout.node_type} nodes, got outputs for {', '.join(map(str, raw))}; choose "
                "node_type among these, or change the model"
            )
        raw = raw[layout.node_type]
    if not isinstance(raw, Tensor):
        raise ModelError(
            f"expected a tensor with one row per node, got {type(raw).__name__}; pass forward=lambda model, data: ... "
            "that picks the logits"
        )
    if layout is not None and forward is None and _takes_types(list(inspect.signature(model.forward).parameters)[2:]):
        raw = raw[first_row(data) :][: int(data.num_nodes)]
    rows: Tensor = raw.reshape(1, 1) if raw.dim() == 0 else raw.reshape(len(raw), -1)
    return rows


def call(model: nn.Module, data: Data, forward: Forward | None = None) -> Tensor:
    """The logits of all nodes of ``data`` by the model itself, in the mode it is in, (N, C)."""
    raw = model(*graph_arguments(model, data)) if forward is None else forward(model, as_given(data))
    return node_rows(raw, model, data, forward)


def call_with(parameters: dict[str, Tensor], model: nn.Module, data: Data, forward: Forward | None = None) -> Tensor:
    """The logits of all nodes of ``data`` with these parameters in place of the model's own, (N, C)."""
    if forward is None:
        raw = functional_call(model, parameters, graph_arguments(model, data))
    else:
        prefixed = {f"model.{name}": value for name, value in parameters.items()}
        raw = functional_call(_Caller(model, forward), prefixed, (as_given(data),))
    return node_rows(raw, model, data, forward)


class _Caller(nn.Module):
    """A module around a user's ``forward(model, data)``, so that ``functional_call`` can replace parameters."""

    def __init__(self, model: nn.Module, call: Forward) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, data: Data | HeteroData) -> Any:
        return self.call(self.model, data)
