"""Small symmetric systems in float64, with a dense reference for each."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.linalg import DenseFactor, DenseOperator, LowRank, Operator


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def with_spectrum(eigenvalues: Tensor, *, seed: int = 0) -> Tensor:
    size = len(eigenvalues)
    basis, _ = torch.linalg.qr(draw(size, size, seed=seed))
    matrix = (basis * eigenvalues) @ basis.mT
    return (matrix + matrix.mT) / 2


def positive(size: int = 40, *, condition: float = 1e3, seed: int = 0) -> DenseOperator:
    eigenvalues = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64)
    return DenseOperator(with_spectrum(eigenvalues, seed=seed), definite=True)


def indefinite(size: int = 40, *, seed: int = 0) -> DenseOperator:
    signs = torch.where(torch.arange(size) % 3 == 0, -1.0, 1.0).double()
    return DenseOperator(with_spectrum(signs * torch.linspace(0.5, 2, size, dtype=torch.float64), seed=seed))


def singular(size: int = 40) -> DenseOperator:
    eigenvalues = torch.linspace(0, 1, size, dtype=torch.float64)
    return DenseOperator(with_spectrum(eigenvalues))


def low_rank(size: int = 60, rows: int = 15, *, decay: float = 0.1, seed: int = 0) -> LowRank:
    return LowRank(torch.full((size,), decay, dtype=torch.float64), DenseFactor(draw(rows, size, seed=seed) / 3))


def uneven(size: int = 60, rows: int = 15) -> LowRank:
    """Its own weight decay for every parameter."""
    return LowRank(torch.linspace(0.05, 2, size, dtype=torch.float64), DenseFactor(draw(rows, size) / 3))


@dataclass(frozen=True, eq=False)
class MeanOfRows(LowRank):
    """diag(d) + (1/n) Σ_i a_i a_iᵀ, both low-rank and a finite sum; rows are a_i / √n."""

    @property
    def num_terms(self) -> int:
        return self.factor.rows

    def subset(self, terms: Tensor) -> Operator:
        rows = self.factor.transpose_matmul(torch.eye(self.num_terms, dtype=self.dtype)).mT
        return LowRank(self.diagonal, DenseFactor(rows[terms] * math.sqrt(self.num_terms / len(terms))))


def mean_of_rows(size: int = 30, terms: int = 40, *, decay: float = 0.3, seed: int = 0) -> MeanOfRows:
    rows = draw(terms, size, seed=seed) / math.sqrt(terms)
    return MeanOfRows(torch.full((size,), decay, dtype=torch.float64), DenseFactor(rows))


def relative_error(value: Tensor, expected: Tensor) -> float:
    return float((value - expected).norm() / expected.norm())
