"""Algorithm 1: converges where it can, and says why where it cannot."""

import pytest
import torch
from linalg_cases import draw, indefinite, low_rank, mean_of_rows, positive, relative_error, singular

from jurygcn.errors import SolverError
from jurygcn.linalg import DenseOperator, Direct, LowRank, Neumann, shift


def direct(operator, block):
    return Direct().prepare(operator).solve(block).value


@pytest.mark.parametrize("scale", [None, 1.0, 20.0])
def test_full_batches_agree_with_direct_within_one_percent(scale):
    base = low_rank(200, 30, decay=5e-4)
    operator = LowRank(base.diagonal, type(base.factor)(base.factor.matrix / 6))
    block = draw(200, 5, seed=1)
    solver = Neumann(damping=0.05, scale=scale)
    solution = solver.prepare(operator).solve(block)
    assert relative_error(solution.value, direct(shift(operator, 0.05), block)) < 0.01
    assert solution.converged


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_iterates_are_those_of_the_recursion(steps):
    operator, f, scale = mean_of_rows(), draw(30, 2), 7.0
    x = f
    for _ in range(steps):
        x = f + x - operator.to_dense() @ x / scale
    solution = Neumann(iterations=steps, scale=scale).prepare(operator).solve(f)
    torch.testing.assert_close(solution.value, x / scale)
    assert solution.iterations == steps
    assert not solution.converged
    assert solution.residual > 1e-3


def test_the_error_shrinks_at_the_stated_rate():
    operator, f = positive(condition=20), draw(40, 1)
    low, scale = 1 / 20, 1.5
    errors = [
        float((Neumann(iterations=m, scale=scale, tolerance=1e-30).prepare(operator).solve(f).value
               - direct(operator, f)).norm())
        for m in (600, 650)
    ]  # fmt: skip
    assert (errors[1] / errors[0]) ** (1 / 50) == pytest.approx(1 - low / scale, rel=1e-3)


def test_an_indefinite_operator_is_refused_and_the_advice_helps():
    with pytest.raises(SolverError, match=r"damping to at least .*ggn") as caught:
        Neumann().prepare(indefinite())
    damping = float(str(caught.value).split("at least ")[1].split(",")[0])
    solution = Neumann(damping=damping, iterations=200_000, tolerance=1e-4).prepare(indefinite()).solve(draw(40, 1))
    assert solution.converged


@pytest.mark.parametrize("operator", [singular(), low_rank(600, 5, decay=0.0), DenseOperator(-positive().matrix)])
def test_eigenvalues_that_are_not_positive_are_refused(operator):
    with pytest.raises(SolverError, match="expected positive eigenvalues"):
        Neumann().prepare(operator)


def test_a_scale_that_is_too_small_is_refused_and_the_advice_helps():
    operator = DenseOperator(10 * positive(condition=10).matrix)
    with pytest.raises(SolverError, match=r"above half the largest eigenvalue, 10, got 1;") as caught:
        Neumann(scale=1.0).prepare(operator)
    scale = float(str(caught.value).split("at least ")[1].split(",")[0])
    assert Neumann(scale=scale).prepare(operator).solve(draw(40, 1)).converged
    assert Neumann(scale=5.1, iterations=1000).prepare(operator).solve(draw(40, 1)).converged
    with pytest.raises(SolverError, match="above half the largest eigenvalue"):
        Neumann(scale=4.9).prepare(operator)


def test_sampling_needs_terms():
    with pytest.raises(SolverError, match="batch_size=None"):
        Neumann(batch_size=3).prepare(positive())


def test_sampled_batches_are_seeded():
    operator, block = mean_of_rows(), draw(30, 3)

    def run(seed):
        return Neumann(batch_size=8, iterations=50, seed=seed).prepare(operator).solve(block).value

    assert torch.equal(run(1), run(1))
    assert not torch.allclose(run(1), run(2), rtol=1e-3)
    prepared = Neumann(batch_size=8, iterations=50).prepare(operator)
    assert torch.equal(prepared.solve(block).value, prepared.solve(block).value)


def test_sampling_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    Neumann(batch_size=8, iterations=5).prepare(mean_of_rows()).solve(draw(30, 1))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_of_all_terms_is_the_full_recursion():
    operator, block = mean_of_rows(), draw(30, 3)
    full = Neumann().prepare(operator).solve(block)
    for batch_size in (40, 100):
        assert torch.equal(Neumann(batch_size=batch_size).prepare(operator).solve(block).value, full.value)


def test_the_terms_of_a_batch_are_distinct_and_of_the_size_asked():
    seen = []

    class Watched(type(mean_of_rows())):
        def subset(self, terms):
            seen.append(sorted(terms.tolist()))
            return super().subset(terms)

    base = mean_of_rows()
    solver = Neumann(batch_size=8, iterations=30, scale=20.0, tolerance=10.0)  # no early end on a lucky batch
    solution = solver.prepare(Watched(base.diagonal, base.factor)).solve(draw(30, 1))
    assert len(seen) == solution.iterations == 30
    assert all(len(set(terms)) == 8 for terms in seen)
    assert len({i for terms in seen for i in terms}) == 40


def test_sampled_batches_approach_the_solution_on_average():
    operator, block = mean_of_rows(), draw(30, 2)
    exact = direct(operator, block)
    runs = [
        Neumann(batch_size=20, iterations=100, seed=seed).prepare(operator).solve(block).value for seed in range(60)
    ]
    single = sum(relative_error(run, exact) for run in runs) / len(runs)
    mean = relative_error(torch.stack(runs).mean(0), exact)
    assert mean < 0.3 * single
    assert mean < 0.05


def test_damping_stays_when_terms_are_sampled():
    operator, block = mean_of_rows(), draw(30, 1)
    exact = direct(shift(operator, 2.0), block)
    solution = Neumann(batch_size=30, damping=2.0, iterations=200).prepare(operator).solve(block)
    assert relative_error(solution.value, exact) < 0.15
    assert relative_error(solution.value, direct(operator, block)) > 0.3


def test_diverging_samples_are_refused():
    operator = mean_of_rows(30, 40, decay=0.05)
    high = float(torch.linalg.eigvalsh(operator.to_dense())[-1])
    solver = Neumann(batch_size=1, scale=high, iterations=5000)
    with pytest.raises(SolverError, match=r"growing iterate at iteration \d+ .*batches of 1 terms; raise the scale"):
        solver.prepare(operator).solve(draw(30, 2))


@pytest.mark.parametrize("scale", [1e-9, 1e9])
def test_the_unit_of_the_operator_does_not_matter(scale):
    matrix, f = positive(condition=10).to_dense(), draw(40, 1)
    found = Neumann().prepare(DenseOperator(scale * matrix, definite=True)).solve(f)
    assert relative_error(found.value, torch.linalg.solve(matrix, f) / scale) < 1e-2
