"""Predictions of left-out labels: against brute force and by hand."""

from __future__ import annotations

import pytest
import torch
from left_out_cases import DECAY, NODES, graph, jury_of, model_of
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import one_hot
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from jurygcn import GCN, Jury, LeaveOut, Retraining, Votes, train
from jurygcn.diagnostics import left_out
from jurygcn.diagnostics.left_out import LeftOut
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.panel import Panel
from jurygcn.leave_one_out.retraining import retrained_parameters


def test_retrained_jurors_are_taken_as_they_are() -> None:
    """Each row is the prediction of a model that was trained again without that label, at its own node."""
    data = graph()
    recipe = Retraining(epochs=40)
    jury = jury_of(data, epochs=40, leave_out="retrain", retraining=recipe)
    thetas = retrained_parameters(jury.engine, recipe)
    for i in (0, 7, 29):
        alone = GCN(8, 4, 3).double()
        weights = jury.engine.unflatten(thetas[i])
        alone.load_state_dict({name: weights[name] for name in alone.state_dict()})
        pi = torch.softmax(alone(data.x, data.edge_index)[NODES[i]], dim=0)
        torch.testing.assert_close(jury.left_out().probabilities[i], pi.detach(), rtol=1e-6, atol=1e-8)


def test_effective_decay_is_used_whatever_the_jury_has() -> None:
    data = graph()
    model = model_of(data, epochs=25)  # far from the minimum, so the two decays differ
    stated = Jury(model, data, NODES, weight_decay=DECAY, leave_out=LeaveOut(decay="stated")).fit()
    effective = Jury(model, data, NODES, weight_decay=DECAY, leave_out=LeaveOut(decay="effective")).fit()
    influence = Jury(model, data, NODES, weight_decay=DECAY, leave_out="influence").fit()
    same = effective.left_out().probabilities
    torch.testing.assert_close(stated.left_out().probabilities, same, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(influence.left_out().probabilities, same, rtol=1e-5, atol=1e-7)
    own = torch.stack([stated.leave_one_out_predictions(NODES)[i, i] for i in range(len(NODES))])
    assert float((own - same).abs().max()) > 0.02


def test_estimate_is_closer_to_retrained_jurors_than_the_stated_decay_is() -> None:
    """Training stopped early: jurors with the stated decay move too far, and look worse than retrained ones."""
    data = graph()
    recipe = Retraining(epochs=25)
    retrained = jury_of(data, epochs=25, leave_out="retrain", retraining=recipe).left_out()
    jury = jury_of(data, epochs=25, leave_out=LeaveOut(decay="stated"))
    own = torch.stack([jury.leave_one_out_predictions(NODES)[i, i] for i in range(len(NODES))])
    stated = LeftOut(retrained.nodes, retrained.labels, own.double())
    off = [float((found.own - retrained.own).square().mean().sqrt()) for found in (jury.left_out(), stated)]
    assert off[0] < 0.6 * off[1]


def refit_stack(jury: Jury, i: int) -> Tensor:
    """The stacked prediction of node i: every regression is fitted again without label i."""
    advice = jury.advice()
    others = torch.arange(len(NODES)) != i
    own = jury.leave_one_out_predictions(NODES)[i, i]
    k = advice.diffusion
    if k:
        everyone = jury.leave_one_out_predictions()[i]
        A = torch.zeros(150, 150, dtype=torch.float64)
        A[jury.data.edge_index[1], jury.data.edge_index[0]] = 1.0
        A.fill_diagonal_(1.0)
        A /= A.sum(dim=1, keepdim=True)
        for _ in range(k):
            everyone = A @ everyone
        own = everyone[NODES[i]]
    total = advice.left_out[0, i] * own.log()
    targets = one_hot(jury.engine.targets, 3).double() - 1 / 3
    weight_of = dict(zip(advice.members[1:], advice.left_out[1:, i]))
    without = Panel(jury.data, NODES[others], targets[others], dtype=torch.float64)
    for member in without.members:
        if member.words in weight_of:
            coefficients, offset = member.design.coefficients(member.ridge)
            row = offset + without.columns(member.design)[NODES[i]].double() @ coefficients
            total = total + weight_of[member.words] * (row @ targets[others])
    return torch.softmax(total, dim=0)


def test_stacked_predictions_equal_refits() -> None:
    jury = jury_of()
    assert len(jury.advice().advisers) >= 1
    found = jury.left_out("jury").probabilities
    for i in (0, 11, 29):
        torch.testing.assert_close(found[i], refit_stack(jury, i), rtol=1e-5, atol=1e-6)


def test_kept_until_the_jury_is_fitted_again() -> None:
    jury = jury_of()
    first = jury.left_out()
    assert jury.left_out() is first
    assert jury.fit().left_out() is not first


def test_linearised_jurors_use_their_own_outputs(monkeypatch) -> None:
    jury = jury_of(votes=Votes("linearized", rank=16))
    found = jury.left_out()
    torch.testing.assert_close(found.probabilities.sum(dim=1), torch.ones(30, dtype=torch.float64))
    monkeypatch.setattr(left_out, "MOST_VOTES", 10)
    with pytest.raises(SettingError, match="of='model'"):
        jury.left_out("jury")


def test_refusals() -> None:
    data = graph()
    jury = jury_of(data)
    with pytest.raises(SettingError, match="model, jury"):
        jury.left_out("panel")
    with pytest.raises(SettingError, match="between 0 and 1"):
        jury.expected_accuracy(level=95)  # type: ignore[arg-type]
    numbers = replace_labels(data)
    model = GCN(8, 4, 1).double()
    train(model, numbers, NODES, epochs=20, weight_decay=DECAY, loss="mse")
    with pytest.raises(SettingError, match="classification"):
        Jury(model, numbers, NODES, loss="mse", weight_decay=DECAY).fit().expected_accuracy()


def replace_labels(data: Data) -> Data:
    other = data.clone()
    other.y, other.num_classes = data.x[:, :1], 0
    return other


class TwoLayers(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(functional.elu(self.first(x, edge_index)), edge_index)


@pytest.mark.parametrize("kind", ["GAT", "GraphSAGE"])
def test_all_of_it_for_pyg_models(kind: str) -> None:
    data = graph()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "GAT":
            model = TwoLayers(gnn.GATConv(8, 4, heads=2), gnn.GATConv(8, 3))
        else:
            model = TwoLayers(gnn.SAGEConv(8, 8), gnn.SAGEConv(8, 3))
    model = model.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=DECAY)
    for _ in range(80):
        optimizer.zero_grad()
        functional.cross_entropy(model(data.x, data.edge_index)[NODES], data.y[NODES]).backward()
        optimizer.step()
    model.eval()
    jury = Jury(model, data, NODES, weight_decay=optimizer).fit()
    found, errors, calibrated = jury.expected_accuracy(), jury.label_errors(), jury.calibrate()
    own = torch.stack([jury.leave_one_out_predictions(NODES)[i, i] for i in range(len(NODES))])
    assert found.left_out_accuracy == float((own.argmax(dim=1) == data.y[NODES]).double().mean())
    assert found.others == 120
    assert sorted(errors.table["node"]) == NODES.tolist()
    assert calibrated(data.x, data.edge_index).shape == (150, 3)
