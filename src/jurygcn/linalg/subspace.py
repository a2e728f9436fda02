"""The few directions that span most of many solutions of A X = B, found without forming the solutions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Extra directions and power iterations; both bring the subspace closer to the optimum, at more cost.
OVERSAMPLING, ITERATIONS = 8, 2


def dominant_subspace(
    rows: Tensor, solve: Callable[[Tensor], Tensor], *, rank: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    r"""The k directions V with :math:`V^T A V = I` that span most of :math:`x_i = A^{-1} b_i`.

    They span the dominant eigenvectors of :math:`A^{-1} B^T B`, found by subspace iteration from a random start; the
    part of :math:`x_i` inside them is :math:`V V^T b_i`, and :math:`\sum_i \|V^T b_i\|^2` is their share of
    :math:`\sum_i x_i^T A x_i`. With k = n nothing is lost.

    Args:
        rows: the right-hand sides b_i as rows, (n, P).
        solve: B -> A⁻¹ B for A symmetric positive definite, (P, k) -> (P, k), float64.
        rank: k, the number of directions.
        seed: of the random start.

    Shapes: V (P, k), most important first; coefficients V^T b_i (n, k), both in the dtype of ``rows``.
    """
    n, P = rows.shape
    k = min(rank, n, P)
    width = min(k + OVERSAMPLING, n, P)
    if width == n:  # all rows: no search is needed
        block = rows.T.double()
    else:
        start = torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        block = (rows.T @ start.to(rows)).double()
        for _ in range(ITERATIONS):
            V = _orthonormal(solve(block), block)
            block = (rows.T @ (rows @ V.to(rows))).double()
    V = _orthonormal(solve(block), block)
    coefficients = (rows @ V.to(rows)).double()
    _, rotation = torch.linalg.eigh(coefficients.T @ coefficients)
    rotation = rotation.flip(1)[:, :k]
    return (V @ rotation).to(rows), (coefficients @ rotation).to(rows)


def _orthonormal(solution: Tensor, block: Tensor) -> Tensor:
    """Combinations of the columns X = A⁻¹ B with Xᵀ A X = I; dependent columns are dropped, but at least one stays."""
    gram = solution.T @ block
    values, vectors = torch.linalg.eigh((gram + gram.T) / 2)
    kept = values > values[-1].clamp_min(torch.finfo(values.dtype).tiny) * len(block) * torch.finfo(values.dtype).eps
    if not bool(kept.any()):  # B is zero, and so are all solutions: return one zero direction
        return torch.zeros_like(solution[:, :1])
    orthonormal: Tensor = solution @ (vectors[:, kept] * values[kept].rsqrt())
    return orthonormal
