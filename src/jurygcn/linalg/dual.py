"""The dual solver: a low-rank operator is inverted in the space of its few rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .operator import LowRankOperator, Operator
from .solution import Solution, largest_norm, require, require_finite, solve_and_refine


@dataclass(frozen=True)
class Dual:
    """For A = diag(d) + Uᵀ U with k rows, K = U diag(d)⁻¹ Uᵀ (k × k) and Woodbury's identity:

        A⁻¹ g = d⁻¹ g − d⁻¹ Uᵀ (I + K)⁻¹ U d⁻¹ g.

    Only I + K is factorised, k³/3 operations. Needs every dᵢ > 0.

    Args:
        tolerance: the largest relative residual that is accepted.
    """

    tolerance: float = 1e-6
    name: ClassVar[str] = "dual"

    def __post_init__(self) -> None:
        require(self.tolerance > 0, "tolerance", "> 0", self.tolerance)

    def prepare(self, operator: Operator) -> PreparedDual:
        """Factorise I + K.

        Raises:
            SolverError: the operator is not low-rank, its diagonal is not positive, or I + K is singular to
                working precision.
        """
        if not isinstance(operator, LowRankOperator):
            raise SolverError(
                'dual needs an operator of the form diag + UᵀU, such as curvature="ggn": '
                'use that, or solver="direct", "cg" or "minres"'
            )
        diagonal = require_finite(operator.diagonal, "the diagonal of the operator")
        if not bool((diagonal > 0).all()):
            raise SolverError(
                "dual divides by the weight decay, which must be positive for every parameter, but its least "
                f'value is {float(diagonal.min()):g}: raise it, add damping, or use solver="direct" or "cg"'
            )
        inverse_diagonal = require_finite(diagonal.reciprocal(), "the reciprocals of the diagonal")
        capacitance = require_finite(operator.factor.gram(inverse_diagonal), "the rows of the operator")
        capacitance.diagonal().add_(1.0)
        cholesky, failed = torch.linalg.cholesky_ex(capacitance)
        norm = largest_norm(capacitance, order=1)  # no eigenvalue of I + K is below 1: this bounds its condition
        condition = norm * float(diagonal.max() / diagonal.min())
        if failed or not norm * operator.factor.rows * torch.finfo(operator.dtype).eps < 1:
            raise SolverError(
                f"dual cannot solve a system that is singular to working precision (condition number about "
                f"{condition:.1e}): add damping or weight decay"
            )
        return PreparedDual(operator, inverse_diagonal, cholesky, condition, self.tolerance)


@dataclass(frozen=True, eq=False)
class PreparedDual:
    """I + K = L Lᵀ.

    Shapes: inverse_diagonal (P,), cholesky (k, k).

    Attributes:
        operator: the operator A.
        inverse_diagonal: 1 / d.
        cholesky: L, lower triangular.
        condition: an upper bound of the condition number of A, ‖I + K‖₁ max d / min d.
        tolerance: the largest relative residual that is accepted.
    """

    operator: LowRankOperator
    inverse_diagonal: Tensor
    cholesky: Tensor
    condition: float
    tolerance: float

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, b) -> Solution with value (P, b)."""
        return solve_and_refine(
            self.operator,
            block,
            self._apply_inverse,
            solver=Dual.name,
            tolerance=self.tolerance,
            condition=self.condition,
        )

    def _apply_inverse(self, block: Tensor) -> Tensor:
        factor, weights = self.operator.factor, self.inverse_diagonal[:, None]
        scaled = weights * block
        inner = torch.cholesky_solve(factor.matmul(scaled), self.cholesky)
        return scaled - weights * factor.transpose_matmul(inner)

    def capacitance_inverse(self) -> Tensor:
        """(I + K)⁻¹, (k, k)."""
        return torch.cholesky_inverse(self.cholesky)

    def retention_blocks(self, block_size: int) -> Tensor:
        """The diagonal blocks of (I + K)⁻¹ = I − M: what leaving a term out has to invert.

        As (L⁻¹E)ᵀ(L⁻¹E) they are positive semi-definite as computed, and accurate even where M is close to I.

        Shapes: rows n·C, block_size C -> (n, C, C).
        """
        rows = self.cholesky.shape[0]
        require(block_size >= 1 and rows % block_size == 0, "block_size", f"to divide {rows} rows", block_size)
        identity = torch.eye(rows, dtype=self.cholesky.dtype, device=self.cholesky.device)
        inverse = torch.linalg.solve_triangular(self.cholesky, identity, upper=False)
        columns: Tensor = inverse.reshape(rows, rows // block_size, block_size).transpose(0, 1)
        return torch.bmm(columns.mT, columns)

    def leverage_blocks(self, block_size: int) -> Tensor:
        """The diagonal blocks of M = K (I + K)⁻¹ = I − (I + K)⁻¹, not clamped.

        With U_i the C rows of term i, (A − U_iᵀU_i)⁻¹ = A⁻¹ + A⁻¹U_iᵀ(I − M_ii)⁻¹U_iA⁻¹.

        Shapes: rows n·C, block_size C -> (n, C, C).
        """
        retention = self.retention_blocks(block_size)
        return torch.eye(block_size, dtype=retention.dtype, device=retention.device) - retention
