"""Conjugate gradients for many right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .krylov import check_settings, iterate
from .nystrom import Nystrom
from .operator import LowRankOperator, Operator
from .solution import Prepared, Solution, require, require_finite


@dataclass(frozen=True)
class CG:
    """Conjugate gradients on a positive definite A; each step reduces the A-norm error by (√κ−1)/(√κ+1).

    Every column has its own step lengths; a converged column leaves the block.

    Args:
        tolerance: the relative residual ‖A x − b‖ / ‖b‖ that every column must reach.
        max_iterations: None: 10 P, at least 1,000 and at most 10,000.
        sketch: the number of directions of a Nyström preconditioner; 0 for none. It needs the form diag + UᵀU with a
            positive diagonal.
    """

    tolerance: float = 1e-8
    max_iterations: int | None = None
    sketch: int = 0
    name: ClassVar[str] = "cg"

    def __post_init__(self) -> None:
        check_settings(self.tolerance, self.max_iterations)
        require(self.sketch >= 0, "sketch", ">= 0", self.sketch)

    def prepare(self, operator: Operator) -> PreparedCG:
        """The preconditioner, if there is one; `solve` checks in each search direction that A is positive definite."""
        return PreparedCG(operator, self)


@dataclass(frozen=True, eq=False)
class PreparedCG(Prepared):
    """An operator with the settings to solve it."""

    operator: Operator
    settings: CG

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, k) -> Solution with value (P, k).

        Raises:
            SolverError: pᵀAp ≤ 0 for a search direction p, or the tolerance was not reached.
        """
        return iterate(
            self.operator,
            block,
            partial(sweep, precondition=self.precondition),
            solver=CG.name,
            tolerance=self.settings.tolerance,
            max_iterations=self.settings.max_iterations,
        )

    @cached_property
    def precondition(self) -> Callable[[Tensor], Tensor]:
        """R -> M⁻¹ R with M close to A, or R itself."""
        if not self.settings.sketch or not isinstance(self.operator, LowRankOperator) or not self.operator.definite:
            return lambda block: block
        return Nystrom.of(self.operator, self.settings.sketch)


def sweep(
    operator: Operator,
    defect: Tensor,
    target: float,
    budget: int,
    *,
    precondition: Callable[[Tensor], Tensor] = lambda block: block,
) -> tuple[Tensor, int]:
    """At most `budget` steps towards A⁻¹ defect, until every column's residual is below the target."""
    value, columns = torch.empty_like(defect), torch.arange(defect.shape[1], device=defect.device)
    x, r = torch.zeros_like(defect), defect
    p = z = precondition(r)
    rho = (r * z).sum(0)
    for iteration in range(1, budget + 1):
        q = operator.matmul(p)
        curvature = (p * q).sum(0)
        _require_positive(curvature, p, q)
        step = rho / curvature
        x = x + step * p
        r = r - step * q
        z = precondition(r)
        rho_before, rho = rho, (r * z).sum(0)
        keep = (r * r).sum(0) > target**2
        if not bool(keep.all()):
            value[:, columns[~keep]] = x[:, ~keep]
            if not bool(keep.any()):
                return value, iteration
            x, r, z, p = x[:, keep], r[:, keep], z[:, keep], p[:, keep]
            rho, rho_before, columns = rho[keep], rho_before[keep], columns[keep]
        p = z + (rho / rho_before) * p
    value[:, columns] = x
    return value, budget


def _require_positive(curvature: Tensor, p: Tensor, q: Tensor) -> None:
    """Raise SolverError if pᵀAp ≤ 0 up to rounding; with condition number κ, pᵀAp / (‖p‖ ‖Ap‖) ≥ about 2/√κ."""
    floor = torch.finfo(p.dtype).eps * p.norm(dim=0) * q.norm(dim=0)
    if bool((curvature > floor).all()):
        return
    require_finite(q, "products with the operator")
    raise SolverError(
        f"cg expected a positive definite operator, got pᵀAp = {float(curvature.min()):.1e} in one direction; "
        'use curvature="ggn", add damping, or use solver="minres"'
    )
