"""Intervals equal hand-sorted lists, and MAPIE's where it has the same thing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut

from jurygcn.conformal.counts import Interval, Own
from jurygcn.conformal.intervals import LowerTail, check_alpha, exact_rank, loo_errors, upper_error
from jurygcn.errors import SettingError

NOBODY = Own(torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long))


def interval_of(
    method: str, predictions: torch.Tensor, errors: torch.Tensor, prediction: torch.Tensor, **given
) -> tuple[torch.Tensor, torch.Tensor]:
    """The interval at nodes without a juror of their own: predictions (n, m), errors (n,), prediction (m,)."""
    found = Interval(method, given.pop("alpha"), len(predictions), **given)
    for some, of_some in zip(predictions.split(7), errors.split(7)):
        found.add(some.T[:, None, :], of_some[:, None], NOBODY)
    speakers = torch.full((predictions.shape[1],), len(predictions))
    lower, upper = found.bounds(prediction[:, None], speakers, NOBODY)
    return lower[:, 0], upper[:, 0]


def test_loo_errors():
    """Eq. (6) on two nodes, by hand."""
    y = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    p = torch.tensor([[0.4, 0.6], [0.3, 0.7]])
    torch.testing.assert_close(loo_errors(y, p), torch.tensor([math.sqrt(0.72), math.sqrt(0.18)]))


def test_interpolated_interval_by_hand():
    """Eq. (7), three jurors, alpha = 0.25: position 0.25 * 2 = 0.5 between the two extreme values."""
    norms = torch.tensor([[0.6], [0.8], [0.7]], dtype=torch.float64)
    errors = torch.tensor([0.3, 0.1, 0.6], dtype=torch.float64)
    # lower values: 0.3, 0.7, 0.1 -> sorted 0.1, 0.3, 0.7; upper values 0.9, 0.9, 1.3 -> sorted 0.9, 0.9, 1.3
    lower, upper = interval_of("jackknife+", norms, errors, norms[0], alpha=0.25, exact=False)
    torch.testing.assert_close(lower, torch.tensor([0.2], dtype=torch.float64))
    torch.testing.assert_close(upper, torch.tensor([1.1], dtype=torch.float64))


def test_exact_interval_needs_enough_labels():
    """Erratum E8: at alpha = 0.025 the exact rank is infinite below 39 labels."""
    for n, exact, finite in ((38, True, False), (39, True, True), (5, False, True)):
        lower, upper = interval_of(
            "jackknife+", torch.rand(n, 2), torch.rand(n), torch.rand(2), alpha=0.025, exact=exact
        )
        assert bool(torch.isfinite(lower).all()) == bool(torch.isfinite(upper).all()) == finite


def test_ranks_are_integers_without_rounding():
    assert exact_rank(0.57, 99) == 57  # 0.57 * 100 is 56.99999999999999 in floating point
    assert exact_rank(0.1, 69) == 7
    assert exact_rank(0.025, 38) == 0


values = hnp.arrays(float, st.tuples(st.integers(1, 40), st.integers(1, 4)), elements=st.floats(-5, 5, width=32))


@given(values, st.floats(0.001, 0.499), st.integers(1, 7), st.booleans(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_streamed_tails_equal_sorted_lists(array, alpha, batch, exact, random):
    """Any batch size, any exclusions: the streamed quantile is the one of the sorted list."""
    table = torch.from_numpy(array)
    n, m = table.shape
    hidden = torch.tensor([[random.random() < 0.2 for _ in range(m)] for _ in range(n)])
    # at most one juror is excluded per node, as in the library
    hidden &= hidden.cumsum(0) == 1
    tail = LowerTail(alpha, n, exact=exact)
    for rows, mask in zip(table.split(batch), hidden.split(batch)):
        tail.add(rows.masked_fill(mask, torch.inf).T)
    counts = (~hidden).sum(0)
    got = tail.quantile(counts)
    for u in range(m):
        left = sorted(table[~hidden[:, u], u].tolist())
        if not left:
            assert got[u] == -math.inf
        elif exact:
            rank = exact_rank(alpha, len(left))
            assert got[u] == (left[rank - 1] if rank >= 1 else -math.inf)
        else:
            assert got[u].item() == pytest.approx(np.quantile(left, alpha), abs=1e-9)


@pytest.mark.parametrize("bad", [0.0, 1.0, 0.5, -0.1, float("nan")])
def test_alpha_out_of_range(bad):
    with pytest.raises(SettingError, match="alpha"):
        check_alpha(bad)


@pytest.mark.parametrize("method", ["plus", "base", "minmax"])
@pytest.mark.parametrize("alpha", [0.1, 0.25])
def test_regression_intervals_equal_mapie(method: str, alpha: float):
    """The same leave-one-out models (a ridge regression) through MAPIE's implementation and through ours."""
    regression = pytest.importorskip("mapie.regression")
    rng = np.random.default_rng(0)
    X, Xnew = rng.normal(size=(40, 3)), rng.normal(size=(25, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.normal(size=40)
    mapie = regression.CrossConformalRegressor(
        Ridge(alpha=1.0), confidence_level=1 - alpha, method=method, cv=LeaveOneOut()
    )
    _, theirs = mapie.fit_conformalize(X, y).predict_interval(Xnew, aggregate_point_predictions=None)
    loo = [Ridge(alpha=1.0).fit(np.delete(X, i, 0), np.delete(y, i)) for i in range(40)]
    predictions = torch.from_numpy(np.stack([model.predict(Xnew) for model in loo]))
    errors = torch.from_numpy(np.array([abs(y[i] - loo[i].predict(X[i : i + 1])[0]) for i in range(40)]))
    prediction = torch.from_numpy(Ridge(alpha=1.0).fit(X, y).predict(Xnew))
    name = {"plus": "jackknife+", "base": "jackknife", "minmax": "minmax"}[method]
    ours = interval_of(name, predictions, errors, prediction, alpha=alpha, exact=True)
    np.testing.assert_allclose(torch.stack(ours, 1).numpy(), theirs[:, :, 0], rtol=1e-6)


def test_upper_error_is_the_exact_rank():
    errors = torch.arange(1.0, 10.0)  # nine errors; (1 - 0.2) * 10 = 8th smallest
    assert upper_error(errors, alpha=0.2) == 8.0
    assert upper_error(errors, alpha=0.05) == math.inf


@pytest.mark.parametrize(("values", "alpha"), [([0.0, 1.0], 0.4), ([3.0, 1.0, 2.0], 0.45), ([5.0], 0.2)])
def test_interpolation_reaches_the_last_of_few_values(values, alpha):
    tail = LowerTail(alpha, len(values), exact=False)
    tail.add(torch.tensor([values], dtype=torch.float64))
    assert tail.quantile(torch.tensor([len(values)])).item() == pytest.approx(np.quantile(values, alpha))
