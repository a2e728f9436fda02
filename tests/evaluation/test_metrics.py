"""Metrics against counts made by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from jurygcn.errors import DataError
from jurygcn.evaluation import accuracy, error_auroc, mean_set_size, micro_f1, set_coverage

TRUTH = torch.tensor([0, 1, 2, 2, 1])
GUESS = torch.tensor([0, 2, 2, 1, 1])
SETS = torch.tensor([[1, 0, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 1]], dtype=torch.bool)


def test_accuracy_and_micro_f1():
    assert accuracy(GUESS, TRUTH) == pytest.approx(3 / 5)
    # TP 1 + 1 + 1, FP 0 + 1 + 1, FN 0 + 1 + 1 over the classes 0, 1, 2
    assert micro_f1(GUESS, TRUTH) == pytest.approx(2 * 3 / (2 * 3 + 2 + 2))
    assert micro_f1(TRUTH, TRUTH) == accuracy(TRUTH, TRUTH) == 1.0
    assert accuracy([1, 1], np.array([0, 1])) == 0.5


def test_error_auroc_counts_pairs():
    score = torch.tensor([0.9, 0.5, 0.5, 0.1, math.inf, 0.2])
    wrong = torch.tensor([True, True, False, False, True, False])
    pairs = list(itertools.product(score[wrong].tolist(), score[~wrong].tolist()))
    by_hand = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs) / len(pairs)
    assert by_hand == pytest.approx(8.5 / 9)
    assert error_auroc(score, wrong) == pytest.approx(by_hand)
    assert error_auroc(-score, wrong) == pytest.approx(1 - by_hand)
    assert error_auroc(torch.ones(6), wrong) == 0.5


def test_error_auroc_without_two_kinds():
    assert math.isnan(error_auroc([0.1, 0.2], [False, False]))
    assert math.isnan(error_auroc([0.1, 0.2], [True, True]))


def test_label_sets():
    assert set_coverage(SETS, TRUTH) == pytest.approx(3 / 5)  # nodes 0, 2 and 4
    assert mean_set_size(SETS) == pytest.approx((1 + 2 + 3 + 0 + 2) / 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: accuracy([0, 1], [0]), "as many predictions as true labels, got 2 and 1"),
        (lambda: micro_f1([], []), "at least one node"),
        (lambda: error_auroc([math.nan, 0.0], [True, False]), "without NaN"),
        (lambda: set_coverage(SETS, [0, 1, 2, 3, 1]), r"0\.\.2, got 3"),
        (lambda: set_coverage(SETS, [0, 1, 2, -1, 1]), r"0\.\.2, got -1"),
        (lambda: mean_set_size([True, False]), r"shape \(2,\)"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(DataError, match=message):
        call()
