"""The solver protocol, its result, and checks that solvers share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ..checks import all_finite
from ..errors import SettingError, SolverError
from .operator import Factor, LowRankOperator, Operator

# Right-hand sides solved at once where M_ii has no closed form; bounds memory.
COLUMNS = 512


@dataclass(frozen=True, eq=False)
class Solution:
    """X with A X ≈ B.

    Shapes: value (P, k).

    Attributes:
        value: the solution, always finite.
        residual: max over columns of ‖A x − b‖ / ‖b‖, recomputed from the value with the operator itself.
        iterations: block products with the operator; for the factorising solvers, solves with the factors.
        solver: the name of the solver.
        converged: whether the residual is within the solver's tolerance.
    """

    value: Tensor
    residual: float
    iterations: int
    solver: str
    converged: bool


class Prepared(ABC):
    """An operator that a solver has checked and, for direct methods, factorised.

    For an operator A = diag(d) + Σ_i U_iᵀ U_i, leaving a term out also needs `solve_terms` and `retention`. The default
    implementations use `solve`; a solver with a faster method overrides them.
    """

    operator: Operator
    inverts_rows: ClassVar[bool] = False  # whether ``remainder`` needs no solves

    @property
    def least_retention(self) -> float:
        """An eigenvalue of I − M_ii below this is rounding error: here it is a difference of nearly equal matrices."""
        return 1e-8

    @abstractmethod
    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, k) -> Solution with value (P, k)."""

    def precondition(self, block: Tensor) -> Tensor:
        """A⁻¹ B for iterations that check their own residual. Shapes: (P, k) -> (P, k)."""
        return self.solve(block).value

    def solve_terms(self, weights: Tensor, terms: Tensor, *, dtype: torch.dtype) -> Solution:
        """A⁻¹ U_iᵀ w_i for some terms i, some columns at a time; a solver may return it in the lower precision
        ``dtype``.

        Shapes: weights (n, K), terms (s,) -> Solution with value (P, s).
        """
        rows = self.factor.subset(terms).each(weights[terms])  # (s, P)
        value = rows.new_empty(rows.shape[1], len(rows), dtype=dtype)
        worst, iterations, converged = 0.0, 0, True
        for start in range(0, len(rows), COLUMNS):
            found = self.solve(rows[start : start + COLUMNS].mT.contiguous())
            value[:, start : start + COLUMNS] = found.value
            worst, iterations = max(worst, found.residual), max(iterations, found.iterations)
            converged, solver = converged and found.converged, found.solver
        return Solution(value, worst, iterations, solver, converged)

    def retention(self, terms: Tensor | None = None) -> Tensor:
        """I − M_ii with M_ii = U_i A⁻¹ U_iᵀ for all or some terms: leaving term i out inverts it, (s, K, K)."""
        K = self.factor.block
        if terms is None:
            terms = torch.arange(self.factor.rows // K)
        blocks = []
        for some in terms.split(max(1, COLUMNS // K)):
            factor, count = self.factor.subset(some), len(some)
            eye = torch.eye(count * K, dtype=self.operator.dtype, device=self.operator.device)
            M = factor.matmul(self.solve(factor.transpose_matmul(eye)).value)  # U_i A⁻¹ U_jᵀ
            blocks.append(M.view(count, K, count, K).diagonal(dim1=0, dim2=2).permute(2, 0, 1))
        return torch.eye(K, dtype=self.operator.dtype, device=self.operator.device) - torch.cat(blocks)

    def remainder(self) -> Tensor:
        """I − U A⁻¹ Uᵀ of all terms together, (k, k)."""
        eye = torch.eye(self.factor.rows, dtype=self.operator.dtype, device=self.operator.device)
        parts = [self.solve(self.factor.transpose_matmul(part)).value for part in eye.split(COLUMNS, dim=1)]
        return eye - self.factor.matmul(torch.cat(parts, dim=1))

    @property
    def factor(self) -> Factor:
        """U, if the operator has one."""
        if not isinstance(self.operator, LowRankOperator):
            raise SolverError(
                "leave-one-out expected an operator of the form diag + UᵀU, got another; use curvature='ggn'"
            )
        return self.operator.factor


class Solver(Protocol):
    """The settings of a method; `prepare` is the expensive part and is called once per operator."""

    @property
    def name(self) -> str:
        """The name in `SOLVERS`."""

    def prepare(self, operator: Operator) -> Prepared:
        """Check the operator and, for direct methods, factorise it."""


def require(condition: bool, setting: str, expected: str, got: object) -> None:
    """Raise a SettingError unless the condition holds."""
    if not condition:
        raise SettingError(f"expected {setting} {expected}, got {got}; change it")


def unit_columns(operator: Operator, block: Tensor) -> tuple[Tensor, Tensor]:
    """The right-hand sides with norm 1 (zero columns stay zero) and the norms, safe from over- and underflow.

    Shapes: (P, k) -> (P, k) and (k,).

    Raises:
        SettingError: the block does not fit the operator.
        SolverError: the block is not finite.
    """
    if block.ndim != 2 or block.shape[0] != operator.size:
        raise SettingError(
            f"expected a block of shape ({operator.size}, k), got {tuple(block.shape)}; match the operator"
        )
    if (block.dtype, block.device) != (operator.dtype, operator.device):
        raise SettingError(
            f"expected a block of {operator.dtype} on {operator.device}, like the operator, "
            f"got {block.dtype} on {block.device}; convert it"
        )
    block = require_finite(block.detach(), "the right-hand sides")
    peaks = block.abs().amax(0).masked_fill_((block == 0).all(0), 1.0)
    lengths = torch.linalg.vector_norm(block / peaks, dim=0).clamp_min_(1.0)  # below 1 only if zero
    return block / peaks / lengths, peaks * lengths


def require_finite(tensor: Tensor, what: str) -> Tensor:
    """Return the tensor; raise SolverError if it has a NaN or an infinity."""
    if not all_finite(tensor):
        raise SolverError(
            f"expected finite values in {what}, got NaN or infinity; check that the model's parameters and "
            "outputs are finite (training may have diverged)"
        )
    return tensor


def largest_norm(block: Tensor, *, order: int = 2) -> float:
    """max ‖b‖ over the columns, 0 without columns. Shapes: (P, k)."""
    return float(torch.linalg.vector_norm(block, order, dim=0).max()) if block.shape[1] else 0.0


def solve_and_refine(
    operator: Operator,
    block: Tensor,
    inverse: Callable[[Tensor], Tensor],
    *,
    solver: str,
    tolerance: float,
    condition: float,
    product: Callable[[Tensor], Tensor] | None = None,
) -> Solution:
    """Apply a factorised inverse, then refine x ← x + A⁻¹(b − A x) while this reduces the residual.

    ``product`` is X -> A X if there is a cheaper way than the operator's own.
    """
    block, norms = unit_columns(operator, block)
    matmul = product or operator.matmul
    value, solves = inverse(block), 1
    defect = block - matmul(value)
    residual = largest_norm(defect)
    while residual > 1e5 * torch.finfo(operator.dtype).eps and solves < 4:
        candidate = value + inverse(defect)
        solves += 1
        defect = block - matmul(candidate)
        if not largest_norm(defect) < residual:
            break
        value, residual = candidate, largest_norm(defect)
    if not (math.isfinite(residual) and residual <= tolerance):
        raise SolverError(
            f"{solver} expected a relative residual of {tolerance:.1e}, got {residual:.1e}, because the operator is "
            f"ill-conditioned (condition number about {condition:.1e}); add damping or weight decay"
        )
    return Solution(require_finite(value * norms, "the solution"), residual, solves, solver, True)
