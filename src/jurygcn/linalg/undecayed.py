"""The dual solver where some parameters have no weight decay: biases, last layers.

Split the parameters into decayed ones (d > 0, rows U₁) and undecayed ones (d = 0, rows U₂). With
C₁ = I + U₁ diag(d)⁻¹ U₁ᵀ, S = U₂ᵀ C₁⁻¹ U₂ and R = C₁⁻¹ − C₁⁻¹ U₂ S⁺ U₂ᵀ C₁⁻¹,

    A⁺ Uᵀ c = (d⁻¹ U₁ᵀ R c, S⁺ U₂ᵀ C₁⁻¹ c),    I − U A⁺ Uᵀ = R

so R takes the place of (I + K)⁻¹. All of it is computed in the space of the k rows: with U₂ U₂ᵀ = Q diag(σ) Qᵀ and
B = C₁⁻¹ Q, T = Qᵀ B,

    R = C₁⁻¹ − B T⁻¹ Bᵀ,    S⁺ U₂ᵀ C₁⁻¹ c = U₂ᵀ Q diag(σ)⁻¹ T⁻¹ Bᵀ c.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from .operator import Factor

# A direction of the undecayed parameters is undetermined if it changes the rows by less than this, relative to the
# direction that changes them most: no data and no decay fix it, and a juror does not move along it. The softmax ignores
# a common shift of all logits, so the biases of a last layer always have such a direction (there the ratio is rounding,
# about 1e-16).
UNDETERMINED = 1e-5

# Columns of U₂ that are formed at once.
COLUMNS = 512


@dataclass(frozen=True, eq=False)
class UndecayedPart:
    """What the undecayed parameters add to a factorised C₁.

    Shapes: k rows, r determined directions.

    Attributes:
        free: which parameters have no decay, (P,).
        basis: Q, (k, r), orthonormal.
        sizes: σ, (r,).
        solved: B = C₁⁻¹ Q, (k, r).
        cholesky: the lower triangular factor of T = Qᵀ B, (r, r).
    """

    # An eigenvalue of a block of R below this is rounding error: R is a difference of two matrices.
    least_retention: ClassVar[float] = 1e-9

    free: Tensor
    basis: Tensor
    sizes: Tensor
    solved: Tensor
    cholesky: Tensor

    @classmethod
    def of(cls, factor: Factor, free: Tensor, cholesky: Tensor) -> UndecayedPart:
        """From the rows, the undecayed parameters and the factor of C₁."""
        basis, sizes = _range_of(factor, free, cholesky)
        solved = torch.cholesky_solve(basis, cholesky)
        inner = basis.T @ solved
        return cls(free, basis, sizes, solved, torch.linalg.cholesky((inner + inner.T) / 2))

    def reduced(self, inverse: Tensor) -> Tensor:
        """R from C₁⁻¹, (k, k)."""
        half: Tensor = torch.linalg.solve_triangular(self.cholesky, self.solved.T, upper=False)
        return inverse - half.T @ half

    @cached_property
    def lift(self) -> Tensor:
        """Q diag(σ)⁻¹ T⁻¹ Bᵀ: from the dual space to what U₂ᵀ is applied to, (k, k)."""
        return self.basis @ (torch.cholesky_solve(self.solved.T, self.cholesky) / self.sizes[:, None])

    def outer(self, lifted: Tensor) -> Tensor:
        """U₂ U₂ᵀ times columns, (k, s) -> (k, s)."""
        return self.basis @ (self.sizes[:, None] * (self.basis.T @ lifted))

    def determine(self, rows: Tensor) -> Tensor:
        """The y with S⁺ h = U₂ᵀ y, from U₂ h: (k, b) -> (k, b)."""
        inner = (self.basis.T @ rows) / self.sizes[:, None]
        return self.basis @ (torch.cholesky_solve(inner, self.cholesky) / self.sizes[:, None])


def undetermined_directions(corner: Tensor) -> Tensor:
    """The directions of undecayed parameters that nothing determines, from their block U₂ᵀU₂, (P₂, P₂) -> (P₂, r)."""
    sizes, directions = torch.linalg.eigh(corner)
    undetermined: Tensor = directions[:, sizes <= UNDETERMINED**2 * sizes[-1]]
    return undetermined


def _range_of(factor: Factor, free: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Q and σ of U₂ U₂ᵀ, without undetermined directions, (k, r) and (r,)."""
    if int(free.sum()) < factor.rows:
        columns = _columns(factor, free.nonzero().squeeze(1), len(free), like)
        basis, lengths, _ = torch.linalg.svd(columns, full_matrices=False)
        sizes = lengths.square()
    else:
        sizes, basis = torch.linalg.eigh(factor.gram(free.to(like.dtype)))
    kept = sizes > UNDETERMINED**2 * sizes.max()
    return basis[:, kept], sizes[kept]


def _columns(factor: Factor, indices: Tensor, size: int, like: Tensor) -> Tensor:
    """Some columns of U, (k, len(indices))."""
    pieces = []
    for part in indices.split(COLUMNS):
        unit = like.new_zeros(size, len(part))
        unit[part, torch.arange(len(part), device=part.device)] = 1.0
        pieces.append(factor.matmul(unit))
    return torch.cat(pieces, dim=1)
