"""Estimates of extreme eigenvalues and condition numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .operator import Operator
from .solution import largest_norm, require, require_finite

DENSE_SIZE = 512  # up to this size the whole spectrum costs less than a Lanczos run


def extreme_eigenvalues(
    operator: Operator, *, iterations: int = 300, seed: int = 0, accuracy: float = 0.05
) -> tuple[float, float]:
    """The smallest and the largest eigenvalue: exact up to P = 512, by Lanczos above.

    The Ritz values of Lanczos satisfy λ_min ≤ θ_min and θ_max ≤ λ_max, so a positive θ_min does not prove that
    A is definite. An eigenvalue lies within the residual ‖A v − θ v‖ of each, so both are moved outwards by it,
    except θ_min of an operator known to be definite. The run ends when the residuals are below `accuracy` times
    |θ|, which determines the sign, or after `iterations`. An eigenvector nearly orthogonal to the random start
    can be missed; this is unlikely.

    Args:
        operator: the operator A.
        iterations: the most products with A.
        seed: of the random start; the same seed gives the same numbers.
        accuracy: the relative residual at which to stop.
    """
    require(iterations >= 1, "iterations", ">= 1", iterations)
    if operator.size <= DENSE_SIZE:
        values = torch.linalg.eigvalsh(require_finite(operator.to_dense(), "the operator"))
        return float(values[0]), float(values[-1])
    low, low_error, high, high_error = _lanczos(operator, iterations, seed, accuracy)
    return (low if operator.definite else low - low_error), high + high_error


def _lanczos(operator: Operator, iterations: int, seed: int, accuracy: float) -> tuple[float, float, float, float]:
    """θ_min, its residual, θ_max, its residual; with full reorthogonalisation."""
    steps = min(iterations, operator.size)
    # an offset, so that an operator drawn with the same seed is not aligned with the start vector
    generator = torch.Generator().manual_seed(seed + 0x1A9C205)
    vector = torch.randn(operator.size, dtype=operator.dtype, generator=generator).to(operator.device)
    basis = vector.new_empty(operator.size, steps)
    tridiagonal = torch.zeros(steps, steps, dtype=torch.float64)
    vector = vector / vector.norm()
    for j in range(steps):
        basis[:, j] = vector
        product = require_finite(operator.matmul(vector[:, None])[:, 0], "products with the operator")
        tridiagonal[j, j] = product @ vector
        known = basis[:, : j + 1]
        for _ in range(2):  # in floating point one pass is not enough, two are
            product = product - known @ (known.mT @ product)
        coupling = float(product.norm())
        small = tridiagonal[: j + 1, : j + 1]
        exhausted = coupling <= 1e2 * torch.finfo(operator.dtype).eps * float(small.abs().max())
        last = exhausted or j + 1 == steps
        if last or (j + 1) % 10 == 0:
            values, vectors = torch.linalg.eigh(small)
            low, high = float(values[0]), float(values[-1])
            low_error, high_error = (0.0 if exhausted else coupling * abs(float(vectors[-1, i])) for i in (0, -1))
            if last or (low_error <= accuracy * abs(low) and high_error <= accuracy * abs(high)):
                break
        tridiagonal[j, j + 1] = tridiagonal[j + 1, j] = coupling
        vector = product / coupling
    return low, low_error, high, high_error


def condition_number(matrix: Tensor, inverse: Callable[[Tensor], Tensor]) -> float:
    """‖A‖₁ ‖A⁻¹‖₁ of a symmetric A, the second factor by Hager's method: a few solves, seldom off by a factor of 3.

    Shapes: matrix (P, P); inverse maps (P, 1) to (P, 1).
    """
    size = matrix.shape[0]
    trial = matrix.new_full((size, 1), 1.0 / max(size, 1))
    estimate = 0.0
    for _ in range(5):
        solved = inverse(trial)
        grown = float(solved.abs().sum())
        if not grown > estimate:
            break
        estimate = grown
        slope = inverse(torch.sign(solved))
        steepest = int(slope.abs().argmax())
        trial = torch.zeros_like(trial)
        trial[steepest] = 1.0
    return largest_norm(matrix, order=1) * estimate
