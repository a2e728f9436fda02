"""Coverage of label sets in groups, and distances, against loops."""

from __future__ import annotations

import math

import networkx as nx
import pytest
import torch

from jurygcn.errors import DataError
from jurygcn.evaluation import (
    coverage_by,
    coverage_by_class,
    coverage_by_degree,
    coverage_by_distance,
    coverage_by_size,
    distance_to_labels,
    empty_fraction,
    singleton_accuracy,
)

TRUTH = torch.tensor([0, 1, 2, 2, 1, 0])
SETS = torch.tensor([[1, 0, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 1], [0, 1, 0]], dtype=torch.bool)


def test_sizes_and_singletons():
    assert empty_fraction(SETS) == pytest.approx(1 / 6)
    assert singleton_accuracy(SETS, TRUTH) == pytest.approx(1 / 2)
    assert math.isnan(singleton_accuracy(torch.ones(2, 3), [0, 1]))


def test_groups_against_a_loop():
    groups = ["b", "a", "b", "b", "a", "a"]
    found = coverage_by(SETS, TRUTH, groups)
    assert found["group"].tolist() == ["a", "b"]
    for row in found.itertuples():
        mine = [u for u in range(6) if groups[u] == row.group]
        assert row.nodes == len(mine)
        assert row.coverage == pytest.approx(sum(bool(SETS[u, TRUTH[u]]) for u in mine) / len(mine))
        assert row.mean_size == pytest.approx(sum(int(SETS[u].sum()) for u in mine) / len(mine))


def test_by_class_size_degree_and_distance():
    assert coverage_by_class(SETS, TRUTH)["coverage"].tolist() == pytest.approx([1 / 2, 1 / 2, 1 / 2])
    by_size = coverage_by_size(SETS, TRUTH)
    assert by_size["group"].tolist() == [0, 1, 2, 3]
    assert by_size["coverage"].tolist() == pytest.approx([0, 1 / 2, 1 / 2, 1])
    by_degree = coverage_by_degree(SETS, TRUTH, [0, 1, 2, 3, 4, 5])
    assert by_degree["group"].tolist() == ["0", "1", "2", "3-4", "5-8"]
    assert by_degree["coverage"].tolist() == pytest.approx([1, 0, 1, 1 / 2, 0])
    assert coverage_by_distance(SETS, TRUTH, [-1, 0, 0, 1, 1, 1])["nodes"].tolist() == [1, 2, 3]


def test_distance_to_labels():
    graph = nx.disjoint_union(nx.gnp_random_graph(40, 0.06, seed=1), nx.path_graph(3))
    edges = torch.tensor(list(graph.edges)).T
    train = [3, 17]
    expected = [-1] * 43
    for source in train:
        for node, steps in nx.single_source_shortest_path_length(graph, source).items():
            expected[node] = steps if expected[node] < 0 else min(expected[node], steps)
    assert distance_to_labels(edges, torch.tensor(train), num_nodes=43).tolist() == expected
    assert expected[40:] == [-1, -1, -1]
    nowhere = torch.empty((2, 0), dtype=torch.long)
    assert distance_to_labels(nowhere, torch.tensor([1]), num_nodes=3).tolist() == [-1, 0, -1]
    with pytest.raises(DataError, match=r"0\.\.2"):
        distance_to_labels(nowhere, torch.tensor([3]), num_nodes=3)
