"""Many small systems at once, with the systems along the last axis: a few operations on long rows of memory."""

from __future__ import annotations

from torch import Tensor


def solve_small(matrices: Tensor, right: Tensor) -> Tensor:
    """X with A X = B for many positive definite A, by elimination without pivots; both arguments are overwritten.

    Shapes: matrices (k, k, b), right (k, b) -> (k, b).
    """
    k = len(matrices)
    for j in range(k - 1):
        factors = matrices[j + 1 :, j] / matrices[j, j]
        matrices[j + 1 :, j + 1 :].addcmul_(factors.unsqueeze(1), matrices[j, j + 1 :].unsqueeze(0), value=-1.0)
        right[j + 1 :].addcmul_(factors, right[j].unsqueeze(0), value=-1.0)
    for j in range(k - 1, -1, -1):
        right[j] /= matrices[j, j]
        right[:j].addcmul_(matrices[:j, j], right[j].unsqueeze(0), value=-1.0)
    return right


def outer_sums(rows: Tensor) -> Tensor:
    """A A^T for many matrices A: (k, l, b) -> (k, k, b)."""
    out = rows[:, None, 0] * rows[None, :, 0]
    for column in range(1, rows.shape[1]):
        out.addcmul_(rows[:, None, column], rows[None, :, column])
    return out
