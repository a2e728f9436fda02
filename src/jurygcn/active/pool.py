"""Our strategies with the interface of scikit-activeml's pool strategies, for use in its loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from jurygcn.active.graph_statistics import Array
from jurygcn.active.loop import check_choice
from jurygcn.active.registry import find_strategy
from jurygcn.active.scene import Strategy
from jurygcn.active.tasks import scene_of
from jurygcn.choices import Recipe
from jurygcn.errors import DataError, SettingError


class PoolStrategy:
    """A strategy on a graph with the method ``query(X, y)``. scikit-activeml need not be installed.

    Args:
        data: the graph. Its labels are not used.
        strategy: a name of ``STRATEGIES``, or a function from a ``Scene`` to a ``Choice``.
        recipe: how the GCN is trained on the labels.
        random_state: seed of the model and the strategy.
    """

    def __init__(
        self,
        data: Data,
        strategy: str | Strategy = "jury-design",
        *,
        recipe: Recipe | None = None,
        random_state: int = 0,
    ) -> None:
        self.data, self.strategy, self.random_state = data, strategy, random_state
        self.recipe = recipe or Recipe()

    def query(
        self, X: Any, y: Any, *, candidates: Any = None, batch_size: int = 1, return_utilities: bool = False
    ) -> Array:
        """Nodes to label next.

        Args:
            X: the nodes' features, one row per node. Only the number of rows is checked; features come from the graph.
            y: one class per node, (N,); NaN or a negative number means no label yet.
            candidates: nodes to choose from; by default all without a label.
            batch_size: the number of nodes to choose.
            return_utilities: must be False. Strategies choose a whole batch and do not score every node.

        Shapes: returns (batch_size,).
        """
        if return_utilities:
            raise SettingError(
                "expected return_utilities=False, because strategies do not score every node, got True; leave it out"
            )
        labels = np.asarray(y, dtype=float)
        count = int(self.data.num_nodes)
        if len(X) != count or labels.shape != (count,):
            raise DataError(
                f"expected X and y with one row for each of the {count} nodes, got {len(X)} and {labels.shape}; "
                "pass the whole graph"
            )
        known = np.flatnonzero(np.nan_to_num(labels, nan=-1.0) >= 0)
        nodes = None if candidates is None else torch.as_tensor(np.asarray(candidates, dtype=np.int64))
        scene = scene_of(
            self.data,
            {int(node): int(labels[node]) for node in known},
            batch=batch_size,
            candidates=nodes,
            recipe=self.recipe,
            seed=self.random_state,
        )
        choice = find_strategy(self.strategy)[1](scene)
        check_choice(choice, scene)
        return np.asarray(choice.nodes)
