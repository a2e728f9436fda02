"""The design of next labels, its windows and the expected gain, against loops that follow the formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scenes import FAST, scene_on
from torch_geometric.data import Data

from jurygcn import active
from jurygcn.active import STRATEGIES
from jurygcn.active.design import Design, ridge_for, v_optimal
from jurygcn.active.gain import fitted
from jurygcn.active.graph_statistics import plain_adjacency
from jurygcn.active.windows import SEEN, Window, Windows
from jurygcn.data import synthetic
from jurygcn.errors import SettingError
from jurygcn.graph.similarity import WALKS, Similarities
from jurygcn.jury import Jury
from jurygcn.leave_one_out.gains import PanelGains


def test_the_design_takes_the_largest_fall_of_the_variance():
    rng = np.random.default_rng(0)
    rows, known = rng.standard_normal((30, 6)), rng.standard_normal((4, 6))
    targets = rows.T @ rows
    picks, gains = v_optimal(rows, known, targets, batch=5, ridge=0.7)
    M, left = 0.7 * np.eye(6) + known.T @ known, list(range(30))
    for pick, gain in zip(picks, gains):
        before = np.trace(targets @ np.linalg.inv(M))
        falls = {v: before - np.trace(targets @ np.linalg.inv(M + np.outer(rows[v], rows[v]))) for v in left}
        assert pick == max(falls, key=falls.get)
        assert gain == pytest.approx(falls[pick])
        M += np.outer(rows[pick], rows[pick])
        left.remove(pick)


def test_the_ridge_gives_the_wanted_number_of_directions():
    spectrum = np.array([0.5, 0.3, 0.1, 0.05, 0.0])
    for wanted in (0.9, 2.0, 3.5):
        ridge = ridge_for(spectrum, wanted)
        assert sum(mu / (mu + ridge) for mu in spectrum) == pytest.approx(wanted)
    assert ridge_for(spectrum, 9.0) < 1e-8
    assert ridge_for(spectrum, 0.1) == pytest.approx(0.95)


@pytest.mark.parametrize("wrong", [{"directions": 0.0}, {"trust": -1.0}, {"trust": math.nan}, {"evidence": -1.0}])
def test_the_design_refuses_senseless_constants(wrong):
    with pytest.raises(SettingError, match="expected directions above 0"):
        active.Design(**wrong)


@pytest.mark.parametrize("seen", [-0.1, 1.1, math.nan])
def test_the_design_refuses_a_share_that_is_none(seen):
    with pytest.raises(SettingError, match="expected seen between 0 and 1"):
        active.Design(seen=seen)


def naive_views(data: Data) -> dict[tuple[str, int], np.ndarray]:
    """The rows of each view that a window mixes, from dense matrices: averages are centred, walks are not."""
    A = plain_adjacency(data).toarray() + np.eye(data.num_nodes)
    A_hat, P = A / np.sqrt(np.outer(A.sum(1), A.sum(1))), A / A.sum(1, keepdims=True)
    x = data.x.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    views = {}
    for hops in (0, 1, 2, 4, 8, 16):
        rows = np.linalg.matrix_power(A_hat, hops) @ x
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows - rows.mean(axis=0)
        views["averages", hops] = rows / np.sqrt((rows**2).sum(axis=1).mean())
    for hops in (1, 2, 4, 8):
        bound = np.linalg.matrix_power(P, hops - 1) @ (1 / A.sum(1))
        views["walks", hops] = np.linalg.matrix_power(P, hops) / np.sqrt(bound)[:, None]
    return views


def naive_unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1, except those shorter than half the root mean square."""
    usual = math.sqrt(sum(float(row @ row) for row in rows) / len(rows))
    return np.array([row / max(math.sqrt(float(row @ row)), usual / 2) for row in rows])


