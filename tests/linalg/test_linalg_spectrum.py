"""Estimated eigenvalues against dense ones, both below and above the size where Lanczos takes over."""

import pytest
import torch
from linalg_cases import draw, indefinite, low_rank, positive, with_spectrum

from jurygcn.errors import SettingError, SolverError
from jurygcn.linalg import DenseOperator, extreme_eigenvalues
from jurygcn.linalg.spectrum import DENSE_SIZE, condition_number

BIG = DENSE_SIZE + 96


def dense_extremes(operator):
    values = torch.linalg.eigvalsh(operator.to_dense())
    return float(values[0]), float(values[-1])


@pytest.mark.parametrize("operator", [indefinite(), positive(), low_rank()])
def test_small_operators_are_exact(operator):
    assert extreme_eigenvalues(operator) == pytest.approx(dense_extremes(operator), rel=1e-9)


@pytest.mark.parametrize(
    "operator",
    [
        indefinite(BIG),
        positive(BIG, condition=100),
        low_rank(BIG, 20, decay=1e-3),
        low_rank(BIG, 200, decay=5e-4),  # its first row is what seed 0 draws
        DenseOperator(-positive(BIG, condition=100).matrix),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_lanczos_is_close_and_errs_outwards(operator, seed):
    low, high = extreme_eigenvalues(operator, seed=seed)
    true_low, true_high = dense_extremes(operator)
    assert low == pytest.approx(true_low, rel=0.15)
    assert high == pytest.approx(true_high, rel=0.15)
    assert high >= true_high * (1 - 1e-2)


def test_an_unfinished_run_does_not_call_an_indefinite_operator_positive():
    eigenvalues = torch.linspace(1, 100, BIG, dtype=torch.float64)
    eigenvalues[0] = -0.01
    assert extreme_eigenvalues(DenseOperator(with_spectrum(eigenvalues)), iterations=20)[0] < 0


def test_the_same_seed_gives_the_same_numbers():
    operator = positive(BIG)
    assert extreme_eigenvalues(operator, seed=3) == extreme_eigenvalues(operator, seed=3)
    assert extreme_eigenvalues(operator, seed=3, iterations=20) != extreme_eigenvalues(operator, seed=4, iterations=20)


def test_a_multiple_of_the_identity_ends_the_run_at_once():
    operator = DenseOperator(2 * torch.eye(BIG, dtype=torch.float64))
    assert extreme_eigenvalues(operator) == pytest.approx((2.0, 2.0))
    assert extreme_eigenvalues(DenseOperator(torch.zeros(BIG, BIG, dtype=torch.float64))) == (0.0, 0.0)


def test_bad_input_is_refused():
    with pytest.raises(SettingError, match="iterations >= 1"):
        extreme_eigenvalues(positive(), iterations=0)
    for size in (10, BIG):
        with pytest.raises(SolverError, match="expected finite values"):
            extreme_eigenvalues(DenseOperator(torch.full((size, size), float("nan"), dtype=torch.float64)))


def test_one_parameter():
    assert extreme_eigenvalues(DenseOperator(draw(1, 1).abs())) == pytest.approx((float(draw(1, 1).abs()),) * 2)


@pytest.mark.parametrize("seed", range(10))
def test_the_condition_number_is_bounded_by_the_exact_one(seed):
    root = torch.randn(30, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    matrix = root @ root.T + 0.1 * torch.eye(30, dtype=torch.float64)
    inverse = torch.linalg.inv(matrix)
    exact = float(torch.linalg.matrix_norm(matrix, 1) * torch.linalg.matrix_norm(inverse, 1))
    estimate = condition_number(matrix, lambda block: inverse @ block)
    assert exact / 3 <= estimate <= exact * (1 + 1e-9)  # Hager's method never overestimates


def test_the_condition_number_of_the_identity_is_one():
    assert condition_number(torch.eye(7, dtype=torch.float64), lambda block: block) == pytest.approx(1.0)
