"""The direct solver: one factorisation of the dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .operator import Operator
from .solution import Solution, require, require_finite, solve_and_refine
from .spectrum import condition_number


@dataclass(frozen=True)
class Direct:
    """A = L Lᵀ (Cholesky), or P A = L U when A is not positive definite; P³/3 or 2P³/3 operations, once.

    Args:
        tolerance: the largest relative residual that is accepted; in float64 a good system leaves 1e-12.
    """

    tolerance: float = 1e-6
    name: ClassVar[str] = "direct"

    def __post_init__(self) -> None:
        require(self.tolerance > 0, "tolerance", "> 0", self.tolerance)

    def prepare(self, operator: Operator) -> PreparedDirect:
        """Factorise.

        Raises:
            SolverError: the matrix is singular to working precision: its condition number, by estimate, is
                above 1 / (P eps).
        """
        matrix = require_finite(operator.to_dense(), "the operator")
        inverse = _factorise(matrix)
        condition = condition_number(matrix, inverse) if inverse else float("inf")
        if inverse is None or not condition * operator.size * torch.finfo(operator.dtype).eps < 1:
            raise SolverError(
                f"direct cannot solve a singular system (size {operator.size}, condition number about "
                f"{condition:.1e}): add damping or weight decay"
            )
        return PreparedDirect(operator, inverse, condition, self.tolerance)


def _factorise(matrix: Tensor) -> Callable[[Tensor], Tensor] | None:
    """The map B -> A⁻¹ B, or None when a pivot is exactly zero."""
    cholesky, failed = torch.linalg.cholesky_ex(matrix)
    if not failed:
        return lambda block: torch.cholesky_solve(block, cholesky)
    lu, pivots, failed = torch.linalg.lu_factor_ex(matrix)
    return None if failed else lambda block: torch.linalg.lu_solve(lu, pivots, block)


@dataclass(frozen=True, eq=False)
class PreparedDirect:
    """A factorised matrix; `condition` is its estimated condition number."""

    operator: Operator
    inverse: Callable[[Tensor], Tensor]
    condition: float
    tolerance: float

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, k) -> Solution with value (P, k)."""
        return solve_and_refine(
            self.operator,
            block,
            self.inverse,
            solver=Direct.name,
            tolerance=self.tolerance,
            condition=self.condition,
        )
