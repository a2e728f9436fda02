r"""The inverse of a curvature some of whose rows are replaced, in the space of these rows.

An edit k takes the rows U_a of the training nodes a away from H = diag(d) + U^T U, and adds rows N. With
V = [U_a; N] and D = diag(-1, 1),

.. math:: H' = H + V^T D V, \qquad H'^{-1} V^T = H^{-1} V^T (I + D G)^{-1}, \qquad G = V H^{-1} V^T

(Woodbury). With :math:`C = U d^{-1} N^T` and :math:`R = (I + K)^{-1}, K = U d^{-1} U^T`, which leaving one out needs
as well, the blocks of G are :math:`I - R_{aa}`, :math:`(R C)_a` and :math:`N d^{-1} N^T - C^T R C`, and

.. math:: H^{-1} V^T c = d^{-1} \big(U^T (R_{:a} c_a - R C c_N) + N^T c_N\big)

So a solution costs two products with rows, whatever the number of rows that change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurygcn.curvature import GGN, GGNFactor
from jurygcn.linalg import Prepared

if TYPE_CHECKING:
    from jurygcn.edits.steps import Terms


@dataclass(frozen=True, eq=False)
class Replaced:
    """The changed curvatures of several edits.

    Attributes:
        curvature, prepared: H and its factorisation.
        edits: the number of edits.
        old, new: the terms that each edit takes away and adds; None if no edit does.
        at: the positions of the old terms among the training nodes.
        cross: C, (nK, mK).
        gram: N d^-1 N^T, (mK, mK).
    """

    curvature: GGN
    prepared: Prepared
    edits: int
    old: Terms | None
    new: Terms | None
    at: Tensor
    cross: Tensor
    gram: Tensor

    @staticmethod
    def of(
        curvature: GGN, prepared: Prepared, edits: int, old: Terms | None, new: Terms | None, at: Tensor
    ) -> Replaced | None:
        """None where the rows are not inverted by the solver, or products of rows have no short way."""
        if not prepared.inverts_rows or not bool((curvature.diagonal > 0).all()):
            return None
        inverse, factor = curvature.diagonal.reciprocal(), curvature.factor
        if new is None:
            nothing = inverse.new_zeros(factor.rows, 0)
            return Replaced(curvature, prepared, edits, old, new, at, nothing, nothing[:0])
        rows = GGNFactor(new.jacobian, new.root, factor.count or len(factor.root))
        cross = factor.cross(rows, inverse)
        gram = None if cross is None else rows.cross(rows, inverse)
        if cross is None or gram is None:
            return None
        return Replaced(curvature, prepared, edits, old, new, at, cross, gram)

    @cached_property
    def remainder(self) -> Tensor:
        """R, (nK, nK)."""
        return self.prepared.remainder()

    @cached_property
    def product(self) -> Tensor:
        """R C, (nK, mK)."""
        return self.remainder @ self.cross

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Which rows of U the old terms are, (pK,), and which edit each row belongs to, old then new, (pK + mK,)."""
        K = self.curvature.factor.block
        rows = (self.at[:, None] * K + torch.arange(K)).flatten()
        edits = [terms.edit for terms in (self.old, self.new) if terms is not None]
        return rows, torch.repeat_interleave(torch.cat([*edits, self.at[:0]]), K)

    def steps(self, old: Tensor, new: Tensor) -> Tensor:
        """H'^-1 V^T w, w on the rows of old and new terms: (p, K), (m, K) -> (P, b)."""
        return self._spread(self._inner(torch.cat([old.flatten(), new.flatten()]), transposed=False))

    def solve(self, block: Tensor) -> Tensor:
        """H'^-1 B, each column with its own H': (P, b) -> (P, b)."""
        solved = self.prepared.precondition(block)
        seen = [self._along(terms, solved) for terms in (self.old, self.new)]
        return solved - self._spread(self._inner(torch.cat(seen), transposed=True))

    def _along(self, terms: Terms | None, block: Tensor) -> Tensor:
        """The rows of each term times its edit's column, (pK,)."""
        if terms is None:
            return block.new_zeros(0)
        return (terms.root.mT @ terms.along(block).unsqueeze(-1)).flatten() / self._length

    @property
    def _length(self) -> float:
        factor = self.curvature.factor
        return math.sqrt(factor.count or len(factor.root))

    def _inner(self, rows: Tensor, *, transposed: bool) -> Tensor:
        """(I + D G)^-1 w, or D (I + G D)^-1 w = (I + D G)^-1 D w where ``transposed``, edit by edit."""
        kept, owner = self.places
        p, found = len(kept), torch.zeros_like(rows)
        sign = torch.ones_like(rows)
        sign[:p] = -1.0
        w = sign * rows if transposed else rows
        for k in range(self.edits):
            mine = (owner == k).nonzero()[:, 0]
            if not len(mine):
                continue
            a, b = kept[mine[mine < p]], mine[mine >= p] - p
            mixed = self.product[a][:, b]
            G = torch.cat(
                [
                    torch.cat([torch.eye(len(a), dtype=w.dtype) - self.remainder[a][:, a], mixed], dim=1),
                    torch.cat([mixed.T, self.gram[b][:, b] - self.cross[:, b].T @ self.product[:, b]], dim=1),
                ]
            )
            system = sign[mine, None] * G
            system.diagonal().add_(1.0)
            found[mine] = torch.linalg.solve(system, w[mine])
        return found

    def _spread(self, inner: Tensor) -> Tensor:
        """H^-1 V^T c for every edit, (P, b)."""
        kept, owner = self.places
        p, K = len(kept), self.curvature.factor.block
        columns = inner.new_zeros(len(inner), self.edits)
        columns[torch.arange(len(inner)), owner] = inner
        coefficients = self.remainder[:, kept] @ columns[:p] - self.product @ columns[p:]
        total = self.curvature.factor.transpose_matmul(coefficients)
        if self.new is not None:
            cotangents = (self.new.root @ inner[p:].view(-1, K, 1)).squeeze(-1) / self._length
            total += self.new.pulled(cotangents, self.edits)
        return total / self.curvature.diagonal[:, None]
