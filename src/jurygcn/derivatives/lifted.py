r"""The Jacobian of a model whose first layers see constants, without their feature dimension.

A weight W that acts on constant rows X enters the outputs only through XW. With
:math:`G_{ic} = \partial z_{ic} / \partial (XW)`, non-zero in the rows that node i sees,

.. math:: \frac{\partial z_{ic}}{\partial W} = X^T G_{ic}, \qquad
    \langle J_{ic}, J_{jd} \rangle = \langle G_{ic}, (X X^T)\, G_{jd} \rangle

so neither the Jacobian nor its Gram matrix needs one number per feature and output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from jurygcn.derivatives.factored import add_curvature, quadratic
from jurygcn.derivatives.jacobian import DenseJacobian, HeldJacobian, grams_by_rows
from jurygcn.derivatives.slopes import factors_of, gram_of_factors

# numbers in a temporary array, at most
TEMPORARY = 40_000_000

# Nodes are taken in this many parts, so that only one of two equal blocks of a Gram matrix is computed.
PARTS = 6

# Rows of constants whose products with each other are formed.
MOST_PAIRS = 8_000

# Above this many multiplications products are computed in float32: their relative error of 1e-6 changes the jurors'
# predictions by less than 1e-3, and float64 takes twice as long.
LONG = 2e9

# Features are kept sparse where at most this share of them is not zero.
SPARSE = 0.2


@dataclass(frozen=True, eq=False)
class LiftedWeight:
    """A weight that acts on constant rows, and what the outputs of n nodes owe to the products.

    Shapes: V different rows of F constants, R rows in the neighbourhoods of all nodes, h columns of the product.

    Attributes:
        start: where the weight begins in the parameter vector.
        transposed: whether it is stored as (h, F) or as (F, h).
        constants: X, (V, F), sparse or dense.
        places: which of the V rows each of the R rows is, (R,).
        starts: where the rows of each node begin, (n + 1,).
        slopes: G, (R, h, C).
    """

    start: int
    transposed: bool
    constants: Tensor | sp.csr_matrix
    places: Tensor
    starts: Tensor
    slopes: Tensor

    @property
    def size(self) -> int:
        """F h, the number of entries of the weight."""
        return int(self.constants.shape[1]) * self.slopes.shape[1]

    @property
    def span(self) -> slice:
        """Its place in the parameter vector."""
        return slice(self.start, self.start + self.size)

    @cached_property
    def nodes(self) -> list[tuple[Tensor, Tensor]]:
        """For each node the places of its rows, (r,), and its slopes as one matrix, (r h, C)."""
        C, bounds = self.slopes.shape[2], self.starts.tolist()
        return [(self.places[a:b], self.slopes[a:b].reshape(-1, C)) for a, b in pairwise(bounds)]

    def products(self, block: Tensor) -> Tensor:
        """X times k weights: (F h, k) -> (V, h k)."""
        (F, h), k = (self.constants.shape[1], self.slopes.shape[1]), block.shape[1]
        matrix = block.view(h, F, k).transpose(0, 1) if self.transposed else block.view(F, h, k)
        return times(self.constants, matrix.reshape(F, h * k))

    def back(self, block: Tensor) -> Tensor:
        """X^T times k arrays: (V, h, k) -> (F h, k)."""
        (F, h), k = (self.constants.shape[1], self.slopes.shape[1]), block.shape[2]
        flat = times(self.constants.T, block.reshape(len(block), h * k)).view(F, h, k)
        return (flat.transpose(0, 1) if self.transposed else flat).reshape(F * h, k)

    def push(self, block: Tensor) -> Tensor:
        """J V for this weight's part of V: (F h, k) -> (n, C, k)."""
        h, k = self.slopes.shape[1], block.shape[1]
        seen = self.products(block).view(-1, h * k)
        return torch.stack([G.T @ seen[places].view(-1, k) for places, G in self.nodes])

    def pull(self, block: Tensor) -> Tensor:
        """J^T A: (n, C, k) -> (F h, k)."""
        h, k = self.slopes.shape[1], block.shape[2]
        spread = torch.zeros(self.constants.shape[0], h * k, dtype=block.dtype, device=block.device)
        for (places, G), a in zip(self.nodes, block, strict=True):
            spread.index_add_(0, places, (G @ a).view(-1, h * k))
        return self.back(spread.view(-1, h, k))

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node: (n, C) -> (n, F h)."""
        h = self.slopes.shape[1]
        rows = []
        for (places, G), a in zip(self.nodes, cotangents, strict=True):
            back = times(self.constants[_index(self.constants, places)].T, (G @ a).view(-1, h))
            rows.append((back.T if self.transposed else back).reshape(-1))
        return torch.stack(rows)

    def gram(self) -> Tensor:
        """J J^T, (n, C, n, C), by whichever way needs fewer multiplications."""
        n, (R, h, C), (V, F) = len(self.starts) - 1, self.slopes.shape, self.constants.shape
        by_pairs = R * h * C * (V + n * C / 2)
        by_rows = (n * C) ** 2 * F * h
        pairs = by_pairs <= by_rows and V <= MOST_PAIRS
        work = self.cast(torch.float32) if min(by_pairs, by_rows) > LONG else self
        return (work._gram_of_pairs() if pairs else work._gram_of_rows()).to(self.slopes.dtype)

    def _gram_of_rows(self) -> Tensor:
        """By forming the rows, for some columns of the weight at a time."""
        n, (_, h, C), F = len(self.starts) - 1, self.slopes.shape, self.constants.shape[1]
        out = torch.zeros(n * C, n * C, dtype=self.slopes.dtype, device=self.slopes.device)
        given = [self.constants[_index(self.constants, places)].T for places, _ in self.nodes]
        for some in torch.arange(h, device=self.slopes.device).split(max(1, TEMPORARY // (n * C * F))):
            first, last = int(some[0]), int(some[-1]) + 1
            rows = [
                times(X, G.view(-1, h, C)[:, first:last].reshape(-1, len(some) * C)).view(F, -1, C).permute(2, 0, 1)
                for X, (_, G) in zip(given, self.nodes, strict=True)
            ]
            flat = torch.stack(rows).reshape(n * C, -1)
            out.addmm_(flat, flat.T)
        return out.view(n, C, n, C)

    def _gram_of_pairs(self) -> Tensor:
        """From the products of all pairs of constant rows that two nodes see."""
        n, (_, h, C) = len(self.starts) - 1, self.slopes.shape
        rows = products_of_rows(self.constants).to(self.slopes)
        V = len(rows)
        out = torch.empty(n, C, n, C, dtype=self.slopes.dtype, device=self.slopes.device)
        factors = factors_of(self.slopes, most=C // 2)
        if factors is not None:
            A, B = factors
            nodes = [(self.places[a:b], A[a:b]) for a, b in pairwise(self.starts.tolist())]
            width = h * B.shape[2] * max(V, B.shape[2] * n)
            return gram_of_factors(rows, nodes, B, at_once=max(1, min(TEMPORARY // width, -(-n // PARTS))), out=out)
        at_once = min(TEMPORARY // max(1, C * h * V), -(-n // PARTS))
        for some in torch.arange(n, device=self.slopes.device).split(max(1, at_once)):
            first, last = int(some[0]), int(some[-1]) + 1
            seen = torch.empty(V, h, len(some), C, dtype=out.dtype, device=out.device)  # X X^T G of some nodes
            for k, (places, G) in enumerate(self.nodes[first:last]):
                seen[:, :, k] = (rows[:, places] @ G.view(len(places), h * C)).view(V, h, C)
            flat = seen.view(V, -1)
            for j in range(first, n):
                places, G = self.nodes[j]
                block = (flat[places].view(-1, len(some) * C).T @ G).view(len(some), C, C)
                out[first:last, :, j] = block
                out[j, :, first:last] = block.permute(2, 0, 1)
        return out

    def dense(self) -> Tensor:
        """The rows themselves, (n, C, F h)."""
        C = self.slopes.shape[2]
        eye = torch.eye(C, dtype=self.slopes.dtype, device=self.slopes.device)
        n = len(self.starts) - 1
        return torch.stack([self.pull_each(eye[c].expand(n, C)) for c in range(C)], dim=1)

    def cast(self, dtype: torch.dtype) -> LiftedWeight:
        """The same in another precision."""
        constants = self.constants
        constants = constants.to(dtype) if isinstance(constants, Tensor) else constants.astype(_numpy(dtype))
        return replace(self, constants=constants, slopes=self.slopes.to(dtype))

    def subset(self, terms: Tensor) -> LiftedWeight:
        """The same for some of the nodes."""
        bounds = self.starts.tolist()
        rows = torch.cat([torch.arange(bounds[i], bounds[i + 1], device=self.places.device) for i in terms.tolist()])
        starts = torch.cat([self.starts.new_zeros(1), self.starts.diff()[terms].cumsum(0)])
        return replace(self, places=self.places[rows], starts=starts, slopes=self.slopes[rows])


class LiftedJacobian(HeldJacobian):
    """The Jacobian of a model with lifted weights; the rows of all other parameters are dense.

    Shapes: rest (n, C, P_rest), where the other parameters stand in the parameter vector: others (P_rest,).
    """

    def __init__(self, lifted: list[LiftedWeight], rest: Tensor, others: Tensor) -> None:
        self.lifted, self.rest, self.others = lifted, rest, others
        self.shape = (rest.shape[0], rest.shape[1], rest.shape[2] + sum(weight.size for weight in lifted))

    def _width(self, block: Tensor) -> int:
        """How many columns are worked on at a time."""
        largest = max((w.constants.shape[0] * w.slopes.shape[1] for w in self.lifted), default=1)
        return max(1, min(block.shape[-1], TEMPORARY // max(1, largest)))

    def push(self, block: Tensor) -> Tensor:
        """J V."""
        parts = []
        for some in block.split(self._width(block), dim=1):
            out = self.rest @ some[self.others]
            for weight in self.lifted:
                out += weight.push(some[weight.span])
            parts.append(out)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def pull(self, block: Tensor) -> Tensor:
        """J^T A."""
        out = torch.empty(self.shape[2], block.shape[2], dtype=block.dtype, device=block.device)
        first = 0
        for some in block.split(self._width(block), dim=2):
            columns = slice(first, first + some.shape[2])
            out[self.others, columns] = self.rest.flatten(0, 1).T @ some.flatten(0, 1)
            for weight in self.lifted:
                out[weight.span, columns] = weight.pull(some)
            first = columns.stop
        return out

    def pull_each(self, cotangents: Tensor) -> Tensor:
        """J_i^T a_i for every node."""
        out = torch.empty(self.shape[0], self.shape[2], dtype=self.rest.dtype, device=self.rest.device)
        out[:, self.others] = torch.bmm(cotangents.unsqueeze(1), self.rest).squeeze(1)
        for weight in self.lifted:
            out[:, weight.span] = weight.pull_each(cotangents)
        return out

    def gram(self, scale: Tensor) -> Tensor:
        """J diag(scale) J^T; the scale of a lifted weight is one number wherever its weight decay is."""
        if any(not bool((scale[w.span] == scale[w.start]).all()) for w in self.lifted):
            return self.dense.gram(scale)
        out = DenseJacobian(self.rest).gram(scale[self.others])
        for weight in self.lifted:
            if float(scale[weight.start]) != 0.0:
                out.add_(weight.gram(), alpha=float(scale[weight.start]))
        return out

    def curvature(self, root: Tensor) -> Tensor:
        """Sum of J_i^T L_i L_i^T J_i."""
        size = self.shape[2]
        out = torch.zeros(size, size, dtype=self.rest.dtype, device=self.rest.device)
        return add_curvature([(self, root)], out, dtype=work_dtype(self.shape, out.dtype))

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node."""
        return quadratic(self, matrix, dtype=work_dtype(self.shape, matrix.dtype))

    def own_grams(self, scale: Tensor) -> Tensor:
        """J_i diag(scale) J_i^T for every node."""
        return grams_by_rows(self, scale)

    def cast(self, dtype: torch.dtype) -> LiftedJacobian:
        """The same Jacobian in another precision."""
        if dtype == self.rest.dtype:
            return self
        return LiftedJacobian([w.cast(dtype) for w in self.lifted], self.rest.to(dtype), self.others)

    def subset(self, terms: Tensor) -> LiftedJacobian:
        """The same for some of the nodes."""
        return LiftedJacobian([w.subset(terms) for w in self.lifted], self.rest[terms], self.others)

    @cached_property
    def dense(self) -> DenseJacobian:
        """The same with every row formed."""
        rows = torch.empty(self.shape, dtype=self.rest.dtype, device=self.rest.device)
        rows[:, :, self.others] = self.rest
        for weight in self.lifted:
            rows[:, :, weight.span] = weight.dense()
        return DenseJacobian(rows)


