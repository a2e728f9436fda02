"""Predictions of left-out labels, and what is computed from them: against brute force and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import one_hot
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from jurygcn import GCN, Jury, LeaveOut, Retraining, Votes, train
from jurygcn.data import load_dataset, paper_split, random_labels, synthetic
from jurygcn.diagnostics import left_out
from jurygcn.diagnostics.accuracy import bootstrap_mean, summarised, wilson
from jurygcn.diagnostics.calibration import CalibratedModel, calibration_of, fit_scale
from jurygcn.diagnostics.left_out import LeftOut
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.panel import Panel
from jurygcn.leave_one_out.retraining import retrained_parameters
from jurygcn.models import Recipe, fit_gcn

NODES = torch.arange(0, 90, 3)
DECAY = 5e-3


def graph() -> Data:
    data = synthetic(num_nodes=150, num_edges=450, num_features=8, num_classes=3, separation=1.2, seed=2)
    data.x = data.x.double()
    return data


def model_of(data: Data, *, epochs: int = 300, seed: int = 0) -> GCN:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GCN(8, 4, 3).double()
    train(model, data, NODES, epochs=epochs, weight_decay=DECAY, seed=seed)
    return model


def jury_of(data: Data | None = None, *, epochs: int = 300, **given_settings: object) -> Jury:
    data = graph() if data is None else data
    return Jury(model_of(data, epochs=epochs), data, NODES, weight_decay=DECAY, **given_settings).fit()


def invented(probabilities: list[list[float]], labels: list[int]) -> LeftOut:
    p = torch.tensor(probabilities, dtype=torch.float64)
    return LeftOut(torch.arange(len(labels)), torch.tensor(labels), p)


# --- the predictions ------------------------------------------------------------------------------------------


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


# --- the accuracy ---------------------------------------------------------------------------------------------


def test_summary_by_hand() -> None:
    rows = [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]
    found = summarised(invented(rows, [0, 1, 0, 2]), of="model", level=0.95, names=["a", "b", "c"])
    assert found.accuracy == 0.75
    assert found.n == 4
    assert found.confusion.to_numpy().tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert found.log_loss == pytest.approx(-np.log([0.7, 0.5, 0.1, 0.4]).mean())
    brier = [(0.09 + 0.04 + 0.01), (0.04 + 0.25 + 0.09), (0.81 + 0.64 + 0.01), (0.09 + 0.09 + 0.36)]
    assert found.brier == pytest.approx(np.mean(brier))
    table = found.per_class.set_index("class")
    assert table.loc["a", ["labels", "right", "recall", "precision"]].tolist() == [2, 1, 0.5, 1.0]
    assert table.loc["b", "precision"] == 0.5
    assert "75%" in found.words
    assert "4 left-out labels" in found.words


def test_wilson_solves_its_equation() -> None:
    """The ends are the shares p with |k/n - p| = z sqrt(p (1 - p) / n)."""
    for k, n in ((0, 10), (3, 10), (37, 60), (60, 60)):
        for p in wilson(k, n, level=0.95):
            assert abs(abs(k / n - p) - 1.959964 * (p * (1 - p) / n) ** 0.5) < 1e-6
    assert wilson(0, 0, level=0.9) == (0.0, 1.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.integers(0, 200), st.floats(0.5, 0.99))
def test_wilson_contains_the_share(n: int, k: int, level: float) -> None:
    k = min(k, n)
    low, high = wilson(k, n, level=level)
    assert 0.0 <= low <= k / n + 1e-12
    assert k / n - 1e-12 <= high <= 1.0
    wider = wilson(k, n, level=(1 + level) / 2)
    assert wider[0] <= low + 1e-12
    assert high <= wider[1] + 1e-12


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    low, high = bootstrap_mean(values, level=0.95)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)
    assert bootstrap_mean(values, level=0.95) == (low, high)


def test_coverage_of_the_interval_on_random_draws() -> None:
    """Over draws of labels the interval contains the accuracy on test nodes, and the estimate is hardly biased."""
    data = load_dataset("digits")
    inside, off = [], []
    for seed in range(8):
        split = paper_split(data, seed=seed)
        nodes = random_labels(split.pool, 60, seed=seed)
        model, _ = fit_gcn(data, nodes, Recipe(dropout=0.0), seed=seed)
        found = Jury(model, data, nodes, weight_decay=Recipe.weight_decay).fit().expected_accuracy()
        with torch.no_grad():
            right = model(data.x, data.edge_index).argmax(dim=1) == data.y
        accuracy = float(right[split.test].double().mean())
        inside.append(found.interval[0] <= accuracy <= found.interval[1])
        off.append(found.accuracy - accuracy)
    assert sum(inside) >= 7
    assert abs(np.mean(off)) < 0.04


def test_nothing_is_promised_after_active_learning() -> None:
    data = graph()
    jury = Jury(model_of(data), data, NODES, weight_decay=DECAY, chosen="actively").fit()
    found = jury.expected_accuracy()
    assert not found.promised
    assert "actively" in found.words
    assert "nothing about other nodes" in found.words
    per_class = Jury(model_of(data), data, NODES, weight_decay=DECAY, chosen="per class").fit().expected_accuracy()
    assert per_class.promised
    assert "class by class" in per_class.words
    assert "too low" in per_class.words


# --- the calibration ------------------------------------------------------------------------------------------


def test_temperature_minimises_the_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(200, 4, generator=generator, dtype=torch.float64) * 4
    y = torch.distributions.Categorical(logits=z / 3.0).sample()  # overconfident by a factor of 3
    beta, bias = fit_scale(z, y, with_bias=False)
    tried = [float(functional.cross_entropy(b * z, y)) for b in torch.linspace(0.05, 2, 400).tolist()]
    assert float(functional.cross_entropy(beta * z, y)) <= min(tried) + 1e-9
    assert not bias.any()


@settings(max_examples=20, deadline=None)
@given(st.floats(0.2, 5.0))
def test_temperature_is_inverse_to_the_scale(factor: float) -> None:
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(80, 3, generator=generator, dtype=torch.float64)
    y = (z + torch.randn(80, 3, generator=generator, dtype=torch.float64)).argmax(dim=1)
    once, _ = fit_scale(z, y, with_bias=False)
    again, _ = fit_scale(factor * z, y, with_bias=False)
    assert again * factor == pytest.approx(once, rel=1e-3)


def test_bias_only_where_it_pays() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    tilt = torch.tensor([2.0, 0.0, -2.0], dtype=torch.float64)
    fair = torch.multinomial(torch.softmax(z, dim=1), 1, generator=generator).squeeze(1)
    unfair = torch.multinomial(torch.softmax(z + tilt, dim=1), 1, generator=generator).squeeze(1)
    without, with_bias = (
        calibration_of(LeftOut(torch.arange(300), y, torch.softmax(z, dim=1))) for y in (fair, unfair)
    )
    assert not without.bias.any()
    assert without.gain < without.error
    assert with_bias.gain > with_bias.error
    assert float((with_bias.bias - tilt).abs().max()) < 0.6
    assert with_bias.log_loss[1] < with_bias.log_loss[0] - 0.3


def test_temperature_agrees_with_the_share_that_is_predicted_right() -> None:
    """A few labels that are surely wrong raise the temperature of smallest log loss far beyond what the others say."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(60, 3, generator=generator, dtype=torch.float64) * 3
    y = torch.distributions.Categorical(logits=z).sample()
    wild = z.clone()
    wild[:6] *= 8
    y[:6] = wild[:6].argmin(dim=1)
    outputs = torch.randn(2000, 3, generator=generator, dtype=torch.float64) * 3
    found = LeftOut(torch.arange(60), y, torch.softmax(wild, dim=1))
    free, held = calibration_of(found), calibration_of(found, outputs)
    share = float((wild.argmax(dim=1) == y).double().mean())
    error = 0.5 * (share * (1 - share) / 60) ** 0.5

    def confidence(temperature: float) -> float:
        return float(torch.softmax(outputs / temperature + held.bias, dim=1).max(dim=1).values.mean())

    assert not free.moved
    assert held.moved
    assert "nearest" in held.words
    assert confidence(free.temperature) < share - 2 * error
    assert confidence(held.temperature) == pytest.approx(share - error, abs=0.005)


