"""Graphs with few nodes of high degree, juries on them, and labels drawn at random."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from jurygcn import GCN, Jury, train


def heavy_tailed(size: int = 300, seed: int = 0, *, regression: bool = False) -> Data:
    """A graph grown by preferential attachment: few nodes with many neighbours; classes of unequal size."""
    rng = np.random.default_rng(seed)
    ends = [0, 1]
    for node in range(2, size):
        ends += [node, int(rng.choice(ends)), node, int(rng.choice(ends))]
    pairs = np.array(ends[2:]).reshape(-1, 2)
    edge_index = torch.from_numpy(np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).T.copy())
    y = torch.from_numpy(rng.choice(3, size=size, p=[0.5, 0.3, 0.2]))
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed)) + y[:, None]
    target = x.sum(dim=1) if regression else y
    return Data(x=x, edge_index=edge_index, y=target, num_nodes=size, num_classes=0 if regression else 3)


def degree_of(data: Data) -> torch.Tensor:
    return torch.bincount(data.edge_index[1], minlength=int(data.num_nodes))


def jury_on(data: Data, nodes: torch.Tensor, **settings) -> Jury:
    classify = not data.y.is_floating_point()
    model = GCN(4, 4, 3 if classify else 1)
    loss = "cross_entropy" if classify else "mse"
    train(model, data, nodes, epochs=20, loss=loss)
    return Jury(model, data, nodes, **{"weight_decay": 5e-4, "loss": loss, **settings}).fit()


def drawn(data: Data, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(seed))[:count]
