"""Our strategy: a V-optimal batch design on propagated features, aimed at the nodes the jury cannot decide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from jurygcn.active.graph_statistics import Array
from jurygcn.active.situation import Choice, Scene
from jurygcn.errors import SettingError


@dataclass(frozen=True)
class Design:
    r"""Choose the batch after which the undecided nodes are predicted best.

    .. math:: \min_{B} \sum_u w_u\, \phi_u^\top \Bigl(\lambda n' I + \sum_{i \in L \cup B} \phi_i \phi_i^\top\Bigr)^{-1}
        \phi_u, \qquad w_u = (1 - \rho) + \rho\,\mathrm{ambiguity}(u), \quad \rho = \frac{n}{n + t C}

    is the weighted prediction variance of a ridge regression on :math:`\phi`, the unit rows of :math:`\hat A^2 X`: what
    a two-layer GCN sees, without its weights. As in the GCN's own objective the ridge stands beside a mean over the
    :math:`n' = |L| + |B|` labels, so it grows with their number. :math:`\lambda` is such that the features have
    ``directions`` effective dimensions per class. The jury's ambiguity counts little while there are few labels, when
    p-values have few levels; before the first label all nodes weigh the same. Nodes are added greedily.

    Args:
        directions: effective dimensions per class, :math:`\sum_k \mu_k / (\mu_k + \lambda) = ` directions × C over the
            eigenvalues :math:`\mu` of the mean :math:`\phi \phi^\top`.
        trust: t, labels per class at which ambiguity counts half.
    """

    directions: float = 3.0
    trust: float = 2.0

    def __post_init__(self) -> None:
        if not (0 < self.directions < math.inf and 0 <= self.trust < math.inf):
            raise SettingError(
                f"expected directions above 0 and a trust of at least 0, got {self.directions} and {self.trust}; "
                "change them"
            )

    def __call__(self, scene: Scene) -> Choice:
        """The batch, best first, with the fall of the variance that each node brings."""
        features, weights = self.features(scene), self.weights(scene)
        picked, falls = v_optimal(
            features[scene.pool],
            features[scene.labelled.cpu().numpy()],
            features.T @ (weights[:, None] * features),
            batch=scene.batch,
            ridge=self.ridge(scene) * (len(scene.labelled) + scene.batch),
        )
        return scene.choice(scene.pool[picked], falls)

    def features(self, scene: Scene) -> Array:
        """What stands for the nodes, (N, d)."""
        return scene.facts.propagated

    def weights(self, scene: Scene) -> Array:
        """How much each node's variance counts, (N,)."""
        if scene.model is None:
            return np.ones(int(scene.data.num_nodes))
        share = self.share(scene)
        return (1.0 - share) + share * scene.verdict.ambiguity.cpu().numpy()

    def share(self, scene: Scene) -> float:
        """How far the ambiguity is believed, between 0 and 1."""
        known = len(scene.labelled)
        return known / (known + self.trust * scene.num_classes)

    def ridge(self, scene: Scene) -> float:
        """The ridge per label."""
        return ridge_for(scene.facts.spectrum, self.directions * scene.num_classes)


def ridge_for(spectrum: Array, dimensions: float) -> float:
    r"""The :math:`\lambda` with :math:`\sum_k \mu_k / (\mu_k + \lambda)` = ``dimensions``, by bisection.

    Shapes: spectrum (d,).
    """
    low, high = 1e-9, float(spectrum.sum())
    if dimensions >= (spectrum / (spectrum + low)).sum():  # fewer directions than that: no ridge to speak of
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


def v_optimal(candidates: Array, known: Array, targets: Array, *, batch: int, ridge: float) -> tuple[Array, Array]:
    r"""Rows that, one after the other, lower the weighted prediction variance most.

    .. math:: v^* = \arg\max_v \frac{\phi_v^\top M^{-1} G M^{-1} \phi_v}{1 + \phi_v^\top M^{-1} \phi_v}, \quad
        M = \lambda I + \sum_{known} \phi \phi^\top

    is the exact fall of :math:`\mathrm{tr}(G M^{-1})` when v is added. Each pick is a rank-one update of the three
    quantities per candidate, so it costs one pass over the rows.

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
