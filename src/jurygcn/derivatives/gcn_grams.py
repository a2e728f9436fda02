"""The diagonal blocks of a two-layer GCN's Gram matrix, without rows of the Jacobian."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jurygcn.derivatives.closed_form import ClosedForm
from jurygcn.derivatives.gcn_products import own_blocks
from jurygcn.derivatives.jacobian import TEMPORARY_NUMBERS
from jurygcn.graph.sparse import SparseMatrix

# A sparse matrix with more than one in DENSE entries is made dense where its rows are needed.
DENSE = 4

# The most products of neighbours' features that are kept with a graph.
KEPT_NUMBERS = 5_000_000


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Some nodes of equal degree d, and products of their neighbours' propagated features.

    Shapes: nodes (b,), near and weights (b, d), products (b, d, d), None where T itself is cheaper.
    """

    nodes: Tensor
    near: Tensor
    weights: Tensor
    products: Tensor | None


def own_grams(form: ClosedForm, scale: Tensor, kept: dict[Any, Any] | None = None) -> Tensor:
    r"""J_i diag(scale) J_i^T for every node of a two-layer GCN, (n, C, C).

    The scale must be the same for all features of a hidden unit. Nodes of equal degree are taken together, and T is
    formed only for nodes with many neighbours. For the others

    .. math:: |T_{qi}|^2 = \sum_{vw} \hat A_{iv} \sigma'_{vq} (\hat A X)_v^T (\hat A X)_w \sigma'_{wq} \hat A_{iw}

    The products of features are the same for all models on a graph: ``kept`` holds them if they are few.
    """
    AE, W2, slope = form.AE[-1], form.W[-1], form.slope[1]
    scale1 = scale[: form.W[1].numel()].view(form.W[1].shape)
    assert isinstance(AE, Tensor)
    lengths = torch.zeros(len(AE), slope.shape[1], dtype=scale.dtype, device=scale.device)
    for some in _kept_neighbours(form, kept):
        masked = some.weights.unsqueeze(2) * slope[some.near]  # (b, d, h)
        if some.products is None:
            found = (masked.mT @ _rows(form.AE[1], some.near)).square().sum(dim=2)
        else:
            found = ((some.products @ masked) * masked).sum(dim=1)
        lengths[some.nodes] = found.to(lengths)
    return own_blocks((lengths * scale1[0]).T, AE.to(scale), W2.to(scale), scale[scale1.numel() :].view(W2.shape))


def _kept_neighbours(form: ClosedForm, kept: dict[Any, Any] | None) -> Iterable[Neighbours]:
    """The neighbours of all nodes, from ``kept`` if they are or can be there."""
    degrees = np.diff(form.hop(2).to_scipy().indptr).astype(np.int64)
    if kept is None or int((degrees**2).sum()) > KEPT_NUMBERS:
        return _neighbours(form, most=form.slope[1].shape[1])
    key = ("neighbours", form.slope[1].dtype, form.slope[1].device)
    if key not in kept:
        kept[key] = list(_neighbours(form, most=int(degrees.max())))
    found: list[Neighbours] = kept[key]
    return found


def _neighbours(form: ClosedForm, *, most: int) -> Iterator[Neighbours]:
    """Some nodes of equal degree after the other, with products up to degree ``most``."""
    AE, AX, hop = form.AE[-1], _dense_if_small(form.AE[1]), form.hop(2).to_scipy()
    assert isinstance(AE, Tensor)
    neighbours, weights = torch.from_numpy(hop.indices).long().to(AE.device), torch.from_numpy(hop.data).to(AE)
    degrees, starts = torch.from_numpy(np.diff(hop.indptr)).long(), torch.from_numpy(hop.indptr[:-1]).long()
    for degree in degrees[degrees > 0].unique().tolist():
        alike = (degrees == degree).nonzero().squeeze(1)
        for some in alike.split(max(1, TEMPORARY_NUMBERS // (degree * (degree + AX.shape[1])))):
            entries = starts[some, None] + torch.arange(degree)  # (b, d)
            near, products = neighbours[entries], None
            if degree <= most:
                seen = _rows(AX, near)
                products = seen @ seen.mT
            yield Neighbours(some, near, weights[entries], products)


def _dense_if_small(AX: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    if isinstance(AX, SparseMatrix):
        enough = max(TEMPORARY_NUMBERS, DENSE * len(AX.csr.values()))
        return AX.to_dense() if AX.shape[0] * AX.shape[1] <= enough else AX
    return AX


def _rows(AX: Tensor | SparseMatrix, nodes: Tensor) -> Tensor:
    """Propagated features of some nodes, (...) -> (..., F)."""
    return AX[nodes] if isinstance(AX, Tensor) else _dense_rows(AX, nodes)


def _dense_rows(matrix: SparseMatrix, rows: Tensor) -> Tensor:
    """Some rows of a sparse matrix, (...) -> (..., columns)."""
    found = torch.from_numpy(matrix.to_scipy()[rows.flatten().cpu().numpy()].toarray())
    return found.view(*rows.shape, -1).to(matrix.device)
