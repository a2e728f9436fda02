"""A preconditioner for diag(d) + Uᵀ U from a random sketch of its largest directions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .operator import LowRankOperator


@dataclass(frozen=True, eq=False)
class Nystrom:
    """M⁻¹ for A = D^½ (I + W) D^½ with W = D^-½ UᵀU D^-½, from the Nyström approximation W ≈ V diag(w) Vᵀ of rank k.

        M⁻¹ = D^-½ (V diag((1 + w_k) / (1 + w)) Vᵀ + I − V Vᵀ) D^-½

    With k above twice the effective dimension of W the condition number of M⁻¹A is a small constant (Frangella, Tropp
    and Udell, "Randomized Nyström preconditioning").

    Shapes: scale (P, 1), V (P, k), shrink (k, 1).
    """

    scale: Tensor
    V: Tensor
    shrink: Tensor

    @classmethod
    def of(cls, operator: LowRankOperator, rank: int, *, seed: int = 0) -> Nystrom:
        """By one product of A with a random block of ``rank`` columns."""
        scale = operator.diagonal.rsqrt()[:, None]
        generator = torch.Generator().manual_seed(seed)
        start = torch.randn(operator.size, min(rank, operator.size), generator=generator, dtype=torch.float64)
        Q, _ = torch.linalg.qr(start.to(scale))
        Y = scale * operator.matmul(scale * Q) - Q  # W Q
        # a shift makes QᵀYQ positive definite in floating point; it is taken off the eigenvalues again
        shift = torch.finfo(Y.dtype).eps * len(Y) ** 0.5 * float(torch.linalg.matrix_norm(Y)) + 1e-300
        Y = Y + shift * Q
        inner = Q.mT @ Y
        L, failed = torch.linalg.cholesky_ex((inner + inner.mT) / 2)
        if failed:  # the sketch is more than the rank of W: fewer columns say the same
            return cls.of(operator, max(1, rank // 2), seed=seed)
        half = torch.linalg.solve_triangular(L, Y.mT, upper=False).mT
        V, sizes, _ = torch.linalg.svd(half, full_matrices=False)
        w = (sizes.square() - shift).clamp_min(0.0)[:, None]
        return cls(scale, V, (1.0 + w[-1]) / (1.0 + w))

    def __call__(self, block: Tensor) -> Tensor:
        """M⁻¹ R. Shapes: (P, b) -> (P, b)."""
        scaled = self.scale * block
        inner = self.V.mT @ scaled
        return self.scale * (scaled + self.V @ ((self.shrink - 1.0) * inner))
