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
from jurygcn.graph.leading import leading_rows
from jurygcn.graph.similarity import AVERAGES, CHANGES, DIFFERENCES, HOPS, STEPS, Similarities, View
from jurygcn.leave_one_out import panel as panels
from jurygcn.leave_one_out.panel import RIDGES, Member, Panel, decomposed, with_constant

NODES = torch.arange(0, 60, 3)


def graph(features: int = 8, **settings: float) -> Data:
    return synthetic(num_nodes=90, num_edges=240, num_features=features, num_classes=3, seed=1, **settings)


def dense_mean(data: Data) -> Tensor:
    closed = torch.eye(int(data.num_nodes), dtype=torch.float64)
    closed[data.edge_index[1], data.edge_index[0]] = 1.0
    return closed / closed.sum(dim=1, keepdim=True)


def dense_rows(data: Data, view: View) -> Tensor:
    """A view's rows of features by definition, before they are scaled and centred."""
    x, mean = normalize(data.x.double()), dense_mean(data)
    if view.kind == AVERAGES:
        degree = (mean > 0).double().sum(dim=1)
        symmetric = (mean > 0) / (degree[:, None] * degree).sqrt()
        return torch.linalg.matrix_power(symmetric, view.hops) @ x
    x = torch.linalg.matrix_power(mean, view.hops) @ x
    return x - mean @ x


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
        features = with_constant(panel.columns(member.design) @ member.design.basis)
        hat = hat_of(panel, member)
        torch.testing.assert_close(hat @ targets, features @ refitted(features[nodes], targets, member.ridge))
        for i in range(len(nodes)):
            others = [j for j in range(len(nodes)) if j != i]
            expected = features @ refitted(features[nodes[others]], targets[others], member.ridge)
            found = hat @ targets - hat[:, [i]] * member.errors[i]
            torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)
            torch.testing.assert_close(member.own[i], expected[nodes[i]], atol=1e-10, rtol=1e-10)


def hat_of(panel: Panel, member: Member) -> Tensor:
    coefficients, offset = member.design.coefficients(member.ridge)
    return panel.columns(member.design) @ coefficients + offset


def test_views_of_features_by_definition():
    """Dense averages and differences of rows of length 1, again of length 1, centred, of mean square 1."""
    data = graph()
    located = Similarities.of(data).at(NODES)
    views = [view for view in located.rows if view.of_features]
    assert [view.hops for view in views if view.kind == AVERAGES] == list(HOPS)
    assert [view.hops for view in views if view.kind == CHANGES] == list(DIFFERENCES)
    for view in views:
        x = normalize(dense_rows(data, view), eps=1e-9)  # a node without neighbours has no difference to them
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


