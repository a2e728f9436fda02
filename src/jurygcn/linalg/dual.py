"""The dual solver: inverts a low-rank operator in the space of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .operator import LowRankOperator, Operator
from .small import inverse_of_triangle
from .solution import Prepared, Solution, largest_norm, require, require_finite, solve_and_refine
from .undecayed import UndecayedPart

# The largest relative error of a term's solution in low precision; above it, the operator's precision is used.
INEXACT = 1e-4


@dataclass(frozen=True)
class Dual:
    """For A = diag(d) + Uᵀ U with k rows, K = U diag(d)⁻¹ Uᵀ (k × k) and Woodbury's identity:

        A⁻¹ g = d⁻¹ g − d⁻¹ Uᵀ (I + K)⁻¹ U d⁻¹ g.

    Only I + K is factorised, k³/3 operations. Needs every dᵢ ≥ 0; where some are zero, see `undecayed`.

    Args:
        tolerance: the largest accepted relative residual.
    """

    tolerance: float = 1e-6
    name: ClassVar[str] = "dual"

    def __post_init__(self) -> None:
        require(self.tolerance > 0, "tolerance", "> 0", self.tolerance)

    def prepare(self, operator: Operator) -> PreparedDual:
        """Factorise I + K.

        Raises:
            SolverError: the operator is not low-rank, its diagonal has a negative entry, or I + K is singular to
                working precision.
        """
        if not isinstance(operator, LowRankOperator):
            raise SolverError(
                'dual expected an operator of the form diag + UᵀU, got another; use curvature="ggn", or '
                'solver="direct", "cg" or "minres"'
            )
        diagonal = require_finite(operator.diagonal, "the diagonal of the operator")
        if not bool((diagonal >= 0).all()):
            raise SolverError(
                f"dual expected no negative weight decay, got {float(diagonal.min()):g}; raise it, add damping, or use "
                'solver="minres"'
            )
        free = diagonal == 0
        inverse_diagonal = torch.where(free, 0.0, diagonal.reciprocal())
        require_finite(inverse_diagonal, "the reciprocals of the diagonal")
        capacitance = require_finite(operator.factor.gram(inverse_diagonal), "the rows of the operator")
        capacitance.diagonal().add_(1.0)
        cholesky, failed = torch.linalg.cholesky_ex(capacitance)
        norm = largest_norm(capacitance, order=1)  # no eigenvalue of I + K is below 1: this bounds its condition
        decayed = diagonal[~free]
        condition = norm * (float(decayed.max() / decayed.min()) if len(decayed) else 1.0)
        if failed or not norm * operator.factor.rows * torch.finfo(operator.dtype).eps < 1:
            raise SolverError(
                "dual expected a regular system, got one that is singular to working precision (condition number about "
                f"{condition:.1e}); add damping or weight decay"
            )
        undecayed = UndecayedPart.of(operator.factor, free, cholesky) if bool(free.any()) else None
        return PreparedDual(operator, inverse_diagonal, capacitance, cholesky, condition, self.tolerance, undecayed)


@dataclass(frozen=True, eq=False)
class PreparedDual(Prepared):
    """I + K = L Lᵀ.

    Shapes: inverse_diagonal (P,), capacitance (k, k), cholesky (k, k).

    Attributes:
        operator: the operator A.
        inverse_diagonal: 1 / d, zero where d is.
        capacitance: I + K.
        cholesky: L, lower triangular.
        condition: an upper bound of the condition number of A, ‖I + K‖₁ max d / min d, over positive d.
        tolerance: the largest relative residual that is accepted.
        undecayed: what parameters without weight decay add; None if there are none.
    """

    operator: LowRankOperator
    inverse_diagonal: Tensor
    capacitance: Tensor
    cholesky: Tensor
    condition: float
    tolerance: float
    undecayed: UndecayedPart | None = None
    inverts_rows: ClassVar[bool] = True

    @property
    def least_retention(self) -> float:
        """Zero for a block of an inverse, which is positive as computed; a difference has rounding errors."""
        return 0.0 if self.undecayed is None else self.undecayed.least_retention

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

    def precondition(self, block: Tensor) -> Tensor:
        """One application of the factors, without the residual. Shapes: (P, b) -> (P, b)."""
        return self._apply_inverse(block)

    def _apply_inverse(self, block: Tensor) -> Tensor:
        factor, weights = self.operator.factor, self.inverse_diagonal[:, None]
        scaled = weights * block
        rows = factor.matmul(scaled)
        inner = torch.cholesky_solve(rows, self.cholesky)  # U x, so far as decayed parameters decide it
        if self.undecayed is None:
            return scaled - weights * factor.transpose_matmul(inner)
        free = self.undecayed.free[:, None]
        wanted = factor.matmul(free * (block - factor.transpose_matmul(inner)))
        lifted = self.undecayed.determine(wanted)
        inner = torch.cholesky_solve(rows + self.undecayed.outer(lifted), self.cholesky)
        return scaled - weights * factor.transpose_matmul(inner) + free * factor.transpose_matmul(lifted)

    @cached_property
    def remainder_root(self) -> Tensor:
        """L⁻ᵀ, (k, k); its square is (I + K)⁻¹ = I − M, which takes twice the time."""
        return inverse_of_triangle(self.cholesky)

    @cached_property
    def reduced(self) -> Tensor:
        """R, which takes the place of (I + K)⁻¹ if there are undecayed parameters, (k, k)."""
        assert self.undecayed is not None
        return self.undecayed.reduced(torch.cholesky_inverse(self.cholesky))

    def remainder(self) -> Tensor:
        """(I + K)⁻¹, or R in its place."""
        return torch.cholesky_inverse(self.cholesky) if self.undecayed is None else self.reduced

    def retention(self, terms: Tensor | None = None) -> Tensor:
        """The diagonal blocks of (I + K)⁻¹, accurate even where M is close to I. Shapes: (n, K, K) or (s, K, K)."""
        K = self.factor.block
        n = self.factor.rows // K
        if self.undecayed is None:
            rows = self.remainder_root.view(n, K, n * K)
            rows = rows if terms is None or len(terms) == n else rows[terms]
            return torch.bmm(rows, rows.mT)
        blocks = self.reduced.view(n, K, n, K).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
        return blocks.contiguous() if terms is None else blocks[terms]

    def solve_terms(self, weights: Tensor, terms: Tensor, *, dtype: torch.dtype) -> Solution:
        """A⁻¹ U_iᵀ w_i = d⁻¹ Uᵀ (I + K)⁻¹_{:,i} w_i, computed in the dual space until the last product with Uᵀ."""
        n, K = weights.shape
        if self.undecayed is None:
            lifted = torch.bmm(weights.unsqueeze(1), self.remainder_root.view(n, K, n * K)).squeeze(1)
            columns = self.remainder_root @ lifted.T  # (k, n)
        else:
            columns = _blockwise(self.reduced, weights)
        wanted = torch.zeros(n, K, n, dtype=weights.dtype, device=weights.device)
        wanted.diagonal(dim1=0, dim2=2).copy_(weights.T)
        product = self.capacitance @ columns
        chosen = slice(None) if len(terms) == n else terms
        value = self._leave_dual(columns[:, chosen], product[:, chosen], dtype)
        defect = product - wanted.view(n * K, n)
        if self.undecayed is not None:
            lifted = _blockwise(self.undecayed.lift, weights)
            defect += self.undecayed.outer(lifted)
            free = self.undecayed.free
            value[free] = self.factor.transpose_matmul(lifted[:, chosen])[free].to(dtype)
        lengths = weights.norm(dim=1).clamp_min(torch.finfo(weights.dtype).tiny)
        residual = float((defect.norm(dim=0) / lengths).max())
        return Solution(value, residual, 1, Dual.name, residual < self.tolerance)

    def _leave_dual(self, columns: Tensor, product: Tensor, dtype: torch.dtype) -> Tensor:
        """d⁻¹ Uᵀ c for each column c, given (I + K) c, in ``dtype`` where that is exact enough, else in full precision.

        If terms are nearly equal, large entries of c cancel in Uᵀ c. Its squared length in the norm of d⁻¹, cᵀ K c, is
        then much smaller than |c|² tr K.

        Shapes: (k, s), (k, s) -> (P, s).
        """
        weights = self.inverse_diagonal[:, None]
        factor = self.factor.cast(dtype)
        if bool((weights == weights[0]).all()):  # few columns are scaled instead of many rows
            value: Tensor = factor.transpose_matmul((weights[0] * columns).to(dtype))
        else:
            value = factor.transpose_matmul(columns.to(dtype)) * weights.to(dtype)
        if dtype != columns.dtype:
            lengths = columns.square().sum(dim=0)
            kept = ((columns * product).sum(dim=0) - lengths).clamp_min(0.0)
            trace = (self.capacitance.diagonal() - 1.0).sum()
            error = torch.finfo(dtype).eps ** 2 * lengths * trace
            inexact = (error > INEXACT**2 * kept).nonzero().squeeze(1)
            if len(inexact):
                value[:, inexact] = (self.factor.transpose_matmul(columns[:, inexact]) * weights).to(dtype)
        return value


def _blockwise(matrix: Tensor, weights: Tensor) -> Tensor:
    """The columns of each term, weighted: (k, n K) and (n, K) -> (k, n)."""
    n, K = weights.shape
    terms = matrix.view(len(matrix), n, K).transpose(0, 1)
    return torch.bmm(terms, weights.unsqueeze(-1)).squeeze(-1).T
