r"""The inverse of a curvature some of whose rows are replaced, in the space of these rows.

An edit k takes the rows U_a of the training nodes a away from H = diag(d) + U^T U, and adds rows N. With
V = [U_a; N] and D = diag(-1, 1),

.. math:: H' = H + V^T D V, \qquad H'^{-1} V^T = H^{-1} V^T (I + D G)^{-1}, \qquad G = V H^{-1} V^T

(Woodbury). With :math:`C = U d^{-1} N^T` and :math:`R = (I + K)^{-1}, K = U d^{-1} U^T`, which leaving one out needs
as well, the blocks of G are :math:`I - R_{aa}`, :math:`(R C)_a` and :math:`N d^{-1} N^T - C^T R C`, and

.. math:: H^{-1} V^T c = d^{-1} \big(U^T (R_{:a} c_a - R C c_N) + N^T c_N\big)

So a solution costs two products with rows, whatever the number of rows that change. The rows of an edit lie next to
each other, and each edit has its own small system.
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

    Shapes: for each edit p terms are taken away and m added.

    Attributes:
        curvature, prepared: H and its factorisation.
        edits: the number of edits.
        old, new: the terms that each edit takes away and adds, edit by edit; None if no edit does.
        at: the positions of the old terms among the training nodes.
        cross: C, (nK, mK), of all edits.
        grams: N d^-1 N^T of each edit, (mK, mK).
    """

    curvature: GGN
    prepared: Prepared
    edits: int
    old: Terms | None
    new: Terms | None
    at: Tensor
    cross: Tensor
    grams: list[Tensor]

    @staticmethod
    def of(
        curvature: GGN, prepared: Prepared, edits: int, old: Terms | None, new: Terms | None, at: Tensor
    ) -> Replaced | None:
        """None where the rows are not inverted by the solver, or products of rows have no short way."""
        if not short_way(curvature, prepared):
            return None
        inverse, factor = curvature.diagonal.reciprocal(), curvature.factor
        if new is None:
            nothing = inverse.new_zeros(factor.rows, 0)
            return Replaced(curvature, prepared, edits, old, new, at, nothing, [nothing[:0]] * edits)
        rows = GGNFactor(new.jacobian, new.root, factor.count or len(factor.root))
        cross = factor.cross(rows, inverse)
        if cross is None:
            return None
        return Replaced(curvature, prepared, edits, old, new, at, cross, rows.group_grams(inverse, new.parts(edits)))

    @cached_property
    def remainder(self) -> Tensor:
        """R, (nK, nK)."""
        return self.prepared.remainder()

    @cached_property
    def product(self) -> Tensor:
        """R C, (nK, mK)."""
        return self.remainder @ self.cross

    @cached_property
    def rows(self) -> list[tuple[Tensor, slice]]:
        """For each edit, which rows of U its old terms are, and the place of its new rows among all of them."""
        K = self.curvature.factor.block
        kept = (self.at[:, None] * K + torch.arange(K)).flatten()
        none = [slice(0, 0)] * self.edits
        old = none if self.old is None else self.old.parts(self.edits)
        new = none if self.new is None else self.new.parts(self.edits)
        return [(kept[a.start * K : a.stop * K], slice(b.start * K, b.stop * K)) for a, b in zip(old, new, strict=True)]

    @cached_property
    def systems(self) -> list[Tensor]:
        """I + D G of each edit."""
        found = []
        for (a, b), gram in zip(self.rows, self.grams, strict=True):
            p = len(a)
            system = gram.new_empty(p + len(gram), p + len(gram))
            mixed = self.product[a, b]
            system[:p, :p] = self.remainder[a[:, None], a]  # I - (I - R_aa)
            system[:p, p:] = -mixed
            system[p:, :p] = mixed.T
            system[p:, p:] = gram - self.cross[:, b].T @ self.product[:, b]
            system[p:, p:].diagonal().add_(1.0)
            found.append(system)
        return found

    def steps(self, old: Tensor, new: Tensor) -> Tensor:
        """H'^-1 V^T w, w on the rows of old and new terms: (p, K), (m, K) of all edits -> (P, b)."""
        return self._spread(self._solved(self._split(old.flatten(), new.flatten())))

    def solve(self, block: Tensor) -> Tensor:
        """H'^-1 B, each column with its own H': (P, b) -> (P, b)."""
        solved = self.prepared.precondition(block)
        # D (I + G D)^-1 w = (I + D G)^-1 D w
        parts = self._split(-self._along(self.old, solved), self._along(self.new, solved))
        return solved - self._spread(self._solved(parts))

    def _split(self, old: Tensor, new: Tensor) -> list[Tensor]:
        """The values at the rows of each edit, old ones first."""
        kept = old.split([len(a) for a, _ in self.rows])
        return [torch.cat([mine, new[b]]) for mine, (_, b) in zip(kept, self.rows, strict=True)]

    def _solved(self, parts: list[Tensor]) -> list[Tensor]:
        return [torch.linalg.solve(A, w) if len(w) else w for A, w in zip(self.systems, parts, strict=True)]

    def _along(self, terms: Terms | None, block: Tensor) -> Tensor:
        """The rows of each term times its edit's column, (pK,)."""
        if terms is None:
            return block.new_zeros(0)
        return (terms.root.mT @ terms.along(block).unsqueeze(-1)).flatten() / self._length

    @property
    def _length(self) -> float:
        factor = self.curvature.factor
        return math.sqrt(factor.count or len(factor.root))

    def _spread(self, inner: list[Tensor]) -> Tensor:
        """H^-1 V^T c for every edit, (P, b)."""
        columns = self.cross.new_zeros(len(self.cross), self.edits)  # c_a - C c_N
        for k, ((a, b), c) in enumerate(zip(self.rows, inner, strict=True)):
            columns[a, k] = c[: len(a)]
            columns[:, k] -= self.cross[:, b] @ c[len(a) :]
        total = self.curvature.factor.transpose_matmul(self.remainder @ columns)
        if self.new is not None:
            added = torch.cat([c[len(a) :] for (a, _), c in zip(self.rows, inner, strict=True)])
            cotangents = (self.new.root @ added.view(-1, self.curvature.factor.block, 1)).squeeze(-1) / self._length
            total += self.new.pulled(cotangents, self.edits)
        return total / self.curvature.diagonal[:, None]


def short_way(curvature: GGN, prepared: Prepared) -> bool:
    """Whether rows are inverted by the solver, and products of rows of two Jacobians are cheap."""
    return prepared.inverts_rows and curvature.factor.jacobian.crosses and bool((curvature.diagonal > 0).all())
