"""The Jacobian of many nodes, made for some of them at a time, whenever it is needed: it is never held as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from jurygcn.derivatives.factored import add_curvature, quadratic
from jurygcn.derivatives.jacobian import DenseJacobian, Grouped
from jurygcn.derivatives.lifted import LiftedJacobian, work_dtype


@dataclass(frozen=True, eq=False)
class Batches:
    """The nodes in batches, and a function that makes the Jacobian of one batch.

    Attributes:
        make: from the number of a batch to the Jacobian of its nodes; the same at every call.
        sizes: how many nodes each batch has.
        only: from some nodes to batches of them alone; None where a node's derivatives depend on its batch, because
            dropout is drawn for a batch as a whole.
    """

    make: Callable[[int], LiftedJacobian]
    sizes: list[int]
    only: Callable[[Tensor], Batches] | None = None


@dataclass(frozen=True, eq=False)
class StreamedJacobian(Grouped):
    """The Jacobian of some of the nodes of all batches.

    Attributes:
        batches: where it comes from.
        terms: the nodes, as positions in all batches, (n,).
        width: C and P.
        dtype: the precision of the results.
    """

    batches: Batches
    terms: Tensor
    width: tuple[int, int]
    dtype: torch.dtype
    streamed: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, C, P)."""
        return (len(self.terms), *self.width)

    def parts(self) -> Iterator[tuple[Tensor, LiftedJacobian]]:
        """The places among ``terms`` and the Jacobian of the nodes of each batch that has any of them."""
        start = 0
        for number, size in enumerate(self.batches.sizes):
            places = ((self.terms >= start) & (self.terms < start + size)).nonzero().squeeze(1)
            mine = self.terms[places] - start
            start += size
            if len(places):
                made = self.batches.make(number).cast(self.dtype)
                whole = len(mine) == size and bool((mine == torch.arange(size, device=mine.device)).all())
                yield places, made if whole else made.subset(mine)

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        out = block.new_empty(len(self.terms), self.width[0], block.shape[1])
        for places, part in self.parts():
            out[places] = part.push(block)
        return out

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        out = block.new_zeros(self.width[1], block.shape[2])
        for places, part in self.parts():
            out += part.pull(block[places])
        return out

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node."""
        out = cotangents.new_empty(len(self.terms), self.width[1])
        for places, part in self.parts():
            out[places] = part.pull_each(cotangents[places])
        return out

    def normal(self, root: Tensor, block: Tensor) -> Tensor:
        """Sum of J_i^T L_i L_i^T J_i V: both products of a batch while its Jacobian is at hand."""
        out = block.new_zeros(block.shape)
        for places, part in self.parts():
            some = root[places]
            out += part.pull(some @ (some.mT @ part.push(block)))
        return out

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T, for one pair of batches after the other."""
        n, C, _ = self.shape
        out = scale.new_empty(n, C, n, C)
        for places, part in self.parts():
            rows = part.dense.rows.flatten(0, 1) * scale
            for others, other in self.parts():
                if int(others[0]) < int(places[0]):
                    continue
                block = (rows @ other.dense.rows.flatten(0, 1).T).view(len(places), C, len(others), C)
                out[places[:, None], :, others] = block.permute(0, 2, 1, 3)
                out[others[:, None], :, places] = block.permute(2, 0, 3, 1)
        return out

    def curvature(self, root: Tensor) -> Tensor:
        """Sum of J_i^T L_i L_i^T J_i."""
        out = root.new_zeros(self.width[1], self.width[1])
        parts = ((part, root[places]) for places, part in self.parts())
        return add_curvature(parts, out, dtype=work_dtype(self.shape, self.dtype))

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node."""
        out = matrix.new_empty(len(self.terms), self.width[0], self.width[0])
        for places, part in self.parts():
            out[places] = quadratic(part, matrix, dtype=work_dtype(self.shape, self.dtype))
        return out

    def own_grams(self, scale: Tensor) -> Tensor:
        """J_i diag(scale) J_i^T for every node."""
        out = scale.new_empty(len(self.terms), self.width[0], self.width[0])
        for places, part in self.parts():
            out[places] = part.own_grams(scale)
        return out

    def cast(self, dtype: torch.dtype) -> StreamedJacobian:
        """The same Jacobian in another precision."""
        return replace(self, dtype=dtype)

    def subset(self, terms: Tensor) -> StreamedJacobian:
        """The Jacobian of some of the nodes."""
        if self.batches.only is None:
            return replace(self, terms=self.terms[terms])
        return replace(
            self, batches=self.batches.only(self.terms[terms]), terms=torch.arange(len(terms), device=terms.device)
        )

    @property
    def dense(self) -> DenseJacobian:
        """The same with every row formed."""
        rows = torch.empty(self.shape, dtype=self.dtype)
        for places, part in self.parts():
            rows[places] = part.dense.rows
        return DenseJacobian(rows)
