"""Small scenes for the tests of active learning; what the model says can be set by hand."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from cases import undirected
from jurygcn.active import Recipe, Scene
from jurygcn.active.scene import hide_labels
from jurygcn.models import fit_gcn

FAST = Recipe(hidden=4, epochs=20)

# a star around 0 with a tail: 1, 2, 3 - 0 - 4 - 5 - 6 - 7
TAIL = [(0, 1), (0, 2), (0, 3), (0, 4), (4, 5), (5, 6), (6, 7)]


def tail_graph() -> Data:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    return Data(x=x, edge_index=undirected(TAIL), y=y, num_nodes=8, num_classes=2)


def scene_on(
    data: Data, labelled: list[int], *, candidates: list[int], batch: int = 1, trained: bool = False, **known
) -> Scene:
    """A scene; what is given by name (probabilities, hidden, ...) replaces what the model would say."""
    nodes = torch.tensor(labelled, dtype=torch.long)
    arguments = {key: known.pop(key) for key in ("queried", "total", "memory") if key in known}
    labels = data.y[nodes]
    model = fit_gcn(hide_labels(data, nodes, labels), nodes, FAST, seed=0)[0] if trained else None
    scene = Scene.of(
        data,
        nodes,
        labels,
        candidates=torch.tensor(candidates),
        batch=batch,
        model=model,
        weight_decay=FAST.weight_decay,
        generator=np.random.default_rng(0),
        **arguments,
    )
    for name, value in known.items():  # cached properties look here first
        scene.__dict__[name] = np.asarray(value, dtype=float) if isinstance(value, list) else value
    return scene


def binary(*first: float) -> list[list[float]]:
    """Two-class probabilities from those of the first class."""
    return [[p, 1 - p] for p in first]
