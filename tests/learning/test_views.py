"""The features that teachers use: averages and principal components, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_graphs import communities
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.self_training.feature_views import FeatureView, feature_views

DATA = communities()


def features_by_view(data: Data, hops: tuple[int, ...], components: tuple[int, ...] = ()) -> dict[FeatureView, Tensor]:
    return {view: graph.x for view, graph in feature_views(data, hops, components)}


def averaged_by_hand(hops: int) -> Tensor:
    """Averages over closed neighbourhoods, in rows of length 1."""
    A = torch.eye(150)
    A[DATA.edge_index[1], DATA.edge_index[0]] = 1.0
    x = torch.linalg.matrix_power(A / A.sum(dim=1, keepdim=True), hops) @ DATA.x
    return x / x.norm(dim=1, keepdim=True)


def test_averaging_by_hand():
    for scale, length in ((5.0, 5 * DATA.x.norm(dim=1).mean()), (0.01, 1.0)):  # as long as the graph's own, at least 1
        scaled = Data(x=scale * DATA.x, edge_index=DATA.edge_index)
        found = features_by_view(scaled, (3, 2))
        assert list(found) == [FeatureView(2), FeatureView(3)]
        for hops in (2, 3):
            torch.testing.assert_close(found[FeatureView(hops)], length * averaged_by_hand(hops))
    for _, graph in feature_views(DATA, (0, 1), (2,)):
        assert torch.equal(graph.y, DATA.y)
        assert torch.equal(graph.edge_index, DATA.edge_index)


@pytest.mark.parametrize("count", [2, 4])
def test_components_by_singular_values(count: int):
    rows = averaged_by_hand(2).double()
    left, _, _ = torch.linalg.svd(rows - rows.mean(dim=0), full_matrices=False)
    expected = left[:, :count] / left[:, :count].norm(dim=1, keepdim=True)
    found = features_by_view(DATA, (2,), (2, 4))[FeatureView(2, count)].double()
    # singular vectors have no sign of their own: what two nodes have in common is compared
    torch.testing.assert_close(found @ found.T, expected @ expected.T, rtol=0, atol=1e-5)
    assert torch.equal(features_by_view(DATA, (2,), (2, 4))[FeatureView(2, count)].double(), found), (
        "the same every time"
    )


def test_there_are_no_more_components_than_there_are():
    generator = np.random.default_rng(0)
    flat = generator.normal(size=(150, 3)) @ generator.normal(size=(3, 12))  # rank 3; rows of length 1 keep it
    data = Data(x=torch.tensor(flat, dtype=torch.float32), edge_index=DATA.edge_index)
    assert [view.components for view in features_by_view(data, (0,), (2, 5, 10))] == [None, 2, 3]
    alike = Data(x=torch.ones(150, 4), edge_index=DATA.edge_index)
    assert list(features_by_view(alike, (0, 2), (5,))) == [FeatureView(0), FeatureView(2)]
    one = Data(x=torch.ones(150, 1), edge_index=DATA.edge_index)
    assert list(features_by_view(one, (0,), (5,))) == [FeatureView(0)]
    empty = Data(x=torch.zeros(150, 4), edge_index=DATA.edge_index)
    assert bool((features_by_view(empty, (0,), (5,))[FeatureView(0)] == 0).all())
