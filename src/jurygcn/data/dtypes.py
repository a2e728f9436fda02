"""Graphs in the types that every model takes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import Data


def ordinary(data: Data, *, dtype: torch.dtype | None = None) -> Data:
    """The graph with edges of type int64, no inference tensors and, if ``dtype`` is given, real numbers in that type.

    Message passing takes edges of other integer types for masks or refuses them. A tensor made under
    ``torch.inference_mode`` takes no part in derivatives, but its clone does. Labels and targets keep their type. The
    caller's tensors are not changed, and the caller's graph is returned if nothing is to be done.
    """
    changed: dict[str, Tensor] = {}
    for key, value in data.items():
        if not isinstance(value, Tensor):
            continue
        made = value.clone() if value.is_inference() else value
        if key == "edge_index":
            made = made.long()
        elif dtype is not None and key != "y" and made.is_floating_point():
            made = made.to(dtype)
        if made is not value:
            changed[key] = made
    if not changed:
        return data
    graph = copy.copy(data)
    for key, value in changed.items():
        graph[key] = value
    return graph
