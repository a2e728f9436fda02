"""Convert graphs to the dtypes that every model accepts."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import Data


def ordinary(data: Data, *, dtype: torch.dtype | None = None) -> Data:
    """The graph with int64 edges, no inference tensors and, if ``dtype`` is given, floating-point tensors in it.

    Message passing rejects edges of other integer types or reads them as masks. A tensor created under
    ``torch.inference_mode`` has no derivatives, but its clone has. Labels and targets keep their dtype. The
    caller's tensors are not changed. If nothing has to change, the caller's graph itself is returned.
    """
    changed: dict[str, Tensor] = {}
    for key, value in data.items():
        if not isinstance(value, Tensor):
            continue
        made = value.clone() if value.is_inference() else value
        name = key.rpartition(".")[2]  # in a view of a HeteroData, the type comes first
        if name == "edge_index":
            made = made.long()
        elif dtype is not None and name != "y" and made.is_floating_point():
            made = made.to(dtype)
        if made is not value:
            changed[key] = made
    if not changed:
        return data
    graph = copy.copy(data)
    for key, value in changed.items():
        graph[key] = value
    return graph
