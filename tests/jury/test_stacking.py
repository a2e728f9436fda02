"""Weights of stacked learners: they are optimal, with every label and without each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from jurygcn.data import synthetic
from jurygcn.leave_one_out import stacking
from jurygcn.leave_one_out.panel import Panel
from jurygcn.leave_one_out.stacking import HELPFUL, PRICE, Pairs, stack_classes, stack_values


def predictions(learners: int = 6, n: int = 40) -> tuple[Tensor, Tensor]:
    """Left-out predictions of learners of every quality and scale, and the labels."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 4, (n,), generator=generator)
    truth = one_hot(labels, 4).double()
    noise = torch.randn(learners, n, 4, generator=generator, dtype=torch.float64)
    scales = torch.logspace(-1, 1, learners, dtype=torch.float64)[:, None, None]
    sense = torch.ones(learners, dtype=torch.float64)
    sense[2] = -1.0  # this learner is wrong more often than not
    return scales * (sense[:, None, None] * truth + (0.5 + 0.3 * torch.arange(learners)[:, None, None]) * noise), labels


def alone(own: Tensor) -> Pairs:
    """Learners whose predictions without two labels are those without one."""
    n, classes = own.shape[1:]
    none = own.new_empty(0, n, n)
    return Pairs(own, own.new_zeros(n, classes), own.new_empty(0, n, classes), none, none)


# --- the weights ------------------------------------------------------------------------------------------


def slopes(own: Tensor, labels: Tensor, weights: Tensor, spread: Tensor | None = None) -> Tensor:
    """The derivative of the criterion by each weight, from its definition by automatic differentiation."""
    if spread is None:
        spread = (own - own.mean(dim=2, keepdim=True)).square().mean(dim=(1, 2)).sqrt()
    beta = weights.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(torch.einsum("k,knc->nc", beta, own), labels, reduction="sum")
    (loss + PRICE * (beta * spread).sum()).backward()
    assert beta.grad is not None
    return beta.grad / spread


def test_weights_of_classes_are_optimal():
    own, labels = predictions()
    found = stack_classes(own, labels, alone(own))
    slope = slopes(own, labels, found.weights)
    positive = found.weights > 0
    assert 1 <= int(positive.sum()) < len(own)  # learners that help nothing get no weight
    assert slope[positive].abs().max() < 1e-3
    assert slope[~positive].min() > -1e-3
    assert float(found.shares.sum()) == pytest.approx(1.0)


def test_weights_without_each_label_are_those_of_a_new_choice():
    """Every juror's weights: the panel fitted anew to the other labels, and the weights chosen anew by them."""
    data = synthetic(num_nodes=120, num_edges=360, num_features=8, num_classes=3, separation=1.0, seed=2)
    nodes = torch.arange(0, 75, 3)
    labels = data.y[nodes]
    targets = one_hot(labels, 3).double() - 1 / 3
    own, _ = predictions(n=len(nodes))
    panel, everyone = Panel(data, nodes, targets), torch.arange(len(nodes))
    given = torch.stack([own[0, :, :3], *(member.own for member in panel.members)])
    found = stack_classes(given, labels, panel.pairs(everyone, given[:1]))
    spread = (given - given.mean(dim=2, keepdim=True)).square().mean(dim=(1, 2)).sqrt()
    for i in range(len(labels)):
        others = [j for j in range(len(labels)) if j != i]
        fewer = Panel(data, nodes[others], targets[others])
        again = torch.stack([given[0, others], *(member.own for member in fewer.members)])
        slope = slopes(again, labels[others], found.left_out[:, i], spread)
        positive = found.left_out[:, i] > 0
        assert slope[positive].abs().max() < 1e-3
        assert slope[~positive].min() > -HELPFUL
    assert (found.left_out - found.weights[:, None]).abs().max() > 0.01  # labels do matter


def test_weights_in_blocks_of_jurors_are_the_same(monkeypatch: pytest.MonkeyPatch):
    own, labels = predictions()
    whole = stack_classes(own, labels, alone(own))
    monkeypatch.setattr(stacking, "NUMBERS", 3 * own.numel())
    torch.testing.assert_close(stack_classes(own, labels, alone(own)).left_out, whole.left_out, atol=1e-4, rtol=1e-4)


def test_one_newton_step_is_nearly_a_new_choice():
    own, labels = predictions(n=200)
    anew = stack_classes(own, labels, alone(own))
    step = stack_classes(own, labels, None)
    moved = (anew.left_out - anew.weights[:, None]).norm()
    assert (step.left_out - anew.left_out).norm() < 0.2 * moved  # one step leaves a tenth of the way


def test_learners_that_know_nothing_get_no_weight():
    labels = torch.arange(30) % 3
    nothing = torch.zeros(4, 30, 3, dtype=torch.float64)
    found = stack_classes(nothing, labels, alone(nothing))
    assert found.weights.tolist() == [0.0] * 4
    assert found.left_out.abs().max() == 0


def test_weights_do_not_depend_on_the_order_of_labels():
    own, labels = predictions()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    mine = stack_classes(own, labels, alone(own))
    theirs = stack_classes(own[:, order], labels[order], alone(own[:, order]))
    torch.testing.assert_close(mine.weights, theirs.weights, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(mine.left_out[:, order], theirs.left_out, atol=1e-3, rtol=1e-2)


def test_weights_of_a_regression_against_a_grid():
    generator = torch.Generator().manual_seed(0)
    targets = torch.randn(30, 1, generator=generator, dtype=torch.float64) + 50
    own = torch.stack([targets + s * torch.randn(30, 1, generator=generator, dtype=torch.float64) for s in (1.0, 2.0)])
    grid = np.linspace(0, 1, 2001)

    def best(rows: list[int]) -> float:
        errors = (own - targets)[:, rows, 0].numpy()
        return float(grid[np.argmin([((w * errors[0] + (1 - w) * errors[1]) ** 2).sum() for w in grid])])

    found = stack_values(own, targets, alone(own))
    assert float(found.weights[0]) == pytest.approx(best(list(range(30))), abs=1e-3)
    torch.testing.assert_close(found.weights.sum(), torch.tensor(1.0, dtype=torch.float64))
    for i in range(30):
        assert float(found.left_out[0, i]) == pytest.approx(best([j for j in range(30) if j != i]), abs=1e-3)
    shifted = stack_values(1000 * own + 7, 1000 * targets + 7, alone(1000 * own + 7))
    torch.testing.assert_close(shifted.weights, found.weights, atol=1e-6, rtol=1e-6)
