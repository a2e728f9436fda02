r"""P x P matrices from the Jacobian of lifted weights, without one row for each node and output.

The slopes of hidden unit q are combinations of few rows of outputs, the same for all nodes: of the row of the next
layer's weight, or of two such rows if a node is treated differently from its neighbours. With
:math:`G_{rqc} = \sum_a A_{rqa} B_{qac}` and :math:`T_{qai} = \sum_{r \in i} A_{rqa} x_r`,

.. math:: J_{ic,(q,f)} = \sum_a B_{qac} T_{qaif}, \qquad
    \Big(\sum_i J_i^T S_i J_i\Big)_{qq'} = \sum_a \sum_i T_{qai}^T \sum_b (B_{qa} S_i B_{q'b}^T) T_{q'bi}

so the cost grows with the number of such rows (1 or 2), not with the number of classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurygcn.derivatives.slopes import factors_of

if TYPE_CHECKING:
    from jurygcn.derivatives.lifted import LiftedJacobian, LiftedWeight

# Nodes that are worked on at once, numbers in their largest array, and columns of a block of the matrix. They affect
# speed and memory, not the result.
NODES, NUMBERS, COLUMNS = 1024, 40_000_000, 2048

# So many other parameters are always worked on in full precision.
FEW = 4096


@dataclass(frozen=True, eq=False)
class Group:
    """Weights with the same slopes: they act on the same hidden units, each with its own constants.

    Shapes: n nodes, h units, rho common rows, F constants of all weights together.

    Attributes:
        weights: the weights.
        T: (rho, n, h, F).
        B: (h, rho, C).
    """

    weights: list[LiftedWeight]
    T: Tensor
    B: Tensor

    def split(self, matrix: Tensor) -> list[Tensor]:
        """The columns of each weight: (..., F) -> (..., F_w) each."""
        return list(matrix.split([int(w.constants.shape[1]) for w in self.weights], dim=-1))


class Factored:
    """The Jacobian of some nodes, with lifted weights of low rank factored and dense rows of all other parameters.

    Shapes: rest (n, C, P_rest), others (P_rest,).
    """

    def __init__(self, jacobian: LiftedJacobian, dtype: torch.dtype) -> None:
        C = jacobian.shape[1]
        self.groups: list[Group] = []
        rest, others = [jacobian.rest.to(dtype)], [jacobian.others]
        for weights in _alike(jacobian.lifted):
            factors = factors_of(weights[0].slopes, most=C - 2)
            if factors is not None:
                self.groups.append(_group(weights, *factors, dtype))
            else:
                rest += [w.dense().to(dtype) for w in weights]
                others += [torch.arange(w.span.start, w.span.stop, device=jacobian.others.device) for w in weights]
        self.rest, self.others = torch.cat(rest, dim=2), torch.cat(others)
        self.plain = len(jacobian.others)  # the first so many are never factored, the others may be in other batches
        # A few parameters cost little in full precision, and biases may have directions that nothing determines.
        self._exact = jacobian.rest if self.rest.shape[2] == jacobian.rest.shape[2] <= FEW else self.rest
        self.units = [(k, q) for k, group in enumerate(self.groups) for q in range(len(group.B))]

    def add_curvature(self, root: Tensor, out: Tensor) -> None:
        """Add the sum of J_i^T L_i L_i^T J_i to the blocks of ``out`` on one side, see ``mirror``.

        Shapes: root (n, C, K), out (P, P).
        """
        self._add_rest((root.to(self._exact.dtype).mT @ self._exact).flatten(0, 1), out)
        root = root.to(self.rest.dtype)
        S = root @ root.mT
        for k, q in self.units:
            group = self.groups[k]
            T = group.T[:, :, q].flatten(0, 1).T  # (F, rho n)
            BS = group.B[q] @ S  # (n, rho, C)
            for later, first in self._later(k, q):
                weights = (BS @ later.B[first:].flatten(0, 1).T).view(len(S), len(group.B[q]), -1, later.B.shape[1])
                block = T @ _combined(weights, later.T[:, :, first:]).flatten(0, 1).flatten(1)
                block = block.view(len(T), -1, later.T.shape[3])
                for w, part in zip(group.weights, group.split(block.movedim(0, -1)), strict=True):
                    for v, piece in zip(later.weights, later.split(part.movedim(-1, 0)), strict=True):
                        # of two groups, units with a lower number come first, whatever their group
                        here = first if later is group else min(len(later.B), q + int(v.start < w.start))
                        _columns(_rows(out, w, q), v, here).add_(piece[:, here - first :])
                        for lower in range(first, here):
                            _column(_rows(out, v, lower), w, q).add_(piece[:, lower - first].T)
            block = T @ (BS @ self.rest).transpose(0, 1).flatten(0, 1)  # (F, P_rest)
            for w, part in zip(group.weights, group.split(block.T), strict=True):
                _rows(out, w, q).index_add_(1, self.others, part.T.to(out.dtype))
                _column(out, w, q).index_add_(0, self.others[self.plain :], part[self.plain :].to(out.dtype))

    def _add_rest(self, rows: Tensor, out: Tensor) -> None:
        """Add U^T U of the other parameters' rows, some columns at a time."""
        places = self.others.split(COLUMNS)
        pieces = rows.split(COLUMNS, dim=1)
        for i, (at, left) in enumerate(zip(places, pieces, strict=True)):
            for there, right in zip(places[i:], pieces[i:], strict=True):
                block = (left.T @ right).to(out.dtype)
                out[at[:, None], there] += block
                if there is not at:
                    out[there[:, None], at] += block.T

    def quadratic(self, matrix: Tensor) -> Tensor:
        """J_i A J_i^T for every node, A symmetric: (P, P) -> (n, C, C)."""
        dtype, n = self.rest.dtype, len(self.rest)
        half = torch.zeros(n, self.rest.shape[1], self.rest.shape[1], dtype=dtype, device=self.rest.device)
        for k, q in self.units:
            group = self.groups[k]
            T, rho = group.T[:, :, q].flatten(0, 1), group.B.shape[1]  # (rho n, F)
            outer = torch.zeros(rho, n, half.shape[1], dtype=dtype, device=half.device)
            for later, first in self._later(k, q):
                block = torch.cat(
                    [
                        torch.cat([_columns(_rows(matrix, w, q), v, first).to(dtype) for v in later.weights], dim=2)
                        for w in group.weights
                    ]
                )  # (F, units, F')
                seen = (T @ block.flatten(1)).view(rho, n, *block.shape[1:])
                for b in range(later.B.shape[1]):
                    met = torch.einsum("anuf,nuf->anu", seen, later.T[b, :, first:])
                    if later is group:
                        met[:, :, 0] *= 0.5  # the unit with itself; all other pairs stand for two
                    outer += met @ later.B[first:, b]
            block = torch.cat([_rows(matrix, w, q)[:, self.others].to(dtype) for w in group.weights])
            seen = (T @ block).view(rho, n, -1)
            outer += (seen.transpose(0, 1) @ self.rest.mT).transpose(0, 1)
            half += torch.einsum("ac,and->ncd", group.B[q], outer)
        corner = matrix[self.others[:, None], self.others].to(dtype)
        rest = (self.rest.flatten(0, 1) @ corner).view(self.rest.shape) @ self.rest.mT
        return (half + half.mT + rest).to(matrix.dtype)

    def _later(self, k: int, q: int) -> Iterator[tuple[Group, int]]:
        """The units from (k, q) on, as groups with their first unit."""
        yield self.groups[k], q
        for group in self.groups[k + 1 :]:
            yield group, 0