def sparse_if_worth(matrix: Tensor) -> Tensor | sp.csr_matrix:
    """A constant matrix for SciPy if it is sparse and on a CPU, else as it is."""
    if matrix.device.type != "cpu" or float(matrix.count_nonzero()) > SPARSE * matrix.numel():
        return matrix
    return sp.csr_matrix(matrix.numpy())


def times(constants: Tensor | sp.csr_matrix, dense: Tensor) -> Tensor:
    """A constant matrix, sparse or dense, times a dense one."""
    if isinstance(constants, Tensor):
        return constants @ dense
    return torch.from_numpy(constants @ dense.numpy())


def products_of_rows(constants: Tensor | sp.csr_matrix) -> Tensor:
    """X X^T, dense, (V, V)."""
    if isinstance(constants, Tensor):
        return constants @ constants.T
    return torch.from_numpy((constants @ constants.T).toarray())


def work_dtype(shape: tuple[int, int, int], dtype: torch.dtype) -> torch.dtype:
    """The precision in which P x P matrices of so many nodes are worked on; they are summed in ``dtype``."""
    n, _, P = shape
    return torch.float32 if n * P**2 > LONG else dtype


def _index(constants: Tensor | sp.csr_matrix, places: Tensor) -> Tensor | np.ndarray:
    return places if isinstance(constants, Tensor) else places.numpy()


def _numpy(dtype: torch.dtype) -> type[np.floating]:
    return np.float64 if dtype == torch.float64 else np.float32
