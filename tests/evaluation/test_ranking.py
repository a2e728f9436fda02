"""Scores that rank errors, against every pair, every order of ties, and scikit-learn."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import aurc, error_aupr, excess_aurc, risk_coverage, success_aupr

SCORE = torch.tensor([0.9, 0.5, 0.5, 0.1, math.inf, 0.5])
WRONG = torch.tensor([True, True, False, False, True, False])


def curve_by_hand(order: tuple[int, ...], wrong: list[bool]) -> list[float]:
    return [sum(wrong[u] for u in order[:k]) / k for k in range(1, len(order) + 1)]


def curves_over_ties(score: list[float], wrong: list[bool]) -> np.ndarray:
    """The mean curve over all orders that sort the scores."""
    orders = [
        order
        for order in itertools.permutations(range(len(score)))
        if all(score[a] <= score[b] for a, b in itertools.pairwise(order))
    ]
    return np.mean([curve_by_hand(order, wrong) for order in orders], axis=0)


def test_risk_coverage_averages_over_ties():
    expected = curves_over_ties(SCORE.tolist(), WRONG.tolist())
    curve = risk_coverage(SCORE, WRONG)
    assert curve.risk == pytest.approx(expected)
    assert curve.coverage == pytest.approx(np.arange(1, 7) / 6)
    assert aurc(SCORE, WRONG) == pytest.approx(expected.mean())
    assert curve.accuracy_at(1.0) == pytest.approx(0.5)
    assert curve.accuracy_at(0.5) == pytest.approx(1 - expected[2])
    assert curve.accuracy_at(0.51) == pytest.approx(1 - expected[3])


def test_excess_is_zero_for_the_oracle_and_near_its_formula():
    wrong = np.arange(20_000) % 5 == 0
    assert excess_aurc(wrong.astype(float), wrong) == 0.0
    rate = 0.2
    assert aurc(wrong.astype(float), wrong) == pytest.approx(rate + (1 - rate) * math.log(1 - rate), abs=1e-3)
    useless = np.zeros(20_000)
    assert aurc(useless, wrong) == pytest.approx(rate)
    assert excess_aurc(useless, wrong) == pytest.approx(-(1 - rate) * math.log(1 - rate), abs=1e-3)


def test_aupr_of_errors_and_of_successes():
    generator = torch.Generator().manual_seed(0)
    score = torch.randint(0, 8, (60,), generator=generator).double()
    wrong = torch.rand(60, generator=generator) < 0.2 + 0.05 * score
    assert error_aupr(score, wrong) == pytest.approx(average_precision_score(wrong, score))
    assert success_aupr(score, wrong) == pytest.approx(average_precision_score(~wrong, -score))
    assert error_aupr(torch.zeros(60), wrong) == pytest.approx(float(wrong.double().mean()))
    assert success_aupr(torch.zeros(60), wrong) == pytest.approx(float((~wrong).double().mean()))
    assert math.isnan(error_aupr(score, torch.zeros(60)))
    assert error_aupr(SCORE, WRONG) == pytest.approx((1 / 1 + 2 / 2 + 3 / 5) / 3)  # an infinite score is the highest


def test_refusals():
    with pytest.raises(DataError, match="without NaN"):
        aurc([math.nan, 0.0], [True, False])
    with pytest.raises(SettingError, match="up to 1, got 0"):
        risk_coverage(SCORE, WRONG).accuracy_at(0)