def add_curvature(
    parts: Iterable[tuple[LiftedJacobian, Tensor]], out: Tensor, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Add the sum of J_i^T L_i L_i^T J_i over the nodes of all parts to zeros ``out``, (P, P)."""
    jacobian = None
    for jacobian, root in parts:
        for nodes in torch.arange(len(root), device=root.device).split(nodes_at_once(jacobian)):
            Factored(_some(jacobian, nodes), dtype or out.dtype).add_curvature(root[nodes], out)
    if jacobian is not None:
        mirror(jacobian, out)
    return out


def mirror(jacobian: LiftedJacobian, out: Tensor) -> None:
    """Fill the blocks that ``add_curvature`` leaves out: those below units with a lower number, and other rows."""
    for w in jacobian.lifted:
        for q in range(w.slopes.shape[1]):
            mine = _rows(out, w, q)
            _column(out, w, q)[jacobian.others] = mine[:, jacobian.others].T
            for v in jacobian.lifted:
                first = q + int(v.start <= w.start)
                for j, block in enumerate(_columns(mine, v, first).unbind(1)):
                    _column(_rows(out, v, first + j), w, q).copy_(block.T)


def quadratic(jacobian: LiftedJacobian, matrix: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """J_i A J_i^T for every node, A symmetric: (P, P) -> (n, C, C)."""
    parts = torch.arange(jacobian.shape[0], device=jacobian.rest.device).split(nodes_at_once(jacobian))
    return torch.cat([Factored(_some(jacobian, nodes), dtype or matrix.dtype).quadratic(matrix) for nodes in parts])


def nodes_at_once(jacobian: LiftedJacobian) -> int:
    """How many nodes are worked on at once."""
    _, C, P = jacobian.shape
    return max(1, min(NODES, NUMBERS // (C * jacobian.rest.shape[2] + 2 * P)))


def _some(jacobian: LiftedJacobian, nodes: Tensor) -> LiftedJacobian:
    return jacobian if len(nodes) == jacobian.shape[0] else jacobian.subset(nodes)


def _alike(weights: list[LiftedWeight]) -> list[list[LiftedWeight]]:
    """The weights in groups with equal slopes."""
    groups: list[list[LiftedWeight]] = []
    for weight in weights:
        for group in groups:
            first = group[0]
            if torch.equal(first.starts, weight.starts) and torch.equal(first.slopes, weight.slopes):
                group.append(weight)
                break
        else:
            groups.append([weight])
    return groups


def _group(weights: list[LiftedWeight], A: Tensor, B: Tensor, dtype: torch.dtype) -> Group:
    """T of all weights with the same slopes. Shapes: A (R, h, rho), B (h, C, rho)."""
    (h, _, rho), n = B.shape, len(weights[0].starts) - 1
    A = A.transpose(1, 2).to(dtype)  # (R, rho, h)
    given = torch.cat([_constant_rows(w).to(dtype) for w in weights], dim=1)  # (R, F)
    T = torch.empty(n, rho * h, given.shape[1], dtype=dtype, device=given.device)
    bounds = weights[0].starts.tolist()
    for i in range(n):
        rows = slice(bounds[i], bounds[i + 1])
        torch.mm(A[rows].flatten(1).T, given[rows], out=T[i])
    return Group(weights, T.view(n, rho, h, -1).transpose(0, 1).contiguous(), B.mT.to(dtype))


def _constant_rows(weight: LiftedWeight) -> Tensor:
    """The constants of every row, dense, (R, F)."""
    if isinstance(weight.constants, Tensor):
        return weight.constants[weight.places]
    return torch.from_numpy(weight.constants[weight.places.numpy()].toarray())


def _combined(weights: Tensor, T: Tensor) -> Tensor:
    """The sum over b of weights times T_b: (n, rho, h, rho'), (rho', n, h, F) -> (rho, n, h, F)."""
    out = torch.empty(weights.shape[1], *T.shape[1:], dtype=T.dtype, device=T.device)
    for a, row in enumerate(out):
        torch.mul(weights[:, a, :, 0, None], T[0], out=row)
        for b in range(1, len(T)):
            row.addcmul_(weights[:, a, :, b, None], T[b])
    return out


def _rows(matrix: Tensor, weight: LiftedWeight, unit: int) -> Tensor:
    """The rows of a P x P matrix that belong to one unit of a weight, a view (F, P)."""
    return matrix[_place(weight, unit)]


def _column(matrix: Tensor, weight: LiftedWeight, unit: int) -> Tensor:
    """The columns of a matrix that belong to one unit of a weight, a view (..., F)."""
    return matrix[:, _place(weight, unit)]


def _columns(matrix: Tensor, weight: LiftedWeight, first: int) -> Tensor:
    """The columns that belong to the units of a weight from the first on, a view (rows, units, F)."""
    F, h = int(weight.constants.shape[1]), weight.slopes.shape[1]
    part = matrix[:, weight.span]
    units = part.view(-1, h, F) if weight.transposed else part.view(-1, F, h).transpose(1, 2)
    return units[:, first:]


def _place(weight: LiftedWeight, unit: int) -> slice:
    F, h = int(weight.constants.shape[1]), weight.slopes.shape[1]
    if weight.transposed:
        return slice(weight.start + unit * F, weight.start + (unit + 1) * F)
    return slice(weight.start + unit, weight.start + F * h, h)
