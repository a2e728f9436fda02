r"""The Jacobian J of the training nodes' logits: never needed dense where it has structure.

Everything the Gauss-Newton matrix and the jurors ask of J goes through four products, so that a two-layer GCN's
Jacobian (its first layer factorises over hidden units) costs no C in memory or time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from jurygcn.derivatives import autodiff
from jurygcn.derivatives.closed_form import ClosedForm
from jurygcn.models.receptive_field import SparseMatrix
from jurygcn.objective import Objective


class Jacobian(Protocol):
    """Derivatives of n nodes' C logits with respect to P parameters."""

    shape: tuple[int, int, int]

    def push(self, block: Tensor) -> Tensor:
        """J V: (P, k) -> (n, C, k)."""

    def pull(self, block: Tensor) -> Tensor:
        """J^T A: (n, C, k) -> (P, k)."""

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """Row i is J_i^T a_i: (n, C) -> (n, P)."""

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T: (P,) -> (n, C, n, C)."""

    def subset(self, terms: Tensor) -> Jacobian:
        """The same for some of the nodes."""


class DenseJacobian:
    """The Jacobian as a dense array of rows (n, C, P), from any source."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.shape = (rows.shape[0], rows.shape[1], rows.shape[2])

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        return self.rows @ block

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        return self.rows.flatten(0, 1).T @ block.flatten(0, 1)

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node."""
        return torch.bmm(cotangents.unsqueeze(1), self.rows).squeeze(1)

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T."""
        n, C, _ = self.shape
        flat = self.rows.flatten(0, 1)
        return ((flat * scale) @ flat.T).view(n, C, n, C)

    def subset(self, terms: Tensor) -> DenseJacobian:
        """The rows of some nodes."""
        return DenseJacobian(self.rows[terms])


class TwoLayerJacobian:
    r"""The Jacobian of a two-layer GCN, factored over hidden units.

    .. math::
        \frac{\partial z_{ic}}{\partial W^{(1)}_{fq}} = T_{qif} W^{(2)}_{qc}, \quad
        T_{qi} = \sum_v \hat A_{iv} \sigma'_{vq} (\hat A X)_v, \qquad
        \frac{\partial z_{ic}}{\partial W^{(2)}_{qd}} = (\hat A E)_{iq} \delta_{cd}

    Shapes: T (h, n, F), AE (n, h), W2 (h, C); P = F h + h C.
    """

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
        out = torch.einsum("qc,qij,qd->icjd", self.W2, inner, self.W2)
        last = torch.einsum("iq,qc,jq->cij", self.AE, scale2, self.AE)
        out.diagonal(dim1=1, dim2=3).add_(last.permute(1, 2, 0))
        return out

    def subset(self, terms: Tensor) -> TwoLayerJacobian:
        """The factors of some nodes."""
        return TwoLayerJacobian(self.T[:, terms], self.AE[terms], self.W2)


def jacobian_of(objective: Objective) -> Jacobian:
    """The training nodes' Jacobian in the cheapest form the model allows."""
    if objective.gcn is None:
        return DenseJacobian(autodiff.jacobian_rows(objective, objective.theta, objective.train_nodes))
    form = ClosedForm(objective)
    return _two_layer(form) if form.L == 2 else DenseJacobian(form.jacobian_rows())


def _two_layer(form: ClosedForm) -> TwoLayerJacobian:
    """Build T by one sparse product: row (q, i) of the left factor is the row of A_hat, masked by unit q."""
    hop = form.hop(2).to_scipy()
    n, reached = hop.shape
    h = form.W[1].shape[1]
    rows = np.repeat(np.arange(n), np.diff(hop.indptr))
    slope = form.slope[1].cpu().numpy()[hop.indices]  # (nnz, h)
    left = sp.csr_matrix(
        (
            (slope * hop.data[:, None]).T.ravel(),
            ((np.arange(h)[:, None] * n + rows).ravel(), np.tile(hop.indices, h)),
        ),
        shape=(h * n, reached),
    )
    left.eliminate_zeros()
    AX = form.AE[1]
    T = left @ (AX.to_scipy() if isinstance(AX, SparseMatrix) else AX.cpu().numpy())
    T = torch.from_numpy(T.toarray() if sp.issparse(T) else T)
    AE = form.AE[2]
    assert isinstance(AE, Tensor)
    return TwoLayerJacobian(T.view(h, n, -1).to(AE), AE, form.W[2])
