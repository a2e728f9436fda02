"""The direct solver: one factorisation of the dense matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .operator import Operator
from .solution import Prepared, Solution, require, require_finite, solve_and_refine
from .spectrum import condition_number

# Eigenvalues of I − M_ii below this have lost too many digits if they come from the explicit inverse.
CANCELLATION = 1e-3


@dataclass(frozen=True)
class Direct:
    """A = L Lᵀ (Cholesky), or P A = L U when A is not positive definite; P³/3 or 2P³/3 operations, once.

    Args:
        tolerance: the largest accepted relative residual; a well-conditioned system in float64 reaches 1e-12.
    """

    tolerance: float = 1e-6
    name: ClassVar[str] = "direct"

    def __post_init__(self) -> None:
        require(self.tolerance > 0, "tolerance", "> 0", self.tolerance)

    def prepare(self, operator: Operator) -> PreparedDirect:
        """Factorise.

        Raises:
            SolverError: the matrix is singular to working precision: its estimated condition number is above
                1 / (P eps).
        """
        matrix = require_finite(operator.to_dense(), "the operator")
        factors = _factorise(matrix)
        condition = condition_number(matrix, factors.solve) if factors else float("inf")
        if factors is None or not condition * operator.size * torch.finfo(operator.dtype).eps < 1:
            raise SolverError(
                f"direct expected a regular system, got a singular one (size {operator.size}, condition number about "
                f"{condition:.1e}); add damping or weight decay"
            )
        return PreparedDirect(operator, factors, condition, self.tolerance)


@dataclass(frozen=True, eq=False)
class Factors:
    """A = L Lᵀ, or P A = L U with ``pivots``."""

    matrix: Tensor
    pivots: Tensor | None

    def solve(self, block: Tensor) -> Tensor:
        """B -> A⁻¹ B."""
        if self.pivots is None:
            return torch.cholesky_solve(block, self.matrix)
        solution: Tensor = torch.linalg.lu_solve(self.matrix, self.pivots, block)
        return solution

    def inverse(self) -> Tensor:
        """A⁻¹ itself; from the Cholesky factor at a third of the cost of solving for every column."""
        if self.pivots is None:
            return torch.cholesky_inverse(self.matrix)
        return self.solve(torch.eye(len(self.matrix), dtype=self.matrix.dtype, device=self.matrix.device))


def _factorise(matrix: Tensor) -> Factors | None:
    """The factors, or None when a pivot is exactly zero."""
    cholesky, failed = torch.linalg.cholesky_ex(matrix)
    if not failed:
        return Factors(cholesky, None)
    lu, pivots, failed = torch.linalg.lu_factor_ex(matrix)
    return None if failed else Factors(lu, pivots)


@dataclass(frozen=True, eq=False)
class PreparedDirect(Prepared):
    """A factorised matrix; `condition` is its estimated condition number."""

    operator: Operator
    factors: Factors
    condition: float
    tolerance: float

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, k) -> Solution with value (P, k)."""
        return solve_and_refine(
            self.operator,
            block,
            self.factors.solve,
            solver=Direct.name,
            tolerance=self.tolerance,
            condition=self.condition,
        )

    def retention(self) -> Tensor:
        """I − M_ii by one product with the inverse, or by refined solves where that loses too many digits."""
        leverage = self.factor.congruences(self.factors.inverse())
        retention = torch.eye(leverage.shape[1], dtype=leverage.dtype, device=leverage.device) - leverage
        if float(torch.linalg.eigvalsh(retention)[:, 0].min()) > CANCELLATION:
            return retention
        return super().retention()
