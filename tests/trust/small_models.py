"""Small random graphs, models of users on them, and what a model says when nothing is remembered."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from gnn_zoo import ZOO

F = 12  # features, and nodes: x can be transposed


def made(seed: int = 0, *, weights: bool = False, nodes: int = F, dtype: torch.dtype = torch.float32) -> Data:
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
    pairs = pairs[:, pairs[0] != pairs[1]]
    edge_index = torch.cat([pairs, pairs.flip(0)], dim=1).unique(dim=1)
    data = Data(x=torch.rand(nodes, F, generator=generator, dtype=dtype), edge_index=edge_index)
    data.y = torch.arange(nodes) % 3
    if weights:
        data.edge_weight = torch.rand(edge_index.shape[1], generator=generator, dtype=dtype)
    return data


def model_of(kind: str, data: Data) -> nn.Module:
    torch.manual_seed(1)
    model = ZOO[kind](F, 3).to(data.x.dtype)
    return model.eval()


def says(model: nn.Module, data: Data) -> Tensor:
    """What the model itself says, on tensors that nothing can have been remembered of."""
    arguments = [data.x.clone(), data.edge_index.clone()]
    if "edge_weight" in data:
        arguments.append(data.edge_weight.clone())
    with torch.no_grad():
        return model(*arguments).softmax(dim=1)
