"""Calibration against loops over nodes and bins."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import brier, ece, nll, reliability


def sample(m: int = 200, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pi = torch.softmax(2 * torch.randn(m, classes, generator=generator, dtype=torch.float64), dim=1)
    return pi, torch.randint(0, classes, (m,), generator=generator)


def ece_by_hand(pi: torch.Tensor, truth: torch.Tensor, edges: list[float]) -> float:
    total = 0.0
    for low, high in itertools.pairwise(edges):
        inside = [u for u in range(len(pi)) if low < float(pi[u].max()) <= high]
        if inside:
            conf = sum(float(pi[u].max()) for u in inside) / len(inside)
            right = sum(int(pi[u].argmax()) == int(truth[u]) for u in inside) / len(inside)
            total += len(inside) / len(pi) * abs(conf - right)
    return total


def test_ece_of_equal_width():
    pi, truth = sample()
    assert ece(pi, truth) == pytest.approx(ece_by_hand(pi, truth, np.linspace(0, 1, 11).tolist()))
    assert ece(pi, truth, bins=3) == pytest.approx(ece_by_hand(pi, truth, np.linspace(0, 1, 4).tolist()))


def test_a_confidence_on_the_edge_is_in_the_lower_bin():
    pi = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.2, 0.2]], dtype=torch.float64)
    assert reliability(pi, [0, 0]).count.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 0]
    assert math.isnan(reliability(pi, [0, 0]).accuracy[0])


def test_ece_of_equal_mass():
    pi, truth = sample()
    bins = reliability(pi, truth, binning="mass")
    assert bins.count.tolist() == [20] * 10
    assert bins.ece == pytest.approx(ece_by_hand(pi, truth, [*bins.lower.tolist(), float(bins.upper[-1])]))
    order = torch.randperm(len(pi), generator=torch.Generator().manual_seed(1))
    coarse = torch.softmax(pi.mul(4).round(), dim=1)  # many equal confidences
    one, other = (reliability(coarse[o], truth[o], binning="mass") for o in (torch.arange(len(pi)), order))
    assert one.count.tolist() == other.count.tolist()
    assert one.ece == pytest.approx(other.ece)
    assert one.count.sum() == len(pi)


def test_a_calibrated_sample_and_an_overconfident_one():
    pi = torch.full((1000, 2), 0.5, dtype=torch.float64)
    pi[:, 0], pi[:, 1] = 0.8, 0.2
    truth = (torch.arange(1000) % 5 == 0).long()
    assert ece(pi, truth) == pytest.approx(0.0, abs=1e-12)
    sure = torch.eye(2, dtype=torch.float64)[torch.zeros(1000, dtype=torch.long)]
    assert ece(sure, truth) == pytest.approx(0.2)
    assert brier(sure, truth) == pytest.approx(2 * 0.2)
    assert nll(sure, truth) == pytest.approx(-0.2 * math.log(1e-12))


def test_nll_and_brier():
    pi, truth = sample()
    assert nll(pi, truth) == pytest.approx(log_loss(truth, pi))
    by_hand = 0.0
    for u in range(len(pi)):
        by_hand += sum((float(pi[u, c]) - (c == int(truth[u]))) ** 2 for c in range(4))
    assert brier(pi, truth) == pytest.approx(by_hand / len(pi))


def test_refusals():
    pi, truth = sample(5)
    with pytest.raises(DataError, match="softmax"):
        nll(pi.log(), truth)
    with pytest.raises(DataError, match="softmax"):
        ece(2 * pi, truth)
    with pytest.raises(DataError, match=r"0\.\.3, got -1"):
        brier(pi, -torch.ones(5, dtype=torch.long))
    with pytest.raises(SettingError, match="width, mass"):
        ece(pi, truth, binning="depth")
    with pytest.raises(SettingError, match="at least 1 bin"):
        ece(pi, truth, bins=0)
