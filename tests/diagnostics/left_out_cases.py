"""A small graph, models trained on it, and their juries, shared by the tests of left-out labels."""

from __future__ import annotations

import torch
from torch_geometric.data import Data

from jurygcn import GCN, Jury, train
from jurygcn.data import synthetic
from jurygcn.diagnostics.left_out import LeftOut

NODES = torch.arange(0, 90, 3)
DECAY = 5e-3


def graph() -> Data:
    data = synthetic(num_nodes=150, num_edges=450, num_features=8, num_classes=3, separation=1.2, seed=2)
    data.x = data.x.double()
    return data


def model_of(data: Data, *, epochs: int = 300, seed: int = 0) -> GCN:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GCN(8, 4, 3).double()
    train(model, data, NODES, epochs=epochs, weight_decay=DECAY, seed=seed)
    return model


def jury_of(data: Data | None = None, *, epochs: int = 300, **given_settings: object) -> Jury:
    data = graph() if data is None else data
    return Jury(model_of(data, epochs=epochs), data, NODES, weight_decay=DECAY, **given_settings).fit()


def invented(probabilities: list[list[float]], labels: list[int]) -> LeftOut:
    p = torch.tensor(probabilities, dtype=torch.float64)
    return LeftOut(torch.arange(len(labels)), torch.tensor(labels), p)
