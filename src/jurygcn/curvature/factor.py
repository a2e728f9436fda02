"""The rows of the Gauss-Newton matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.derivatives import Jacobian


@dataclass(frozen=True, eq=False)
class GGNFactor:
    r"""The rows U of the Gauss-Newton matrix :math:`U^T U`: :math:`U_i = n^{-1/2} L_i^T J_i`, nK rows in all.

    Attributes:
        jacobian: J.
        root: L_i, (n, C, K).
        count: n of the mean, where these are the rows of some nodes only.
        known: Gram matrices U_t U_t^T of some parameters t that are known already, each with its place in theta.
    """

    jacobian: Jacobian
    root: Tensor
    count: int | None = None
    known: tuple[tuple[slice, Tensor], ...] = ()

    @property
    def rows(self) -> int:
        """nK."""
        return self.root.shape[0] * self.root.shape[2]

    @property
    def block(self) -> int:
        """K, the rows of one node."""
        return self.root.shape[2]

    def each(self, weights: Tensor) -> Tensor:
        """U_i^T w_i for every node, (n, K) -> (n, P)."""
        return self.jacobian.pull_each((self.scaled_root @ weights.unsqueeze(-1)).squeeze(-1))

    def congruences(self, matrix: Tensor) -> Tensor:
        """U_i A U_i^T for every node, (P, P) -> (n, K, K)."""
        return self.scaled_root.mT @ self.jacobian.quadratic(matrix) @ self.scaled_root

    @property
    def scaled_root(self) -> Tensor:
        r""":math:`n^{-1/2} L_i`, (n, C, K)."""
        return self.root / math.sqrt(self.count or len(self.root))

    def cast(self, dtype: torch.dtype) -> GGNFactor:
        """The same rows in another precision."""
        return GGNFactor(self.jacobian.cast(dtype), self.root.to(dtype), self.count)

    def subset(self, terms: Tensor) -> GGNFactor:
        """The rows of some nodes, with the n of all."""
        if len(terms) == len(self.root) and bool((terms == torch.arange(len(terms))).all()):
            return self
        return GGNFactor(self.jacobian.subset(terms), self.root[terms], self.count or len(self.root))

    def normal(self, block: Tensor) -> Tensor:
        """U^T U V: (P, k) -> (P, k)."""
        return self.jacobian.normal(self.scaled_root, block)

    def gram(self, inverse_diagonal: Tensor) -> Tensor:
        """U diag(w) U^T: (P,) -> (nK, nK); known parts are used where w is constant."""
        total: Tensor | None = None
        for span, part in self.known:
            weight = inverse_diagonal[span.start]
            if bool((inverse_diagonal[span] == weight).all()):
                total = weight * part if total is None else total.add_(part, alpha=float(weight))
                inverse_diagonal = inverse_diagonal.clone()
                inverse_diagonal[span] = 0.0
        if total is None:
            return self._gram(inverse_diagonal)
        return total.add_(self._gram(inverse_diagonal)) if bool((inverse_diagonal != 0).any()) else total

    def _gram(self, inverse_diagonal: Tensor) -> Tensor:
        n, C, K = self.root.shape
        gram = self.jacobian.gram(inverse_diagonal)  # (n, C, n, C)
        left = torch.bmm(self.scaled_root.transpose(1, 2), gram.reshape(n, C, n * C))
        both = torch.bmm(left.reshape(n * K, n, C).transpose(0, 1), self.scaled_root)
        return both.transpose(0, 1).reshape(n * K, n * K)

    def cross(self, other: GGNFactor, inverse_diagonal: Tensor) -> Tensor | None:
        """U diag(w) U'^T with other rows: (P,) -> (nK, mK); None if the Jacobians have no short way."""
        return self.jacobian.cross(inverse_diagonal, self.scaled_root, other.jacobian, other.scaled_root)

    def group_grams(self, inverse_diagonal: Tensor, groups: Sequence[slice]) -> list[Tensor]:
        """U_g diag(w) U_g^T for groups g of nodes: (P,) -> (gK, gK) each; for Jacobians with ``cross``."""
        return self.jacobian.group_grams(inverse_diagonal, self.scaled_root, groups)

    def matmul(self, block: Tensor) -> Tensor:
        """U V: (P, k) -> (nK, k)."""
        return torch.bmm(self.scaled_root.transpose(1, 2), self.jacobian.push(block)).flatten(0, 1)

    def transpose_matmul(self, block: Tensor) -> Tensor:
        """U^T A: (nK, k) -> (P, k)."""
        n, _, K = self.root.shape
        return self.jacobian.pull(torch.bmm(self.scaled_root, block.view(n, K, -1)))
