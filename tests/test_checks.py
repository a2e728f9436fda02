"""Numbers must be numbers."""

from __future__ import annotations

import math

import pytest
import torch

from jurygcn.checks import all_finite, check_count, check_real
from jurygcn.errors import SettingError


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 7, 14])
def test_one_bad_entry_is_seen(bad: float, place: int):
    values = torch.ones(3, 5)
    values.view(-1)[place] = bad
    assert not all_finite(values)


def test_infinities_that_cancel_are_seen():
    assert not all_finite(torch.tensor([math.inf, -math.inf, 0.0]))


def test_finite_numbers_whose_sum_overflows_are_finite():
    largest = torch.finfo(torch.float32).max
    assert all_finite(torch.tensor([largest, largest, largest]))
    assert all_finite(torch.tensor([]))


@pytest.mark.parametrize("value", [True, "1", None, math.nan, math.inf, -0.1])
def test_settings_that_are_no_numbers(value: object):
    with pytest.raises(SettingError, match="expected speed as a finite number"):
        check_real(value, "speed")


@pytest.mark.parametrize("value", [True, 1.0, "1", 0, 11])
def test_counts_that_are_none(value: object):
    with pytest.raises(SettingError, match="expected rounds as a whole number between 1 and 10"):
        check_count(value, "rounds", most=10)
    assert check_count(10, "rounds", most=10) == 10
