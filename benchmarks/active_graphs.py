"""Graphs for active learning: real ones, and made ones where features, edges or neither tell classes."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data

from jurygcn.data import synthetic
from protocol import graph

FEATURES, EDGES, NEITHER = "features lead", "structure leads", "both mislead"


def misleading(*, num_nodes: int = 1500, num_classes: int = 4, groups: int = 8, seed: int = 0) -> Data:
    """Features and edges form groups of their own, independent of the classes; both tell little of the classes.

    Edges come from a block model of groups. A quarter of the nodes have the class of their group, the others any class.
    Features are the sum of a strong mean of another group, a weak mean of the class, and noise.
    """
    rng = np.random.default_rng(seed)
    made = synthetic(
        num_nodes=num_nodes,
        num_edges=8 * num_nodes,
        num_features=1,
        num_classes=groups,
        homophily=0.7,
        degree_exponent=3.0,
        seed=seed,
    )
    linked = made.y.numpy()
    # a quarter of the nodes has the class that belongs to its group of edges
    classes = np.where(rng.random(num_nodes) < 0.25, linked % num_classes, rng.integers(num_classes, size=num_nodes))
    others = rng.integers(groups, size=num_nodes)
    means, weak = rng.standard_normal((groups, 40)), rng.standard_normal((num_classes, 40))
    x = 1.2 * means[others] + 0.35 * weak[classes] + rng.standard_normal((num_nodes, 40))
    y = torch.from_numpy(classes.astype(np.int64))
    return Data(x=torch.from_numpy(x).float(), edge_index=made.edge_index, y=y, num_classes=num_classes, name=NEITHER)


MADE = {
    FEATURES: lambda: synthetic(
        num_nodes=2000, num_edges=8000, num_classes=5, homophily=0.3, separation=3.0, degree_exponent=3.0, seed=101
    ),
    EDGES: lambda: synthetic(num_nodes=2000, num_edges=10_000, num_classes=6, homophily=0.8, separation=0.3, seed=102),
    NEITHER: lambda: misleading(seed=103),
}
_made: dict[str, Data] = {}


def graph_named(name: str) -> Data:
    if name in MADE and name not in _made:
        _made[name] = MADE[name]()
        _made[name].name = name
    return _made[name] if name in MADE else graph(name)
