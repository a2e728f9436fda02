"""The interface of every method that learns from few labels: ``fit``, ``predict_proba``, ``uncertainty``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.baselines.dirichlet import shannon
from jurygcn.choices import PRESETS
from jurygcn.data import check_nodes, known_classes, labelled
from jurygcn.errors import DataError, SettingError
from jurygcn.models.training import outputs_at


def check_preset(name: str | None) -> str | None:
    """The name itself. An unknown name is refused."""
    if name is not None and name not in PRESETS:
        raise SettingError(f"expected a preset ({', '.join(PRESETS)}) or None, got {name!r}; choose one of these")
    return name


def preset_for(dataset: str) -> str | None:
    """The preset for a dataset of the catalog, by the dataset's name in the catalog; None if it has no preset."""
    return dataset if dataset in PRESETS else None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A classifier fitted to a graph, with its probabilities and uncertainties of every node.

    Attributes:
        probabilities: of every node and class, (N, C).
        uncertainties: scores by name, each (N,); a high score means uncertain. The first is the method's default.
        model: the trained module; of an ensemble, the first member.
        details: further facts about the run, as plain values.
    """

    probabilities: Tensor
    uncertainties: Mapping[str, Tensor]
    model: nn.Module = field(repr=False)
    details: Mapping[str, Any] = field(default_factory=dict)

    def predict_proba(self, nodes: Tensor | None = None) -> Tensor:
        """Class probabilities of ``nodes``, by default of all nodes, (m, C)."""
        return self.probabilities if nodes is None else self.probabilities[nodes]

    def predict(self, nodes: Tensor | None = None) -> Tensor:
        """The most probable class of each node, (m,)."""
        return self.predict_proba(nodes).argmax(dim=1)

    def uncertainty(self, kind: str | None = None, *, nodes: Tensor | None = None) -> Tensor:
        """An uncertainty score of ``nodes``, (m,); a high score means uncertain."""
        kind = kind or next(iter(self.uncertainties))
        if kind not in self.uncertainties:
            known = ", ".join(self.uncertainties)
            raise SettingError(f"expected one of the uncertainties {known}, got {kind!r}; choose one of these")
        score = self.uncertainties[kind]
        return score if nodes is None else score[nodes]


class Method(Protocol):
    """The settings of a method, and the function that fits it."""

    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Learn from the labels of ``train_nodes``.

        Methods that stop early, calibrate or choose models use ``val_nodes``; the others ignore them.
        """


def check_labels(data: Data, nodes: Tensor, *, what: str = "train_nodes") -> Tensor:
    """The indices of ``nodes``. Nodes without a class label are refused."""
    if data.y.is_floating_point():
        raise DataError("expected class labels, got regression targets; use jurygcn.train(..., loss='mse')")
    indices = check_nodes(nodes, data, what=what)
    without = indices[~labelled(data)[indices]]
    if len(without):
        raise DataError(f"expected a label for each of {what}, got node {int(without[0])} without one; leave it out")
    return indices


def check_validation(data: Data, val_nodes: Tensor | None, train_nodes: Tensor, *, why: str) -> Tensor:
    """The indices of the validation nodes of a method that needs them. They must not be training nodes."""
    if val_nodes is None:
        raise SettingError(f"expected validation nodes, because {why}, got none; pass val_nodes")
    indices = check_labels(data, val_nodes, what="val_nodes")
    shared = int(torch.isin(indices, train_nodes).sum())
    if shared:
        raise SettingError(
            f"expected no node in both val_nodes and train_nodes, got {shared} in both; remove them from one"
        )
    return indices


def classes_of(data: Data) -> int:
    """C, the number of classes."""
    return known_classes(data) or int(data.y.max()) + 1


def all_nodes(data: Data) -> Tensor:
    """The indices of all nodes, (N,)."""
    return torch.arange(int(data.num_nodes), device=data.x.device)


@torch.no_grad()
def logits_of(model: nn.Module, data: Data) -> Tensor:
    """Logits of all nodes in eval mode, (N, C)."""
    model.eval()
    return outputs_at(model, data, all_nodes(data))()


def softmax_scores(probabilities: Tensor) -> dict[str, Tensor]:
    """Two uncertainty scores from class probabilities: one minus the largest probability, and the entropy."""
    return {"max_probability": 1 - probabilities.amax(dim=1), "entropy": shannon(probabilities)}
