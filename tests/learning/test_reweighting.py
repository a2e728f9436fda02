"""The paper's loss weights: the formula, the erratum, and when they are refreshed."""

from __future__ import annotations

import math

import pytest
import torch
from small_graphs import communities, parts

from jurygcn import Jury, learning, reweighting
from jurygcn.errors import SettingError
from jurygcn.models import GCN, train

DATA = communities()
TRAIN, _, TEST = parts(DATA, labels=12)


def test_weights_by_hand():
    U = torch.tensor([3.0, -4.0, 0.0])
    printed = learning.loss_weights(U, tau=2.0, as_printed=True)
    torch.testing.assert_close(printed, torch.tensor([9 / 25, 16 / 25, 0.0]))
    torch.testing.assert_close(learning.loss_weights(U, tau=2.0), 3 * printed)
    torch.testing.assert_close(learning.loss_weights(U, tau=1.0, as_printed=True), torch.tensor([0.6, 0.8, 0.0]))
    assert learning.loss_weights(torch.zeros(4)).tolist() == [1.0] * 4


@pytest.mark.parametrize("n", [10, 100])
@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_printed_weights_shrink_the_loss(n: int, tau: float):
    """E7: with similar uncertainties the mean weight is n^(-tau/2), not 1."""
    U = 1 + 0.1 * torch.rand(n, generator=torch.Generator().manual_seed(0))
    assert float(learning.loss_weights(U, tau=tau, as_printed=True).mean()) == pytest.approx(n ** (-tau / 2), rel=0.05)
    assert float(learning.loss_weights(U, tau=tau).mean()) == pytest.approx(1.0)


def test_tau_zero_is_ordinary_training():
    found = learning.reweight(DATA, TRAIN, seed=3, tau=0.0)
    model = GCN(12, 16, 3, dropout=0.5)
    train(model, DATA, TRAIN, seed=3)
    for ours, plain in zip(found.model.weights, model.weights):
        torch.testing.assert_close(ours, plain)


def test_weights_are_refreshed_every_ten_epochs(monkeypatch: pytest.MonkeyPatch):
    asked = []

    class Counted(Jury):
        def fit(self) -> Jury:
            asked.append(self.engine.theta)
            return super().fit()

    monkeypatch.setattr(reweighting, "Jury", Counted)
    found = learning.reweight(DATA, TRAIN, epochs=35)
    assert [line["epoch"] for line in found.history] == [11, 21, 31]
    assert len(asked) == 3
    assert not torch.equal(asked[0], asked[1])
    assert all(line["mean_weight"] == pytest.approx(1.0) for line in found.history)
    assert all(line["smallest_weight"] < 1 < line["largest_weight"] for line in found.history)


def test_the_last_weights_follow_from_the_verdict():
    """With the last verdict after epoch 10 of 11, the model of epoch 10 gives the weights."""
    before = GCN(12, 16, 3, dropout=0.5)
    train(before, DATA, TRAIN, epochs=10, seed=0)
    width = Jury(before, DATA, TRAIN).fit().verdict(TRAIN).width
    expected = (width / width.norm()) ** 2
    found = learning.reweight(DATA, TRAIN, seed=0, epochs=11)
    torch.testing.assert_close(found.weights, (expected / expected.mean()).float())
    printed = learning.reweight(DATA, TRAIN, seed=0, epochs=11, as_printed=True)
    torch.testing.assert_close(printed.weights, expected.float())


@pytest.mark.parametrize("score", ["ambiguity", "credibility", "loo_variance"])
def test_any_score_of_the_verdict(score: str):
    found = learning.reweight(DATA, TRAIN, score=score, epochs=21)
    assert float(found.weights.mean()) == pytest.approx(1.0)
    assert bool((found.weights >= 0).all())
    assert float(found.weights.max()) > 1


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"tau": -1.0}, "tau"), ({"score": "luck"}, "luck"), ({"refresh": 0}, "refresh"), ({"tau": math.inf}, "tau")],
)
def test_wrong_settings_are_refused(settings: dict, word: str):
    with pytest.raises(SettingError, match=word):
        learning.reweight(DATA, TRAIN, **settings)
