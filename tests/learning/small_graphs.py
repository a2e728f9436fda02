"""A small homophilous graph that few labels do not solve, for the tests of learning."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch_geometric.data import Data


@cache
def communities(size: int = 150, classes: int = 3, seed: int = 0, *, noise: float = 1.2) -> Data:
    """Blocks with edges inside and noisy features."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % classes
    chance = torch.where(y[:, None] == y[None, :], 0.09, 0.01)
    upper = (torch.rand(size, size, generator=generator) < chance).triu(1)
    edge_index = (upper | upper.T).nonzero().T.contiguous()
    centre = torch.nn.functional.one_hot(y, 12).float()
    x = (centre + noise * torch.rand(size, 12, generator=generator)).clamp_min(0)
    x = x / x.sum(dim=1, keepdim=True)
    return Data(x=x, edge_index=edge_index, y=y, num_nodes=size, num_classes=classes, name="communities")


def parts(data: Data, labels: int = 9, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Training nodes (every class among them), validation nodes, test nodes."""
    order = torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(seed))
    firsts = torch.stack([order[data.y[order] == c][0] for c in range(int(data.num_classes))])
    others = order[~torch.isin(order, firsts)]
    train = torch.cat([firsts, others[: labels - len(firsts)]])
    rest = others[labels - len(firsts) :]
    return train.sort().values, rest[:40], rest[40:]
