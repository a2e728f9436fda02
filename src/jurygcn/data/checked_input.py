"""Checks of graphs and node lists that callers pass directly; nothing is copied or repaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data, HeteroData

from jurygcn.checks import all_finite, check_count
from jurygcn.data.contents import contents, snapshot
from jurygcn.errors import DataError

REMEDY = "jurygcn.load_dataset(graph) checks and repairs a graph"
FOR_TYPES = "pass it with node_type= to jurygcn.Jury or jurygcn.train, or convert it with data.to_homogeneous()"

SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)

# The contents of each graph that passed the checks; an entry is dropped when its edge_index is freed.
_passed: WeakIdKeyDictionary = WeakIdKeyDictionary()


def check_graph(data: Data) -> Data:
    """Check a graph and return a snapshot of it; raise DataError if a model could not use it.

    Contents that passed before are not checked again.
    """
    if isinstance(data, HeteroData):
        raise DataError(f"expected a PyG Data, got HeteroData; {FOR_TYPES}")
    if not isinstance(data, Data):
        raise DataError(f"expected a PyG Data, got {type(data).__name__}; {REMEDY}")
    x, edge_index = data.get("x"), data.get("edge_index")
    if not isinstance(x, Tensor) or x.layout != torch.strided or x.is_complex() or x.dim() != 2 or 0 in x.shape:
        raise DataError(f"expected features `x` as a dense real tensor (nodes, features), got {_seen(x)}; {REMEDY}")
    if (edge_index is None and data.get("adj_t") is not None) or getattr(edge_index, "layout", None) in SPARSE:
        raise DataError(
            "expected `edge_index` as an integer tensor (2, edges), got a sparse adjacency; "
            "jurygcn.load_dataset(graph) makes one of `adj_t`"
        )
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.shape[0] != 2 or _real(edge_index):
        raise DataError(f"expected `edge_index` as an integer tensor (2, edges), got {_seen(edge_index)}; {REMEDY}")
    if x.device != edge_index.device:
        raise DataError(
            f"expected features and edges on one device, got {x.device} and {edge_index.device}; use data.to"
        )
    if int(data.num_nodes) != len(x):
        raise DataError(f"expected a row of features for each of {data.num_nodes} nodes, got {len(x)}; match the two")
    weight = data.get("edge_weight")
    if weight is not None and not (isinstance(weight, Tensor) and weight.shape == edge_index.shape[1:]):
        raise DataError(f"expected one edge weight per edge ({edge_index.shape[1]}), got {_seen(weight)}; {REMEDY}")
    taken = snapshot(data)
    if _passed.get(edge_index) != contents(taken):
        _check_values(x, edge_index, weight)
        _passed[edge_index] = contents(taken)
    return taken


def _check_values(x: Tensor, edge_index: Tensor, weight: Tensor | None) -> None:
    if not all_finite(x):
        node = int((~torch.isfinite(x)).any(dim=1).nonzero()[0])
        raise DataError(f"expected finite features, got NaN or infinity at node {node}; fill or drop them")
    if edge_index.numel():
        low, high = int(edge_index.min()), int(edge_index.max())
        if low < 0 or high >= len(x):
            wrong = low if low < 0 else high
            raise DataError(f"expected node ids 0..{len(x) - 1} in `edge_index`, got {wrong}; number nodes from 0")
    if weight is not None and not (all_finite(weight) and bool((weight >= 0).all())):
        raise DataError(
            "expected finite edge weights of at least 0, got negative, NaN or infinite ones; correct or drop them"
        )


def check_targets(data: Data) -> Tensor:
    """The labels or targets of a graph: a tensor with a row per node."""
    y: Any = data.get("y")
    if isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
        raise DataError(
            "expected labels `y` as a tensor of class numbers, got texts; jurygcn.load_dataset(graph) numbers them"
        )
    if not isinstance(y, Tensor) or y.dim() not in (1, 2) or len(y) != int(data.num_nodes):
        raise DataError(
            f"expected labels `y` as a tensor with one entry per node ({int(data.num_nodes)}), got {_seen(y)}; {REMEDY}"
        )
    return y


def known_classes(data: Data) -> int:
    """The graph's `num_classes`; 0 if it has none."""
    count: Any = getattr(data, "num_classes", None)
    return 0 if count is None else check_count(count, "num_classes", least=0)


def check_nodes(nodes: Tensor | Sequence[int], data: Data, *, what: str) -> Tensor:
    """Node indices as a LongTensor: within range, each once; a boolean mask over all nodes is accepted too."""
    try:
        indices = torch.as_tensor(nodes)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"expected {what} as a list of node indices, got {_seen(nodes)}; number nodes from 0"
        ) from error
    if indices.dtype == torch.bool:
        if indices.shape != (int(data.num_nodes),):
            raise DataError(
                f"expected {what} as a mask with one entry per node ({data.num_nodes}), got shape "
                f"{tuple(indices.shape)}; match the graph"
            )
        indices = indices.nonzero().reshape(-1)
    if indices.numel() == 0:
        raise DataError(f"expected at least one node in {what}, got none; add a node index")
    if _real(indices) or indices.dim() != 1:
        raise DataError(f"expected {what} as a list of node indices, got {_seen(indices)}; number nodes from 0")
    indices = (indices.clone() if indices.is_inference() else indices).long().cpu()
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= int(data.num_nodes):
        raise DataError(
            f"expected {what} between 0 and {int(data.num_nodes) - 1}, got {low if low < 0 else high}; "
            "number nodes from 0"
        )
    if len(indices.unique()) != len(indices):
        raise DataError(
            f"expected each node once in {what}, got {len(indices) - len(indices.unique())} repeated; drop the repeats"
        )
    return indices


def _real(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool


def _seen(value: Any) -> str:
    """A short description of a value, for error messages."""
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{'' if value.layout == torch.strided else 'sparse '}{kind} of shape {tuple(value.shape)}"
    return "none" if value is None else type(value).__name__
