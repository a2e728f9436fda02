"""Conjugate gradients and minimal residuals: what they refuse, and how they treat their columns."""

from itertools import pairwise

import pytest
import scipy.sparse.linalg as sparse
import torch
from linalg_cases import draw, indefinite, low_rank, positive, relative_error, singular, with_spectrum

from jurygcn.errors import SettingError, SolverError
from jurygcn.linalg import CG, MINRES, DenseFactor, DenseOperator, LowRank, cg, minres, shift


class Counting(DenseOperator):
    """Keeps the widths of the blocks it was applied to."""

    def matmul(self, block):
        self.__dict__.setdefault("widths", []).append(block.shape[1])
        return super().matmul(block)


@pytest.mark.parametrize("seed", range(5))
def test_cg_refuses_an_indefinite_operator(seed):
    with pytest.raises(SolverError, match=r'in one direction; use curvature="ggn", add damping.*minres'):
        CG().prepare(indefinite(seed=seed)).solve(draw(40, 3, seed=seed))
    assert CG().prepare(shift(indefinite(seed=seed), 3.0)).solve(draw(40, 3)).converged


def test_cg_refuses_a_negative_definite_and_a_zero_operator():
    for matrix in (-positive().matrix, torch.zeros(40, 40, dtype=torch.float64)):
        with pytest.raises(SolverError, match="expected a positive definite operator"):
            CG().prepare(DenseOperator(matrix)).solve(draw(40, 3))


@pytest.mark.parametrize("solver", [CG(), MINRES()], ids=lambda s: s.name)
def test_a_singular_system_without_a_solution_is_refused(solver):
    with pytest.raises(SolverError, match="damping"):
        solver.prepare(singular()).solve(draw(40, 3))


@pytest.mark.parametrize("solver", [CG(), MINRES()], ids=lambda s: s.name)
def test_a_singular_system_with_a_solution_is_solved(solver):
    operator = low_rank(30, 5, decay=0.0)
    block = operator.matmul(draw(30, 3))
    solution = solver.prepare(operator).solve(block)
    assert relative_error(operator.matmul(solution.value), block) < 1e-8


def test_minres_says_that_the_operator_is_singular():
    for operator in (singular(), DenseOperator(torch.zeros(40, 40, dtype=torch.float64))):
        with pytest.raises(SolverError, match="singular"):
            MINRES().prepare(operator).solve(draw(40, 3))


@pytest.mark.parametrize("kind", [CG, MINRES])
def test_too_few_iterations_are_refused_with_the_residual_reached(kind):
    with pytest.raises(SolverError, match=r"got \d\.\de-\d\d after 4 iterations.*max_iterations"):
        kind(max_iterations=4).prepare(positive(condition=30)).solve(draw(40, 3))


@pytest.mark.parametrize("kind", [CG, MINRES])
def test_an_unreachable_tolerance_is_refused(kind):
    with pytest.raises(SolverError, match="raise the tolerance"):
        kind(tolerance=1e-17).prepare(positive()).solve(draw(40, 3))


@pytest.mark.parametrize("kind", [CG, MINRES])
def test_finished_columns_leave_the_block(kind):
    operator = Counting(positive(condition=1e4).matrix)
    _, vectors = torch.linalg.eigh(operator.matrix)
    block = torch.cat([vectors[:, [3]], draw(40, 1), torch.zeros(40, 1, dtype=torch.float64)], dim=1)
    solution = kind().prepare(operator).solve(block)
    widths = operator.__dict__["widths"]
    assert widths[0] == 2  # the zero column never enters
    assert widths[1] == 1  # an eigenvector is done after one step
    assert solution.value[:, [0]].allclose(operator.to_dense().inverse() @ block[:, [0]])


@pytest.mark.parametrize("kind", [CG, MINRES])
def test_iterations_follow_the_number_of_distinct_eigenvalues(kind):
    eigenvalues = torch.tensor([1.0, 2.0, 5.0] * 10, dtype=torch.float64)
    solution = kind().prepare(DenseOperator(with_spectrum(eigenvalues))).solve(draw(30, 4))
    assert solution.iterations == 3


