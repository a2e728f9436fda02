"""A direct solver for matrices with two diagonal blocks, such as Theorem 1's as printed for a two-layer GCN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .solution import Solution, solve_and_refine


@dataclass(frozen=True)
class TwoBlock:
    r"""Solver for a matrix whose two diagonal blocks are diagonal, as Theorem 1 has them (erratum E2).

    .. math:: \begin{pmatrix} D_1 & B \\ B^\top & D_2 \end{pmatrix}^{-1}
        \quad\text{through}\quad S = D_2 - B^\top D_1^{-1} B

    B comes from one product with the last block's unit vectors, so the system is only hC × hC. A matrix without this
    structure fails the check of the residual.

    Args:
        last: the size of the last block.
        tolerance: the largest accepted relative residual.
    """

    last: int
    tolerance: float = 1e-6
    name: ClassVar[str] = "two-block"

    def prepare(self, operator: Any) -> PreparedTwoBlock:
        """Compute B and S."""
        first = operator.size - self.last
        units = torch.zeros(operator.size, self.last, dtype=operator.dtype, device=operator.device)
        units[first:] = torch.eye(self.last, dtype=operator.dtype, device=operator.device)
        columns = operator.matmul(units)
        diagonal = operator.diagonal[:first].to(columns).expand(first)[:, None]
        B = columns[:first]
        return PreparedTwoBlock(operator, B, diagonal, columns[first:] - B.T @ (B / diagonal), self.tolerance)


@dataclass(frozen=True, eq=False)
class PreparedTwoBlock:
    """Shapes: B (P - hC, hC), diagonal (P - hC, 1), schur (hC, hC)."""

    operator: Any
    B: Tensor
    diagonal: Tensor
    schur: Tensor
    tolerance: float

    def _inverse(self, block: Tensor) -> Tensor:
        first = len(self.B)
        top = block[:first] / self.diagonal
        below = torch.linalg.solve(self.schur, block[first:] - self.B.T @ top)
        return torch.cat([top - self.B @ below / self.diagonal, below])

    def solve(self, block: Tensor) -> Solution:
        """Solve A X = B. Shapes: (P, k) -> Solution with value (P, k)."""
        condition = float(torch.linalg.cond(self.schur))
        return solve_and_refine(
            self.operator,
            block,
            self._inverse,
            solver=TwoBlock.name,
            tolerance=self.tolerance,
            condition=condition,
        )