def naive_skill(rows: np.ndarray, y: np.ndarray, classes: int) -> float:
    """The share of the labels' variance that regressions on the other labels predict; the better of two penalties."""
    Y = np.eye(classes)[y]
    F = np.concatenate([rows, np.ones((len(y), 1))], axis=1)
    found = [0.0]
    for ridge in (0.03, 0.3):
        errors, usual = 0.0, 0.0
        for i in range(len(y)):
            rest = np.arange(len(y)) != i
            targets = Y[rest] - 1 / classes
            beta = np.linalg.solve(F[rest].T @ F[rest] + ridge * np.eye(F.shape[1]), F[rest].T @ targets)
            errors += ((Y[i] - 1 / classes - F[i] @ beta) ** 2).sum()
            usual += ((Y[i] - Y[rest].mean(axis=0)) ** 2).sum()
        found.append(1 - errors / usual)
    return max(found)


@pytest.mark.parametrize("labels", [0, 9])
def test_jury_design_by_its_formula(labels):
    data = synthetic(num_nodes=60, num_edges=240, num_features=10, num_classes=3, separation=4.0)
    labelled, candidates = list(range(labels)), list(range(20, 50))
    scene = scene_on(data, labelled, candidates=candidates, batch=4, trained=labels > 0)
    picks = STRATEGIES["jury-design"].choose(scene).nodes.tolist()

    views = naive_views(data)
    shares = {view: 0.5 / (6 if view[0] == "averages" else 4) for view in views}
    weights = [1.0] * 60
    if labels:
        share = labels / (labels + 2 * 3)
        y = data.y[labelled].numpy()
        skill = {view: naive_skill(rows[labelled], y, 3) for view, rows in views.items()}
        assert 0 < sum(value > 0 for value in skill.values()) < len(skill)
        earned = {view: shares[view] * skill[view] for view in views}
        total, weight = sum(earned.values()), labels / (labels + 4 * 3)
        shares = {view: (1 - weight) * shares[view] + weight * earned[view] / total for view in views}
        verdict = Jury(scene.model, scene.data, scene.labelled, weight_decay=FAST.weight_decay).fit()
        weights = [(1 - share) + share * float(a) for a in verdict.verdict(advice=None).ambiguity]
    K = np.zeros((60, 60))
    shares = {view: share / 2 + (view == ("averages", 2)) / 2 for view, share in shares.items()}
    for view, rows in views.items():
        unit = naive_unit(rows)
        K += shares[view] * unit @ unit.T
    ridge = ridge_for(np.linalg.eigvalsh(K / 60).clip(0), 3 * 3) * (labels + 4)

    def variance(known: list[int]) -> float:
        """The posterior variances of a Gaussian process with the similarities as its covariance."""
        across = K[:, known]
        left = K - across @ np.linalg.solve(K[np.ix_(known, known)] + ridge * np.eye(len(known)), across.T)
        return float(np.array(weights) @ left.diagonal())

    known = list(labelled)
    for pick in picks:
        best = min((v for v in candidates if v not in known), key=lambda v: variance([*known, v]))
        assert pick == best
        known.append(pick)


def test_a_window_is_the_sum_of_its_similarities():
    """More views than dimensions are kept: the window's products are the best approximation of the sum."""
    data = synthetic(num_nodes=300, num_edges=1500, num_features=10, num_classes=3)
    windows = Windows(Similarities.of(data))
    K = np.zeros((300, 300))
    for view, rows in naive_views(data).items():
        share = 0.5 / (6 if view[0] == "averages" else 4)
        left, singular, _ = np.linalg.svd(rows)
        few = left[:, :100] * np.append(singular, np.zeros(300))[:100] if rows.shape[1] > 100 else rows
        few = naive_unit(few)
        K += share * few @ few.T
    found = windows.mixed(windows.shares)
    assert windows.mixed(dict(windows.shares)) is found
    values, vectors = np.linalg.eigh(K)
    best = vectors[:, -200:] * values[-200:] @ vectors[:, -200:].T
    assert found.rows.shape == (300, 200)
    assert np.linalg.norm(found.rows @ found.rows.T - best) < 0.01 * np.linalg.norm(best)
    assert found.spectrum.max() == pytest.approx(values[-1] / 300, rel=1e-3)


