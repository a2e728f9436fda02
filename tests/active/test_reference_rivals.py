"""GraphPart, RIM, ESP and LSCALE against loops that follow their formulas, and on graphs where the choice is plain."""

from __future__ import annotations

import itertools

import networkx as nx
import numpy as np
import pytest
import torch
from scenes import scene_on, tail_graph
from sklearn.linear_model import LogisticRegression
from torch_geometric.data import Data

from cases import undirected
from jurygcn.active import STRATEGIES, Rim, esp, graphpart, lscale
from jurygcn.active.graph_statistics import GraphStatistics, plain_adjacency
from jurygcn.data import synthetic
from jurygcn.errors import SettingError

DATA = synthetic(num_nodes=50, num_edges=110, num_features=6, num_classes=3, seed=4)
LABELLED, CANDIDATES = [0, 1, 2, 3, 4], list(range(10, 45))


def normalised() -> np.ndarray:
    A = plain_adjacency(DATA).toarray() + np.eye(50)
    return A / np.sqrt(np.outer(A.sum(1), A.sum(1)))


# --- GraphPart -----------------------------------------------------------------------------------------------


def two_cliques() -> Data:
    """Two cliques of five nodes and an edge between them; the features are places on a line."""
    pairs = [*itertools.combinations(range(5), 2), *itertools.combinations(range(5, 10), 2), (4, 5)]
    x = torch.tensor([[float(place)] for place in (0, 1, 2, 3, 4, 20, 21, 22, 23, 24)])
    return Data(x=x, edge_index=undirected(pairs), y=torch.arange(10) // 5, num_nodes=10, num_classes=2)


def test_graphpart_takes_the_centre_of_each_part():
    data = two_cliques()
    scene = scene_on(data, [], candidates=list(range(10)), batch=2)
    picked = STRATEGIES["graphpart"].choose(scene).nodes.tolist()
    rows = GraphStatistics.of(data).propagated_rows[:, 0]
    expected = [part[np.argmin(np.abs(rows[part] - rows[part].mean()))] for part in (np.arange(5), np.arange(5, 10))]
    assert sorted(picked) == expected


def test_graphpart_chooses_where_there_is_no_label():
    data = two_cliques()
    for labelled, part in ((1, range(5, 10)), (8, range(5))):
        scene = scene_on(data, [labelled], candidates=[v for v in range(10) if v != labelled])
        assert STRATEGIES["graphpart"].choose(scene).nodes.tolist()[0] in part


def test_graphpart_far_subtracts_the_distance_to_labelled_nodes(monkeypatch):
    data = two_cliques()

    def kmeans(points, clusters, *, seed):
        assert clusters == 2
        return np.array([points[0], points[0] + 3.4]), np.array([0, 0, 1, 1, 1])

    monkeypatch.setattr(graphpart, "kmeans", kmeans)
    GraphStatistics.of(data).__dict__["propagated_rows"] = np.arange(10.0)[:, None]
    # budget 4 > 2 parts; the clusters (2, 3, 4) with centre 3.4 and (5, 6) with centre 5 have no label
    scene = scene_on(data, [1, 9], candidates=[0, 2, 3, 4, 5, 6, 7, 8], batch=2)
    near, far = STRATEGIES["graphpart"].choose(scene), STRATEGIES["graphpart-far"].choose(scene)
    assert near.nodes.tolist() == [3, 5]
    assert near.scores.tolist() == pytest.approx([-0.4, 0.0])
    # node 4: 0.6 - 3 is below node 3: 0.4 - 2; node 5: 0 - 1, for node 4 of the other part was chosen before
    assert far.nodes.tolist() == [4, 5]
    assert far.scores.tolist() == pytest.approx([2.4, 1.0])


def test_parts_are_communities_merged_by_ward():
    graph = nx.from_scipy_sparse_array(plain_adjacency(DATA))
    groups = [sorted(found) for found in nx.algorithms.community.greedy_modularity_communities(graph)]
    x = DATA.x.double().numpy()

    def scatter(group: list[int]) -> float:
        return float(((x[group] - x[group].mean(axis=0)) ** 2).sum())

    while len(groups) > 3:  # Ward: the pair whose union raises the scatter least
        pairs = itertools.combinations(range(len(groups)), 2)
        a, b = min(
            pairs, key=lambda p: scatter(groups[p[0]] + groups[p[1]]) - scatter(groups[p[0]]) - scatter(groups[p[1]])
        )
        groups[a] += groups.pop(b)
    owner = graphpart.parts_of(GraphStatistics.of(DATA), DATA, 3)
    found = {frozenset(np.flatnonzero(owner == part).tolist()) for part in range(3)}
    assert found == {frozenset(group) for group in groups}
    assert (np.diff(np.bincount(owner)) <= 0).all()  # the largest part first


def test_shares_of_the_budget():
    assert graphpart.shares(17, 7) == [3, 3, 3, 2, 2, 2, 2]


# --- RIM -----------------------------------------------------------------------------------------------------


def rim_by_loops(a: float, known: list[int]) -> tuple[np.ndarray, dict[int, float]]:
    """P² and the reliability of labelled nodes, by loops until nothing changes."""
    A = plain_adjacency(DATA).toarray() + np.eye(50)
    P = A / A.sum(1, keepdims=True)
    rows = P @ P @ DATA.x.double().numpy()
    s = np.array([[u @ v / np.linalg.norm(u) / np.linalg.norm(v) for v in rows] for u in rows])
    s = (s - s.min()) / (1 - s.min())
    y = DATA.y.tolist()
    same = {i: [k for k in known if k != i and y[k] == y[i]] for i in known}
    r = {i: 1.0 if same[i] else a for i in known}
    for _ in range(500):
        new = {}
        for i in known:
            q = {k: a * s[i, k] / (a * s[i, k] + (1 - a) * (1 - s[i, k]) / 2) for k in same[i]}
            new[i] = sum(r[k] * q[k] for k in q) / sum(r[k] for k in q) if q else a
        r = new
    return P @ P, r


def test_rim_by_its_formula():
    rim, known = Rim(oracle_accuracy=0.7), [0, 1, 2, 3, 4, 5, 6]
    influence, r = rim_by_loops(0.7, known)
    weights = rim.weights(DATA, torch.tensor(known))
    assert weights.tolist() == pytest.approx([r[i] for i in known], abs=1e-5)
    assert len(set(np.round(weights.tolist(), 4))) > 3
    picks = rim(scene_on(DATA, known, candidates=CANDIDATES, batch=12))
    covered = {j for i in known for j in range(50) if r[i] * influence[j, i] > 0.05 + 1e-9}
    chosen: list[int] = []
    for pick, score in zip(picks.nodes.tolist(), picks.scores.tolist()):
        new = {
            v: {j for j in range(50) if 0.7 * influence[j, v] > 0.05 + 1e-9} - covered
            for v in CANDIDATES
            if v not in chosen
        }
        assert score == max(map(len, new.values())) == len(new[pick])
        covered |= new[pick]
        chosen.append(pick)


def test_rim_trusts_an_oracle_that_is_always_right():
    assert Rim().weights(DATA, torch.tensor([0, 1, 2, 3])).tolist() == [1.0] * 4
    with pytest.raises(SettingError, match="oracle_accuracy above 0"):
        Rim(oracle_accuracy=0.0)


# --- ESP -----------------------------------------------------------------------------------------------------


def refitted(nodes: list[int], labels: list[int]) -> np.ndarray:
    """Probabilities of scikit-learn's liblinear, one class against the rest, with the stated weights."""
    A_hat = normalised()
    rows = A_hat @ A_hat @ DATA.x.double().numpy()
    sigmoids = []
    for c in range(3):
        own = np.array([int(label == c) for label in labels])
        balanced = np.where(own == 1, len(own) / (3 * max(own.sum(), 1)), 1.0)
        # liblinear wants both kinds of labels: one of each without weight changes nothing
        nodes_, own_ = [*nodes, nodes[0], nodes[0]], np.append(own, [0, 1])
        weights = np.append(balanced, [1e-12, 1e-12])
        model = LogisticRegression(solver="liblinear", C=1.0, tol=1e-10, max_iter=10_000)
        model.fit(rows[nodes_], own_, sample_weight=weights)
        sigmoids.append(model.predict_proba(rows)[:, 1])
    found = np.stack(sigmoids, axis=1)
    return found / found.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("labelled", [LABELLED, [0, 2]])
def test_esp_by_brute_force_refits(labelled):
    labels = DATA.y[labelled].tolist()
    before = refitted(labelled, labels)
    left = [u for u in range(50) if u not in labelled]
    scores = {}
    for i in CANDIDATES[:12]:
        terms = []
        for c in range(3):
            after = refitted([*labelled, i], [*labels, c])
            surest = sum(np.log(after[u].max()) for u in left if u != i)
            terms.append(surest + np.log(before[i, c]))
        scores[i] = np.logaddexp.reduce(terms) - sum(np.log(before[u].max()) for u in left)
    found = esp.esp(scene_on(DATA, labelled, candidates=CANDIDATES[:12]))
    assert found.nodes.tolist() == [max(scores, key=lambda i: scores[i])]
    assert found.scores.tolist() == pytest.approx([max(scores.values())], abs=1e-3)
    rows = GraphStatistics.of(DATA).propagation.propagated(2)
    rows = torch.from_numpy(np.asarray(rows)).double()
    refits = esp.Refits(rows @ rows.T + 1.0, torch.tensor(labelled), torch.tensor(labels), 3)
    all_rises = refits.expected(torch.tensor(CANDIDATES[:12])) - refits.certainty()
    assert all_rises.tolist() == pytest.approx(list(scores.values()), abs=1e-3)


def test_esp_scores_again_after_each_choice():
    first = esp.esp(scene_on(DATA, LABELLED, candidates=CANDIDATES, batch=3)).nodes.tolist()
    rows = GraphStatistics.of(DATA).propagation.propagated(2)
    rows = torch.from_numpy(np.asarray(rows)).double()
    refits = esp.Refits(rows @ rows.T + 1.0, torch.tensor(LABELLED), DATA.y[LABELLED], 3)
    data = DATA.clone()
    data.y[first[0]] = int(refits.probabilities[first[0]].argmax())
    rest = [v for v in CANDIDATES if v != first[0]]
    rises = dict(zip(rest, refits.expected(torch.tensor(rest)).tolist()))
    rest = sorted(rest, key=lambda v: -rises[v])[: esp.SHORTLIST * 3]
    assert esp.esp(scene_on(data, [*LABELLED, first[0]], candidates=rest)).nodes.tolist() == first[1:2]


def test_esp_refuses_large_graphs_and_none_labelled(monkeypatch):
    with pytest.raises(SettingError, match="labelled nodes for esp"):
        esp.esp(scene_on(DATA, [], candidates=CANDIDATES))
    monkeypatch.setattr(esp, "LIMIT", 40)
    with pytest.raises(SettingError, match="at most 40 nodes for esp"):
        esp.esp(scene_on(DATA, LABELLED, candidates=CANDIDATES))


# --- LSCALE --------------------------------------------------------------------------------------------------


def test_k_medoids_keep_the_fixed_ones_and_find_the_cheapest():
    points = np.array([[0.0], [10.0], [10.4], [11.0], [20.0], [20.9], [21.0], [0.3]])
    for seed in range(10):
        medoids, sizes = lscale.k_medoids(points, 1, 2, np.random.default_rng(seed))
        cost = np.abs(points - points[[0, *medoids], 0]).min(axis=1).sum()
        if set(medoids) == {2, 5}:  # each cluster's middle point
            assert sorted(sizes.tolist()) == [3, 3]
        # no single exchange within a cluster is cheaper
        for position, other in itertools.product(range(2), range(1, 8)):
            moved = medoids.copy()
            owner = np.abs(points - points[[0, *medoids], 0]).argmin(axis=1)
            if owner[other] == position + 1:
                moved[position] = other
                members = np.flatnonzero(owner == position + 1)
                own = np.abs(points[members] - points[medoids[position]]).sum()
                assert own <= np.abs(points[members] - points[other]).sum() + 1e-12
        assert cost < 30
    assert {2, 5} in [set(lscale.k_medoids(points, 1, 2, np.random.default_rng(s))[0].tolist()) for s in range(10)]


def test_the_latent_space_brings_labels_to_their_class():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(30) % 3
    embedding = torch.randn(30, 8, generator=generator) + 2.0 * torch.nn.functional.one_hot(labels, 8)
    learned = lscale.latent(embedding, torch.arange(30), labels, 3, seed=1)
    means = torch.stack([learned[labels == c].mean(dim=0) for c in range(3)])
    assert (torch.cdist(learned, means).argmin(dim=1) == labels).double().mean() > 0.95
    assert learned.equal(lscale.latent(embedding, torch.arange(30), labels, 3, seed=1))


def test_the_encoder_is_a_graph_convolution():
    encoder = lscale._Encoder(DATA, 7)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(3))
    dense = normalised() @ DATA.x[order].double().numpy() @ encoder.weight.detach().double().numpy()
    expected = np.where(dense > 0, dense, 0.25 * dense)
    assert encoder(order).detach().numpy() == pytest.approx(expected, abs=1e-4)


