"""Every solver against torch.linalg.solve on the same operator, and what all of them promise."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from linalg_cases import (
    draw,
    indefinite,
    low_rank,
    mean_of_rows,
    positive,
    relative_error,
    uneven,
    with_spectrum,
)

from jurygcn.errors import SettingError, SolverError
from jurygcn.linalg import CG, MINRES, SOLVERS, DenseFactor, DenseOperator, Direct, Dual, LowRank, Neumann, shift

OPERATORS = {
    "positive": positive(),
    "ill-conditioned": positive(condition=1e6),
    "very ill-conditioned": positive(condition=1e9),
    "indefinite": indefinite(),
    "one parameter": DenseOperator(torch.tensor([[2.0]], dtype=torch.float64)),
    "low rank": low_rank(),
    "more rows than parameters": low_rank(20, 50),
    "as many rows as parameters": low_rank(20, 20),
    "weight decay per parameter": uneven(),
    "tiny weight decay": low_rank(decay=1e-9),
    "no rows": low_rank(10, 0),
    "mean of rows": mean_of_rows(),
    "damped": shift(mean_of_rows(), 0.2),
    "damped indefinite": shift(indefinite(), 3.0),
}
DEFINITE = [name for name in OPERATORS if name != "indefinite"]
LOW_RANK = [name for name in DEFINITE if isinstance(OPERATORS[name], LowRank)]
FAIR = [name for name in DEFINITE if name not in ("very ill-conditioned", "tiny weight decay")]
EASY = [name for name in FAIR if name != "ill-conditioned"]

# (solver, operators, relative error allowed against torch.linalg.solve)
TABLE = [
    (Direct(), list(OPERATORS), 1e-6),
    (Direct(), ["positive", "indefinite", "low rank"], 1e-12),
    (Dual(), LOW_RANK, 1e-6),
    (Dual(), ["low rank", "weight decay per parameter"], 1e-12),
    (CG(), FAIR, 1e-2),
    (CG(tolerance=1e-10), EASY, 1e-7),
    (MINRES(), [*FAIR, "indefinite"], 1e-2),
    (MINRES(tolerance=1e-10), [*EASY, "indefinite"], 1e-7),
    (Neumann(tolerance=1e-9), [name for name in EASY if name != "positive"], 1e-7),
    (Neumann(tolerance=1e-4), ["positive"], 5e-2),
]
ROWS = [(solver, name, bound) for solver, names, bound in TABLE for name in names]
ALL = [Direct(), Dual(), CG(tolerance=1e-12), MINRES(tolerance=1e-12), Neumann(tolerance=1e-12)]


def test_the_shared_tests_know_every_solver():
    assert {solver.name for solver in ALL} == set(SOLVERS)


def named(value):
    return getattr(value, "name", str(value))


@pytest.mark.parametrize(("solver", "name", "bound"), ROWS, ids=named)
def test_every_solver_equals_the_dense_solution(solver, name, bound):
    operator = OPERATORS[name]
    block = draw(operator.size, 7, seed=1)
    solution = solver.prepare(operator).solve(block)
    expected = torch.linalg.solve(operator.to_dense(), block)
    assert relative_error(solution.value, expected) < bound
    assert solution.converged
    assert solution.residual <= solver.tolerance
    assert solution.solver == solver.name
    assert solution.iterations >= 1


@pytest.mark.parametrize("solver", ALL, ids=named)
def test_the_residual_is_the_true_one_of_the_worst_column(solver):
    operator, block = low_rank(), draw(60, 4, seed=1)
    solution = solver.prepare(operator).solve(block)
    defect = operator.to_dense() @ solution.value - block
    assert solution.residual == pytest.approx(float((defect.norm(dim=0) / block.norm(dim=0)).max()), abs=1e-14)


@pytest.mark.parametrize("solver", ALL, ids=named)
def test_zero_columns_give_zero_and_do_not_disturb_the_others(solver):
    prepared = solver.prepare(low_rank())
    block = draw(60, 3, seed=1)
    block[:, 1] = 0
    solution = prepared.solve(block)
    assert not solution.value[:, 1].any()
    assert relative_error(solution.value[:, [0, 2]], prepared.solve(block[:, [0, 2]]).value) < 1e-10
    assert not prepared.solve(torch.zeros_like(block)).value.any()
    assert prepared.solve(block[:, :0]).value.shape == (60, 0)


@pytest.mark.parametrize("solver", ALL, ids=named)
@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 30),
    columns=st.integers(1, 5),
    exponent=st.floats(-200, 200),
)
@example(seed=0, rows=3, columns=2, exponent=-200.0)
@example(seed=0, rows=3, columns=2, exponent=200.0)
def test_columns_are_independent_and_scale_with_the_right_hand_side(solver, seed, rows, columns, exponent):
    factor = -(10**exponent)
    operator = low_rank(18, rows, decay=0.5, seed=seed)
    block = draw(18, columns, seed=seed + 1) * torch.logspace(0, 6, columns, dtype=torch.float64)
    prepared = solver.prepare(operator)
    together = prepared.solve(block).value
    for column in range(columns):
        alone = prepared.solve(block[:, [column]]).value[:, 0]
        torch.testing.assert_close(together[:, column], alone, rtol=1e-8, atol=1e-9 * float(alone.norm()))
    scaled = prepared.solve(factor * block).value
    torch.testing.assert_close(scaled, factor * together, rtol=1e-7, atol=1e-8 * abs(factor) * float(together.norm()))


@pytest.mark.parametrize("solver", [Direct(), CG(), MINRES()], ids=named)
@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    eigenvalues=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=25),
)
def test_random_positive_definite_systems(solver, seed, eigenvalues):
    matrix = with_spectrum(torch.tensor(eigenvalues, dtype=torch.float64), seed=seed)
    truth = draw(len(eigenvalues), 3, seed=seed + 1)
    solution = solver.prepare(DenseOperator(matrix)).solve(matrix @ truth)
    condition = max(eigenvalues) / min(eigenvalues)
    errors = (solution.value - truth).norm(dim=0) / truth.norm(dim=0)
    assert float(errors.max()) <= 2 * condition * max(solution.residual, 1e-15)
    assert solution.residual <= 1e-8


@pytest.mark.parametrize("solver", ALL, ids=named)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(solver, bad):
    block = draw(60, 2)
    block[3, 1] = bad
    with pytest.raises(SolverError, match="finite values in the right-hand sides"):
        solver.prepare(low_rank()).solve(block)
    rows = draw(5, 60)
    rows[2, 2] = bad
    with pytest.raises(SolverError, match="expected finite values"):
        solver.prepare(LowRank(torch.ones(60, dtype=torch.float64), DenseFactor(rows))).solve(draw(60, 2))


@pytest.mark.parametrize("solver", ALL, ids=named)
def test_blocks_that_do_not_fit_are_refused(solver):
    prepared = solver.prepare(low_rank())
    for block in (draw(60), draw(59, 2)):
        with pytest.raises(SettingError, match=r"expected a block of shape \(60, k\)"):
            prepared.solve(block)
    with pytest.raises(SettingError, match=r"torch.float64.*got torch.float32"):
        prepared.solve(draw(60, 2).float())


@pytest.mark.parametrize("solver", ALL, ids=named)
def test_the_right_hand_sides_are_left_as_they_were(solver):
    block = draw(60, 3).requires_grad_()
    before = block.detach().clone()
    value = solver.prepare(low_rank()).solve(block).value
    assert torch.equal(block.detach(), before)
    assert not value.requires_grad


@pytest.mark.parametrize(
    "make",
    [
        lambda: Direct(tolerance=0),
        lambda: Dual(tolerance=-1),
        lambda: CG(tolerance=2),
        lambda: CG(max_iterations=0),
        lambda: MINRES(tolerance=0),
        lambda: Neumann(iterations=0),
        lambda: Neumann(batch_size=0),
        lambda: Neumann(scale=0.0),
        lambda: Neumann(damping=-1.0),
        lambda: Neumann(tolerance=0),
    ],
)
def test_settings_outside_their_range_are_refused(make):
    with pytest.raises(SettingError, match="expected"):
        make()
