"""The outer loop of the Krylov solvers: restarts from the true residual until every column has converged."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import SolverError
from .operator import Operator
from .solution import Solution, largest_norm, require, require_finite, unit_columns

# (operator, residuals (P, k), target norm, iterations left) -> (correction (P, k), iterations used)
Sweep = Callable[[Operator, Tensor, float, int], tuple[Tensor, int]]


def check_settings(tolerance: float, max_iterations: int | None) -> None:
    """Raise SettingError for settings outside their range."""
    require(0 < tolerance < 1, "tolerance", "between 0 and 1", tolerance)
    require(max_iterations is None or max_iterations >= 1, "max_iterations", ">= 1", max_iterations)


def iterate(
    operator: Operator,
    block: Tensor,
    sweep: Sweep,
    *,
    solver: str,
    tolerance: float,
    max_iterations: int | None,
) -> Solution:
    """Solve A X = B for all columns, with restarts where the recurrences drift from the true residual.

    Raises:
        SolverError: some column is not within the tolerance after max_iterations (None: 10 P, at least
            1,000 and at most 10,000), or a restart no longer reduces its residual.
    """
    block, norms = unit_columns(operator, block)
    budget = max_iterations or min(max(10 * operator.size, 1_000), 10_000)
    value, defect = torch.zeros_like(block), block
    iterations, before = 0, float("inf")
    while True:
        residual = largest_norm(defect)
        if residual <= tolerance:
            return Solution(require_finite(value * norms, "the solution"), residual, iterations, solver, True)
        if iterations >= budget or not residual < 0.9 * before:
            raise SolverError(
                f"{solver} expected a relative residual of {tolerance:.1e}, got {residual:.1e} after {iterations} "
                'iterations; add damping, raise the tolerance or max_iterations, or use solver="direct"'
            )
        todo = (defect.norm(dim=0) > tolerance).nonzero()[:, 0]
        correction, used = sweep(operator, defect[:, todo], tolerance / 2, budget - iterations)
        value[:, todo] += correction
        iterations, before = iterations + used, residual
        defect = block - operator.matmul(value)
