"""GRAIN and DiffusAL against loops that follow their formulas word for word."""

from __future__ import annotations

import numpy as np
import pytest
from scenes import scene_on

from jurygcn.active import STRATEGIES, grain
from jurygcn.active.diffusal import diffused, random_walk
from jurygcn.active.graph_statistics import GraphStatistics, plain_adjacency
from jurygcn.data import synthetic
from jurygcn.errors import SettingError

DATA = synthetic(num_nodes=50, num_edges=110, num_features=6, num_classes=3, seed=4)
LABELLED, CANDIDATES = [0, 1, 2], list(range(10, 45))


def dense() -> tuple[np.ndarray, np.ndarray]:
    """Which nodes each node influences, and the scaled distances."""
    A = plain_adjacency(DATA).toarray() + np.eye(50)
    A_hat = A / np.sqrt(np.outer(A.sum(1), A.sum(1)))
    rows = A_hat @ A_hat @ DATA.x.double().numpy()
    d = np.array([[np.linalg.norm(a - b) for b in rows] for a in rows])
    return (A_hat @ A_hat) > 0, (d - d.min()) / (d.max() - d.min())


def test_grain_nn_by_its_formula():
    reach, d = dense()

    def value(chosen: list[int]) -> float:
        covered = {u for v in chosen for u in np.flatnonzero(reach[v])}
        return len(covered) / 50 + sum(1 - min(d[u, v] for v in chosen) for u in range(50)) / 50

    picks = STRATEGIES["grain-nn"].choose(scene_on(DATA, LABELLED, candidates=CANDIDATES, batch=6))
    known = list(LABELLED)
    for pick, score in zip(picks.nodes.tolist(), picks.scores.tolist()):
        gains = {v: value([*known, v]) - value(known) for v in CANDIDATES if v not in known}
        assert score == pytest.approx(max(gains.values()), abs=1e-6)
        assert gains[pick] == pytest.approx(max(gains.values()), abs=1e-6)
        known.append(pick)


def test_grain_ball_by_its_formula(monkeypatch):
    monkeypatch.setattr(grain, "RADIUS", 0.1)
    data = synthetic(num_nodes=50, num_edges=110, num_features=6, num_classes=3, seed=4)  # no cached balls
    reach, d = dense()

    def touched(chosen: list[int]) -> set[int]:
        influenced = {u for v in chosen for u in np.flatnonzero(reach[v])}
        return {w for u in influenced for w in range(50) if d[u, w] <= 0.1}

    picks = STRATEGIES["grain-ball"].choose(scene_on(data, LABELLED, candidates=CANDIDATES, batch=35))
    known, drawn = list(LABELLED), 0
    for pick, score in zip(picks.nodes.tolist(), picks.scores.tolist()):
        gains = {v: len(touched([*known, v])) - len(touched(known)) for v in CANDIDATES if v not in known}
        assert score == pytest.approx(max(gains.values()) / 50)
        assert gains[pick] == max(gains.values())
        drawn += not max(gains.values())
        known.append(pick)
    assert 0 < drawn < 35  # everything is covered before the budget is used up


def test_grain_refuses_what_it_cannot_hold(monkeypatch):
    monkeypatch.setattr(grain, "LIMIT", 40)
    data = synthetic(num_nodes=50, num_edges=110, num_features=6, num_classes=3, seed=5)
    with pytest.raises(SettingError, match="at most 40 nodes for grain"):
        STRATEGIES["grain-nn"].choose(scene_on(data, LABELLED, candidates=CANDIDATES))


def test_diffusal_by_its_formula():
    walk = random_walk(plain_adjacency(DATA)).toarray()
    ppr = np.mean([a * np.linalg.inv(np.eye(50) - (1 - a) * walk) for a in (0.05, 0.1, 0.2)], axis=0)
    assert diffused(random_walk(plain_adjacency(DATA)), np.eye(50)) == pytest.approx(ppr, abs=1e-4)
    scene = scene_on(DATA, LABELLED, candidates=CANDIDATES, batch=35, trained=True)
    found = STRATEGIES["diffusal"].choose(scene)

    from jurygcn.active.clusters import kmeans
    from jurygcn.graph.features import reduce_rows

    rows = reduce_rows(GraphStatistics.of(DATA).propagation.propagated(1), 100)
    _, owner = kmeans(ppr @ rows, 3, seed=0)
    sums, entropy = ppr.sum(axis=0), scene.entropy
    for node, score in zip(found.nodes.tolist(), found.scores.tolist()):
        share = sum(owner[i] == owner[node] for i in LABELLED) / len(LABELLED)
        assert score == pytest.approx(entropy[node] / entropy.max() * sums[node] / sums.max() * (1 - share), rel=1e-3)
    assert found.scores.tolist() == sorted(found.scores.tolist(), reverse=True)
