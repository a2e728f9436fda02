"""Label errors: the noise model against its formulas, the ranking and its reasons on graphs with known errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, Jury, Votes, train
from jurygcn.data import synthetic
from jurygcn.diagnostics.label_errors import RATES, STRICT, fit_noise, probability_wrong
from jurygcn.errors import SettingError

NODES = torch.arange(0, 240, 3)
DECAY = 5e-3


def clean() -> Data:
    return synthetic(
        num_nodes=300, num_edges=1500, num_features=12, num_classes=4, separation=2.5, homophily=0.9, seed=4
    )


def spoiled(share: float = 0.15) -> tuple[Data, Tensor]:
    """A graph some of whose training labels are another class, and which those are."""
    data = clean()
    generator = torch.Generator().manual_seed(1)
    wrong = NODES[torch.randperm(len(NODES), generator=generator)[: int(share * len(NODES))]]
    data.y = data.y.clone()
    data.y[wrong] = (data.y[wrong] + torch.randint(1, 4, (len(wrong),), generator=generator)) % 4
    return data, wrong


def jury_of(data: Data, **settings_of: object) -> Jury:
    model = GCN(12, 8, 4)
    train(model, data, NODES, epochs=100, weight_decay=DECAY, seed=0)
    return Jury(model, data, NODES, weight_decay=DECAY, **settings_of).fit()


def test_wrong_labels_are_found_and_put_right() -> None:
    data, wrong = spoiled()
    truth = clean().y
    found = jury_of(data).label_errors()
    bad = torch.isin(torch.tensor(found.table["node"].tolist()), wrong)
    assert roc_auc_score(bad, found.table["wrong"]) > 0.95
    assert roc_auc_score(bad, -found.table["probability"]) > 0.95
    flagged = found.table[found.table["flagged"]]
    hits = torch.isin(torch.tensor(flagged["node"].tolist()), wrong)
    assert len(flagged) >= 8
    assert float(hits.double().mean()) > 0.75
    assert abs(found.noise - 0.15) < 0.08
    right = flagged.loc[hits.numpy()]
    assert float(np.mean([int(s) == int(truth[n]) for s, n in zip(right["suggested"], right["node"])])) > 0.8
    assert found.of == "jury"
    assert found.table["wrong"].is_monotonic_decreasing
    assert found.flagged.tolist() == flagged["node"].tolist()


def test_reasons_are_about_the_suggested_class() -> None:
    data, _ = spoiled()
    found = jury_of(data).label_errors()
    for row in found.table[found.table["flagged"]].itertuples():
        assert row.label != row.suggested
        assert len(row.against) >= 1
        assert row.node not in row.against
        assert {int(data.y[node]) for node in row.against} == {int(row.suggested)}
        assert f"speak for {row.suggested}" in row.why
    assert (found.table.loc[~found.table["flagged"], "why"] == "").all()


def test_witnesses_are_the_largest_coefficients_of_the_refits() -> None:
    """The prediction without label i is a sum over the other labels; its coefficients come from solving it again."""
    data, _ = spoiled()
    jury = jury_of(data)
    advice, panel, found = jury.advice(), jury.panel, jury.label_errors()
    weight_of = dict(zip(advice.members[1:], advice.weights[1:].tolist()))
    row = found.table.iloc[0]
    i = NODES.tolist().index(row["node"])
    others = torch.arange(len(NODES)) != i
    total = torch.zeros(len(NODES), dtype=torch.float64)
    for member in panel.members:
        if member.words in weight_of:
            phi = panel.features(member.design)[NODES].double()
            gram = phi[others].T @ phi[others] + member.ridge * torch.eye(phi.shape[1], dtype=torch.float64)
            total[others] += weight_of[member.words] * (torch.linalg.solve(gram, phi[i]) @ phi[others].T)
    total[data.y[NODES] != int(row["suggested"])] = 0.0
    assert list(row["against"]) == NODES[total.topk(3).indices].tolist()


def test_clean_labels_are_left_alone() -> None:
    data, _ = spoiled(share=0.0)
    found = jury_of(data).label_errors()
    assert found.noise < 0.08
    assert int(found.table["flagged"].sum()) <= 4
    assert "%" in found.words


def test_thresholds_nest_and_false_discoveries_are_the_mean() -> None:
    data, _ = spoiled()
    jury = jury_of(data)
    few, many = jury.label_errors(threshold=0.9), jury.label_errors(threshold=0.1)
    assert set(few.flagged.tolist()) < set(many.flagged.tolist())
    for found in (few, many):
        chosen = found.table[found.table["flagged"]]
        assert found.false_discoveries == pytest.approx(1 - chosen["wrong"].mean())
    with pytest.raises(SettingError, match="threshold"):
        jury.label_errors(threshold=2.0)
    nobody = jury.label_errors(threshold=1.0)
    assert len(nobody.flagged) == 0
    assert "None is suspicious" in nobody.words


def test_the_models_jurors_where_there_is_no_stacked_jury() -> None:
    data, wrong = spoiled()
    found = jury_of(data, votes=Votes("linearized", rank=32)).label_errors()
    bad = torch.isin(torch.tensor(found.table["node"].tolist()), wrong)
    assert found.of == "model"
    assert roc_auc_score(bad, found.table["wrong"]) > 0.8
    assert all(row == () for row in found.table["against"])


# --- the noise model ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 0.499), st.floats(0.001, 0.999), st.integers(2, 8))
def test_probability_wrong_is_bayes_rule(rate: float, own: float, classes: int) -> None:
    """Enumerate the true class: it is y with probability own, and else any other."""
    rest = (1 - own) / (classes - 1)
    joint = [(1 - rate) * own] + [rest * rate / (classes - 1)] * (classes - 1)
    p = torch.tensor([[own, *[rest] * (classes - 1)]], dtype=torch.float64)
    got = float(probability_wrong(p, torch.tensor([0]), rate))
    assert got == pytest.approx(sum(joint[1:]) / sum(joint), rel=1e-9)


def test_noise_is_recovered_from_simulated_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    p = torch.softmax(logits, dim=1)
    y = torch.multinomial(p, 1, generator=generator).squeeze(1)
    flipped = torch.rand(4000, generator=generator) < 0.2
    y[flipped] = (y[flipped] + torch.randint(1, 5, (int(flipped.sum()),), generator=generator)) % 5
    found = fit_noise(0.5 * logits, y)  # the jury is underconfident by a factor of 2
    assert found.rate == pytest.approx(0.2, abs=0.03)
    assert found.scale == pytest.approx(2.0, rel=0.15)
    w = probability_wrong(torch.softmax(found.scale * 0.5 * logits, dim=1), y, found.rate)
    flagged = w > 0.5
    assert float((1 - w[flagged]).mean()) == pytest.approx(float((~flipped)[flagged].double().mean()), abs=0.03)


def test_grid_finds_the_largest_posterior() -> None:
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (50,), generator=generator)
    found = fit_noise(logits, y)

    def posterior(rate: float, scale: float) -> float:
        own = torch.softmax(scale * logits, dim=1).gather(1, y[:, None])
        return float(((1 - rate) * own + rate * (1 - own) / 2).log().sum() + (STRICT - 1) * np.log(1 - rate))

    best = posterior(found.rate, found.scale)
    assert all(posterior(float(rate), scale) <= best + 1e-9 for rate in RATES for scale in (0.05, 0.5, 1.0, 3.0, 20.0))
