"""Operators with their structure, damping, and solvers by name."""

from dataclasses import dataclass

import pytest
import torch
from linalg_cases import draw, indefinite, low_rank, mean_of_rows, positive

from jurygcn.errors import SettingError
from jurygcn.linalg import (
    CG,
    SOLVERS,
    DenseFactor,
    DenseOperator,
    FiniteSumOperator,
    LowRankOperator,
    Operator,
    choose,
    shift,
)


@dataclass(frozen=True)
class Sized:
    """Only what the choice looks at."""

    size: int
    definite: bool | None = None
    dtype: torch.dtype = torch.float64
    device: str = "cpu"

    def matmul(self, _block):
        raise AssertionError("choosing must not compute")

    def to_dense(self):
        raise AssertionError("choosing must not compute")


@dataclass(frozen=True)
class Rows:
    rows: int


@dataclass(frozen=True)
class SizedLowRank(Sized):
    rows: int = 1
    decay: float = 1e-3

    @property
    def diagonal(self):
        return torch.full((self.size,), self.decay)

    @property
    def factor(self):
        return Rows(self.rows)


@pytest.mark.parametrize(
    ("operator", "name", "reason"),
    [
        (SizedLowRank(23_040, rows=700), "dual", "auto picked dual: 700 rows against 23,040 parameters"),
        (SizedLowRank(500, rows=500), "dual", "500 rows against 500 parameters"),
        (SizedLowRank(500, rows=501), "direct", "500 parameters fit a dense factorisation"),
        (SizedLowRank(500, rows=20, decay=0.0), "direct", "fit a dense"),
        (SizedLowRank(22_361, True, rows=20, decay=0.0), "cg", "positive definite"),
        (SizedLowRank(18_000, True, rows=45_000), "direct", "18,000 parameters fit"),
        (SizedLowRank(30_000, True, rows=18_300), "cg", "30,000 parameters needs 14.4 GB, more than 8.0 GB"),
        (SizedLowRank(30_000, True, rows=18_200), "dual", "18,200 rows against 30,000 parameters"),
        (Sized(22_360), "direct", "22,360 parameters fit"),
        (Sized(22_361, definite=True), "cg", "positive definite"),
        (Sized(22_361), "minres", "not known to be positive definite"),
    ],
)
def test_auto_picks_by_size_and_says_why(operator, name, reason):
    choice = choose("auto", operator)
    assert choice.bytes <= 8e9
    assert choice.name == choice.solver.name == name
    assert reason in choice.reason


@pytest.mark.parametrize(("memory", "name"), [(1e9, "cg"), (4e9, "direct"), (100e9, "direct")])
def test_auto_stays_within_its_memory(memory, name):
    choice = choose("auto", SizedLowRank(15_000, True, rows=50_000), memory=memory)
    assert choice.name == name
    assert choice.bytes <= memory


def test_a_solver_that_needs_more_than_its_memory_is_refused_in_a_sentence():
    operator = SizedLowRank(15_000, True, rows=50_000)
    with pytest.raises(SettingError, match=r"'direct' to fit in 1.0 GB, got matrices of 3.6 GB; use solver='auto'"):
        choose("direct", operator, memory=1e9)
    assert choose("direct", operator, memory=4e9).name == "direct"
    assert choose("direct", SizedLowRank(3_000, True), memory=1.0).name == "direct"  # too little to ask for


@pytest.mark.parametrize("name", SOLVERS)
def test_every_name_gives_its_solver_and_solves(name):
    operator, block = low_rank(), draw(60, 2)
    choice = choose(name, operator)
    assert choice.name == name
    solution = choice.prepare(operator).solve(block)
    assert solution.solver == name
    torch.testing.assert_close(solution.value, torch.linalg.solve(operator.to_dense(), block), rtol=1e-3, atol=1e-4)


def test_a_solver_with_its_own_settings_is_kept():
    solver = CG(tolerance=1e-3)
    assert choose(solver, positive()).solver is solver


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match=rf"{', '.join(['auto', *SOLVERS])}, got 'lissa'"):
        choose("lissa", positive())


@pytest.mark.parametrize("operator", [positive(), indefinite(), low_rank(), mean_of_rows()])
def test_shift_adds_to_the_diagonal_and_keeps_the_structure(operator):
    shifted = shift(operator, 0.7)
    identity = torch.eye(operator.size, dtype=torch.float64)
    torch.testing.assert_close(shifted.to_dense(), operator.to_dense() + 0.7 * identity)
    torch.testing.assert_close(shifted.matmul(draw(operator.size, 3)), shifted.to_dense() @ draw(operator.size, 3))
    for protocol in (Operator, LowRankOperator, FiniteSumOperator):
        assert isinstance(shifted, protocol) == isinstance(operator, protocol)
    assert shift(operator, 0.0) is operator


def test_shift_keeps_both_structures_right():
    operator, terms = mean_of_rows(), torch.tensor([3, 1, 7])
    shifted = shift(shift(operator, 0.5), 0.2)
    torch.testing.assert_close(shifted.diagonal, operator.diagonal + 0.7)
    expected = operator.subset(terms).to_dense() + 0.7 * torch.eye(30, dtype=torch.float64)
    torch.testing.assert_close(shifted.subset(terms).to_dense(), expected)


def test_the_mean_of_disjoint_batches_is_the_whole():
    operator = mean_of_rows()
    batches = [operator.subset(torch.arange(start, start + 10)).to_dense() for start in range(0, 40, 10)]
    torch.testing.assert_close(torch.stack(batches).mean(0), operator.to_dense())


def test_definite_is_claimed_only_when_known():
    assert low_rank().definite is True
    assert low_rank(decay=0.0).definite is None
    assert shift(low_rank(decay=0.0), 0.1).definite is True
    assert shift(indefinite(), 0.1).definite is None
    assert shift(positive(), 0.1).definite is True


@pytest.mark.parametrize("damping", [-1e-9, float("nan"), float("inf")])
def test_bad_damping_is_refused(damping):
    with pytest.raises(SettingError, match="damping >= 0"):
        shift(positive(), damping)


def test_a_dense_operator_must_be_square_and_symmetric():
    with pytest.raises(SettingError, match="square"):
        DenseOperator(draw(3, 4))
    with pytest.raises(SettingError, match="symmetric"):
        DenseOperator(draw(3, 3))


def test_the_dense_factor_is_its_matrix():
    rows, weights = draw(5, 9), draw(9, seed=1).abs()
    factor = DenseFactor(rows)
    torch.testing.assert_close(factor.gram(weights), rows @ torch.diag(weights) @ rows.mT)
    torch.testing.assert_close(factor.matmul(draw(9, 2)), rows @ draw(9, 2))
    torch.testing.assert_close(factor.transpose_matmul(draw(5, 2)), rows.mT @ draw(5, 2))
    assert factor.rows == 5
