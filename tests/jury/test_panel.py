"""The panel of regressions against refitting without each label, and its views against dense products."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot
from torch_geometric.data import Data

from jurygcn.data import synthetic
from jurygcn.graph import similarity
from jurygcn.graph.similarity import HOPS, STEPS, Similarities
from jurygcn.leave_one_out import panel as panels
from jurygcn.leave_one_out.panel import RIDGES, Panel

NODES = torch.arange(0, 60, 3)


def graph(features: int = 8, **settings: float) -> Data:
    return synthetic(num_nodes=90, num_edges=240, num_features=features, num_classes=3, seed=1, **settings)


def dense_mean(data: Data) -> Tensor:
    closed = torch.eye(int(data.num_nodes), dtype=torch.float64)
    closed[data.edge_index[1], data.edge_index[0]] = 1.0
    return closed / closed.sum(dim=1, keepdim=True)


def targets_of(data: Data, nodes: Tensor = NODES) -> Tensor:
    return one_hot(data.y[nodes], 3).double() - 1 / 3


def refitted(design: Tensor, targets: Tensor, ridge: float) -> Tensor:
    penalty = ridge * torch.eye(design.shape[1], dtype=torch.float64)
    return torch.linalg.solve(design.T @ design + penalty, design.T @ targets)


def check_left_out(data: Data, nodes: Tensor, targets: Tensor) -> None:
    """Predictions without label i at all nodes, for every member and label, against a new fit of the other labels."""
    panel = Panel(data, nodes, targets)
    assert len(panel.members) == len(RIDGES) * len(Similarities.of(data).views) > 0
    for member in panel.members:
        features = panel.features(member.design)
        hat = features @ member.design.hat(member.ridge)
        torch.testing.assert_close(hat @ targets, features @ refitted(features[nodes], targets, member.ridge))
        for i in range(len(nodes)):
            others = [j for j in range(len(nodes)) if j != i]
            expected = features @ refitted(features[nodes[others]], targets[others], member.ridge)
            found = hat @ targets - hat[:, [i]] * member.errors[i]
            torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
            torch.testing.assert_close(member.own[i], expected[nodes[i]], atol=1e-10, rtol=1e-10)


def test_views_of_features_by_definition():
    """Dense means of rows of length 1 over closed neighbourhoods, again of length 1, centred, of mean square 1."""
    data = graph()
    located = Similarities.of(data).at(NODES)
    views = [view for view in located.rows if view.of_features]
    assert [view.hops for view in views] == list(HOPS)
    for view in views:
        x = torch.linalg.matrix_power(dense_mean(data), view.hops) @ normalize(data.x.double())
        x = x / x.norm(dim=1, keepdim=True)
        spread = (x - x.mean(dim=0)).square().sum(dim=1).mean().sqrt()
        x = (x - x.mean(dim=0)) / spread
        torch.testing.assert_close(located.columns(view), x @ x[NODES].T, atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(located.gram(view), x[NODES] @ x[NODES].T, atol=1e-9, rtol=1e-9)


def test_views_of_walks_by_definition():
    data = graph()
    located, mean = Similarities.of(data).at(NODES), dense_mean(data)
    views = [view for view in located.rows if not view.of_features]
    assert [view.hops for view in views] == list(STEPS)
    for view in views:
        rows = torch.linalg.matrix_power(mean, view.hops)
        bound = torch.linalg.matrix_power(mean, view.hops - 1) @ mean.square().sum(dim=1)
        assert (rows.square().sum(dim=1) <= bound + 1e-12).all()
        rows = rows / bound.sqrt()[:, None]
        torch.testing.assert_close(located.columns(view), rows @ rows[NODES].T, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(located.gram(view), rows[NODES] @ rows[NODES].T, atol=1e-10, rtol=1e-10)


def test_lengths_of_many_features_are_measured_in_random_directions():
    """Rows of 400 features: lengths within a fifth of the true ones, and products with the true averages."""
    data = graph(400)
    located = Similarities.of(data).at(NODES)
    for view in (view for view in located.rows if view.of_features):
        x = torch.linalg.matrix_power(dense_mean(data), view.hops) @ normalize(data.x.double())
        scale = view.scale
        lengths = scale * x.norm(dim=1)
        assert (lengths / lengths.mean() - 1).abs().max() < 0.5
        assert (lengths / lengths.mean() - 1).abs().mean() < 0.12
        rows = scale[:, None] * x
        rows = rows - rows.mean(dim=0)
        torch.testing.assert_close(located.columns(view), rows @ rows[NODES].T, atol=1e-9, rtol=1e-9)


def test_predictions_without_each_label_are_exact():
    data = graph()
    check_left_out(data, NODES, targets_of(data))


def test_predictions_without_each_target_of_a_regression_are_exact():
    data = graph()
    targets = torch.randn(len(NODES), 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    check_left_out(data, NODES, 30.0 + 5.0 * targets)


def test_predictions_of_many_labels_are_exact(monkeypatch: pytest.MonkeyPatch):
    """Views spanned by some of the labelled nodes."""
    monkeypatch.setattr(panels, "MOST_LANDMARKS", 7)
    data = graph()
    assert Panel(data, NODES, targets_of(data)).members[0].design.basis.shape[0] == 7
    check_left_out(data, NODES, targets_of(data))


def test_landmarks_that_are_all_labels_change_nothing(monkeypatch: pytest.MonkeyPatch):
    data = graph()
    plain = Panel(data, NODES, targets_of(data))
    monkeypatch.setattr(panels, "MOST_LANDMARKS", len(NODES) - 1)
    monkeypatch.setattr(panels, "_landmarks", lambda nodes: nodes)
    for mine, other in zip(plain.members, Panel(data, NODES, targets_of(data)).members):
        torch.testing.assert_close(mine.own, other.own, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("features", ["identity", "constant", "zero"])
def test_nodes_without_features_have_a_panel(features: str):
    data = graph(homophily=0.95)
    N = int(data.num_nodes)
    data.x = {"identity": torch.eye(N), "constant": torch.ones(N, 1), "zero": torch.zeros(N, 3)}[features]
    views = Similarities.of(data).views
    assert [view.of_features for view in views].count(True) == (len(HOPS) if features == "identity" else 0)
    check_left_out(data, NODES, targets_of(data))
    panel = Panel(data, NODES, targets_of(data))
    best = min(panel.members, key=lambda member: float(member.errors.square().sum()))
    hat = panel.features(best.design) @ best.design.hat(best.ridge)
    others = torch.ones(N, dtype=torch.bool).index_fill_(0, NODES, False)
    assert float(((hat @ panel.targets).argmax(dim=1) == data.y)[others].double().mean()) > 0.5


def test_a_graph_without_edges_has_its_own_features_only():
    data = graph()
    data.edge_index = torch.empty(2, 0, dtype=torch.long)
    assert {view.of_features for view in Similarities.of(data).views} == {True}
    check_left_out(data, NODES, targets_of(data))


def test_the_order_of_nodes_does_not_matter():
    data = graph(100)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(3))
    place = order.argsort()
    other = copy.copy(data)
    other.x, other.y, other.edge_index = data.x[order], data.y[order], place[data.edge_index]
    mine, theirs = Panel(data, NODES, targets_of(data)), Panel(other, place[NODES], targets_of(data))
    for one, two in zip(mine.members, theirs.members):
        torch.testing.assert_close(one.own, two.own, atol=1e-8, rtol=1e-8)


def test_views_that_are_rounding_are_left_out():
    """Every node is joined to every other: after one average all rows are equal."""
    data = graph()
    pairs = torch.cartesian_prod(torch.arange(90), torch.arange(90)).T
    data.edge_index = pairs[:, pairs[0] != pairs[1]]
    assert [view.hops for view in Similarities.of(data).views if view.of_features] == [0]


def test_views_are_kept_with_the_graph(monkeypatch: pytest.MonkeyPatch):
    data = graph()
    first = Similarities.of(data)
    assert Similarities.of(data) is first
    monkeypatch.setattr(similarity, "HOPS", (0,))
    data.x = data.x + 1.0
    assert Similarities.of(data) is not first
