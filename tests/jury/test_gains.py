"""What one more label does to the panel, against regressions that are fitted again with it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from jurygcn.data import synthetic
from jurygcn.leave_one_out import gains
from jurygcn.leave_one_out.gains import PanelGains
from jurygcn.leave_one_out.panel import Panel

DATA = synthetic(num_nodes=300, num_edges=1500, num_features=12, num_classes=3, separation=2.0, homophily=0.7, seed=3)
LABELLED = torch.arange(0, 24)
CANDIDATES = torch.arange(30, 300)


def fitted(nodes: Tensor, labels: Tensor, weights: Tensor | None = None) -> PanelGains:
    """By default members weigh what their left-out predictions explain, and regressions that explain nothing 0."""
    panel = Panel(DATA, nodes, one_hot(labels, 3).double() - 1 / 3)
    if weights is None:
        usual = (panel.targets - panel.targets.mean(dim=0)).square().sum()
        weights = torch.stack([(1 - m.errors.square().sum() / usual).clamp_min(0.0) for m in panel.members])
    return PanelGains.of(DATA, panel, weights)


def brute_force(found: PanelGains, node: int, *, weights: Tensor) -> float:
    """The expected gain of a node by fitting the panel again with each of its labels."""
    chance = torch.softmax(found.scores[node], dim=0)
    before = torch.softmax(found.scores, dim=1).amax(dim=1).sum()
    total = 0.0
    for label in range(3):
        nodes = torch.cat([LABELLED, torch.tensor([node])])
        labels = torch.cat([DATA.y[LABELLED], torch.tensor([label])])
        after = fitted(nodes, labels, weights)
        total += float(chance[label] * (torch.softmax(after.scores, dim=1).amax(dim=1).sum() - before))
    return total


def test_predictions_with_one_more_label_are_those_of_a_new_fit():
    found = fitted(LABELLED, DATA.y[LABELLED])
    assert (found.weights > 0).sum() > 3
    some = torch.tensor([40, 111, 299])
    moved, pull = found.moved(some)
    for column, node in enumerate(some.tolist()):
        for label in range(3):
            nodes, labels = torch.cat([LABELLED, some[[column]]]), torch.cat([DATA.y[LABELLED], torch.tensor([label])])
            after = moved[:, column].clone()
            after[:, label] += pull[:, column]
            torch.testing.assert_close(after, fitted(nodes, labels, found.weights).scores, atol=1e-8, rtol=1e-8)
            assert int(node) == int(nodes[-1])


def test_gains_are_those_of_brute_force():
    """All regressions are fitted again for every node and label; the weights stay."""
    found = fitted(LABELLED, DATA.y[LABELLED])
    some = CANDIDATES[::9]
    slow = [brute_force(found, node, weights=found.weights) for node in some.tolist()]
    assert found.expected(some).tolist() == pytest.approx(slow, abs=1e-6)


def test_gains_come_in_blocks(monkeypatch):
    found = fitted(LABELLED, DATA.y[LABELLED])
    whole = found.expected(CANDIDATES[:10])
    monkeypatch.setattr(gains, "NUMBERS", 3 * 300 * 3)
    torch.testing.assert_close(found.expected(CANDIDATES[:10]), whole)
    assert found.expected(CANDIDATES[:0]).shape == (0,)
