"""Every strategy on a small graph, against a choice made by hand; and what none of them may do."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scenes import FAST, binary, scene_on, tail_graph

from jurygcn import active
from jurygcn.active import STRATEGIES, Scene
from jurygcn.active.graph_statistics import GraphStatistics, betweenness, pagerank, plain_adjacency
from jurygcn.data import Split, synthetic
from jurygcn.errors import SettingError
from jurygcn.settings import LeaveOut


def chosen(name: str, scene: Scene) -> list[int]:
    return STRATEGIES[name].choose(scene).nodes.tolist()


# --- one number per node -------------------------------------------------------------------------------------


def test_degree_takes_the_hub():
    assert chosen("degree", scene_on(tail_graph(), [7], candidates=[0, 1, 4, 5])) == [0]


def test_degree_breaks_ties_at_random():
    picks = set()
    for seed in range(30):
        scene = scene_on(tail_graph(), [7], candidates=[4, 5, 6])
        object.__setattr__(scene, "generator", np.random.default_rng(seed))
        picks.add(chosen("degree", scene)[0])
    assert picks == {4, 5, 6}


def test_centrality_counts_the_pairs_a_node_separates():
    # without 0: 1, 1, 1 and 4 nodes -> 3 + 12 pairs; without 4: 4 and 3; without 5: 5 and 2; without 6: 6 and 1
    statistics = GraphStatistics.of(tail_graph())
    assert statistics.betweenness.tolist() == [15, 0, 0, 0, 12, 10, 6, 0]
    assert chosen("centrality", scene_on(tail_graph(), [0], candidates=[1, 4, 5, 6], batch=2)) == [4, 5]


def test_pagerank_ranks_by_the_fixed_point():
    data = tail_graph()
    rank = GraphStatistics.of(data).pagerank
    A = plain_adjacency(data).toarray()
    assert np.allclose(rank, 0.85 * (A / A.sum(0)) @ rank + 0.15 / 8, atol=1e-5)
    assert chosen("pagerank", scene_on(data, [7], candidates=[1, 0, 5])) == [0]


def test_centralities_equal_networkx():
    nx = pytest.importorskip("networkx")
    data = synthetic(num_nodes=60, num_edges=200, num_features=4, num_classes=2)
    data.edge_index = data.edge_index[:, (data.edge_index < 50).all(dim=0)]  # some isolated nodes
    adjacency = plain_adjacency(data)
    graph = nx.from_scipy_sparse_array(adjacency)
    assert np.allclose(list(nx.betweenness_centrality(graph, normalized=False).values()), betweenness(adjacency))
    assert np.allclose(list(nx.pagerank(graph).values()), pagerank(adjacency))


def test_sampled_betweenness_is_scaled_to_all_sources():
    adjacency = plain_adjacency(synthetic(num_nodes=200, num_edges=800, num_features=4, num_classes=2))
    exact, sampled = betweenness(adjacency), betweenness(adjacency, pivots=100)
    assert sampled.sum() == pytest.approx(exact.sum(), rel=0.1)
    assert np.corrcoef(exact, sampled)[0, 1] > 0.9


def test_random_is_uniform():
    counts = np.zeros(8)
    for seed in range(400):
        scene = scene_on(tail_graph(), [0], candidates=[2, 3, 5, 6], batch=2)
        object.__setattr__(scene, "generator", np.random.default_rng(seed))
        counts[chosen("random", scene)] += 1
    assert counts[[0, 1, 4, 7]].sum() == 0
    assert counts[[2, 3, 5, 6]] == pytest.approx(200, abs=40)


def test_entropy_and_margin():
    three = [[0.5, 0.5, 0.0], [0.4, 0.3, 0.3], [0.9, 0.05, 0.05], *[[1.0, 0.0, 0.0]] * 5]
    data = tail_graph()
    data.num_classes = 3
    assert chosen("entropy", scene_on(data, [7], candidates=[0, 1, 2], probabilities=three)) == [1]
    assert chosen("margin", scene_on(data, [7], candidates=[0, 1, 2], probabilities=three)) == [0]


def test_jury_and_ambiguity_take_the_top_of_the_verdict():
    width = torch.tensor([0.1, 0.9, 0.3, 0.2, 0.8, 0.0, 0.0, 0.0])
    verdict = SimpleNamespace(width=width, ambiguity=1 - width)
    asked = []

    def jury(**settings):
        asked.append(settings)
        return SimpleNamespace(verdict=lambda **_: verdict)

    for name, nodes in (("jury", [4, 2]), ("jury-printed", [4, 2]), ("jury-ambiguity", [0, 2])):
        scene = scene_on(tail_graph(), [1], candidates=[0, 2, 4], batch=2, verdict=verdict, jury=jury)
        assert chosen(name, scene) == nodes
    # the paper's jurors, corrected and as printed
    assert asked == [{"leave_out": LeaveOut("influence")}, {"leave_out": LeaveOut("printed")}]


def test_jury_is_the_width_of_a_real_jury():
    data = tail_graph()
    scene = scene_on(data, [0, 1, 6, 7], candidates=[2, 3, 4, 5], batch=2, trained=True)
    verdict = scene.jury(leave_out="influence").verdict(advice=None)
    widest = sorted((float(verdict.width[node]) for node in [2, 3, 4, 5]), reverse=True)[:2]
    assert [float(verdict.width[node]) for node in chosen("jury", scene)] == pytest.approx(widest)


# --- clusters ------------------------------------------------------------------------------------------------

PLANE = [[0.0, 0.0], [0.2, 0.0], [0.1, 0.0], [5.0, 5.0], [5.0, 5.2], [5.0, 5.1], [9.0, 0.0], [0.0, 0.0]]


def test_coreset_takes_the_node_nearest_to_each_centre():
    scene = scene_on(tail_graph(), [7], candidates=[0, 1, 2, 3, 4, 5], batch=2, hidden=PLANE)
    assert sorted(chosen("coreset", scene)) == [2, 5]


def test_coreset_resolves_duplicates():
    scene = scene_on(tail_graph(), [7], candidates=[0, 1, 2], batch=3, hidden=[[1.0, 1.0]] * 8)
    with pytest.warns(match="distinct clusters"):
        assert sorted(chosen("coreset", scene)) == [0, 1, 2]


def test_coreset_greedy_goes_far_and_then_far_from_there():
    # from (0, 0) node 6 is 9 away, nodes 3, 4, 5 about 7.1; from node 6 they are still 6.4 away
    scene = scene_on(tail_graph(), [7], candidates=[0, 1, 2, 3, 4, 5, 6], batch=2, hidden=PLANE)
    assert chosen("coreset-greedy", scene) == [6, 4]


def test_density_takes_the_most_typical_prediction():
    # clusters {0.9, 0.8, 0.7} and {0.1, 0.14, 0.2}: centres 0.8 and 0.1467; node 1 sits on the first
    probabilities = binary(0.9, 0.8, 0.7, 0.1, 0.14, 0.2, 0.8, 0.8)
    assert chosen("density", scene_on(tail_graph(), [6], candidates=[0, 1, 2, 3, 5], probabilities=probabilities)) == [
        1
    ]


def test_featprop_takes_the_medoid_of_the_cluster_without_a_label():
    scene = scene_on(
        tail_graph(), [7], candidates=[0, 1, 2, 3, 4, 5], statistics=SimpleNamespace(propagated=np.array(PLANE))
    )
    assert chosen("featprop", scene) == [5]


def test_badge_takes_the_longest_gradient_first_and_no_twin():
    hidden = [[1.0, 0.0]] * 4 + [[3.0, 0.0], [3.0, 0.0], [0.0, 2.0], [0.0, 0.0]]
    probabilities = binary(0.9, 0.9, 0.9, 0.9, 0.6, 0.6, 0.6, 0.5)
    # nodes 4 and 5 have the same gradient: the longest; 4 comes first, its twin is at distance 0
    for seed in range(20):
        scene = scene_on(
            tail_graph(), [7], candidates=[0, 4, 5, 6], batch=3, hidden=hidden, probabilities=probabilities
        )
        object.__setattr__(scene, "generator", np.random.default_rng(seed))
        picks = chosen("badge", scene)
        assert picks[0] == 4
        assert sorted(picks) == [0, 4, 6]


# --- what holds for all --------------------------------------------------------------------------------------

THREE_STEPS = {"initial": 6, "budget": 24, "step": 6, "seed": 1, "recipe": FAST}


@pytest.fixture(scope="module")
def holes():
    """A graph with unlabelled nodes and a split that leaves some nodes out of everything."""
    data = synthetic(num_nodes=120, num_edges=500, num_features=12, num_classes=3)
    data.name = "holes"
    data.y[::10] = -1
    known = (data.y >= 0).nonzero()[:, 0]
    return data, Split(known[:60], known[60:75], known[75:100])


@pytest.fixture(scope="module", params=STRATEGIES)
def run_of(request, holes):
    """The name of a strategy, and a run of it."""
    data, split = holes
    return request.param, active.run(data, request.param, **THREE_STEPS, split=split)


def test_no_strategy_leaves_the_pool(run_of, holes):
    data, split = holes
    _, history = run_of
    nodes = history.labelled
    assert len(nodes.unique()) == 24
    assert torch.isin(nodes, split.pool).all()
    assert not torch.isin(nodes, torch.cat([split.val, split.test])).any()
    assert (data.y[nodes] >= 0).all()
    assert history.labels.equal(data.y[nodes])
    assert history.to_frame()["labels"].tolist() == [6, 12, 18, 24]


def test_no_strategy_sees_a_label_that_was_not_asked_for(run_of, holes):
    """The same choices when every other label is a lie: the oracle alone knows the truth."""
    data, split = holes
    name, honest = run_of
    lying = data.clone()
    lying.name = data.name
    lying.y = (data.y + 1) % 3
    told = active.run(lying, name, **THREE_STEPS, split=split, oracle=active.truth(data))
    assert told.labelled.equal(honest.labelled)
    assert told.steps[-1].accuracy != honest.steps[-1].accuracy  # only the measuring saw the lie


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_whole_pool_can_be_labelled(name, holes):
    data, split = holes
    small = Split(split.pool[:14], split.val, split.test)
    history = active.run(data, name, initial=4, budget=14, step=5, split=small, recipe=FAST)
    assert history.labelled.sort().values.equal(small.pool)


def test_scenes_hide_labels_and_share_the_graph():
    data = tail_graph()
    scene = scene_on(data, [0, 5], candidates=[1])
    assert scene.data.y.tolist() == [0, -1, -1, -1, -1, 1, -1, -1]
    assert scene.data.edge_index is data.edge_index
    assert data.y.min() >= 0


NEED_NO_LABEL = (
    *("jury-design", "featprop", "pagerank", "centrality", "degree", "random", "sopt"),
    *("graphpart", "graphpart-far", "lscale", "rim"),
)


@pytest.mark.parametrize("name", NEED_NO_LABEL)
def test_some_strategies_need_no_label(name):
    assert len(chosen(name, scene_on(tail_graph(), [], candidates=[1, 2, 5, 6], batch=2))) == 2


@pytest.mark.parametrize("name", ["entropy", "jury", "age", "coreset"])
def test_the_others_say_that_they_do(name):
    with pytest.raises(SettingError, match="label some at random first"):
        chosen(name, scene_on(tail_graph(), [], candidates=[1, 2, 5, 6]))


def test_a_bad_strategy_is_refused(holes):
    data, split = holes
    for nodes, message in (([0, 1], "candidates only"), ([split.pool[0]] * 2, "2 different nodes")):
        with pytest.raises(SettingError, match=message):
            active.run(
                data,
                lambda scene, nodes=nodes: scene.choice(nodes, [0.0] * len(nodes)),
                initial=2, budget=4, step=2, split=split, recipe=FAST, oracle=lambda n: [0] * len(n),
            )  # fmt: skip
    with pytest.raises(SettingError, match=r"to return a Choice, got list; return scene.top\(scores\)"):
        active.run(data, lambda scene: [0, 1], initial=2, budget=4, step=2, split=split, recipe=FAST)
    with pytest.raises(SettingError, match="got 'jurry'"):
        active.run(data, "jurry", split=split)
