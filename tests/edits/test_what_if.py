"""Edits against brute force: every kind, sums, isolation, and edits that change nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from edited_cases import DECAY, EDITS, Naive, edited_by_hand, edits, models, predicted, small
from torch import Tensor, nn

from jurygcn import Jury, LeaveOut
from jurygcn.edits.base import base_of
from jurygcn.edits.edit import changes_of, edit_of
from jurygcn.edits.steps import Objectives
from jurygcn.edits.what_if import EditHealth, Walk
from jurygcn.errors import DataError, SettingError
from jurygcn.graph.edited import edited_graph
from jurygcn.models import train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def jury_of(name: str, loss: str, *, epochs: int = 60) -> tuple[Jury, nn.Module]:
    data, nodes = small(regression=loss == "mse")
    model = models(name)
    train(model, data, nodes, epochs=epochs, weight_decay=DECAY, loss=loss, seed=0)
    settings = LeaveOut(decay="stated", dropout_masks=0)
    return Jury(model, data, nodes, loss=loss, weight_decay=DECAY, leave_out=settings), model


JURIES = {
    (name, loss): jury_of(name, loss) for name in ("linear", "gcn", "deep", "gat") for loss in ("cross_entropy", "mse")
}


def naive_pair(jury: Jury, model: nn.Module, edit: dict[str, Any]) -> tuple[Naive, Naive]:
    data, nodes = edited_by_hand(jury.data, jury.train_nodes, edit)
    loss, n = jury.engine.loss.name, len(jury.train_nodes)
    return (
        Naive(model, jury.data, jury.train_nodes.tolist(), loss=loss, count=n),
        Naive(model, data, nodes, loss=loss, count=n),
    )


@pytest.mark.parametrize("case", JURIES, ids="-".join)
@pytest.mark.parametrize("kind", EDITS)
def test_the_step_is_newtons_on_the_edited_graph(case: tuple[str, str], kind: str) -> None:
    """-H'^-1 (F' - F) with dense matrices by automatic differentiation; predictions by whole forward passes."""
    jury, model = JURIES[case]
    edit = edits(jury.data)[kind]
    old, new = naive_pair(jury, model, edit)
    theta = old.theta
    wanted = -torch.linalg.solve(new.gauss_newton(theta), new.gradient(theta) - old.gradient(theta))
    found = Objectives(base_of(jury), [edit_of(jury.engine, **edit)]).steps(tolerance=1e-12)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-9)

    result = jury.what_if(**edit)
    loss, there = case[1], torch.ones(12, dtype=torch.bool)
    there[edit.get("remove_nodes", [])] = False
    with torch.no_grad():
        torch.testing.assert_close(result.before, predicted(old.outputs(theta), loss))
        torch.testing.assert_close(result.direct[there], predicted(new.outputs(theta), loss)[there])
        after = predicted(new.outputs(theta + result.step), loss)
    torch.testing.assert_close(result.after[there], after[there])
    torch.testing.assert_close(result.step, wanted, rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(
        result.before + result.direct_effect + result.parameter_effect, result.after, equal_nan=True
    )
    assert bool(result.after[~there].isnan().all())
    assert sorted(result.train_nodes.tolist()) == sorted(new.nodes)


@pytest.mark.parametrize("kind", EDITS)
def test_of_a_quadratic_objective_one_step_is_retraining(kind: str) -> None:
    jury, model = JURIES["linear", "mse"]
    edit = edits(jury.data)[kind]
    old, new = naive_pair(jury, model, edit)
    start = old.gradient(old.theta)  # training stopped early: the retrained model keeps this gradient
    retrained = new.minimum(old.theta, lambda theta: new.gradient(theta) - start)
    result = jury.what_if(**edit)
    torch.testing.assert_close(result.theta, retrained, rtol=1e-4, atol=1e-5)
    assert result.health.remaining < 1e-3


@pytest.mark.parametrize("kind", EDITS)
def test_of_a_convex_objective_several_steps_are_retraining(kind: str) -> None:
    jury, model = JURIES["linear", "cross_entropy"]
    edit = edits(jury.data)[kind]
    old, new = naive_pair(jury, model, edit)
    start = old.gradient(old.theta)
    retrained = new.minimum(old.theta, lambda theta: new.gradient(theta) - start)
    one, many = jury.what_if(**edit), jury.what_if(**edit, steps=40)
    step = (retrained - old.theta).norm()
    assert (many.theta - retrained).norm() < 1e-3 * step
    assert many.health.remaining < 1e-3
    assert (one.theta - retrained).norm() < 0.5 * step, "one step goes most of the way"


@pytest.mark.parametrize("case", JURIES, ids="-".join)
def test_without_a_change_nothing_moves_at_all(case: tuple[str, str]) -> None:
    jury, _ = JURIES[case]
    data = jury.data
    same_label = {int(jury.train_nodes[0]): data.y[jury.train_nodes[0]]}
    for edit in ({}, {"change_features": {1: data.x[1].clone()}}, {"change_labels": same_label}):
        result = jury.what_if(**edit)
        assert torch.equal(result.before, result.direct)
        assert torch.equal(result.before, result.after)
        assert not bool(result.step.any())
        assert result.health.affected == 0
        assert result.health.remaining == 0.0


def test_an_edit_out_of_every_labels_reach_moves_no_parameter() -> None:
    from cases import graph

    data = graph("isolated")  # 0-1-2-3 and 4-5, node 6 alone
    model, nodes = models("gcn"), torch.tensor([0, 1])
    train(model, data, nodes, epochs=50, weight_decay=DECAY)
    result = Jury(model, data, nodes, weight_decay=DECAY).what_if(remove_edges=[(4, 5)])
    assert not bool(result.step.any())
    assert bool(result.direct_effect[[4, 5]].abs().sum(dim=1).gt(0).all())
    assert not bool(result.direct_effect[[0, 1, 2, 3, 6]].any())


@pytest.mark.parametrize("case", [("gcn", "cross_entropy"), ("gat", "cross_entropy"), ("gcn", "mse")], ids="-".join)
def test_taking_a_label_away_is_leaving_it_out(case: tuple[str, str]) -> None:
    jury, _ = JURIES[case]
    steps = jury.fit().jurors.steps
    for i, node in enumerate(jury.train_nodes.tolist()):
        edit = edit_of(jury.engine, change_labels={node: None})
        found = Objectives(base_of(jury), [edit]).steps(tolerance=1e-10)[0]
        torch.testing.assert_close(found, steps[i].double(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["gcn", "gat", "deep"])
def test_many_edits_at_once_are_the_same_as_one_by_one(name: str) -> None:
    jury, _ = JURIES[name, "cross_entropy"]
    made = [edit_of(jury.engine, **edit) for edit in edits(jury.data).values()]
    base = base_of(jury)
    together = Objectives(base, made).steps(tolerance=1e-10)
    for row, edit in zip(together, made, strict=True):
        torch.testing.assert_close(row, Objectives(base, [edit]).steps(tolerance=1e-10)[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["gcn", "gat", "deep"])
def test_edits_share_the_rows_that_none_of_them_changes(name: str) -> None:
    jury, model = JURIES[name, "cross_entropy"]
    parts = edits(jury.data)
    made = [edit_of(jury.engine, **edit) for edit in parts.values()]
    pairs = torch.cartesian_prod(torch.arange(len(made)), torch.arange(12))
    hops = 3 if name == "deep" else 2
    found = edited_graph(jury.data, pairs[:, 1], hops, changes_of(made, pairs[:, 0]), most_rows=1_000)
    assert found is not None
    graph, rows = found
    with torch.no_grad():
        outputs = model(graph.x, graph.edge_index)[rows].view(len(made), 12, -1)
        for edit, mine in zip(parts.values(), outputs, strict=True):
            hand, _ = edited_by_hand(jury.data, jury.train_nodes, edit)
            torch.testing.assert_close(mine, model(hand.x, hand.edge_index))
    touched = [len(e.touched) for e in made]
    far = edited_graph(jury.data, torch.arange(12), 0, changes_of(made[:1], torch.zeros(12).long()), most_rows=1_000)
    assert far is not None
    assert int(far[0].num_nodes) == 12 + 1, "without message passing only features matter: a row for each node"
    assert max(touched) < int(graph.num_nodes) <= 12 * (len(made) + 1) + 1
    assert edited_graph(jury.data, pairs[:, 1], hops, changes_of(made, pairs[:, 0]), most_rows=5) is None


def test_a_model_that_stopped_early_is_told_to_compare_with_retraining() -> None:
    jury, _ = JURIES["gcn", "cross_entropy"]
    health = jury.what_if(remove_edges=[edges_of(jury)[0]]).health
    assert health.gradient > 1e-2
    assert "certify()" in health.words
    assert not health.retrain
    at_minimum = EditHealth(affected=1, step=0.1, remaining=0.0, drift=1.0, gradient=0.0)
    assert "certify()" not in at_minimum.words


def test_a_model_that_sees_the_whole_graph_is_edited_as_a_whole() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = models("gat")

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            z = self.inner(x, edge_index)
            return z - 0.5 * z.mean(dim=0)

    data, nodes = small()
    model = Pooled().double()
    train(model, data, nodes, epochs=40, weight_decay=DECAY)
    jury = Jury(model, data, nodes, weight_decay=DECAY, leave_out=LeaveOut(decay="stated"))
    edit = edits(data)["together"]
    old, new = naive_pair(jury, model, edit)
    wanted = -torch.linalg.solve(new.gauss_newton(old.theta), new.gradient(old.theta) - old.gradient(old.theta))
    result = jury.what_if(**edit)
    torch.testing.assert_close(result.step, wanted, rtol=1e-2, atol=1e-4)
    assert result.health.affected == 6


def test_weighted_edges_keep_their_weights() -> None:
    data, nodes = small()
    data.edge_weight = torch.rand(data.edge_index.shape[1], generator=torch.Generator().manual_seed(1)).double() + 0.5
    model = models("gcn")
    train(model, data, nodes, epochs=50, weight_decay=DECAY)
    jury = Jury(model, data, nodes, weight_decay=DECAY)
    a, b = data.edge_index[:, 3].tolist()
    result = jury.what_if(remove_edges=[(a, b)])
    kept = [k for k, e in enumerate(data.edge_index.T.tolist()) if set(e) != {a, b}]
    with torch.no_grad():
        z = model(data.x, data.edge_index[:, kept], data.edge_weight[kept])
        moved = result.model()(data.x, data.edge_index[:, kept], data.edge_weight[kept])
    torch.testing.assert_close(result.direct, z.softmax(dim=1))
    torch.testing.assert_close(result.after, moved.softmax(dim=1))


def test_edits_in_sequence_correct_what_earlier_steps_left() -> None:
    jury, model = JURIES["linear", "cross_entropy"]
    parts = edits(jury.data)
    done = jury.what_if(**parts["features"]).then(**parts["label"])
    hand, nodes = edited_by_hand(jury.data, jury.train_nodes, {**parts["features"], **parts["label"]})
    old = Naive(model, jury.data, jury.train_nodes.tolist(), loss="cross_entropy", count=6)
    new = Naive(model, hand, nodes, loss="cross_entropy", count=6)
    start = old.gradient(old.theta)
    retrained = new.minimum(old.theta, lambda theta: new.gradient(theta) - start)
    errors = []
    for _ in range(4):
        errors.append(float((done.theta - retrained).norm()))
        done = done.then()  # no further edit: one more Newton step
    assert errors[-1] < 0.01 * errors[0]
    assert done.health.remaining < 0.05


def test_the_verdict_after_an_edit_is_that_of_the_edited_graph() -> None:
    jury, _ = JURIES["gcn", "cross_entropy"]
    result = jury.what_if(**edits(jury.data)["together"])
    fresh = Jury(result.model(), result.data, result.train_nodes, weight_decay=DECAY, leave_out=jury.leave_out).fit()
    torch.testing.assert_close(result.verdict(alpha=0.3).p_values, fresh.verdict(alpha=0.3).p_values)
    assert set(result.state_dict()) == set(result.model().state_dict())
    frame = result.to_frame()
    assert list(frame.columns[:3]) == ["node", "class_before", "class_after"]
    assert frame.loc[frame.node == 7, "class_after"].item() == -1


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"remove_edges": [(0, 0)]}, "0-0, which it does not have"),
        ({"remove_edges": [(0, 1, 2)]}, "pairs"),
        ({"remove_edges": "ab"}, "pairs"),
        ({"remove_edges": [(0, 99)]}, "between 0 and 11"),
        ({"add_edges": [(3, 3)]}, "3-3; drop"),
        ({"remove_nodes": [40]}, "between 0 and 11"),
        ({"change_features": {0: [1.0]}}, "4 finite features"),
        ({"change_features": {0: [1.0, 2.0, float("nan"), 0.0]}}, "finite"),
        ({"change_labels": {0: 7}}, "below 3"),
        ({"change_labels": {1: None}}, "node 1 without a label"),
        ({"change_labels": {0: [1, 2]}}, "one label per node"),
    ],
)
def test_impossible_edits_are_refused_in_words(edit: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        JURIES["gcn", "cross_entropy"][0].what_if(**edit)


def test_settings_that_edits_cannot_use_are_refused() -> None:
    jury, model = JURIES["gcn", "cross_entropy"]
    other = Jury(
        model, jury.data, jury.train_nodes, weight_decay=DECAY, leave_out=LeaveOut("influence", curvature="hessian")
    )
    with pytest.raises(SettingError, match="ggn"):
        other.what_if(remove_nodes=[2])
    with pytest.raises(SettingError, match="steps"):
        jury.what_if(remove_nodes=[2], steps=0)


def test_the_check_says_when_the_edits_have_moved_a_model_that_stopped_early_too_far() -> None:
    early, _ = JURIES["gcn", "cross_entropy"]
    first = early.what_if(remove_edges=[edges_of(early)[0]])
    assert first.health.drift == 1.0
    assert first.health.gradient > 1e-2, "60 epochs do not reach a minimum"
    assert not first.health.drifted
    moved = first.then(remove_nodes=[2]).then(remove_nodes=[4])
    assert moved.health.drift > 2.0
    assert moved.health.retrain
    assert "not at a minimum" in moved.health.words
    assert moved.health.words.endswith("Train the model again.")


def test_a_model_at_its_minimum_may_move_far() -> None:
    jury, model = JURIES["linear", "cross_entropy"]
    data, nodes = jury.data, jury.train_nodes
    old = Naive(model, data, nodes.tolist(), loss="cross_entropy", count=6)
    at_minimum = models("linear")
    torch.nn.utils.vector_to_parameters(old.minimum(old.theta, old.gradient), at_minimum.parameters())
    exact = Jury(at_minimum, data, nodes, weight_decay=DECAY, leave_out=LeaveOut(decay="stated"))
    state = exact.what_if(remove_edges=[edges_of(exact)[0]])
    for node in (2, 4):
        state = state.then(remove_nodes=[node]).then()
    assert state.health.drift > 2.0
    assert state.health.gradient < 1e-6
    assert not state.health.retrain


def test_in_a_sequence_a_step_that_overshoots_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    jury, _ = JURIES["gcn", "cross_entropy"]
    start = jury.what_if(remove_edges=[edges_of(jury)[0]])
    edit = {"remove_nodes": [2]}
    alone, whole = jury.what_if(**edit).step, start.then(**edit).step
    # of the step taken, then of what remains after it, its half and its quarter
    lengths = iter([1.0, 8.0, 2.0, 0.5])
    monkeypatch.setattr(Walk, "_length", lambda _, __: next(lengths, 1.0))
    torch.testing.assert_close(start.then(**edit).step, whole / 4)
    lengths = iter([1.0, 8.0, 2.0, 0.5])
    torch.testing.assert_close(jury.what_if(**edit).step, alone)  # the first edit is one whole step


def edges_of(jury: Jury) -> list[tuple[int, int]]:
    return [(a, b) for a, b in jury.data.edge_index.T.tolist() if a < b]


@pytest.mark.parametrize("case", [("linear", "cross_entropy"), ("gcn", "cross_entropy"), ("gcn", "mse")], ids="-".join)
@pytest.mark.parametrize("kind", EDITS)
def test_the_rows_that_change_and_conjugate_gradients_solve_the_same(case: tuple[str, str], kind: str) -> None:
    jury, _ = JURIES[case]
    made = Objectives(base_of(jury), [edit_of(jury.engine, **edits(jury.data)[kind])])
    assert made.replaced is not None
    block = torch.randn(len(jury.engine.theta), 1, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(made.solve(block), made._iterated(block, 1e-12), rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(made.steps().T, -made._iterated(made.gradient(), 1e-12), rtol=1e-6, atol=1e-9)
