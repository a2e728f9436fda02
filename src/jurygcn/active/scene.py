"""The input of a strategy (``Scene``) and its output (``Choice``)."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.active.graph_statistics import Array, GraphStatistics
from jurygcn.data.labels import UNLABELLED
from jurygcn.errors import SettingError
from jurygcn.jury import Jury
from jurygcn.models import GCN, ReceptiveField
from jurygcn.verdict import Verdict


@dataclass(frozen=True, eq=False)
class Choice:
    """The nodes to label next, best first, and the strategy's score of each.

    Shapes: nodes (b,), scores (b,).
    """

    nodes: Tensor
    scores: Tensor


@dataclass(frozen=True, eq=False)
class Scene:
    """All that a strategy may use in one step of active learning. ``Scene.of`` hides every label that was not given.

    Attributes:
        data: the graph; its ``y`` is -1 at every node that is not labelled.
        labelled: the labelled nodes, in the order in which they were labelled.
        candidates: the nodes that may be chosen, sorted.
        batch: the number of nodes to choose.
        model: the GCN trained on the labelled nodes, in eval mode; None before the first label.
        weight_decay: the weight decay that the model was trained with.
        generator: the source of every random draw in this step.
        queried: the number of nodes queried before this step.
        total: the number of nodes to query in the whole run.
        memory: plain values that the strategy keeps from step to step; they are saved with the history.
        pending: nodes that people are labelling now; a design counts them as labelled.

    Shapes: labelled (n,), candidates (m,), pending (k,).
    """

    data: Data
    labelled: Tensor
    candidates: Tensor
    batch: int
    model: GCN | None
    weight_decay: float
    generator: np.random.Generator
    queried: int = 0
    total: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    pending: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @classmethod
    def of(cls, data: Data, labelled: Tensor, labels: Tensor, **known: Any) -> Scene:
        """The scene on ``data`` with these labels and no others.

        Shapes: labelled (n,), labels (n,).
        """
        return cls(data=hide_labels(data, labelled, labels), labelled=labelled, **known)

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= len(self.candidates):
            raise SettingError(
                f"expected a batch between 1 and the {len(self.candidates)} candidates, got {self.batch}; change it"
            )

    @cached_property
    def statistics(self) -> GraphStatistics:
        """Centralities, propagated features and other statistics, computed once per graph."""
        return GraphStatistics.of(self.data)

    @property
    def num_classes(self) -> int:
        """C, the number of classes."""
        return int(self.data.num_classes)

    @cached_property
    def pool(self) -> Array:
        """The candidates as a NumPy array."""
        return self.candidates.cpu().numpy()

    # --- the trained model -----------------------------------------------------------------------------

    @property
    def trained(self) -> GCN:
        """The model. Before the first label this raises an error."""
        if self.model is None:
            raise SettingError(
                "expected labelled nodes for a strategy that uses the model, got none; label some at random first, "
                "or choose jury-design, featprop, pagerank, centrality, degree or random"
            )
        return self.model

    @cached_property
    def _pre_activations(self) -> list[Tensor]:
        everything = torch.arange(int(self.data.num_nodes))
        with torch.no_grad():
            field = ReceptiveField.of(self.trained, self.data, everything)
            return field.pre_activations(list(self.trained.weights))

    @cached_property
    def probabilities(self) -> Array:
        """Softmax outputs of all nodes, (N, C)."""
        return self._pre_activations[-1].double().softmax(dim=1).cpu().numpy()

    @cached_property
    def hidden(self) -> Array:
        """The last hidden layer of all nodes after its activation, (N, h)."""
        if len(self._pre_activations) < 2:
            raise SettingError("expected a GCN with a hidden layer, got one layer; train at least two layers")
        return torch.relu(self._pre_activations[-2]).double().cpu().numpy()

    @cached_property
    def entropy(self) -> Array:
        """Entropy of the predictions, (N,)."""
        p = np.maximum(self.probabilities, np.finfo(float).tiny)
        return np.asarray(-(p * np.log(p)).sum(axis=1))

    def jury(self, **settings: Any) -> Jury:
        """A fitted jury of the model."""
        given: dict[str, Any] = {"weight_decay": self.weight_decay, "chosen": "actively", **settings}
        return Jury(self.trained, self.data, self.labelled, **given).fit()

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict of newton jurors on all nodes."""
        return self.jury().verdict(advice=None)

    # --- choosing --------------------------------------------------------------------------------------

    def draw_seed(self) -> int:
        """A random seed, for libraries that take a seed and no generator."""
        return int(self.generator.integers(2**31 - 1))

    def top(self, scores: Array) -> Choice:
        """The batch of candidates with the highest scores. Ties are in random order.

        Shapes: scores (N,).
        """
        own = np.asarray(scores, dtype=float)[self.pool]
        order = np.lexsort((self.generator.random(len(own)), -own))[: self.batch]
        return self.choice(self.pool[order], own[order])

    def choice(self, nodes: Any, scores: Any) -> Choice:
        """A ``Choice`` of these nodes with these scores."""
        nodes, scores = np.array(nodes, dtype=np.int64), np.array(scores, dtype=float)
        return Choice(torch.from_numpy(nodes), torch.from_numpy(scores))


Strategy = Callable[[Scene], Choice]


def hide_labels(data: Data, nodes: Tensor, labels: Tensor) -> Data:
    """A copy of the graph with these labels only. It shares features and edges, so cached statistics stay valid."""
    hidden = copy(data)
    y = torch.full((int(data.num_nodes),), UNLABELLED, dtype=torch.long)
    y[nodes] = labels
    hidden.y = y
    return hidden
