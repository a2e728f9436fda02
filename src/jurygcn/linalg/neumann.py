"""Algorithm 1 of the paper: the Neumann series, over sampled terms or all terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import SolverError
from .operator import FiniteSumOperator, Operator
from .shift import shift
from .solution import Prepared, Solution, largest_norm, require, require_finite, unit_columns
from .spectrum import extreme_eigenvalues


@dataclass(frozen=True)
class Neumann:
    """x₀ = f, then m times x ← f + (I − Â / scale) x with Â over t sampled terms; A⁻¹ f ≈ x / scale.

    Converges, for Â = A, if and only if 0 < λ / scale < 2 for every eigenvalue λ of A. Each step multiplies
    the error by max |1 − λ / scale|, which is 1 − λ_min / scale for scale ≥ λ_max: about κ ln(1/ε) steps
    to ε. With sampled terms it converges in the mean, with a noise that falls as t or the scale grows.

    Implements: Eq. (18), Algorithm 1.

    Deviates from the paper: scale (1 as printed) and damping, without which the recursion diverges on most
    Hessians; the eigenvalues are checked first; with all terms it stops once within the tolerance. It is the
    only solver that may return with `converged` False, after m steps.

    Args:
        iterations: m.
        batch_size: t, sampled without replacement at every step; None: all n terms.
        scale: None: 1.05 times the largest eigenvalue, also of sampled batches. 1.0: as printed.
        damping: solves (A + damping I) x = f, and reports that system's residual.
        seed: of the sampling and the eigenvalue estimates; the same for every solve.
        tolerance: the relative residual that counts as converged.
    """

    iterations: int = 10_000
    batch_size: int | None = None
    scale: float | None = None
    damping: float = 0.0
    seed: int = 0
    tolerance: float = 1e-6
    name: ClassVar[str] = "neumann"

    def __post_init__(self) -> None:
        require(self.iterations >= 1, "iterations", ">= 1", self.iterations)
        require(self.batch_size is None or self.batch_size >= 1, "batch_size", ">= 1", self.batch_size)
        require(self.scale is None or 0 < self.scale < float("inf"), "scale", "> 0", self.scale)
        require(0 <= self.damping < float("inf"), "damping", ">= 0", self.damping)
        require(self.tolerance > 0, "tolerance", "> 0", self.tolerance)

    def prepare(self, operator: Operator) -> PreparedNeumann:
        """Estimate the extreme eigenvalues and choose the scale.

        Raises:
            SolverError: the recursion would diverge, or terms are to be sampled and the operator has none.
        """
        operator = shift(operator, self.damping)
        terms: FiniteSumOperator | None = None
        if self.batch_size is not None:
            if not isinstance(operator, FiniteSumOperator):
                raise SolverError(
                    "neumann expected a mean over terms to sample from, got another operator; set batch_size=None"
                )
            terms = operator if self.batch_size < operator.num_terms else None
        low, high = extreme_eigenvalues(operator, seed=self.seed)
        self._require_positive(operator, low, high)
        scale = self.scale or self._choose_scale(terms, high)
        if not high / scale < 2:
            raise SolverError(
                f"neumann expected a scale above half the largest eigenvalue, {high:.3g}, got {scale:g}; "
                f"set it to at least {1.05 * high:.3g}, or to None for an automatic choice"
            )
        return PreparedNeumann(operator, terms, scale, (low, high), self)

    def _require_positive(self, operator: Operator, low: float, high: float) -> None:
        if low > torch.finfo(operator.dtype).eps * operator.size * high:
            return
        enough = 1.01 * (self.damping + max(-low, 0.0)) + 1e-3 * max(high, -low)
        raise SolverError(
            f"neumann expected positive eigenvalues, got some from about {low:.3g} to {high:.3g}; "
            f'set damping to at least {enough:.3g}, use curvature="ggn" with weight decay, or use solver="minres"'
        )

    def _choose_scale(self, terms: FiniteSumOperator | None, high: float) -> float:
        """1.05 λ_max, also over a few sampled batches, which can have a larger eigenvalue than the mean."""
        if terms is not None:
            generator = torch.Generator().manual_seed(self.seed)
            for _ in range(4):
                batch = terms.subset(self._sample(terms, generator))
                high = max(high, extreme_eigenvalues(batch, iterations=30, seed=self.seed)[1])
        return 1.05 * high

    def _sample(self, terms: FiniteSumOperator, generator: torch.Generator) -> Tensor:
        return torch.randperm(terms.num_terms, generator=generator)[: self.batch_size].to(terms.device)


@dataclass(frozen=True, eq=False)
class PreparedNeumann(Prepared):
    """An operator on which the recursion converges.

    Attributes:
        operator: A, damping included.
        terms: A again when terms are to be sampled.
        scale: the scale in use.
        eigenvalues: the estimated smallest and largest.
        settings: the solver.
    """

    operator: Operator
    terms: FiniteSumOperator | None
    scale: float
    eigenvalues: tuple[float, float]
    settings: Neumann

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = F. Shapes: (P, k) -> Solution with value (P, k).

        Raises:
            SolverError: the iterates grow beyond what a converging recursion can reach.
        """
        block, norms = unit_columns(self.operator, block)
        generator = torch.Generator().manual_seed(self.settings.seed)
        limit = 10 * self.scale / self.eigenvalues[0]  # a converging recursion stays below 2 scale / λ_min
        x, step = block, 0
        for step in range(1, self.settings.iterations + 1):
            update = block - self._sampled(generator).matmul(x) / self.scale
            x = x + update
            if not largest_norm(x) <= limit:
                raise SolverError(self._diverged(step))
            if self.terms is None and largest_norm(update) <= self.settings.tolerance:
                break  # the update is the residual of the iterate before it
        residual = largest_norm(block - self.operator.matmul(x) / self.scale)
        value = require_finite(x * norms / self.scale, "the solution")
        return Solution(value, residual, step, Neumann.name, residual <= self.settings.tolerance)

    def _sampled(self, generator: torch.Generator) -> Operator:
        if self.terms is None:
            return self.operator
        return self.terms.subset(self.settings._sample(self.terms, generator))

    def _diverged(self, step: int) -> str:
        return (
            f"neumann expected to converge, got a growing iterate at iteration {step} with scale {self.scale:g} and "
            f"batches of {self.settings.batch_size or 'all'} terms; raise the scale (try {2 * self.scale:.3g}) or the "
            "batch_size, or add damping"
        )