def test_calibration_where_all_nodes_are_labelled() -> None:
    data = graph()
    jury = Jury(model_of(data), data, torch.arange(int(data.num_nodes)), weight_decay=DECAY).fit()
    found = jury.calibrate().calibration
    assert found.temperature == calibration_of(jury.left_out()).temperature


def test_wrapper_scales_the_users_model_and_keeps_its_state() -> None:
    data = graph()
    model = model_of(data)
    jury = Jury(model, data, NODES, weight_decay=DECAY).fit()
    wrapped = jury.calibrate()
    assert isinstance(wrapped, nn.Module)
    assert wrapped.model is model
    assert not wrapped.training
    z = model(data.x, data.edge_index)
    expected = z / wrapped.calibration.temperature + wrapped.calibration.bias
    torch.testing.assert_close(wrapped(data.x, data.edge_index), expected)
    other = CalibratedModel(GCN(8, 4, 3).double(), 1.0, torch.zeros(3))
    other.load_state_dict(wrapped.state_dict())
    torch.testing.assert_close(other(data.x, data.edge_index), expected)
    before, after = wrapped.calibration.log_loss
    assert after <= before + 1e-12 or wrapped.calibration.moved
    left = jury.left_out()
    share = float((left.probabilities.argmax(dim=1) == left.labels).double().mean())
    others = torch.softmax(expected, dim=1).max(dim=1).values[[u for u in range(len(z)) if u not in NODES.tolist()]]
    assert abs(float(others.mean().detach()) - share) < 0.5 / (2 * len(NODES) ** 0.5)  # half the largest standard error
    heard = CalibratedModel(model, 2.0, torch.zeros(3), node_type="paper").calibrated({"paper": z, "author": z})
    torch.testing.assert_close(heard["paper"], z / 2)
    assert heard["author"] is z


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
    assert found.accuracy == float((own.argmax(dim=1) == data.y[NODES]).double().mean())
    assert sorted(errors.table["node"]) == NODES.tolist()
    assert calibrated(data.x, data.edge_index).shape == (150, 3)
