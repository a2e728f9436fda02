"""The weight decay of each parameter, as users state it."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch_geometric.nn import GCN

from jurygcn.errors import JuryWarning, SettingError
from jurygcn.models.weight_decay import decay_by_name


def test_a_number_a_name_a_prefix():
    model = GCN(4, 8, 2, 3)
    names = [name for name, _ in model.named_parameters()]
    assert decay_by_name(model, 5e-4) == dict.fromkeys(names, 5e-4)
    first = decay_by_name(model, {"convs.0": 5e-4})
    assert {name for name, decay in first.items() if decay} == {"convs.0.bias", "convs.0.lin.weight"}
    longest = decay_by_name(model, {"convs": 1e-3, "convs.1.lin": 2e-3})
    assert longest["convs.0.bias"] == 1e-3
    assert longest["convs.1.lin.weight"] == 2e-3
    with pytest.raises(SettingError, match=r"got conv;"):
        decay_by_name(model, {"conv": 1.0})


def test_an_optimizer_says_it_all():
    model = GCN(4, 8, 2, 3)
    groups = [{"params": model.convs[0].parameters(), "weight_decay": 5e-4}, {"params": model.convs[1].parameters()}]
    found = decay_by_name(model, torch.optim.Adam(groups, lr=0.01))
    assert found == {"convs.0.bias": 5e-4, "convs.0.lin.weight": 5e-4, "convs.1.bias": 0.0, "convs.1.lin.weight": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decay_by_name(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3))
        decay_by_name(model, torch.optim.AdamW(model.parameters(), weight_decay=0.0))
    with pytest.warns(JuryWarning, match="decoupled"):
        decay_by_name(model, torch.optim.AdamW(model.parameters(), weight_decay=1e-2))


def test_an_optimizer_of_another_model_is_refused():
    model = GCN(4, 8, 2, 3)
    with pytest.raises(SettingError, match="holds no parameter of this model"):
        decay_by_name(model, torch.optim.Adam(GCN(4, 8, 2, 3).parameters()))
    with pytest.raises(SettingError, match=r"does not hold convs\.1\.bias, convs\.1\.lin\.weight"):
        decay_by_name(model, torch.optim.Adam(model.convs[0].parameters()))
