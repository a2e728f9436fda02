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
from jurygcn.diagnostics.accuracy import CORRECTED, assisted_accuracy, bootstrap_mean, summarised, wilson
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
    assert found.left_out_accuracy == 0.75
    assert found.interval == found.left_out_interval == wilson(3, 4, level=0.95)
    assert found.others == 0
    assert "75%" in found.words
    assert "from 4 left-out labels)" in found.words


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 20), st.integers(1, 30), st.integers(0, 10_000))
def test_help_of_other_nodes_by_a_loop(C: int, n: int, m: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    own, left_out = (torch.softmax(2 * torch.randn(n, C, generator=generator).double(), dim=1) for _ in range(2))
    labels, said = (torch.randint(0, C, (k,), generator=generator) for k in (n, m))
    stacked = torch.softmax(2 * torch.randn(m, C, generator=generator).double(), dim=1)
    found = assisted_accuracy(LeftOut(torch.arange(n), labels, own), left_out, said, stacked)
    mean = sum(float(stacked[u, said[u]]) for u in range(m)) / m
    gaps, calibrated = [], []
    for i in range(n):
        c = int(own[i].argmax())
        sure = float(left_out[i, c])
        gaps.append(float(c == int(labels[i])) - sure)
        calibrated.append(sure * (1 - sure))
    r = sum(gaps) / n
    spread = max(sum((gap - r) ** 2 for gap in gaps) / (n - 1), sum(calibrated) / n)
    assert found.accuracy == pytest.approx(min(max(mean + CORRECTED * r, 0.0), 1.0))
    assert found.error == pytest.approx((spread / n + ((1 - CORRECTED) * r) ** 2) ** 0.5)
    assert found.others == m


def test_the_whole_correction_has_no_bias_whatever_the_probabilities() -> None:
    """Over draws of labels the mean of the corrected estimates is the accuracy, for a jury that is far too sure."""
    generator = torch.Generator().manual_seed(0)
    N, n = 400, 20
    y = torch.randint(0, 3, (N,), generator=generator)
    p = torch.softmax(torch.randn(N, 3, generator=generator).double() + 1.5 * functional.one_hot(y, 3), dim=1)
    sure = torch.softmax(6 * p.log(), dim=1)
    truth, plain, corrected = float((p.argmax(dim=1) == y).double().mean()), [], []
    for _ in range(300):
        order = torch.randperm(N, generator=generator)
        own, rest = order[:n], order[n:]
        found = assisted_accuracy(LeftOut(own, y[own], p[own]), sure[own], p[rest].argmax(dim=1), sure[rest])
        r = float(((p[own].argmax(dim=1) == y[own]).double() - sure[own].max(dim=1).values).mean())
        plain.append(found.accuracy - CORRECTED * r)
        corrected.append(found.accuracy + (1 - CORRECTED) * r)
    assert np.mean(plain) - truth > 0.15
    assert abs(np.mean(corrected) - truth) < 3 * np.std(corrected) / 300**0.5


def test_other_nodes_help_where_labels_were_drawn_at_random() -> None:
    data = graph()
    model = model_of(data)
    jury = Jury(model, data, NODES, weight_decay=DECAY).fit()
    found, verdict, left = jury.expected_accuracy(), jury.verdict(), jury.left_out()
    others = torch.tensor([u for u in range(150) if u not in NODES.tolist()])
    with torch.no_grad():
        said = model(data.x, data.edge_index)[others].argmax(dim=1)
    byhand = assisted_accuracy(left, jury.left_out("jury").probabilities, said, verdict.calibrated[others].double())
    assert found.accuracy == pytest.approx(byhand.accuracy, abs=1e-6)
    assert found.error == pytest.approx(byhand.error, abs=1e-6)
    assert found.interval == pytest.approx(
        (found.accuracy - 1.959964 * found.error, found.accuracy + 1.959964 * found.error), abs=1e-5
    )
    assert "and 120 nodes without a label" in found.words
    assert found.left_out_accuracy == float((left.probabilities.argmax(dim=1) == left.labels).double().mean())
    stacked = jury.expected_accuracy(of="jury")
    mine = jury.left_out("jury")
    again = assisted_accuracy(mine, mine.probabilities, verdict.jury_class[others], verdict.calibrated[others].double())
    assert stacked.accuracy == pytest.approx(again.accuracy, abs=1e-6)
    for chosen in ("per class", "actively"):
        plain = Jury(model, data, NODES, weight_decay=DECAY, chosen=chosen).fit().expected_accuracy()
        assert plain.others == 0
        assert plain.accuracy == plain.left_out_accuracy
        assert "without a label" not in plain.words


def test_labels_alone_where_there_is_no_stacked_jury(monkeypatch) -> None:
    jury = jury_of(votes=Votes("linearized", rank=16))
    monkeypatch.setattr(left_out, "MOST_VOTES", 10)
    found = jury.expected_accuracy()
    assert found.others == 0
    assert found.accuracy == found.left_out_accuracy


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


def test_temperature_agrees_with_the_expected_accuracy() -> None:
    """A few labels that are surely wrong raise the temperature of smallest log loss far beyond what the others say."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(60, 3, generator=generator, dtype=torch.float64) * 3
    y = torch.distributions.Categorical(logits=z).sample()
    wild = z.clone()
    wild[:6] *= 8
    y[:6] = wild[:6].argmin(dim=1)
    outputs = torch.randn(2000, 3, generator=generator, dtype=torch.float64) * 3
    found = LeftOut(torch.arange(60), y, torch.softmax(wild, dim=1))
    share = 0.8
    free, held = calibration_of(found), calibration_of(found, outputs, share)

    def confidence(temperature: float) -> float:
        return float(torch.softmax(outputs / temperature + held.bias, dim=1).max(dim=1).values.mean())

    assert not free.agrees
    assert held.agrees
    assert "is its expected accuracy" in held.words
    assert confidence(free.temperature) < share - 0.05
    assert confidence(held.temperature) == pytest.approx(share, abs=1e-6)
    brute = min(np.geomspace(0.02, 50, 4000), key=lambda t: abs(confidence(float(t)) - share))
    assert held.temperature == pytest.approx(brute, rel=0.003)
    assert confidence(calibration_of(found, outputs, 1.0).temperature) == pytest.approx(61 / 62, abs=1e-6)


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
    assert after <= before + 1e-12 or wrapped.calibration.agrees
    expected = jury.expected_accuracy()
    z_others = z[[u for u in range(len(z)) if u not in NODES.tolist()]]
    sure = torch.softmax(wrapped.calibrated(z_others), dim=1).max(dim=1).values
    assert float(sure.mean().detach()) == pytest.approx(expected.accuracy, abs=1e-6)
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
    assert found.left_out_accuracy == float((own.argmax(dim=1) == data.y[NODES]).double().mean())
    assert found.others == 120
    assert sorted(errors.table["node"]) == NODES.tolist()
    assert calibrated(data.x, data.edge_index).shape == (150, 3)
