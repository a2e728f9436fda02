"""Constant sparse matrices times dense blocks, fast on CPUs and differentiable."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional

# Rows whose products with the rows below them are computed together.
ROWS = 128


def index_type(matrix: sp.csr_matrix) -> type[np.signedinteger[Any]]:
    """Int32 where it suffices: the sparse kernels use int32 indices directly and copy longer ones."""
    return np.int32 if max(matrix.nnz, *matrix.shape) < 2**31 else np.int64


def can_sum_rows(values: Tensor) -> bool:
    """Whether :func:`sum_rows` supports these entries."""
    return values.dtype == torch.float32 and values.device.type == "cpu" and len(values) > 0


def sum_rows(starts: Tensor, columns: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """A CSR matrix times a dense one, as weighted sums of the dense matrix's rows.

    The kernel of embedding bags is about twice as fast on a CPU as the general sparse product.
    """
    return functional.embedding_bag(
        columns, dense.contiguous(), starts, mode="sum", per_sample_weights=values, include_last_offset=True
    )


class _SparseProduct(torch.autograd.Function):
    """Sparse constant times dense variable, with a backward pass that stays sparse."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: Tensor) -> Tensor:
        """Multiply."""
        ctx.matrix = matrix
        return matrix.product(dense)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Multiply by the transpose."""
        return None, ctx.matrix.T @ grads[0]


class SparseMatrix:
    """A constant sparse matrix in torch's CSR form that multiplies dense blocks, also under autograd."""

    def __init__(self, matrix: sp.csr_matrix, *, dtype: torch.dtype, device: torch.device) -> None:
        self._source = matrix
        self.shape = matrix.shape
        self.dtype, self.device = dtype, device
        index = index_type(matrix)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
            self.csr = torch.sparse_csr_tensor(
                torch.from_numpy(matrix.indptr.astype(index, copy=False)),
                torch.from_numpy(matrix.indices.astype(index, copy=False)),
                torch.from_numpy(matrix.data).to(dtype),
                size=matrix.shape,
                check_invariants=False,  # SciPy matrices are well formed
            ).to(device)
        self._transpose: SparseMatrix | None = None

    @property
    def T(self) -> SparseMatrix:
        """The transpose, built once."""
        if self._transpose is None:
            transpose = sp.csr_matrix(self._source.T)
            self._transpose = SparseMatrix(transpose, dtype=self.dtype, device=self.device)
            self._transpose._transpose = self
        return self._transpose

    def __matmul__(self, dense: Tensor) -> Tensor:
        if dense.requires_grad:
            out: Tensor = _SparseProduct.apply(self, dense)  # type: ignore[no-untyped-call]
            return out
        return self.product(dense)

    def product(self, dense: Tensor) -> Tensor:
        """The product, not differentiable."""
        values = self.csr.values()
        if can_sum_rows(values):
            return sum_rows(self.csr.crow_indices(), self.csr.col_indices(), values, dense)
        # writing into an existing tensor saves torch one pass to fill and one to copy the result
        product = torch.empty(self.shape[0], dense.shape[1], dtype=self.dtype, device=self.device)
        return torch.addmm(product, self.csr, dense, beta=0.0, out=product)

    def cast(self, dtype: torch.dtype) -> SparseMatrix:
        """The same matrix in another precision."""
        return self if dtype == self.dtype else SparseMatrix(self._source, dtype=dtype, device=self.device)

    def to_dense(self) -> Tensor:
        """The same matrix, dense."""
        return self.csr.to_dense()

    def gram(self) -> Tensor:
        """The products of all rows with each other, dense; of each two that are equal mostly one is computed."""
        size, right = self.shape[0], self.to_dense().T
        out = torch.empty(size, size, dtype=self.dtype, device=self.device)
        for first in range(0, size, ROWS):
            below = SparseMatrix(self._source[first:], dtype=self.dtype, device=self.device)
            out[first:, first : first + ROWS] = below @ right[:, first : first + ROWS].contiguous()
            out[first : first + ROWS, first + ROWS :] = out[first + ROWS :, first : first + ROWS].T
        return out

    def to_scipy(self) -> sp.csr_matrix:
        """The same matrix for SciPy, in this matrix's dtype."""
        return self._source.astype(np.float64 if self.dtype == torch.float64 else np.float32, copy=False)
