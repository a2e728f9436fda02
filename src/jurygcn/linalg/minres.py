"""Minimal residuals (Paige and Saunders, 1975) for many right-hand sides at once."""

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
class MINRES:
    """Minimises ‖b − A x‖ over the Krylov space; A is symmetric and may be indefinite, but not singular.

    Every column has its own recurrences; a converged column leaves the block.

    Args:
        tolerance: the relative residual ‖A x − b‖ / ‖b‖ that every column must reach.
        max_iterations: None: 10 P, at least 1,000 and at most 10,000.
    """

    tolerance: float = 1e-8
    max_iterations: int | None = None
    name: ClassVar[str] = "minres"

    def __post_init__(self) -> None:
        check_settings(self.tolerance, self.max_iterations)

    def prepare(self, operator: Operator) -> PreparedMINRES:
        """No preparation; `solve` detects a singular operator."""
        return PreparedMINRES(operator, self)


@dataclass(frozen=True, eq=False)
class PreparedMINRES(Prepared):
    """An operator with the settings to solve it."""

    operator: Operator
    settings: MINRES

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, k) -> Solution with value (P, k).

        Raises:
            SolverError: the operator is singular, or nearly so, or the tolerance was not reached.
        """
        return iterate(
            self.operator,
            block,
            sweep,
            solver=MINRES.name,
            tolerance=self.settings.tolerance,
            max_iterations=self.settings.max_iterations,
        )


def sweep(operator: Operator, defect: Tensor, target: float, budget: int) -> tuple[Tensor, int]:
    """At most `budget` steps towards A⁻¹ defect, until every column's residual is below the target.

    Lanczos gives A v = beta v₋ + delta v + beta₊ v₊; (c, s) rotate that tridiagonal matrix to a triangle.
    """
    value, columns = torch.empty_like(defect), torch.arange(defect.shape[1], device=defect.device)
    eta = beta = defect.norm(dim=0)  # |eta| is the norm of the residual
    v = defect / beta
    x = v_before = w = w_before = torch.zeros_like(defect)
    c = c_before = torch.ones_like(beta)
    s = s_before = norm = torch.zeros_like(beta)  # norm: a lower estimate of ‖A‖
    for iteration in range(1, budget + 1):
        product = operator.matmul(v)
        delta = (v * product).sum(0)
        product = product - delta * v - beta * v_before
        beta_next = product.norm(dim=0)
        norm = torch.maximum(norm, torch.hypot(delta, beta_next))
        pivot = c * delta - c_before * s * beta
        _require_regular(torch.hypot(pivot, c * beta_next), norm)
        length = torch.hypot(pivot, beta_next)
        w, w_before = (v - s_before * beta * w_before - (s * delta + c_before * c * beta) * w) / length, w
        c, c_before, s, s_before = pivot / length, c, beta_next / length, s
        x = x + c * eta * w
        eta = -s * eta
        keep = eta.abs() > target
        v, v_before, beta = product / beta_next, v, beta_next
        if not bool(keep.all()):
            value[:, columns[~keep]] = x[:, ~keep]
            if not bool(keep.any()):
                return value, iteration
            x, v, v_before, w, w_before = (t[:, keep] for t in (x, v, v_before, w, w_before))
            c, c_before, s, s_before = (t[keep] for t in (c, c_before, s, s_before))
            beta, eta, norm, columns = (t[keep] for t in (beta, eta, norm, columns))
    value[:, columns] = x
    return value, budget


def _require_regular(steepness: Tensor, norm: Tensor) -> None:
    """Raise SolverError if ‖A r‖ = steepness ‖r‖ is at most √eps ‖A‖ ‖r‖ while r is not small.

    The residual then lies in directions where A is zero, or too small for the Lanczos vectors to resolve: rounding
    has cost them half of their digits, and further steps would only let x grow without bound.
    """
    if bool((steepness > torch.finfo(norm.dtype).eps ** 0.5 * norm).all()):
        return
    require_finite(steepness, "products with the operator")
    raise SolverError(
        "minres expected a regular operator, got one that is singular or has a condition number above 1e7; "
        "add damping or weight decay"
    )
