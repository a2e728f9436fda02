"""Products of rows of a two-layer GCN's Jacobian, from those of the rows of T of single units."""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn.derivatives.jacobian import TEMPORARY_NUMBERS


def both_layers(inner: Tensor, AE: Tensor, W2: Tensor, scale2: Tensor) -> Tensor:
    """The Gram matrix of both layers from T_q T_q^T: (h, n, n) -> (n, C, n, C)."""
    (h, n, _), C = inner.shape, W2.shape[1]
    first = (_pairs(W2).T @ inner.reshape(h, n * n)).view(C, C, n, n)
    last = (AE * scale2.T.unsqueeze(1)) @ AE.T  # (C, n, n)
    first.diagonal(dim1=0, dim2=1).add_(last.permute(1, 2, 0))
    return first.permute(2, 0, 3, 1)


Rows = tuple[Tensor, Tensor]


def between_rows(inner: Tensor, scale2: Tensor, W2: Tensor, left: Rows, right: Rows) -> Tensor:
    r"""Products of the rows L^T J of both layers, from T_q D T'_q^T.

    .. math::
        \sum_q (L_i^T W_2^T)_{kq} (T_q D_q T_q'^T)_{ij} (W_2 L_j')_{ql}
        + \sum_{qc} (L_i)_{ck} (\hat A E)_{iq} D_{qc} (\hat A E)'_{jq} (L_j')_{cl}

    Shapes: inner (h, n, m), scale2 (h, C), left and right: AE (n, h) and L (n, C, K) -> (nK, mK).
    """
    (AE, root), (other, other_root) = left, right
    (h, n, m), K = inner.shape, root.shape[2]
    mixed = (W2 @ other_root).transpose(0, 1).unsqueeze(1)  # (h, 1, m, K)
    there = (other_root.mT.unsqueeze(2) * other[:, None, :, None]).flatten(2).flatten(0, 1)  # (m K, h C)
    out, most = inner.new_empty(n, K, m * K), max(1, TEMPORARY_NUMBERS // max(1, h * m * K))
    for first in range(0, n, most):
        i = slice(first, first + most)
        weighted = (inner[:, i].unsqueeze(3) * mixed).transpose(0, 1).reshape(-1, h, m * K)
        torch.bmm(root[i].mT @ W2.T, weighted, out=out[i])
        here = (root[i].mT.unsqueeze(2) * (AE[i].unsqueeze(2) * scale2).unsqueeze(1)).flatten(2).flatten(0, 1)
        out[i].view(-1, m * K).addmm_(here, there.T)
    return out.flatten(0, 1)


def own_blocks(lengths: Tensor, AE: Tensor, W2: Tensor, scale2: Tensor) -> Tensor:
    """The diagonal blocks of the Gram matrix of both layers from |T_qi|^2: (h, n) -> (n, C, C)."""
    C = W2.shape[1]
    out = (lengths.T @ _pairs(W2)).view(-1, C, C)
    out.diagonal(dim1=1, dim2=2).add_(AE.square() @ scale2)
    return out


def _pairs(W2: Tensor) -> Tensor:
    """The products of all pairs of a unit's weights, (h, C) -> (h, C C)."""
    return (W2.unsqueeze(2) * W2.unsqueeze(1)).flatten(1)
