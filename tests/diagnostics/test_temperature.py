"""The temperature that left-out labels choose, and models scaled with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from left_out_cases import DECAY, NODES, graph, model_of
from torch import nn
from torch.nn import functional

from jurygcn import GCN, Jury
from jurygcn.diagnostics.calibration import CalibratedModel, calibration_of, fit_scale
from jurygcn.diagnostics.left_out import LeftOut


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
    worse_than_chance = calibration_of(found, outputs, 0.2)  # a confidence is at least 1/3
    assert not worse_than_chance.agrees
    assert "is its expected accuracy" not in worse_than_chance.words
    assert "this one is at the bound" in worse_than_chance.words
    assert "bound" not in held.words


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
