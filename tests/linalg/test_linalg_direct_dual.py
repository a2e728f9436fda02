"""The two factorising solvers: what they refuse, and the blocks that leaving one out needs."""

import pytest
import torch
from linalg_cases import draw, indefinite, low_rank, positive, relative_error, singular, uneven

from jurygcn.errors import SettingError, SolverError
from jurygcn.linalg import CG, DenseFactor, DenseOperator, Direct, Dual, LowRank, shift
from jurygcn.linalg.small import inverse_of_triangle


@pytest.mark.parametrize(
    "operator",
    [singular(), low_rank(30, 5, decay=0.0), DenseOperator(torch.zeros(4, 4, dtype=torch.float64))],
)
def test_direct_refuses_a_singular_system(operator):
    with pytest.raises(SolverError, match=r"condition number about .*add damping or weight decay"):
        Direct().prepare(operator)
    damped = shift(operator, 0.1)
    block = draw(operator.size, 2)
    solution = Direct().prepare(damped).solve(block)
    assert relative_error(solution.value, torch.linalg.solve(damped.to_dense(), block)) < 1e-10


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
def test_direct_estimates_the_condition_number(condition):
    operator = positive(condition=condition)
    true = float(torch.linalg.cond(operator.to_dense(), 1))
    assert true / 3 < Direct().prepare(operator).condition < 1.1 * true


def test_direct_refuses_a_residual_beyond_its_tolerance():
    with pytest.raises(SolverError, match=r"relative residual of .*ill-conditioned"):
        Direct(tolerance=1e-17).prepare(positive(condition=1e10)).solve(draw(40, 2))


def test_refinement_removes_what_rounding_leaves():
    operator = low_rank(80, 30, decay=1e-10)
    block = operator.matmul(draw(80, 3, seed=1))  # in the range of the large eigenvalues, where Woodbury cancels
    prepared = Dual().prepare(operator)
    plain = prepared._apply_inverse(block)
    before = float((operator.matmul(plain) - block).norm() / block.norm())
    solution = prepared.solve(block)
    assert solution.iterations > 1
    assert solution.residual < 1e-10 < before


def test_dual_refuses_a_residual_beyond_its_tolerance():
    prepared = Dual().prepare(low_rank(decay=1e-12))
    with pytest.raises(SolverError, match=r"relative residual of .*condition number about \d\.\de\+1[2-4]"):
        prepared.solve(draw(60, 2, seed=1))


@pytest.mark.parametrize("operator", [low_rank(), low_rank(20, 50), uneven()])
def test_dual_bounds_the_condition_number(operator):
    true = float(torch.linalg.cond(operator.to_dense()))
    assert true <= Dual().prepare(operator).condition < 100 * true


def test_dual_needs_the_low_rank_form():
    with pytest.raises(SolverError, match=r"form diag \+ UᵀU"):
        Dual().prepare(positive())


def test_dual_needs_a_diagonal_that_is_not_negative():
    operator = uneven()
    operator.diagonal[7] = -0.1
    with pytest.raises(SolverError, match=r"no negative weight decay.* damping"):
        Dual().prepare(operator)
    assert Dual().prepare(shift(operator, 0.5)).solve(draw(60, 1)).converged


@pytest.mark.parametrize("decay", [1e-14, 1e-20])
def test_dual_refuses_what_working_precision_cannot_hold(decay):
    with pytest.raises(SolverError, match=r"singular to working precision .*add damping or weight decay"):
        Dual().prepare(low_rank(20, 50, decay=decay))


def in_terms(operator, block):
    return LowRank(operator.diagonal, DenseFactor(operator.factor.matrix, block))


@pytest.mark.parametrize("operator", [low_rank(), low_rank(20, 60), uneven(), low_rank(decay=1e-6)])
@pytest.mark.parametrize("block", [1, 3, 5])
@pytest.mark.parametrize("solver", [Dual(), Direct()], ids=lambda solver: solver.name)
def test_leaving_a_term_out_equals_the_dense_formulas(solver, operator, block):
    operator = in_terms(operator, block)
    U, inverse = operator.factor.matrix, torch.linalg.inv(operator.to_dense())
    terms = U.view(-1, block, U.shape[1])
    prepared = solver.prepare(operator)
    retention = torch.eye(block, dtype=torch.float64) - terms @ inverse @ terms.mT
    torch.testing.assert_close(prepared.retention(), retention, rtol=0, atol=1e-8)
    weights = draw(len(terms), block, seed=3)
    expected = torch.stack([inverse @ term.mT @ w for term, w in zip(terms, weights)], dim=1)
    some = torch.tensor([2, 0])
    for asked in (torch.arange(len(terms)), some):
        solution = prepared.solve_terms(weights, asked, dtype=torch.float64)
        assert relative_error(solution.value, expected[:, asked]) < 1e-7
        assert solution.converged