@pytest.mark.parametrize(("separation", "homophily", "hops"), [(8.0, 0.2, (0,)), (0.0, 0.95, (2, 4, 8, 16))])
def test_labels_choose_the_window(separation, homophily, hops):
    """Features alone tell classes apart, or edges alone: views of few hops gain, or views of many."""
    data = synthetic(
        num_nodes=400, num_edges=4000, num_features=20, num_classes=4, homophily=homophily, separation=separation
    )
    scene = scene_on(data, list(range(60)), candidates=[100], trained=False)
    usual = Windows.of(scene).shares
    shares = Design(seen=0.0).shares(scene, usual)
    assert sum(shares.values()) == pytest.approx(1.0)
    with_seen = Design(seen=0.3).shares(scene, usual)
    assert with_seen == pytest.approx({v: 0.7 * s + 0.3 * ((v.kind, v.hops) == SEEN) for v, s in shares.items()})
    assert max(shares, key=lambda view: shares[view] / usual[view]).hops in hops
    own = next(view for view in shares if not view.hops)
    assert (shares[own] > usual[own]) == (0 in hops)
    assert Design(evidence=math.inf, seen=0.0).shares(scene, usual) == usual


def test_a_graph_of_one_kind_of_view_keeps_its_window():
    """Without features no view is what the model sees, so the walks share the window as they did."""
    data = synthetic(num_nodes=100, num_edges=400, num_features=4, num_classes=2)
    scene = scene_on(data, [], candidates=[1])
    usual = {view: share for view, share in Windows.of(scene).shares.items() if view.kind == WALKS}
    assert Design().shares(scene, usual) == usual


def test_views_that_distinguish_nothing_leave_a_choice():
    """Equal features and no edges: every node is as good as another."""
    data = Data(x=torch.ones(8, 3), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.zeros(8).long())
    data.num_classes = 2
    choice = Design()(scene_on(data, [], candidates=[2, 3, 4], batch=2))
    assert set(choice.nodes.tolist()) <= {2, 3, 4}
    assert choice.scores.tolist() == [0.0, 0.0]


def test_jury_design_looks_where_the_jury_is_undecided(monkeypatch):
    """Two equal clusters; all doubt is in the second, so the label goes there."""
    data = synthetic(num_nodes=40, num_edges=100, num_features=4, num_classes=2)
    rows = np.zeros((40, 2))
    rows[:20, 0], rows[20:, 1] = 1.0, 1.0
    for doubtful, cluster in ((slice(0, 20), range(20)), (slice(20, 40), range(20, 40))):
        scene = scene_on(data, [0, 39], candidates=list(range(2, 38)), trained=True)
        ambiguity = torch.zeros(40)
        ambiguity[doubtful] = 1.0
        monkeypatch.setattr(Design, "window", lambda *_: Window.of(rows))
        scene.__dict__.update(verdict=SimpleNamespace(ambiguity=ambiguity))
        assert STRATEGIES["jury-design"].choose(scene).nodes.item() in cluster


def test_jury_gain_by_brute_force():
    """Each pick is the node of the design's shortlist with the largest gain, found by fitting every panel again."""
    data = synthetic(num_nodes=60, num_edges=240, num_features=10, num_classes=3, separation=4.0)
    labelled, candidates = list(range(12)), list(range(20, 50))
    scene = scene_on(data, labelled, candidates=candidates, batch=3, trained=True)
    picks = STRATEGIES["jury-gain"].choose(scene)
    short = Design()(scene_on(data, labelled, candidates=candidates, batch=9, trained=True)).nodes.tolist()

    def pooled(nodes: list[int], labels: list[int], weights: torch.Tensor | None) -> PanelGains:
        return fitted(scene, torch.tensor(nodes), torch.tensor(labels), weights)

    nodes, labels = list(labelled), data.y[labelled].tolist()
    weights = pooled(nodes, labels, None).weights
    assert weights.any()
    for pick, score in zip(picks.nodes.tolist(), picks.scores.tolist()):
        now = torch.softmax(pooled(nodes, labels, weights).scores, dim=1)
        gains = {}
        for v in (v for v in short if v not in nodes):
            after = [
                torch.softmax(pooled([*nodes, v], [*labels, y], weights).scores, 1).amax(1).sum() for y in range(3)
            ]
            gains[v] = float(sum(now[v, y] * (after[y] - now.amax(dim=1).sum()) for y in range(3)))
        assert pick == max(gains, key=gains.__getitem__)
        assert score == pytest.approx(gains[pick], abs=1e-6)
        nodes.append(pick)
        labels.append(int(now[pick].argmax()))
