"""Conjugate gradients for many right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .krylov import check_settings, iterate
from .operator import Operator
from .solution import Prepared, Solution, require_finite


@dataclass(frozen=True)
class CG:
    """Conjugate gradients on a positive definite A; each step reduces the A-norm error by (√κ−1)/(√κ+1).

    Every column has its own step lengths; a converged column leaves the block.

    Args:
        tolerance: the relative residual ‖A x − b‖ / ‖b‖ that every column must reach.
        max_iterations: None: 10 P, at least 1,000 and at most 10,000.
    """

    tolerance: float = 1e-8
    max_iterations: int | None = None
    name: ClassVar[str] = "cg"

    def __post_init__(self) -> None:
        check_settings(self.tolerance, self.max_iterations)

    def prepare(self, operator: Operator) -> PreparedCG:
        """No preparation; `solve` checks in each search direction that the operator is positive definite."""
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
            sweep,
            solver=CG.name,
            tolerance=self.settings.tolerance,
            max_iterations=self.settings.max_iterations,
        )


def sweep(operator: Operator, defect: Tensor, target: float, budget: int) -> tuple[Tensor, int]:
    """At most `budget` steps towards A⁻¹ defect, until every column's residual is below the target."""
    value, columns = torch.empty_like(defect), torch.arange(defect.shape[1], device=defect.device)
    x, r, p = torch.zeros_like(defect), defect, defect
    rho = (r * r).sum(0)
    for iteration in range(1, budget + 1):
        q = operator.matmul(p)
        curvature = (p * q).sum(0)
        _require_positive(curvature, p, q)
        step = rho / curvature
        x = x + step * p
        r = r - step * q
        rho_before, rho = rho, (r * r).sum(0)
        keep = rho > target**2
        if not bool(keep.all()):
            value[:, columns[~keep]] = x[:, ~keep]
            if not bool(keep.any()):
                return value, iteration
            x, r, p = x[:, keep], r[:, keep], p[:, keep]
            rho, rho_before, columns = rho[keep], rho_before[keep], columns[keep]
        p = r + (rho / rho_before) * p
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
