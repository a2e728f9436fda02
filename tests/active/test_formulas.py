"""AGE, ANRMAB and SOPT, against loops that follow the formulas word for word."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scenes import FAST, binary, scene_on, tail_graph

from jurygcn import active
from jurygcn.active import STRATEGIES
from jurygcn.active.age import EXPERTS, percentile, updated_weights
from jurygcn.active.graph_statistics import GraphStatistics, plain_adjacency
from jurygcn.active.sopt import GaussianField, Laplacian
from jurygcn.data import Split, synthetic
from jurygcn.errors import SettingError
from jurygcn.jury import Jury
from jurygcn.linalg.two_block import TwoBlock
from jurygcn.settings import LeaveOut

PROBABILITIES = binary(0.9, 0.6, 0.55, 0.52, 0.3, 0.2, 0.35, 0.1)


def naive_centre_distances(probabilities: np.ndarray) -> list[float]:
    """Distances to the centres of the best split into two clusters, found by trying every split of the line."""
    p = probabilities[:, 0]
    best = None
    for cut in np.sort(p)[1:]:
        centres = [p[p < cut].mean(), p[p >= cut].mean()]
        cost = sum(min((x - c) ** 2 for c in centres) for x in p)
        if best is None or cost < best[0]:
            best = (cost, centres)
    return [min(abs(x - c) for c in best[1]) * math.sqrt(2) for x in p]


# --- AGE -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("graph", "base"), [("citeseer", 0.9), ("cora", 0.995), ("mine", 0.995)])
@pytest.mark.parametrize("queried", [0, 30])
def test_age_is_its_formula(graph, base, queried):
    data = tail_graph()
    data.catalog_name = graph
    p = np.array(PROBABILITIES)
    candidates = [1, 2, 3, 4, 5, 6]
    scene = scene_on(data, [0, 7], candidates=candidates, batch=6, probabilities=PROBABILITIES, queried=queried)
    choice = STRATEGIES["age"].choose(scene)

    gamma = np.random.default_rng(0).beta(1, 1.005 - base**queried)
    entropy = [-sum(x * math.log(x) for x in row) for row in p]
    distance = naive_centre_distances(p)
    rank = GraphStatistics.of(data).pagerank
    scores = {}
    for v in candidates:
        P_entropy = sum(entropy[u] < entropy[v] for u in range(8)) / 8
        P_density = sum(distance[u] > distance[v] for u in range(8)) / 8
        P_centrality = sum(rank[u] < rank[v] for u in range(8)) / 8
        scores[v] = (1 - gamma) / 2 * P_entropy + (1 - gamma) / 2 * P_density + gamma * P_centrality
    found = dict(zip(choice.nodes.tolist(), choice.scores.tolist()))
    assert found == pytest.approx(scores)
    assert list(found.values()) == sorted(found.values(), reverse=True)  # equal scores come in any order


def test_percentiles_of_ties_are_strict():
    assert percentile(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [0.5, 0.0, 0.5, 0.25]


# --- ANRMAB --------------------------------------------------------------------------------------------------


def test_anrmab_draws_and_learns_by_its_formulas():
    data, candidates, total = tail_graph(), [1, 2, 3, 4, 5, 6], 12
    memory: dict = {}
    scene = scene_on(
        data, [0, 7], candidates=candidates, batch=3, probabilities=PROBABILITIES, total=total, memory=memory
    )
    choice = STRATEGIES["anrmab"].choose(scene)

    p = np.array(PROBABILITIES)
    entropy = [-sum(x * math.log(x) for x in row) for row in p]
    density = [1 / (1 + d) for d in naive_centre_distances(p)]
    rank = GraphStatistics.of(data).pagerank
    p_min = math.sqrt(math.log(3) / (3 * total))
    q = [[s[v] / sum(s[u] for u in candidates) for v in candidates] for s in (entropy, rank, density)]
    p_k = [(1 - 3 * p_min) / 3 + p_min] * 3
    phi = [sum(p_k[k] * q[k][i] for k in range(3)) for i in range(6)]
    drawn = np.random.default_rng(0).choice(6, 3, replace=False, p=np.array(phi) / sum(phi))
    assert choice.nodes.tolist() == [candidates[i] for i in drawn]
    assert choice.scores.tolist() == pytest.approx([phi[i] for i in drawn])

    # the next model calls the first drawn node right, the others wrong
    new = np.array(PROBABILITIES)
    for position, node in enumerate(choice.nodes.tolist()):
        right = int(data.y[node]) == 0
        new[node] = [0.8, 0.2] if right == (position == 0) else [0.2, 0.8]
    later = scene_on(
        data,
        [0, 7, *choice.nodes.tolist()],
        candidates=[v for v in candidates if v not in choice.nodes],
        probabilities=new,
        total=total,
        memory=memory,
    )
    reward = (1 / (total * 6)) * (1 / phi[drawn[0]])
    w = []
    for k in range(3):
        exponent = 0.0
        for i in drawn:
            exponent += reward * q[k][i] / phi[i] + (1 / p_k[k]) * math.sqrt(math.log(3 / 0.1) / (3 * total))
        w.append(math.exp(p_min / 2 * exponent))
    assert updated_weights(later, total, p_min) == pytest.approx(np.array(w) / sum(w) * EXPERTS)
    STRATEGIES["anrmab"].choose(later)
    assert memory["weights"] == pytest.approx(list(np.array(w) / sum(w) * EXPERTS))
    assert len(memory["drawn"]) == 4


def test_anrmab_learns_over_a_run():
    data = synthetic(num_nodes=80, num_edges=300, num_features=8, num_classes=2)
    history = active.run(
        data, "anrmab", initial=4, budget=16, step=4, recipe=FAST, split=Split(*torch.arange(80).split([50, 10, 20]))
    )
    assert len(history.memory["drawn"]) == 12
    assert np.ptp(history.memory["weights"]) > 0


# --- SOPT ----------------------------------------------------------------------------------------------------


def naive_sopt(adjacency: np.ndarray, labelled: list[int], candidates: list[int], batch: int) -> list[int]:
    """Greedy sigma-optimality by inverting the Laplacian of the unlabelled nodes anew for every pick."""
    L = np.diag(adjacency.sum(1)) - adjacency
    known, picks = list(labelled), []
    for _ in range(batch):
        U = [v for v in range(len(L)) if v not in known]
        C = np.linalg.inv(L[np.ix_(U, U)])
        score = {v: C[:, i].sum() ** 2 / C[i, i] for i, v in enumerate(U) if v in candidates}
        picks.append(max(score, key=score.get))
        known.append(picks[-1])
    return picks


@pytest.mark.parametrize("dense", [True, False])
def test_sopt_equals_inverting_the_laplacian(dense, monkeypatch):
    if not dense:
        monkeypatch.setattr("jurygcn.active.sopt.DENSE", 0)
    data = synthetic(num_nodes=40, num_edges=160, num_features=4, num_classes=2, seed=3)
    path = torch.stack([torch.arange(39), torch.arange(1, 40)])  # so that it hangs together
    data.edge_index = torch.cat([data.edge_index, path, path.flip(0)], dim=1)
    adjacency = plain_adjacency(data)
    candidates = [v for v in range(40) if v % 3]
    picks = STRATEGIES["sopt"].choose(scene_on(data, [0, 9, 21], candidates=candidates, batch=6)).nodes.tolist()
    assert picks == naive_sopt(adjacency.toarray(), [0, 9, 21], candidates, 6)


def test_sopt_by_hand_on_a_path():
    # given one end of 0 - 1 - 2 - 3 the covariance is min(u, v): sums 3, 5, 6 and variances 1, 2, 3
    scene = scene_on(tail_graph(), [0], candidates=[5, 6, 7])
    adjacency = plain_adjacency(tail_graph())[[4, 5, 6, 7]][:, [4, 5, 6, 7]]
    field = GaussianField(Laplacian(adjacency), [0])
    assert field.sums.tolist() == pytest.approx([0, 3, 5, 6])
    assert field.variance.tolist() == pytest.approx([0, 1, 2, 3])
    assert field.gains().tolist() == pytest.approx([0, 9, 12.5, 12])
    assert STRATEGIES["sopt"].choose(scene).nodes.tolist() == [6]


def test_sopt_without_a_label_takes_the_node_that_leaves_least():
    adjacency = plain_adjacency(tail_graph())
    gains = GaussianField(Laplacian(adjacency), []).gains()
    L = np.diag(np.asarray(adjacency.sum(1)).ravel()) - adjacency.toarray()
    for v in range(8):
        U = [u for u in range(8) if u != v]
        assert -gains[v] == pytest.approx(np.linalg.inv(L[np.ix_(U, U)]).sum())


def test_sopt_stays_in_the_largest_component_while_it_lasts():
    data = tail_graph()
    data.edge_index = data.edge_index[:, (data.edge_index != 4).all(dim=0)]  # 0-3 and 5-7 remain, 4 alone
    picks = STRATEGIES["sopt"].choose(scene_on(data, [1], candidates=[0, 2, 4, 6], batch=3)).nodes.tolist()
    assert set(picks[:2]) == {0, 2}
    assert picks[2] in (4, 6)


def test_sopt_refuses_what_would_take_too_long(monkeypatch):
    monkeypatch.setattr("jurygcn.active.sopt.LIMIT", 5)
    with pytest.raises(SettingError, match="at most 5 nodes"):
        STRATEGIES["sopt"].choose(scene_on(tail_graph(), [1], candidates=[0, 2]))


# --- the printed curvature -----------------------------------------------------------------------------------


def test_theorem_1_in_closed_form_equals_the_general_solver():
    scene = scene_on(tail_graph(), [0, 1, 6, 7], candidates=[2], trained=True)
    plain = Jury(scene.model, scene.data, scene.labelled, leave_out="printed").fit()
    last = scene.model.weights[1].numel()
    fast = Jury(
        scene.model, scene.data, scene.labelled, leave_out=LeaveOut("printed", solver=TwoBlock(last=last))
    ).fit()
    assert fast.jurors.solver == "two-block"
    assert torch.allclose(fast.jurors.steps, plain.jurors.steps, rtol=1e-3, atol=1e-5)
