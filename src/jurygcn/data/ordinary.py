"""Graphs in the types that every model takes."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import Data


def ordinary(data: Data) -> Data:
    """The graph with edges of type int64 and without inference tensors; the caller's graph if it is so already.

    Message passing takes edges of other integer types for masks or refuses them. A tensor made under
    ``torch.inference_mode`` takes no part in derivatives, but its clone does.
    """
    changed: dict[str, Tensor] = {}
    for key, value in data.items():
        if isinstance(value, Tensor):
            made = value.clone() if value.is_inference() else value
            made = made.long() if key == "edge_index" and made.dtype != torch.int64 else made
            if made is not value:
                changed[key] = made
    if not changed:
        return data
    graph = copy.copy(data)
    for key, value in changed.items():
        graph[key] = value
    return graph
