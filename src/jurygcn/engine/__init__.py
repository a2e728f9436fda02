"""Engines: one trained model on one graph, with predictions and derivatives, behind one protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.data.heterogeneous import layout_of
from jurygcn.engine.expected import Expected
from jurygcn.engine.gcn import GCNEngine
from jurygcn.engine.generic import GenericEngine
from jurygcn.engine.portable import PortableEngine
from jurygcn.engine.protocol import Engine, Predictor
from jurygcn.models.calling import Forward
from jurygcn.models.gcn import is_plain

__all__ = ["Engine", "Expected", "Forward", "PortableEngine", "Predictor", "engine_of"]


def engine_of(
    model: nn.Module,
    data: Data,
    train_nodes: Tensor | Sequence[int],
    *,
    loss: str = "cross_entropy",
    weight_decay: float | Mapping[str, float] = 0.0,
    forward: Forward | None = None,
    dtype: torch.dtype = torch.float64,
    masks: int | None = None,
) -> Engine:
    """The fastest engine that computes exactly what the model computes."""
    plain = forward is None and layout_of(data) is None and is_plain(model)
    closed_form = plain and all(p.requires_grad for p in model.parameters())
    kind = GCNEngine if closed_form else GenericEngine
    return kind(
        model, data, train_nodes, loss=loss, weight_decay=weight_decay, forward=forward, dtype=dtype, masks=masks
    )