@pytest.mark.parametrize(("sweep", "peer"), [(cg.sweep, sparse.cg), (minres.sweep, sparse.minres)])
@pytest.mark.parametrize("steps", [1, 2, 3, 8, 15])
def test_the_iterates_are_those_of_scipy(sweep, peer, steps):
    operator, block = positive(60, condition=1e3), draw(60, 3)
    value, used = sweep(operator, block, 0.0, steps)
    for column in range(3):
        expected, _ = peer(operator.matrix.numpy(), block[:, column].numpy(), rtol=1e-14, maxiter=steps)
        torch.testing.assert_close(value[:, column], torch.from_numpy(expected), rtol=1e-8, atol=1e-10)
    assert used == steps


@pytest.mark.parametrize("kind", [CG, MINRES])
@pytest.mark.parametrize("operator", [positive(condition=1e11), low_rank(decay=1e-11)])
def test_more_than_float64_can_resolve_is_refused(kind, operator):
    with pytest.raises(SolverError, match="add damping"):
        kind().prepare(operator).solve(draw(operator.size, 2))


def test_recurrences_that_drifted_are_taken_up_again():
    operator, block = positive(condition=1e6), draw(40, 4)
    block = block / block.norm(dim=0)
    once, _ = minres.sweep(operator, block, 5e-11, 400)
    assert (operator.matmul(once) - block).norm(dim=0).max() > 1e-9
    assert MINRES(tolerance=1e-10).prepare(operator).solve(block).residual <= 1e-10


def test_minres_never_lets_the_residual_grow():
    operator, right = indefinite(), draw(40, 1)
    reached = []
    for budget in range(1, 40, 3):
        try:
            reached.append(MINRES(max_iterations=budget).prepare(operator).solve(right).residual)
        except SolverError as error:
            reached.append(float(str(error).split("got ")[1].split()[0]))
    assert len(set(reached)) > 5
    assert all(later <= earlier * 1.001 for earlier, later in pairwise(reached))


@pytest.mark.parametrize("scale", [1e-9, 1e9])
@pytest.mark.parametrize("solver", [CG(), MINRES()])
def test_the_unit_of_the_operator_does_not_matter(solver, scale):
    matrix, block = positive().to_dense(), draw(40, 3)
    expected = torch.linalg.solve(matrix, block) / scale
    found = solver.prepare(DenseOperator(scale * matrix, definite=True)).solve(block)
    assert relative_error(found.value, expected) < 1e-4


@pytest.mark.parametrize("sketch", [1, 20, 60, 500])
def test_a_sketch_changes_the_iterations_and_not_the_solution(sketch):
    """40 large eigenvalues over a small diagonal: a sketch that holds them leaves nothing to do."""
    scales = torch.logspace(2, -1, 40, dtype=torch.float64)
    operator = LowRank(
        torch.linspace(0.01, 0.02, 300, dtype=torch.float64), DenseFactor(scales[:, None] * draw(40, 300) / 17)
    )
    block = draw(300, 4, seed=1)
    plain, sketched = (CG(sketch=k).prepare(operator).solve(block) for k in (0, sketch))
    wanted = torch.linalg.solve(operator.to_dense(), block)
    assert relative_error(sketched.value, wanted) < 1e-6
    assert sketched.residual <= 1e-8
    if sketch >= 60:
        assert 4 * sketched.iterations < plain.iterations


def test_a_sketch_of_an_operator_without_the_low_rank_form_is_left_out():
    block = draw(40, 2)
    torch.testing.assert_close(
        CG(sketch=5).prepare(positive()).solve(block).value, CG().prepare(positive()).solve(block).value
    )
    with pytest.raises(SettingError, match="sketch >= 0"):
        CG(sketch=-1)
