r"""GRAIN: the nodes that influence most of the graph, spread over the space of propagated features. No label is used.

A node influences those with a nonzero entry of :math:`\hat A^2` in its row. Distances are those of the rows of
:math:`\hat A^2 X`, scaled to 0 .. 1. Labelled nodes count as chosen. The published code chooses all nodes at once. It
may stop before the budget is used up, when everything is covered; here the remaining nodes are then drawn at random.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from jurygcn.active.graph_statistics import Array, GraphStatistics
from jurygcn.active.scene import Choice, Scene
from jurygcn.errors import SettingError

LIMIT = 10_000  # nodes: all distances are held
GAMMA = 1.0  # the weight of diversity, as the authors set it
RADIUS = 0.05  # of a ball, as the authors set it


def grain_nn(scene: Scene) -> Choice:
    r"""Greedily the largest :math:`\frac1N |\sigma(S)| + \frac\gamma N \sum_u (1 - \min_{v \in S} d(u, v))`.

    :math:`\sigma(S)` are the nodes that S influences.
    """
    known = scene.labelled.cpu().numpy()
    reached, distance = influence_of(scene.statistics), distances_of(scene.statistics)
    count = len(distance)
    left = np.asarray(reached[known].sum(axis=0)).ravel() == 0  # nodes that nothing influences yet
    nearest = distance[known].min(axis=0, initial=1.0)
    own, pool = distance[scene.pool], reached[scene.pool]
    picked, scores, free = [], [], np.ones(len(own), dtype=bool)
    for _ in range(scene.batch):
        gain = pool @ left.astype(float) + GAMMA * np.maximum(nearest - own, 0.0).sum(axis=1)
        best = int(np.where(free, gain, -np.inf).argmax())
        picked.append(best)
        scores.append(float(gain[best]) / count)
        free[best] = False
        left[pool[best].indices] = False
        nearest = np.minimum(nearest, own[best])
    return scene.choice(scene.pool[picked], scores)


def grain_ball(scene: Scene) -> Choice:
    """Greedily the largest number of nodes within the radius of an influenced node."""
    known = scene.labelled.cpu().numpy()
    balls = balls_of(scene.statistics)
    left = np.asarray(balls[known].sum(axis=0)).ravel() == 0
    return covering(scene, balls[scene.pool], left, share=1.0 / len(left))


def covering(scene: Scene, pool: sp.csr_matrix, left: Array, *, share: float = 1.0) -> Choice:
    """Greedily the candidates that cover most of the nodes that are left, then others at random.

    The score is the number of nodes that a candidate newly covers, times ``share``.

    Shapes: pool (candidates, N) what each covers, left (N,) which is overwritten.
    """
    picked: list[int] = []
    scores: list[float] = []
    free = np.ones(len(scene.pool), dtype=bool)
    while len(picked) < scene.batch:
        gain = np.where(free, pool @ left.astype(float), 0.0)
        best = int(gain.argmax())
        if not gain[best]:
            break
        picked.append(best)
        scores.append(share * float(gain[best]))
        free[best] = False
        left[pool[best].indices] = False
    more = scene.generator.choice(np.flatnonzero(free), scene.batch - len(picked), replace=False)
    return scene.choice(scene.pool[[*picked, *more]], [*scores, *np.zeros(len(more))])


def influence_of(statistics: GraphStatistics) -> sp.csr_matrix:
    r"""Which nodes (columns) each node influences: 1 where :math:`\hat A^2` is not 0, (N, N)."""
    two = sp.csr_matrix(statistics.propagation.adjacency @ statistics.propagation.adjacency)
    two.data[:] = 1.0
    return two.astype(np.float64)


def distances_of(statistics: GraphStatistics) -> Array:
    """Distances of all propagated rows, scaled so that the smallest is 0 and the largest is 1, (N, N) in float32."""
    count = statistics.adjacency.shape[0]
    if count > LIMIT:
        raise SettingError(
            f"expected at most {LIMIT:,} nodes for grain, which holds all distances, got {count:,}; choose another "
            "strategy"
        )

    def compute() -> Array:
        rows = statistics.propagated_rows
        squares = (rows**2).sum(axis=1)
        found = squares[:, None] + squares - 2 * rows @ rows.T
        np.fill_diagonal(found, 0.0)
        found = np.sqrt(np.maximum(found, 0.0))
        return np.asarray((found / max(float(found.max()), 1e-300)).astype(np.float32))

    return statistics.kept("grain distances", compute)


def balls_of(statistics: GraphStatistics) -> sp.csr_matrix:
    """Which nodes are in the ball of a node that each node influences, (N, N) of 0 and 1."""

    def compute() -> sp.csr_matrix:
        near = sp.csr_matrix(distances_of(statistics) <= RADIUS, dtype=np.float64)
        balls = sp.csr_matrix(influence_of(statistics) @ near)
        balls.data[:] = 1.0
        return balls

    return statistics.kept("grain balls", compute)
