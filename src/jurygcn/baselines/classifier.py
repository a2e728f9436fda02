"""The one interface of everything that learns from few labels: ``fit``, ``predict_proba``, ``uncertainty``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.baselines.dirichlet import shannon
from jurygcn.data import check_nodes, known_classes, labelled
from jurygcn.errors import DataError, SettingError
from jurygcn.models.training import outputs_at

# Graphs for which authors of some methods use settings of their own.
PRESETS = ("pubmed",)


def check_preset(name: str | None) -> str | None:
    """The preset's name, if there is one of that name."""
    if name is not None and name not in PRESETS:
        raise SettingError(f"Unknown preset {name!r}: choose one of {', '.join(PRESETS)}, or None.")
    return name


def preset_for(dataset: str) -> str | None:
    """The preset that goes with a data set of the catalog, by the name it was asked for; None if there is none."""
    return dataset if dataset in PRESETS else None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A classifier fitted to a graph, with what it says of every node.

    Attributes:
        probabilities: of every node and class, (N, C).
        uncertainties: scores by name, each (N,), high where uncertain; the first is the method's own choice.
        model: the trained module (the first one of an ensemble).
        details: what else is worth knowing of the run, as plain values.
    """

    probabilities: Tensor
    uncertainties: Mapping[str, Tensor]
    model: nn.Module = field(repr=False)
    details: Mapping[str, Any] = field(default_factory=dict)

    def predict_proba(self, nodes: Tensor | None = None) -> Tensor:
        """Class probabilities of ``nodes``, all by default, (m, C)."""
        return self.probabilities if nodes is None else self.probabilities[nodes]

    def predict(self, nodes: Tensor | None = None) -> Tensor:
        """The most probable class, (m,)."""
        return self.predict_proba(nodes).argmax(dim=1)

    def uncertainty(self, kind: str | None = None, *, nodes: Tensor | None = None) -> Tensor:
        """A score of ``nodes``, high where uncertain, (m,)."""
        kind = kind or next(iter(self.uncertainties))
        if kind not in self.uncertainties:
            known = ", ".join(self.uncertainties)
            raise SettingError(f"expected one of the uncertainties {known}, got {kind!r}; choose one of these")
        score = self.uncertainties[kind]
        return score if nodes is None else score[nodes]


class Method(Protocol):
    """Settings of a method, and how it is fitted."""

    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Learn from the labels of ``train_nodes``; ``val_nodes`` are for methods that stop early or calibrate."""


def check_labels(data: Data, nodes: Tensor, *, what: str = "train_nodes") -> Tensor:
    """Node indices, each with a class label."""
    if data.y.is_floating_point():
        raise DataError("expected classes to learn, got regression targets; use jurygcn.train(..., loss='mse')")
    indices = check_nodes(nodes, data, what=what)
    without = indices[~labelled(data)[indices]]
    if len(without):
        raise DataError(f"expected {what} with labels, got node {int(without[0])} without; leave it out")
    return indices


def check_validation(data: Data, val_nodes: Tensor | None, train_nodes: Tensor, *, why: str) -> Tensor:
    """The validation nodes of a method that cannot do without; they may not be trained on."""
    if val_nodes is None:
        raise SettingError(f"expected validation nodes, because {why}, got none; pass val_nodes")
    indices = check_labels(data, val_nodes, what="val_nodes")
    shared = int(torch.isin(indices, train_nodes).sum())
    if shared:
        raise SettingError(f"expected val_nodes apart from train_nodes, got {shared} in both; leave them out of one")
    return indices


def classes_of(data: Data) -> int:
    """C, the number of classes."""
    return known_classes(data) or int(data.y.max()) + 1


def everyone(data: Data) -> Tensor:
    """All nodes."""
    return torch.arange(int(data.num_nodes), device=data.x.device)


@torch.no_grad()
def logits_of(model: nn.Module, data: Data) -> Tensor:
    """Logits of all nodes in eval mode, (N, C)."""
    model.eval()
    return outputs_at(model, data, everyone(data))()


def softmax_scores(probabilities: Tensor) -> dict[str, Tensor]:
    """What any classifier's probabilities say of its doubts."""
    return {"max_probability": 1 - probabilities.amax(dim=1), "entropy": shannon(probabilities)}
