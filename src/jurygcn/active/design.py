"""Our strategy: a V-optimal batch design in a window on the graph, weighted by the jury's ambiguity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from jurygcn.active.graph_statistics import Array
from jurygcn.active.scene import Choice, Scene
from jurygcn.active.windows import SEEN, Window, Windows, foretold
from jurygcn.errors import SettingError
from jurygcn.graph.similarity import View


@dataclass(frozen=True)
class Design:
    r"""Choose the batch that most reduces the prediction variance at ambiguous nodes.

    .. math:: \min_{B} \sum_u w_u\, \phi_u^\top \Bigl(\lambda n' I + \sum_{i \in L \cup B} \phi_i \phi_i^\top\Bigr)^{-1}
        \phi_u, \qquad w_u = (1 - \rho) + \rho\,\mathrm{ambiguity}(u), \quad \rho = \frac{n}{n + t C}

    The sum is the weighted prediction variance of a ridge regression on :math:`\phi`, the rows of a window
    (:mod:`jurygcn.active.windows`): features averaged over 0 to 16 hops and random walks of 1 to 8 steps. One half of
    the window always belongs to averages over two hops, which are what the model sees. The other half is for all views.
    Before the first label all of them count. Then those count more whose exact leave-one-out predictions foretell
    labels better.
    The GCN's objective adds the weight decay to a mean over labels, so here the ridge grows with the number of labels
    :math:`n' = |L| + |B|`. :math:`\lambda` is chosen so that the rows have ``directions`` effective dimensions per
    class. With few labels p-values have few levels, so the jury's ambiguity has a small weight. Before the first label
    all nodes have the same weight. Nodes are added greedily.

    Args:
        directions: effective dimensions per class, :math:`\sum_k \mu_k / (\mu_k + \lambda) = ` directions × C over the
            eigenvalues :math:`\mu` of the mean :math:`\phi \phi^\top`.
        trust: t, the number of labels per class at which ambiguity has weight one half.
        evidence: the number of labels per class at which what views foretell has weight one half in the window.
        seen: the share of the window that always belongs to what the model sees.
    """

    directions: float = 3.0
    trust: float = 2.0
    evidence: float = 4.0
    seen: float = 0.5

    def __post_init__(self) -> None:
        if not (0 < self.directions < math.inf and 0 <= self.trust < math.inf and self.evidence >= 0):
            raise SettingError(
                f"expected directions above 0, trust and evidence of at least 0, got {self.directions}, {self.trust} "
                f"and {self.evidence}; change them"
            )
        if not 0 <= self.seen <= 1:
            raise SettingError(f"expected seen between 0 and 1, got {self.seen}; change it")

    def __call__(self, scene: Scene) -> Choice:
        """The batch, best first. The score of a node is the share of the variance that its label removes."""
        window, weights = self.window(scene), self.weights(scene)
        rows = window.rows
        known = rows[torch.cat([scene.labelled.cpu(), scene.pending.cpu()]).numpy()]
        targets = rows.T @ (weights[:, None] * rows)
        ridge = self.ridge(scene, window) * (len(known) + scene.batch)
        picked, falls = v_optimal(rows[scene.pool], known, targets, batch=scene.batch, ridge=ridge)
        before = variance(known, targets, ridge=ridge)  # 0 where all rows are 0
        return scene.choice(scene.pool[picked], falls / before if before > 0 else np.zeros_like(falls))

    def window(self, scene: Scene) -> Window:
        """The rows of the ridge regression."""
        windows = Windows.of(scene)
        return windows.mixed(self.shares(scene, windows.shares))

    def shares(self, scene: Scene, usual: dict[View, float]) -> dict[View, float]:
        """The share of each view in the window."""
        part = {view: float((view.kind, view.hops) == SEEN) for view in usual}
        fixed = self.seen if any(part.values()) else 0.0
        return {view: (1.0 - fixed) * share + fixed * part[view] for view, share in self.earned(scene, usual).items()}

    def earned(self, scene: Scene, usual: dict[View, float]) -> dict[View, float]:
        """The usual share of each view, moved towards what it foretells."""
        skill = foretold(scene) if len(scene.labelled) and self.evidence < math.inf else {}
        earned = {view: share * skill.get(view, 0.0) for view, share in usual.items()}
        total = sum(earned.values())
        if not total:
            return usual
        weight = _weight(len(scene.labelled), self.evidence * scene.num_classes)
        return {view: (1.0 - weight) * share + weight * earned[view] / total for view, share in usual.items()}

    def weights(self, scene: Scene) -> Array:
        """The weight of each node's prediction variance, (N,)."""
        if scene.model is None:
            return np.ones(int(scene.data.num_nodes))
        share = self.share(scene)
        return (1.0 - share) + share * scene.verdict.ambiguity.cpu().numpy()

    def share(self, scene: Scene) -> float:
        """The weight of the ambiguity, between 0 and 1."""
        return _weight(len(scene.labelled), self.trust * scene.num_classes)

    def ridge(self, scene: Scene, window: Window) -> float:
        """The ridge per label."""
        return ridge_for(window.spectrum, self.directions * scene.num_classes)


def _weight(known: int, half: float) -> float:
    """A weight between 0 and 1 that is one half for ``half`` labels."""
    return known / (known + half)


def ridge_for(spectrum: Array, dimensions: float) -> float:
    r"""The :math:`\lambda` with :math:`\sum_k \mu_k / (\mu_k + \lambda)` = ``dimensions``, by bisection.

    Shapes: spectrum (d,).
    """
    low, high = 1e-9, float(spectrum.sum())
    if dimensions >= (spectrum / (spectrum + low)).sum():  # the features have too few directions: almost no ridge
        return low
    if dimensions <= (spectrum / (spectrum + high)).sum():
        return high
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        if (spectrum / (spectrum + middle)).sum() > dimensions:
            low = middle
        else:
            high = middle
    return high


def variance(known: Array, targets: Array, *, ridge: float) -> float:
    r"""The weighted prediction variance, :math:`\mathrm{tr}(G M^{-1})`. Shapes: known (n, d), targets G (d, d)."""
    return float(np.trace(np.linalg.solve(ridge * np.eye(len(targets)) + known.T @ known, targets)))


def v_optimal(candidates: Array, known: Array, targets: Array, *, batch: int, ridge: float) -> tuple[Array, Array]:
    r"""Choose rows one at a time. Each choice reduces the weighted prediction variance most.

    .. math:: v^* = \arg\max_v \frac{\phi_v^\top M^{-1} G M^{-1} \phi_v}{1 + \phi_v^\top M^{-1} \phi_v}, \quad
        M = \lambda I + \sum_{known} \phi \phi^\top

    The fraction is the exact reduction of :math:`\mathrm{tr}(G M^{-1})` when v is added. Each choice makes a rank-one
    update of three quantities per candidate, which costs one pass over the rows.

    Shapes: candidates (m, d), known (n, d), targets G (d, d) -> positions (b,), gains (b,).
    """
    inverse = np.linalg.inv(ridge * np.eye(candidates.shape[1]) + known.T @ known)
    moved = candidates @ inverse  # rows M^-1 phi_v
    leverage = (moved * candidates).sum(axis=1)
    fall = ((moved @ targets) * moved).sum(axis=1)
    picked, gains = np.empty(batch, dtype=np.int64), np.empty(batch)
    free = np.ones(len(candidates), dtype=bool)
    for position in range(batch):
        gain = np.where(free, fall / (1.0 + leverage), -np.inf)
        best = int(gain.argmax())
        picked[position], gains[position], free[best] = best, gain[best], False
        a, scale = moved[best].copy(), 1.0 + leverage[best]
        along = candidates @ a / scale
        pulled = targets @ a
        fall = fall - 2 * along * (moved @ pulled) + along**2 * (a @ pulled)
        leverage = leverage - along**2 * scale
        moved = moved - np.outer(along, a)
    return picked, gains
