r"""Through which window a design looks at a graph: a mixture of several similarities of nodes.

Features averaged over some hops distinguish the classes of one graph, random walks those of another. A regression on
:math:`\phi = (\sqrt{p_1}\,\phi_1, \sqrt{p_2}\,\phi_2, \dots)` has the similarity
:math:`\sum_k p_k \phi_k^\top \phi_k`, so a mixture of windows is again a window. Without labels, averages over all
numbers of hops have one half of it, and walks of all lengths the other half. A design adds more of the view that the
model sees (:data:`SEEN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch.nn import functional

from jurygcn.active.graph_statistics import DIMENSIONS, Array
from jurygcn.active.scene import Scene
from jurygcn.graph.leading import leading_rows
from jurygcn.graph.similarity import AVERAGES, WALKS, Similarities, View
from jurygcn.leave_one_out.panel import Panel

DIRECTIONS, FEWEST = 100, 20  # leading directions of each view: usually, and at least
MOST_NUMBERS = 40_000_000  # in the rows of all views; larger graphs have fewer directions
# Rows shorter than this share of the usual length are not stretched to length 1: what they have in common with others
# is in directions that were left out.
SHORT = 0.5
KINDS = {AVERAGES: 0.5, WALKS: 0.5}  # the share of each kind of view without labels
SEEN = (AVERAGES, 2)  # what a two-layer GCN sees of a node: features averaged over two hops


@dataclass(frozen=True, eq=False)
class Window:
    """The rows of all nodes that a design's regression uses, and the eigenvalues of their mean outer product.

    Shapes: rows (N, d), spectrum (d,).
    """

    rows: Array = field(repr=False)
    spectrum: Array = field(repr=False)

    @classmethod
    def of(cls, rows: Array) -> Window:
        """The window with these rows."""
        return cls(rows, np.maximum(np.linalg.eigvalsh(rows.T @ rows / len(rows)), 0.0))


class Windows:
    """The views of one graph that make up its windows, as rows of length 1 in few dimensions.

    Attributes:
        shares: the share of each view before the first label, adding to 1; empty if no view distinguishes nodes.
    """

    def __init__(self, similarities: Similarities) -> None:
        views = [view for view in similarities.views if view.kind in KINDS]
        given = {view: KINDS[view.kind] / sum(other.kind == view.kind for other in views) for view in views}
        self.shares = {view: share / sum(given.values()) for view, share in given.items()}
        fitting = MOST_NUMBERS // max(1, similarities.num_nodes * len(views))
        directions = min(DIRECTIONS, max(FEWEST, fitting))
        rows = [unit_rows(leading_rows(similarities, view, directions).numpy()) for view in views]
        # of all views, side by side
        self._rows = np.concatenate([np.zeros((similarities.num_nodes, 0)), *rows], axis=1)
        self._gram = self._rows.T @ self._rows
        self._widths = [part.shape[1] for part in rows]
        self._last: tuple[Mapping[View, float], Window] | None = None

    @staticmethod
    def of(scene: Scene) -> Windows:
        """The windows of the scene's graph, cached with its statistics."""
        known = scene.statistics.__dict__
        if "windows" not in known:
            known["windows"] = Windows(Similarities.of(scene.data))
        found: Windows = known["windows"]
        return found

    def mixed(self, shares: Mapping[View, float]) -> Window:
        """The window with these shares of the views, on its at most 200 leading directions; the last one is kept."""
        if self._last is None or self._last[0] != shares:
            self._last = dict(shares), self._mix(shares)
        return self._last[1]

    def _mix(self, shares: Mapping[View, float]) -> Window:
        scale = np.repeat(np.sqrt([shares.get(view, 0.0) for view in self.shares]), self._widths)
        values, vectors = np.linalg.eigh(scale[:, None] * self._gram * scale)
        values, vectors = values[-DIMENSIONS:], vectors[:, -DIMENSIONS:]
        return Window(self._rows @ (scale[:, None] * vectors), np.maximum(values, 0.0) / len(self._rows))


def unit_rows(rows: Array) -> Array:
    """Rows scaled to length 1; those shorter than half the usual length are scaled as if they had it."""
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    usual = float(np.sqrt(np.mean(length**2)))
    return np.asarray(rows / np.maximum(length, SHORT * usual)) if usual > 0 else rows


def foretold(scene: Scene) -> dict[View, float]:
    r"""How well each view foretells left-out labels: the share of their variance, at least 0, by its better regression.

    .. math:: 1 - \sum_i |y_i - f_{-i}(i)|^2 \big/ \sum_i |y_i - \bar y_{-i}|^2

    The predictions are exact (:mod:`jurygcn.leave_one_out.panel`).
    """
    labels = scene.data.y[scene.labelled]
    count, found = len(labels), dict[View, float]()
    if len(labels.unique()) < 2:
        return {}
    targets = functional.one_hot(labels, scene.num_classes).double()
    panel = Panel(scene.data, scene.labelled, targets - 1.0 / scene.num_classes)
    usual = float((count / (count - 1) * (targets - targets.mean(dim=0))).square().sum())
    for member in panel.members:
        skill = 1.0 - float(member.errors.square().sum()) / usual
        found[member.design.view] = max(found.get(member.design.view, 0.0), skill)
    return found
