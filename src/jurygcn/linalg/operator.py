"""Symmetric linear operators: the protocols that solvers use, and dense and low-rank implementations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..errors import SettingError


@runtime_checkable
class Operator(Protocol):
    """A symmetric P × P matrix A that can be applied to a block of vectors."""

    @property
    def size(self) -> int:
        """P."""

    @property
    def dtype(self) -> torch.dtype:
        """The number type of A and of every block it takes."""

    @property
    def device(self) -> torch.device:
        """The device of A and of its blocks."""

    @property
    def definite(self) -> bool | None:
        """True: known to be positive definite. None or False: not known, so the solver checks."""

    def matmul(self, block: Tensor) -> Tensor:
        """A X. Shapes: (P, k) -> (P, k)."""

    def to_dense(self) -> Tensor:
        """A itself, (P, P); the caller must not write into it."""


@runtime_checkable
class FiniteSumOperator(Operator, Protocol):
    """A = diagonal + (1/n) Σ_i A_i: a mean over n terms, which Algorithm 1 samples."""

    @property
    def num_terms(self) -> int:
        """n."""

    def subset(self, terms: Tensor) -> Operator:
        """The same diagonal + the mean over these terms only. Shapes: terms (t,) of indices below n."""


class Factor(Protocol):
    """The rows U of a low-rank term Uᵀ U, dense or structured.

    The rows come in n blocks U_i of equal size, one for each term of a sum Σ_i U_iᵀ U_i.
    """

    @property
    def rows(self) -> int:
        """k."""

    @property
    def block(self) -> int:
        """K, the rows of one term; n K = k."""

    def cast(self, dtype: torch.dtype) -> Factor:
        """The same rows in another precision."""

    def subset(self, terms: Tensor) -> Factor:
        """The rows of some terms. Shapes: terms (s,)."""

    def each(self, weights: Tensor) -> Tensor:
        """U_iᵀ w_i for every term. Shapes: (n, K) -> (n, P)."""

    def congruences(self, matrix: Tensor) -> Tensor:
        """U_i A U_iᵀ for every term, A symmetric. Shapes: (P, P) -> (n, K, K)."""

    def gram(self, inverse_diagonal: Tensor) -> Tensor:
        """U diag(w) Uᵀ as a fresh tensor, which the caller may overwrite. Shapes: (P,) -> (k, k)."""

    def matmul(self, block: Tensor) -> Tensor:
        """U X. Shapes: (P, b) -> (k, b)."""

    def transpose_matmul(self, block: Tensor) -> Tensor:
        """Uᵀ X. Shapes: (k, b) -> (P, b)."""


@runtime_checkable
class LowRankOperator(Operator, Protocol):
    """A = diag(d) + Uᵀ U. Reading `factor` is cheap; its methods do the work."""

    @property
    def diagonal(self) -> Tensor:
        """d, (P,)."""

    @property
    def factor(self) -> Factor:
        """U, k × P."""


@dataclass(frozen=True, eq=False)
class DenseOperator:
    """A symmetric matrix, stored densely."""

    matrix: Tensor
    definite: bool | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.matrix.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise SettingError(f"expected a square matrix, got shape {shape}; correct it")
        slack = math.sqrt(torch.finfo(self.dtype).eps) * float(self.matrix.abs().max()) if self.size else 0.0
        if math.isfinite(slack) and not torch.allclose(
            self.matrix, self.matrix.mT, rtol=0.0, atol=slack, equal_nan=True
        ):
            raise SettingError("expected a symmetric matrix, got another; average it with its transpose first")

    @property
    def size(self) -> int:
        """P."""
        return self.matrix.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The number type."""
        return self.matrix.dtype

    @property
    def device(self) -> torch.device:
        """The matrix's device."""
        return self.matrix.device

    def matmul(self, block: Tensor) -> Tensor:
        """A X. Shapes: (P, k) -> (P, k)."""
        return self.matrix @ block

    def to_dense(self) -> Tensor:
        """The matrix, (P, P)."""
        return self.matrix


@dataclass(frozen=True, eq=False)
class DenseFactor:
    """Rows U, stored as a dense k × P matrix, in terms of ``block`` rows each."""

    matrix: Tensor
    block: int = 1

    def __post_init__(self) -> None:
        if self.block < 1 or self.matrix.shape[0] % self.block:
            raise SettingError(f"expected block to divide {self.matrix.shape[0]} rows, got {self.block}; change it")

    def cast(self, dtype: torch.dtype) -> DenseFactor:
        """The same rows in another precision."""
        return DenseFactor(self.matrix.to(dtype), self.block)

    def subset(self, terms: Tensor) -> DenseFactor:
        """The rows of some terms."""
        return DenseFactor(self._terms[terms].flatten(0, 1), self.block)

    def each(self, weights: Tensor) -> Tensor:
        """U_iᵀ w_i for every term. Shapes: (n, K) -> (n, P)."""
        return torch.einsum("nk,nkp->np", weights, self._terms)

    def congruences(self, matrix: Tensor) -> Tensor:
        """U_i A U_iᵀ for every term. Shapes: (P, P) -> (n, K, K)."""
        return self._terms @ matrix @ self._terms.mT

    @property
    def _terms(self) -> Tensor:
        return self.matrix.view(-1, self.block, self.matrix.shape[1])

    @property
    def rows(self) -> int:
        """k."""
        return self.matrix.shape[0]

    def gram(self, inverse_diagonal: Tensor) -> Tensor:
        """U diag(w) Uᵀ. Shapes: (P,) -> (k, k)."""
        return (self.matrix * inverse_diagonal) @ self.matrix.mT

    def matmul(self, block: Tensor) -> Tensor:
        """U X. Shapes: (P, b) -> (k, b)."""
        return self.matrix @ block

    def transpose_matmul(self, block: Tensor) -> Tensor:
        """Uᵀ X. Shapes: (k, b) -> (P, b)."""
        return self.matrix.mT @ block


class WithDiagonal:
    """Size, number type and device of an operator with a diagonal, which are those of the diagonal."""

    diagonal: Tensor

    @property
    def size(self) -> int:
        """P."""
        return len(self.diagonal)

    @property
    def dtype(self) -> torch.dtype:
        """The number type of the operator and of its blocks."""
        return self.diagonal.dtype

    @property
    def device(self) -> torch.device:
        """The device of the operator and of its blocks."""
        return self.diagonal.device


@dataclass(frozen=True, eq=False)
class LowRank(WithDiagonal):
    """A = diag(d) + Uᵀ U from its two parts. Shapes: diagonal (P,), factor k × P."""

    diagonal: Tensor
    factor: Factor

    @property
    def definite(self) -> bool | None:
        """True when every dᵢ > 0."""
        return bool((self.diagonal > 0).all()) or None

    def matmul(self, block: Tensor) -> Tensor:
        """d X + Uᵀ (U X). Shapes: (P, b) -> (P, b)."""
        return self.diagonal[:, None] * block + self.factor.transpose_matmul(self.factor.matmul(block))

    def to_dense(self) -> Tensor:
        """A, (P, P), through P unit vectors."""
        return self.matmul(torch.eye(self.size, dtype=self.dtype, device=self.device))
