"""The direct solver: one factorisation of the dense matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .operator import LowRankOperator, Operator
from .solution import Prepared, Solution, require, require_finite, solve_and_refine
from .spectrum import condition_number
from .undecayed import undetermined_directions

# Eigenvalues of I − M_ii below this have lost too many digits if they come from the explicit inverse.
CANCELLATION = 1e-3

# Rows of a large matrix that are worked on at once.
ROWS = 2048


@dataclass(frozen=True)
class Direct:
    """A = L Lᵀ (Cholesky), or P A = L U when A is not positive definite; P³/3 or 2P³/3 operations, once.

    Parameters without weight decay may have directions that nothing determines, see `undecayed`. Solutions do not move
    along them: they are those of A plus a multiple of the projection on these directions.

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
        if matrix is getattr(operator, "matrix", None):  # the operator's own, which is not written into
            matrix = matrix.clone()
        free = _fill(operator, matrix)
        factors = _factorise(matrix)
        condition = float("inf")
        if factors is not None:
            condition = condition_number(matrix, factors.solve)
            factors.keep(matrix)
        if factors is None or not condition * operator.size * torch.finfo(operator.dtype).eps < 1:
            raise SolverError(
                f"direct expected a regular system, got a singular one (size {operator.size}, condition number about "
                f"{condition:.1e}); add damping or weight decay"
            )
        return PreparedDirect(operator, factors, condition, self.tolerance, free)


def _fill(operator: Operator, matrix: Tensor) -> Tensor | None:
    """Add a multiple of the projection on undetermined directions; return these directions, (P, r), if there are."""
    if not isinstance(operator, LowRankOperator):
        return None
    free = operator.diagonal == 0
    if not bool(free.any()) or not bool((operator.diagonal > 0).any()):
        return None
    places = free.nonzero().squeeze(1)
    corner = matrix[places[:, None], places]
    directions = undetermined_directions(corner)
    if not directions.shape[1]:
        return None
    matrix[places[:, None], places] += float(corner.diagonal().max()) * (directions @ directions.T)
    out = matrix.new_zeros(len(matrix), directions.shape[1])
    out[places] = directions
    return out


@dataclass(eq=False)
class CholeskyFactors:
    """A = L Lᵀ. Once `keep` was called, L and A share one array: L in the lower triangle, A above it."""

    matrix: Tensor
    diagonal: Tensor | None = None

    def keep(self, matrix: Tensor) -> None:
        """Move L into the lower triangle of A: a large matrix is not stored twice."""
        self.diagonal = matrix.diagonal().clone()
        for start in range(0, len(matrix), ROWS):
            rows = slice(start, start + ROWS)
            matrix[rows, :start] = self.matrix[rows, :start]
            corner = matrix[rows, rows]
            corner.copy_(self.matrix[rows, rows].tril() + corner.triu(1))
        self.matrix = matrix

    def solve(self, block: Tensor) -> Tensor:
        """B -> A⁻¹ B."""
        half = torch.linalg.solve_triangular(self.matrix, block, upper=False)
        solution: Tensor = torch.linalg.solve_triangular(self.matrix.mT, half, upper=True)
        return solution

    def product(self, block: Tensor) -> Tensor:
        """X -> A X, from the upper triangle."""
        assert self.diagonal is not None
        out = self.diagonal[:, None] * block
        for start in range(0, len(self.matrix), ROWS):
            rows, rest = slice(start, start + ROWS), slice(start + ROWS, None)
            corner = self.matrix[rows, rows].triu(1)
            out[rows] += corner @ block[rows] + corner.mT @ block[rows] + self.matrix[rows, rest] @ block[rest]
            out[rest] += self.matrix[rows, rest].mT @ block[rows]
        return out

    def inverse(self) -> Tensor:
        """A⁻¹ itself, at a third of the cost of solving for every column."""
        return torch.cholesky_inverse(self.matrix)


@dataclass(eq=False)
class LUFactors:
    """P A = L U."""

    matrix: Tensor
    pivots: Tensor
    kept: Tensor | None = None

    def keep(self, matrix: Tensor) -> None:
        """Keep A too."""
        self.kept = matrix

    def solve(self, block: Tensor) -> Tensor:
        """B -> A⁻¹ B."""
        solution: Tensor = torch.linalg.lu_solve(self.matrix, self.pivots, block)
        return solution

    def product(self, block: Tensor) -> Tensor:
        """X -> A X."""
        assert self.kept is not None
        return self.kept @ block

    def inverse(self) -> Tensor:
        """A⁻¹ itself."""
        return self.solve(torch.eye(len(self.matrix), dtype=self.matrix.dtype, device=self.matrix.device))


Factors = CholeskyFactors | LUFactors


def _factorise(matrix: Tensor) -> Factors | None:
    """The factors, or None when a pivot is exactly zero."""
    cholesky, failed = torch.linalg.cholesky_ex(matrix)
    if not failed:
        return CholeskyFactors(cholesky)
    lu, pivots, failed = torch.linalg.lu_factor_ex(matrix)
    return None if failed else LUFactors(lu, pivots)


@dataclass(frozen=True, eq=False)
class PreparedDirect(Prepared):
    """A factorised matrix.

    Attributes:
        operator: the operator A.
        factors: of its matrix.
        condition: its estimated condition number.
        tolerance: the largest relative residual that is accepted.
        undetermined: directions along which solutions do not move, (P, r), orthonormal; None if there are none.
    """

    operator: Operator
    factors: Factors
    condition: float
    tolerance: float
    undetermined: Tensor | None = None

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, k) -> Solution with value (P, k)."""
        if self.undetermined is not None:
            block = block - self.undetermined @ (self.undetermined.mT @ block)
        return solve_and_refine(
            self.operator,
            block,
            self.factors.solve,
            solver=Direct.name,
            tolerance=self.tolerance,
            condition=self.condition,
            product=self.factors.product,
        )

    def retention(self, terms: Tensor | None = None) -> Tensor:
        """I − M_ii by one product with the inverse, or by refined solves where that loses too many digits."""
        if terms is None:
            terms = torch.arange(self.factor.rows // self.factor.block)
        leverage = self.factor.subset(terms).congruences(self.factors.inverse())
        retention = torch.eye(leverage.shape[1], dtype=leverage.dtype, device=leverage.device) - leverage
        inexact = (torch.linalg.eigvalsh(retention)[:, 0] <= CANCELLATION).nonzero().squeeze(1)
        if len(inexact):
            retention[inexact] = super().retention(terms[inexact])
        return retention