def test_products_and_sums_of_all_rows_are_transposes_of_each_other():
    similarities = Similarities.of(graph())
    for view in similarities.views:
        values = torch.randn(90, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        by_nodes = similarities.at(torch.arange(90)).rows[view] @ values
        torch.testing.assert_close(similarities.pulled(view, values), by_nodes, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("shape", [(7, 12), (12, 7)])
def test_rows_are_decomposed_by_their_smaller_gram_matrix(shape):
    """Also where they have a lower rank: singular values of nearly 0 are left out."""
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, 0] = rows[:, 1]
    rows[1] = rows[0]
    U, s, V = decomposed(rows)
    assert len(s) == 6
    torch.testing.assert_close(U * s @ V.T, rows, atol=1e-9, rtol=1e-9)
    for vectors in (U, V):
        torch.testing.assert_close(vectors.T @ vectors, torch.eye(6).double(), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("few", [3, 200])
def test_leading_rows_are_as_near_as_any_of_so_few_dimensions(few):
    similarities = Similarities.of(graph())
    for view in similarities.views:
        rows = similarities.at(torch.arange(90)).rows[view].T
        squares = torch.linalg.svdvals(rows).square()
        found = leading_rows(similarities, view, few)
        missed = (rows @ rows.T - found @ found.T).norm()
        assert missed < 1.02 * squares[few:].norm() + 1e-10 * squares.norm()


def test_lengths_of_many_features_are_measured_in_random_directions():
    """Rows of 400 features: lengths within a fifth of the true ones, and products with the true averages."""
    data = graph(400)
    located = Similarities.of(data).at(NODES)
    for view in (view for view in located.rows if view.of_features):
        x = dense_rows(data, view)
        scale = view.scale
        lengths = (scale * x.norm(dim=1))[scale > 0]  # nodes without neighbours have no difference to them
        assert len(lengths) > 60
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
    assert [view.of_features for view in views].count(True) == (
        len(HOPS) + len(DIFFERENCES) if features == "identity" else 0
    )
    check_left_out(data, NODES, targets_of(data))
    panel = Panel(data, NODES, targets_of(data))
    best = min(panel.members, key=lambda member: float(member.errors.square().sum()))
    hat = hat_of(panel, best)
    others = torch.ones(N, dtype=torch.bool).index_fill_(0, NODES, False)
    assert float(((hat @ panel.targets).argmax(dim=1) == data.y)[others].double().mean()) > 0.5


def test_a_graph_without_edges_has_its_own_features_only():
    data = graph()
    data.edge_index = torch.empty(2, 0, dtype=torch.long)
    assert {view.of_features for view in Similarities.of(data).views} == {True}
    check_left_out(data, NODES, targets_of(data))


def test_predictions_without_two_labels_are_exact():
    """Of label j by a new fit without labels i and j, also of some labels only."""
    data = graph()
    targets = targets_of(data)
    panel, some = Panel(data, NODES, targets), torch.tensor([1, 4, 5, 11, 17])
    shared = torch.randn(1, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = panel.pairs(some, shared)
    learners = list(range(1 + len(panel.members)))
    found = pairs.predictions(learners, torch.arange(5))  # (i, learner, j, C)
    weights = torch.randn(5, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(pairs.sums(weights, torch.arange(5)), torch.einsum("ijc,ikjc->ki", weights, found))
    assert found[:, 0].equal(shared.expand(5, -1, -1))
    for k, member in enumerate(panel.members[::5]):
        rows = with_constant(panel.columns(member.design) @ member.design.basis)[NODES]
        for i, one in enumerate(some.tolist()):
            for j, two in enumerate(some.tolist()):
                others = [v for v in range(len(NODES)) if v not in (one, two)]
                expected = rows[two] @ refitted(rows[others], targets[others], member.ridge)
                torch.testing.assert_close(found[i, 1 + 5 * k, j], expected, atol=1e-10, rtol=1e-10)


def test_similarities_in_float32_are_nearly_those_in_float64():
    data = graph(100)
    exact, rounded = Similarities.of(data).at(NODES), Similarities.of(data).at(NODES, torch.float32)
    for view in exact.rows:
        assert rounded.columns(view).dtype == torch.float32
        torch.testing.assert_close(rounded.columns(view).double(), exact.columns(view), atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(rounded.gram(view).double(), exact.gram(view), atol=2e-5, rtol=1e-5)
    mine = Panel(data, NODES, targets_of(data))
    theirs = Panel(data, NODES, targets_of(data), dtype=torch.float32)
    for one, two in zip(mine.members, theirs.members):
        torch.testing.assert_close(one.own, two.own, atol=1e-4, rtol=1e-4)


def test_views_that_differ_little_are_multiplied_in_float64(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(similarity, "DELICATE", 0.8)
    data = graph()
    located = Similarities.of(data).at(NODES, torch.float32)
    kinds = {view.delicate: located.columns(view).dtype for view in located.rows}
    assert kinds == {True: torch.float64, False: torch.float32}


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
    assert [(view.kind, view.hops) for view in Similarities.of(data).views if view.of_features] == [
        (AVERAGES, 0),
        (CHANGES, 0),
    ]


def test_views_are_kept_with_the_graph(monkeypatch: pytest.MonkeyPatch):
    data = graph()
    first = Similarities.of(data)
    assert Similarities.of(data) is first
    monkeypatch.setattr(similarity, "HOPS", (0,))
    data.x = data.x + 1.0
    assert Similarities.of(data) is not first
