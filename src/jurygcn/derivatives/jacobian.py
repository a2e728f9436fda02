r"""The Jacobian J of the training nodes' logits, dense or structured.

The Gauss-Newton matrix and the jurors use J only through the products of :class:`Jacobian`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

# The most numbers in a temporary array.
TEMPORARY_NUMBERS = 20_000_000


class Jacobian(Protocol):
    """Derivatives of n nodes' C logits with respect to P parameters."""

    @property
    def streamed(self) -> bool:
        """Whether it is made again for every product."""

    @property
    def crosses(self) -> bool:
        """Whether there are short ways for ``cross`` and ``group_grams``."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, P)."""

    def push(self, block: Tensor) -> Tensor:
        """J V: (P, k) -> (n, C, k)."""

    def pull(self, block: Tensor) -> Tensor:
        """J^T A: (n, C, k) -> (P, k)."""

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """Row i is J_i^T a_i: (n, C) -> (n, P)."""

    def pull_groups(self, cotangents: Tensor, group: Tensor, count: int) -> Tensor:
        """The sum of J_i^T a_i over each of ``count`` groups of nodes: (n, C), (n,) -> (P, count)."""

    def normal(self, root: Tensor, block: Tensor) -> Tensor:
        """Sum over nodes of J_i^T L_i L_i^T J_i V: (n, C, K), (P, k) -> (P, k)."""

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T: (P,) -> (n, C, n, C)."""

    def cross(self, scale: Tensor, root: Tensor, other: Jacobian, other_root: Tensor) -> Tensor | None:
        """L^T J diag(scale) J'^T L' with another Jacobian: (P,), (n, C, K), (m, C, K) -> (nK, mK).

        None if this form has no short way.
        """

    def group_grams(self, scale: Tensor, root: Tensor, groups: Sequence[slice]) -> list[Tensor]:
        """L_g^T J_g diag(scale) J_g^T L_g for groups g of nodes: (P,), (n, C, K) -> (gK, gK) each."""

    def curvature(self, root: Tensor) -> Tensor:
        """Sum over nodes of J_i^T L_i L_i^T J_i: (n, C, K) -> (P, P)."""

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node, A symmetric: (P, P) -> (n, C, C)."""

    def own_grams(self, scale: Tensor) -> Tensor:
        """J_i diag(scale) J_i^T for every node: (P,) -> (n, C, C)."""

    def cast(self, dtype: torch.dtype) -> Jacobian:
        """The same in another precision."""

    def subset(self, terms: Tensor) -> Jacobian:
        """The Jacobian of some of the nodes."""


class Grouped:
    """Products with groups of nodes, for a Jacobian that has no shorter way."""

    crosses = False

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        raise NotImplementedError

    def pull_groups(self, cotangents: Tensor, group: Tensor, count: int) -> Tensor:
        """The sum of J_i^T a_i over each group, one column each."""
        wide = cotangents.new_zeros(*cotangents.shape, count)
        wide[torch.arange(len(group)), :, group] = cotangents
        return self.pull(wide)

    def cross(self, scale: Tensor, root: Tensor, other: Jacobian, other_root: Tensor) -> Tensor | None:  # noqa: ARG002
        """No short way."""
        return None

    def group_grams(self, scale: Tensor, root: Tensor, groups: Sequence[slice]) -> list[Tensor]:
        """Where there is a short way, group by group."""
        found = []
        for group in groups:
            part = self.subset(torch.arange(group.start, group.stop))
            gram = part.cross(scale, root[group], part, root[group])
            assert gram is not None
            found.append(gram)
        return found

    def subset(self, terms: Tensor) -> Jacobian:
        """The Jacobian of some of the nodes."""
        raise NotImplementedError


class HeldJacobian(Grouped):
    """The common part of Jacobians that are held in memory."""

    streamed = False

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        raise NotImplementedError

    def normal(self, root: Tensor, block: Tensor) -> Tensor:
        """Sum of J_i^T L_i L_i^T J_i V, for some columns at a time to bound memory."""
        width = max(1, TEMPORARY_NUMBERS // (root.shape[0] * root.shape[2]))
        pieces = [self.pull(torch.bmm(root, torch.bmm(root.mT, self.push(part)))) for part in block.split(width, dim=1)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)


class DenseJacobian(HeldJacobian):
    """The Jacobian as a dense array of rows (n, C, P), from any source.

    Rows in a lower precision than the arguments of a product take that product in their own precision.
    """

    crosses = True

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.shape = (rows.shape[0], rows.shape[1], rows.shape[2])

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        return (self.rows @ block.to(self.rows.dtype)).to(block.dtype)

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        return (self.rows.flatten(0, 1).T @ block.flatten(0, 1).to(self.rows.dtype)).to(block.dtype)

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node."""
        rows = torch.bmm(cotangents.unsqueeze(1).to(self.rows.dtype), self.rows)
        return rows.squeeze(1).to(cotangents.dtype)

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T, from some columns at a time; columns of scale 0 are left out."""
        n, C, _ = self.shape
        flat = self.rows.flatten(0, 1)
        out = torch.zeros(n * C, n * C, dtype=flat.dtype, device=flat.device)
        for some in (scale != 0).nonzero().squeeze(1).split(max(1, TEMPORARY_NUMBERS // max(1, n * C))):
            part = flat if len(some) == len(scale) else flat[:, some]
            out.addmm_(part * scale[some].to(part), part.T)
        return out.view(n, C, n, C).to(scale.dtype)

    def cross(self, scale: Tensor, root: Tensor, other: Jacobian, other_root: Tensor) -> Tensor | None:
        """L^T J diag(scale) J'^T L' of dense rows."""
        if not isinstance(other, DenseJacobian):
            return None
        left, right = (r.mT @ J.rows.to(scale.dtype) for J, r in ((self, root), (other, other_root)))
        return (left.flatten(0, 1) * scale) @ right.flatten(0, 1).T

    def curvature(self, root: Tensor) -> Tensor:
        """Sum of J_i^T L_i L_i^T J_i."""
        rows = self.rows.to(root.dtype)
        U = torch.bmm(root.transpose(1, 2), rows).flatten(0, 1)
        return U.T @ U

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node."""
        rows = self.rows.to(matrix.dtype)
        return torch.bmm((rows.flatten(0, 1) @ matrix).view(self.shape), rows.transpose(1, 2))

    def own_grams(self, scale: Tensor) -> Tensor:
        """J_i diag(scale) J_i^T for every node."""
        rows = self.rows.to(scale.dtype)
        return torch.bmm(rows * scale, rows.transpose(1, 2))

    def cast(self, dtype: torch.dtype) -> DenseJacobian:
        """The same Jacobian in another precision."""
        return DenseJacobian(self.rows.to(dtype))

    def subset(self, terms: Tensor) -> DenseJacobian:
        """The rows of some nodes."""
        return DenseJacobian(self.rows[terms])


def grams_by_rows(jacobian: Jacobian, scale: Tensor) -> Tensor:
    """J_i diag(scale) J_i^T for every node of any Jacobian, from its rows, some nodes at a time."""
    n, C, P = jacobian.shape
    unit, parts = torch.eye(C, dtype=scale.dtype, device=scale.device), []
    for some in torch.arange(n, device=scale.device).split(max(1, TEMPORARY_NUMBERS // (C * P))):
        part = jacobian.subset(some)
        rows = torch.stack([part.pull_each(unit[c].expand(len(some), C)) for c in range(C)], dim=1)
        parts.append(torch.bmm(rows * scale, rows.transpose(1, 2)))
    return torch.cat(parts)