@pytest.mark.parametrize("decay", [1.0, 1e-3, 1e-9])
def test_retention_stays_positive_and_accurate_where_leverage_is_close_to_one(decay):
    # orthogonal rows: K is diagonal, and 1 - leverage = d / (d + s²) exactly
    sizes = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    basis, _ = torch.linalg.qr(draw(10, 4))
    operator = LowRank(torch.full((10,), decay, dtype=torch.float64), DenseFactor((basis * sizes).mT.contiguous()))
    retention = Dual().prepare(operator).retention()[:, 0, 0]
    torch.testing.assert_close(retention, decay / (decay + sizes**2), rtol=1e-6, atol=0)


def test_leverage_gives_the_inverse_without_one_term():
    operator = in_terms(low_rank(40, 12, decay=0.05), 3)
    prepared = Dual().prepare(operator)
    term = operator.factor.matrix[3:6]
    block = draw(40, 2, seed=2)
    solved, spread = prepared.solve(block).value, prepared.solve(term.mT).value
    updated = solved + spread @ torch.linalg.solve(prepared.retention()[1], term @ solved)
    assert relative_error(updated, torch.linalg.solve(operator.to_dense() - term.mT @ term, block)) < 1e-10


def test_block_sizes_that_do_not_divide_the_rows_are_refused():
    with pytest.raises(SettingError, match="block to divide 15 rows, got 4"):
        in_terms(low_rank(), 4)


def test_direct_solves_an_indefinite_system_that_claims_to_be_definite():
    operator = DenseOperator(indefinite().matrix, definite=True)
    block = draw(40, 2)
    value = Direct().prepare(operator).solve(block).value
    assert relative_error(value, torch.linalg.solve(operator.matrix, block)) < 1e-12


@pytest.mark.parametrize("size", [5, 60])
def test_direct_keeps_matrix_and_factor_in_one_array(monkeypatch, size):
    monkeypatch.setattr("jurygcn.linalg.direct.ROWS", 7)
    operator, block = low_rank(size, 9), draw(size, 3)
    matrix = operator.to_dense()
    prepared = Direct().prepare(operator)
    torch.testing.assert_close(prepared.factors.product(block), matrix @ block)
    torch.testing.assert_close(prepared.factors.solve(block), torch.linalg.solve(matrix, block))
    torch.testing.assert_close(prepared.factors.inverse(), torch.linalg.inv(matrix))


def test_direct_does_not_write_into_the_operators_matrix():
    operator = positive()
    before = operator.matrix.clone()
    Direct().prepare(operator)
    assert torch.equal(operator.matrix, before)


@pytest.mark.parametrize("solver", [Dual(), Direct(), CG(), CG(sketch=8)], ids=["dual", "direct", "cg", "nystrom"])
def test_some_terms_are_left_out_as_all_are(solver):
    operator = in_terms(uneven(), 3)
    prepared, some = solver.prepare(operator), torch.tensor([4, 1])
    whole = prepared.retention()
    assert whole.shape == (5, 3, 3)
    torch.testing.assert_close(prepared.retention(some), whole[some], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("size", "dtype"), [(0, torch.float64), (1, torch.float64), (7, torch.float32), (200, torch.float64)]
)
def test_the_inverse_of_a_triangle_is_torchs(size, dtype):
    lower = (draw(size, size) / max(size, 1)).tril().to(dtype) + torch.eye(size, dtype=dtype)
    by_columns = lower.T.contiguous().T
    for given in (lower, by_columns):  # either order in memory
        torch.testing.assert_close(inverse_of_triangle(given), torch.linalg.inv(lower).T)
    assert torch.equal(lower, by_columns)
