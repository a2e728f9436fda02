r"""The Jacobian of a model in which the output's class enters through single units.

A unit is a column of a weight, or one entry of a vector. Where a linear layer comes last, the derivatives of all nodes
with respect to unit q's parameters differ between classes by the same factors,

.. math:: \frac{\partial z_{ic}}{\partial W_{fq}} = T_{qif} B_{qc}

as in :class:`TwoLayerJacobian`, whatever lies between the layers. So rows, products and the Gram matrix do not grow
with the number of classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from jurygcn.derivatives.jacobian import DenseJacobian, HeldJacobian, grams_by_rows


@dataclass(frozen=True, eq=False)
class Units:
    """One parameter: h units with F numbers each.

    Attributes:
        transposed: whether it is stored as (h, F) or as (F, h).
        T: (h, n, F).
        B: (h, C).
    """

    transposed: bool
    T: Tensor
    B: Tensor

    @property
    def size(self) -> int:
        """h F, the number of entries."""
        return self.T.shape[0] * self.T.shape[2]

    def by_unit(self, block: Tensor) -> Tensor:
        """(h F, k) -> (h, F, k)."""
        h, _, F = self.T.shape
        k = block.shape[1]
        return block.view(h, F, k) if self.transposed else block.view(F, h, k).transpose(0, 1)

    def as_stored(self, block: Tensor) -> Tensor:
        """(h, F, k) -> (h F, k)."""
        return (block if self.transposed else block.transpose(0, 1)).flatten(0, 1)

    def push(self, block: Tensor) -> Tensor:
        """J V: (h F, k) -> (n, C, k)."""
        return torch.einsum("qc,qik->ick", self.B, torch.bmm(self.T, self.by_unit(block)))

    def pull(self, block: Tensor) -> Tensor:
        """J^T A: (n, C, k) -> (h F, k)."""
        return self.as_stored(torch.bmm(self.T.mT, torch.einsum("qc,ick->qik", self.B, block)))

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node: (n, C) -> (n, h F)."""
        rows = self.T * (self.B @ cotangents.T)[:, :, None]
        return self.as_stored(rows.transpose(1, 2)).T

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T: (h F,) -> (n, C, n, C)."""
        (h, n, _), C = self.T.shape, self.B.shape[1]
        inner = torch.bmm(self.T * self.by_unit(scale[:, None]).mT, self.T.mT)  # (h, n, n)
        pairs = (self.B.unsqueeze(2) * self.B.unsqueeze(1)).view(h, C * C)
        return (pairs.T @ inner.view(h, n * n)).view(C, C, n, n).permute(2, 0, 3, 1)


class UnitJacobian(HeldJacobian):
    """The Jacobian of all parameters, in their order."""

    def __init__(self, parts: list[Units]) -> None:
        self.parts = parts
        _, n, _ = parts[0].T.shape
        self.sizes = [part.size for part in parts]
        self.shape = (n, parts[0].B.shape[1], sum(self.sizes))

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        split = block.split(self.sizes)
        out = self.parts[0].push(split[0])
        for part, piece in zip(self.parts[1:], split[1:], strict=True):
            out += part.push(piece)
        return out

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        return torch.cat([part.pull(block) for part in self.parts])

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node."""
        return torch.cat([part.pull_each(cotangents) for part in self.parts], dim=1)

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T; parameters of scale 0 are left out."""
        n, C, _ = self.shape
        out = torch.zeros(n, C, n, C, dtype=scale.dtype, device=scale.device)
        for part, piece in zip(self.parts, scale.split(self.sizes), strict=True):
            if bool((piece != 0).any()):
                out += part.gram(piece)
        return out

    def curvature(self, root: Tensor) -> Tensor:
        """Sum of J_i^T L_i L_i^T J_i."""
        return self.dense.curvature(root)

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node."""
        return self.dense.quadratic(matrix)

    def own_grams(self, scale: Tensor) -> Tensor:
        """J_i diag(scale) J_i^T for every node."""
        return grams_by_rows(self, scale)

    def cast(self, dtype: torch.dtype) -> UnitJacobian:
        """The same Jacobian in another precision."""
        return UnitJacobian([replace(part, T=part.T.to(dtype), B=part.B.to(dtype)) for part in self.parts])

    def subset(self, terms: Tensor) -> UnitJacobian:
        """The same for some of the nodes."""
        return UnitJacobian([replace(part, T=part.T[:, terms]) for part in self.parts])

    @cached_property
    def dense(self) -> DenseJacobian:
        """The same with every row formed."""
        n, C, _ = self.shape
        eye = torch.eye(C, dtype=self.parts[0].B.dtype, device=self.parts[0].B.device)
        return DenseJacobian(torch.stack([self.pull_each(row.expand(n, C)) for row in eye], dim=1))
