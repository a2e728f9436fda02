"""The training-mode forward pass of a GCN with dropout, restricted to the receptive field of some nodes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from jurygcn.graph.propagation import reached_rows
from jurygcn.graph.sparse import SparseMatrix, can_sum_rows, index_type, sum_rows
from jurygcn.models.receptive_field import ReceptiveField


def drop(values: Tensor, rate: float) -> Tensor:
    """Dropout in training: sets entries to zero with probability ``rate`` and scales the others up.

    It draws 16 bits per entry, four entries per random number, which is several times faster on a CPU than PyTorch's
    own dropout. The rate is exact to 2^-16.
    """
    if rate == 0.0:
        return values
    count = values.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64, device=values.device).random_(-(2**63), None)
    kept = bits.view(torch.int16)[:count].view(values.shape) >= round(rate * 2**16) - 2**15
    return values * (kept.to(values.dtype) / (1.0 - rate))


class DroppingFeatures:
    """A constant feature matrix with new dropout in every product.

    Zeros stay zeros under dropout, so a sparse matrix draws one number per non-zero entry.

    Shapes: features (V, F), dense (F, h) -> (V, h).
    """

    def __init__(self, features: sp.csr_matrix | np.ndarray[Any, Any], *, dtype: torch.dtype, device: Any) -> None:
        self.shape = features.shape
        self._dense: Tensor | None = None
        if not sp.issparse(features):
            self._dense = torch.from_numpy(features).to(dtype=dtype, device=device)
            return
        features = sp.csr_matrix(features)
        # the transpose has the same entries in another order: its entry k is entry order[k] of the matrix
        places = sp.csr_matrix(
            (np.arange(1, features.nnz + 1), features.indices, features.indptr), shape=features.shape
        ).T.tocsr()
        self.values = torch.from_numpy(features.data).to(dtype=dtype, device=device)
        self.order = torch.from_numpy((places.data - 1).astype(index_type(features))).to(device)
        self.pattern = _pattern(features, device)
        self.transposed = _pattern(places, device)

    def product(self, dense: Tensor, rate: float) -> Tensor:
        """The matrix after dropout, times ``dense``; differentiable in ``dense``."""
        if self._dense is not None:
            return drop(self._dense, rate) @ dense
        out: Tensor = _EntryProduct.apply(self, drop(self.values, rate), dense)  # type: ignore[no-untyped-call]
        return out


class _EntryProduct(torch.autograd.Function):
    """Sparse matrix with given entries times dense variable."""

    @staticmethod
    def forward(ctx: Any, features: DroppingFeatures, entries: Tensor, dense: Tensor) -> Tensor:
        """Multiply."""
        ctx.features, ctx.entries = features, entries
        return _product(features.pattern, entries, features.shape, dense)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Multiply by the transpose."""
        entries = ctx.entries.index_select(0, ctx.features.order)  # four times as fast as indexing
        return None, None, _product(ctx.features.transposed, entries, ctx.features.shape[::-1], grads[0])


class DropoutField:
    r"""A receptive field with dropout on the input of every layer, :math:`\hat A\, drop(E) W`.

    The same as the model's own forward pass in train mode, without the nodes that influence none of the field's nodes.
    """

    def __init__(self, field: ReceptiveField, x: Tensor, rate: float) -> None:
        self.field, self.x, self.rate = field, x, rate

    @cached_property
    def _first(self) -> tuple[SparseMatrix, DroppingFeatures]:
        field, graph = self.field, self.field.graph
        rows, below = reached_rows(graph.adjacency, field.levels[-1], everything=field.everything)
        features = self.x.detach().cpu().numpy() if graph.features is None else graph.features
        features = features if field.everything else features[below]
        return SparseMatrix(rows, **field.place), DroppingFeatures(features, **field.place)

    def logits(self, weights: Sequence[Tensor]) -> Tensor:
        """Logits at the field's nodes with a new draw of dropout, (m, C)."""
        hop, features = self._first
        Z = hop @ features.product(weights[0], self.rate)
        for hop, W in zip(self.field.hops, weights[1:]):
            Z = hop @ (drop(self.field.sigma(Z), self.rate) @ W)
        return Z


def _pattern(matrix: sp.csr_matrix, device: Any) -> tuple[Tensor, Tensor]:
    index = index_type(matrix)
    indices = (torch.from_numpy(part.astype(index)).to(device) for part in (matrix.indptr, matrix.indices))
    return next(indices), next(indices)


def _product(pattern: tuple[Tensor, Tensor], entries: Tensor, shape: tuple[int, int], dense: Tensor) -> Tensor:
    if can_sum_rows(entries):
        return sum_rows(*pattern, entries, dense)
    return torch.sparse_csr_tensor(*pattern, entries, size=shape, check_invariants=False) @ dense
