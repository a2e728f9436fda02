r"""The Jacobian of a GCN in closed form, with the factors of its layers.

The first layer of a two-layer GCN factorises over hidden units, so its cost does not grow with C.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from jurygcn.derivatives.closed_form import ClosedForm
from jurygcn.derivatives.gcn_products import between_rows, both_layers, own_blocks
from jurygcn.derivatives.jacobian import TEMPORARY_NUMBERS, DenseJacobian, HeldJacobian, Jacobian
from jurygcn.graph.sparse import SparseMatrix

# Columns of the products with AX that are taken together.
COLUMNS = 192


class TwoLayerJacobian(HeldJacobian):
    r"""The Jacobian of a two-layer GCN, factored over hidden units.

    .. math::
        \frac{\partial z_{ic}}{\partial W^{(1)}_{fq}} = T_{qif} W^{(2)}_{qc}, \quad
        T_{qi} = \sum_v \hat A_{iv} \sigma'_{vq} (\hat A X)_v, \qquad
        \frac{\partial z_{ic}}{\partial W^{(2)}_{qd}} = (\hat A E)_{iq} \delta_{cd}

    Shapes: T (h, n, F), AE (n, h), W2 (h, C); P = F h + h C.
    """

    crosses = True

    def __init__(self, T: Tensor, AE: Tensor, W2: Tensor) -> None:
        self.T, self.AE, self.W2 = T, AE, W2
        h, n, F = T.shape
        C = W2.shape[1]
        self.shape = (n, C, F * h + h * C)

    def _split(self, block: Tensor) -> tuple[Tensor, Tensor]:
        h, _, F = self.T.shape
        first, second = block.split([F * h, h * self.W2.shape[1]])
        return first.view(F, h, -1), second.view(h, self.W2.shape[1], -1)

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        V1, V2 = self._split(block)
        hidden = torch.bmm(self.T, V1.transpose(0, 1))  # (h, n, k)
        return torch.einsum("qc,qik->ick", self.W2, hidden) + torch.einsum("iq,qck->ick", self.AE, V2)

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        hidden = torch.einsum("qc,ick->qik", self.W2, block)
        first = torch.bmm(self.T.transpose(1, 2), hidden).transpose(0, 1)  # (F, h, k)
        second = torch.einsum("iq,ick->qck", self.AE, block)
        return torch.cat([first.flatten(0, 1), second.flatten(0, 1)])

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node."""
        hidden = cotangents @ self.W2.T  # (n, h)
        first = torch.einsum("qif,iq->ifq", self.T, hidden).flatten(1)
        second = (self.AE.unsqueeze(2) * cotangents.unsqueeze(1)).flatten(1)
        return torch.cat([first, second], dim=1)

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T, by h products of size n x F x n."""
        scale1, scale2 = (part.squeeze(-1) for part in self._split(scale.unsqueeze(-1)))
        inner = torch.bmm(self.T * scale1.T.unsqueeze(1), self.T.transpose(1, 2))  # (h, n, n)
        return both_layers(inner, self.AE, self.W2, scale2)

    def cross(self, scale: Tensor, root: Tensor, other: Jacobian, other_root: Tensor) -> Tensor | None:
        """L^T J diag(scale) J'^T L' with the Jacobian of the same model at other nodes or on another graph."""
        there = other.expanded if isinstance(other, RowSpaceJacobian) else other
        if not isinstance(there, TwoLayerJacobian):
            return None
        scale1, scale2 = (part.squeeze(-1) for part in self._split(scale.unsqueeze(-1)))
        inner = torch.bmm(self.T * scale1.T.unsqueeze(1), there.T.transpose(1, 2))  # (h, n, m)
        return between_rows(inner, scale2, self.W2, (self.AE, root), (there.AE, other_root))

    def group_grams(self, scale: Tensor, root: Tensor, groups: Sequence[slice]) -> list[Tensor]:
        """L_g^T J_g diag(scale) J_g^T L_g for groups of nodes."""
        scale1, scale2 = (part.squeeze(-1) for part in self._split(scale.unsqueeze(-1)))
        same, found = bool((scale1 == scale1[0, 0]).all()), []
        for group in groups:
            T = self.T[:, group]
            if same:  # a copy of T with another scale takes longer than the products
                inner = torch.bmm(T, T.transpose(1, 2)).mul_(float(scale1[0, 0]))
            else:
                inner = torch.bmm(T * scale1.T.unsqueeze(1), T.transpose(1, 2))
            own = (self.AE[group], root[group])
            found.append(between_rows(inner, scale2, self.W2, own, own))
        return found

    def curvature(self, root: Tensor) -> Tensor:
        r"""Sum of J_i^T L_i L_i^T J_i, block by block; the first layer's blocks do not depend on C.

        With :math:`S = L L^T`: block (q, q') of the first layer is
        :math:`\sum_i (W_2 S_i W_2^T)_{qq'} T_{qi}^T T_{q'i}`; the last layer's is
        :math:`\sum_i (\hat A E)_i^T (\hat A E)_i \otimes S_i`; the cross blocks likewise.
        """
        (h, n, F), C = self.T.shape, self.W2.shape[1]
        S = root @ root.transpose(1, 2)
        WS = self.W2 @ S  # (n, h, C)
        WSW = WS @ self.W2.T  # (n, h, h)
        P1 = F * h
        out = torch.empty(self.shape[2], self.shape[2], dtype=self.T.dtype, device=self.T.device)
        first = out[:P1, :P1].view(F, h, F, h)
        for q in range(h):
            for r in range(q, h):
                block = (self.T[q] * WSW[:, q, r, None]).T @ self.T[r]
                first[:, q, :, r] = block
                first[:, r, :, q] = block.T
            cross = self.T[q].T @ (self.AE.unsqueeze(2) * WS[:, q].unsqueeze(1)).view(n, h * C)  # (F, h C)
            out[:P1, P1:].view(F, h, h * C)[:, q] = cross
        out[P1:, :P1] = out[:P1, P1:].T
        pairs = (self.AE.unsqueeze(2) * self.AE.unsqueeze(1)).view(n, h * h)
        out[P1:, P1:] = (pairs.T @ S.reshape(n, C * C)).view(h, h, C, C).permute(0, 2, 1, 3).reshape(h * C, h * C)
        return out

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node, block by block as in ``curvature``."""
        (h, n, F), C = self.T.shape, self.W2.shape[1]
        P1 = F * h
        first = matrix[:P1, :P1].view(F, h, F, h)
        inner = torch.empty(n, h, h, dtype=matrix.dtype, device=matrix.device)
        mixed = torch.empty(n, h, C, dtype=matrix.dtype, device=matrix.device)
        for q in range(h):
            for r in range(q, h):
                inner[:, q, r] = inner[:, r, q] = ((self.T[q] @ first[:, q, :, r]) * self.T[r]).sum(dim=1)
            cross = (self.T[q] @ matrix[:P1, P1:].view(F, h, h * C)[:, q]).view(n, h, C)
            mixed[:, q] = (cross * self.AE.unsqueeze(2)).sum(dim=1)
        W2 = self.W2.expand(n, h, C)
        out = W2.transpose(1, 2) @ inner @ W2
        half = W2.transpose(1, 2) @ mixed
        out += half + half.transpose(1, 2)
        corner = matrix[P1:, P1:].reshape(h, C * h * C)
        for nodes in torch.arange(n, device=out.device).split(max(1, TEMPORARY_NUMBERS // corner.shape[1])):
            last = (self.AE[nodes] @ corner).view(-1, C, h, C)
            out[nodes] += (last * self.AE[nodes, None, :, None]).sum(dim=2)
        return out

    def own_grams(self, scale: Tensor) -> Tensor:
        """J_i diag(scale) J_i^T for every node, from the lengths of the rows of T."""
        scale1, scale2 = (part.squeeze(-1) for part in self._split(scale.unsqueeze(-1)))
        lengths = torch.bmm(self.T.square(), scale1.T.unsqueeze(2)).squeeze(2)  # (h, n)
        return own_blocks(lengths, self.AE, self.W2, scale2)

    def cast(self, dtype: torch.dtype) -> TwoLayerJacobian:
        """The same Jacobian in another precision."""
        return TwoLayerJacobian(self.T.to(dtype), self.AE.to(dtype), self.W2.to(dtype))

    def subset(self, terms: Tensor) -> TwoLayerJacobian:
        """The factors of some nodes."""
        return TwoLayerJacobian(self.T[:, terms], self.AE[terms], self.W2)


class RowSpaceJacobian(HeldJacobian):
    r"""The Jacobian of a two-layer GCN in the span of the R rows of :math:`\hat A X` that training nodes reach.

    Every first-layer direction is a combination of those rows, so T of :class:`TwoLayerJacobian` is not formed:
    :math:`T_{qi} = \sum_v M_{(q,i),v} (\hat A X)_v` with the sparse mask-weighted adjacency M. This is cheaper
    when R is below the number of features.

    Shapes: M (h n, R) sparse; AX (R, F) sparse or dense; AE (n, h), W2 (h, C); P = F h + h C.
    """

    crosses = True

    def __init__(self, mask: sp.csr_matrix, AX: Tensor | SparseMatrix, AE: Tensor, W2: Tensor) -> None:
        self.mask, self.AX, self.AE, self.W2 = mask, AX, AE, W2
        n, h = AE.shape
        self.shape = (n, W2.shape[1], AX.shape[1] * h + h * W2.shape[1])

    @cached_property
    def _blocks(self) -> SparseMatrix:
        """M as a block-diagonal matrix: row (q, i), column (q, v), (h n, h R)."""
        n, h = self.AE.shape
        rows, reached = self.mask.shape
        unit = np.repeat(np.arange(rows) // n, np.diff(self.mask.indptr))
        indices = self.mask.indices + unit * reached
        wide = sp.csr_matrix((self.mask.data, indices, self.mask.indptr), shape=(rows, h * reached))
        return SparseMatrix(wide, dtype=self.AE.dtype, device=self.AE.device)

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        F, h, C, k = self.AX.shape[1], *self.W2.shape, block.shape[1]
        V1, V2 = block.split([F * h, h * C])
        seen = (self.AX @ V1.reshape(F, h * k)).view(-1, h, k).transpose(0, 1)  # (h, R, k)
        hidden = (self._blocks @ seen.reshape(-1, k)).view(h, -1, k)
        return torch.einsum("qc,qik->ick", self.W2, hidden) + torch.einsum("iq,qck->ick", self.AE, V2.view(h, C, k))

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        k, (F, h) = block.shape[2], (self.AX.shape[1], self.W2.shape[0])
        hidden = torch.einsum("qc,ick->qik", self.W2, block).reshape(-1, k)
        spread = (self._blocks.T @ hidden).view(h, -1, k).permute(1, 2, 0)  # (R, k, h)
        value = block.new_empty(k, self.shape[2])  # columns in one piece, as the steps of jurors are
        first = value[:, : F * h].view(k, F, h).transpose(0, 1)
        for some in torch.arange(k).split(max(1, COLUMNS // h)):  # so that products stay in the processor's cache
            here = slice(int(some[0]), int(some[-1]) + 1)
            part = spread[:, here].reshape(len(spread), -1)
            first[:, here] = (self.AX.T @ part).view(F, -1, h)
        value[:, F * h :] = torch.einsum("iq,ick->kqc", self.AE, block).flatten(1)
        return value.T

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node."""
        return self.expanded.pull_each(cotangents)

    def pull_groups(self, cotangents: Tensor, group: Tensor, count: int) -> Tensor:
        """The sum of J_i^T a_i over each group: rows of M are weighted and summed before the product with AX."""
        (n, h), C = self.AE.shape, self.W2.shape[1]
        entries = np.diff(self.mask.indptr)
        weight = (cotangents @ self.W2.T).T.cpu().numpy().ravel()  # (h n,)
        rows = (group.cpu().numpy() * h + np.arange(h)[:, None]).ravel()  # group * h + q
        values = self.mask.data * np.repeat(weight, entries)
        shape = (count * h, self.mask.shape[1])
        summed = sp.csr_matrix((values, (np.repeat(rows, entries), self.mask.indices)), shape=shape)
        first = summed @ (self.AX.to_scipy() if isinstance(self.AX, SparseMatrix) else self.AX.cpu().numpy())
        first = torch.from_numpy(first.toarray() if sp.issparse(first) else first).view(count, h, -1)
        pairs = (self.AE.unsqueeze(2) * cotangents.unsqueeze(1)).view(n, h * C)
        second = pairs.new_zeros(count, h * C).index_add_(0, group, pairs)
        return torch.cat([first.to(pairs).permute(2, 1, 0).flatten(0, 1), second.T])

    def group_grams(self, scale: Tensor, root: Tensor, groups: Sequence[slice]) -> list[Tensor]:
        """L_g^T J_g diag(scale) J_g^T L_g for groups of nodes, from T if it is not too large."""
        if self.shape[0] * self.shape[2] <= TEMPORARY_NUMBERS:
            return self.expanded.group_grams(scale, root, groups)
        return super().group_grams(scale, root, groups)

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T, from the R x R products of the reached rows."""
        F, h, n = self.AX.shape[1], self.W2.shape[0], self.AE.shape[0]
        scale1 = scale[: F * h].view(F, h)
        if not bool((scale1 == scale1[0, 0]).all()):
            return self.expanded.gram(scale)
        rows = self.AX.gram() if isinstance(self.AX, SparseMatrix) else self.AX @ self.AX.T  # (R, R)
        seen = torch.from_numpy(self.mask @ rows.cpu().numpy()).to(self.AE).view(h, n, -1)  # (h, n, R): M G
        inner = float(scale1[0, 0]) * (self._blocks @ seen.transpose(1, 2).reshape(-1, n)).view(h, n, n)
        return both_layers(inner, self.AE, self.W2, scale[F * h :].view(h, -1))

    def cross(self, scale: Tensor, root: Tensor, other: Jacobian, other_root: Tensor) -> Tensor | None:
        """L^T J diag(scale) J'^T L' with the Jacobian of the same model at other nodes or on another graph."""
        F, h = self.AX.shape[1], self.W2.shape[0]
        scale1 = scale[: F * h].view(F, h)
        if not isinstance(other, RowSpaceJacobian) or not bool((scale1 == scale1[0, 0]).all()):
            return self.expanded.cross(scale, root, other, other_root)
        rows = _products(other.AX, self.AX)  # (R', R)
        seen = torch.from_numpy(other.mask @ rows).view(h, len(other.AE), -1)  # (h, m, R)
        spread = seen.transpose(1, 2).reshape(-1, len(other.AE)).to(self.AE)
        inner = float(scale1[0, 0]) * (self._blocks @ spread).view(h, len(self.AE), -1)
        return between_rows(inner, scale[F * h :].view(h, -1), self.W2, (self.AE, root), (other.AE, other_root))

    def curvature(self, root: Tensor) -> Tensor:
        """Sum of J_i^T L_i L_i^T J_i."""
        return self.expanded.curvature(root)

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node."""
        return self.expanded.quadratic(matrix)

    def own_grams(self, scale: Tensor) -> Tensor:
        """J_i diag(scale) J_i^T for every node, from the lengths of the rows of T, which stays sparse if AX is."""
        F, (n, h) = self.AX.shape[1], self.AE.shape
        if not isinstance(self.AX, SparseMatrix):
            return self.expanded.own_grams(scale)
        scale1 = scale[: F * h].view(F, h)
        T = (self.mask @ self.AX.to_scipy()).power(2)
        lengths = [torch.from_numpy(T[q * n : (q + 1) * n] @ scale1[:, q].cpu().numpy()) for q in range(h)]
        return own_blocks(torch.stack(lengths).to(self.AE), self.AE, self.W2, scale[F * h :].view(h, -1))

    def cast(self, dtype: torch.dtype) -> RowSpaceJacobian:
        """The same Jacobian in another precision."""
        AX = self.AX.cast(dtype) if isinstance(self.AX, SparseMatrix) else self.AX.to(dtype)
        return RowSpaceJacobian(self.mask, AX, self.AE.to(dtype), self.W2.to(dtype))

    def subset(self, terms: Tensor) -> RowSpaceJacobian:
        """The factors of some nodes."""
        n, h = self.AE.shape
        rows = (np.arange(h)[:, None] * n + terms.cpu().numpy()).ravel()
        return RowSpaceJacobian(self.mask[rows], self.AX, self.AE[terms], self.W2)

    @cached_property
    def expanded(self) -> TwoLayerJacobian:
        """The same Jacobian with T formed."""
        T = self.mask @ (self.AX.to_scipy() if isinstance(self.AX, SparseMatrix) else self.AX.cpu().numpy())
        T = torch.from_numpy(T.toarray() if sp.issparse(T) else T)
        n, h = self.AE.shape
        return TwoLayerJacobian(T.view(h, n, -1).to(self.AE), self.AE, self.W2)


def _products(left: Tensor | SparseMatrix, right: Tensor | SparseMatrix) -> np.ndarray[Any, Any]:
    """The products of all rows of two matrices, (R, F), (R', F) -> (R, R')."""
    if isinstance(left, SparseMatrix) and isinstance(right, SparseMatrix):
        found: np.ndarray[Any, Any] = (left.to_scipy() @ right.to_scipy().T).toarray()
        return found
    dense = right.to_dense() if isinstance(right, SparseMatrix) else right
    return (left @ dense.T).cpu().numpy()


def closed_form_jacobian(form: ClosedForm) -> Jacobian:
    """The training nodes' Jacobian of a GCN, in the cheapest form for its depth and sizes."""
    if form.L != 2:
        return DenseJacobian(form.jacobian_rows())
    AX, AE, W2 = form.AE[1], form.AE[2], form.W[2]
    assert isinstance(AE, Tensor)
    reached, features = AX.shape
    if reached >= features and isinstance(AX, Tensor):
        return TwoLayerJacobian(_first_layer_rows(form, AX), AE, W2)
    jacobian = RowSpaceJacobian(_masked_adjacency(form), AX, AE, W2)
    return jacobian if reached < features else jacobian.expanded


def _first_layer_rows(form: ClosedForm, AX: Tensor) -> Tensor:
    """T of :class:`TwoLayerJacobian` where propagated features are dense: one dense product per training node."""
    hop, slope = form.hop(2).to_scipy(), form.slope[1]
    T = torch.empty(slope.shape[1], hop.shape[0], AX.shape[1], dtype=AX.dtype, device=AX.device)
    neighbours, weights = torch.from_numpy(hop.indices).to(AX.device), torch.from_numpy(hop.data).to(AX)
    for i, (start, stop) in enumerate(zip(hop.indptr[:-1].tolist(), hop.indptr[1:].tolist())):
        near = neighbours[start:stop]
        T[:, i] = (slope[near] * weights[start:stop, None]).T @ AX[near]
    return T


def _masked_adjacency(form: ClosedForm) -> sp.csr_matrix:
    """Row (q, i) is node i's row of A_hat, masked by where hidden unit q is active, (h n, R)."""
    hop = form.hop(2).to_scipy()
    n, reached = hop.shape
    h = form.W[1].shape[1]
    slope = form.slope[1].cpu().numpy()[hop.indices]  # (nnz, h)
    indptr = np.concatenate([[0], (np.diff(hop.indptr) + np.zeros((h, 1), dtype=np.int64)).ravel().cumsum()])
    left = sp.csr_matrix(
        ((slope * hop.data[:, None]).T.ravel(), np.tile(hop.indices, h), indptr), shape=(h * n, reached)
    )
    left.eliminate_zeros()
    return left