def test_infomax_tells_nodes_from_shuffled_features():
    embedding = lscale.infomax(DATA)
    assert embedding.shape == (50, 512)
    assert embedding is lscale.infomax(DATA)  # kept with the graph
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        larger = synthetic(num_nodes=300, num_edges=1200, num_features=30, num_classes=3, seed=4)
        model = lscale.trained_infomax(larger, 16)
        losses = [float(model.loss(*model(torch.arange(300))).detach()) for _ in range(20)]
    assert np.mean(losses) < 0.85 * 2 * np.log(2)  # 2 log 2 is the loss of a coin


def test_lscale_starts_from_the_embedding_alone(monkeypatch):
    points = torch.tensor([[1.0, 9.0]] * 4 + [[9.0, 1.0]] * 4) + 0.01 * torch.arange(16.0).reshape(8, 2)
    monkeypatch.setattr(lscale, "infomax", lambda data: points)
    monkeypatch.setattr(lscale, "latent", lambda *_: points)
    data = tail_graph()
    for seed in range(5):
        scene = scene_on(data, [], candidates=list(range(8)), batch=2)
        object.__setattr__(scene, "generator", np.random.default_rng(seed))
        groups = {int(node) // 4 for node in lscale.lscale(scene).nodes}
        scene = scene_on(data, [1], candidates=[0, 2, 3, 4, 5, 6, 7])
        assert int(lscale.lscale(scene).nodes[0]) >= 4  # the group of node 1 has its medoid
    assert groups <= {0, 1}
