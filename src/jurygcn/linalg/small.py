"""Many small systems at once, with the systems along the last axis: a few operations on long rows of memory."""

from __future__ import annotations

from torch import Tensor


def solve_small(matrices: Tensor, right: Tensor) -> Tensor:
    """X with A X = B for many positive definite A, by elimination without pivots; both arguments are overwritten.

    Shapes: matrices (k, k, b), right (k, m, b) -> (k, m, b).
    """
    k = len(matrices)
    for j in range(k - 1):
        factors = (matrices[j + 1 :, j] / matrices[j, j]).unsqueeze(1)
        matrices[j + 1 :, j + 1 :].addcmul_(factors, matrices[j, j + 1 :].unsqueeze(0), value=-1.0)
        right[j + 1 :].addcmul_(factors, right[j].unsqueeze(0), value=-1.0)
    for j in range(k - 1, -1, -1):
        right[j] /= matrices[j, j]
        right[:j].addcmul_(matrices[:j, j].unsqueeze(1), right[j].unsqueeze(0), value=-1.0)
    return right


def multiply_small(left: Tensor, right: Tensor) -> Tensor:
    """A B for many matrices: (k, l, b), (l, m, b) -> (k, m, b)."""
    out = left[:, 0].unsqueeze(1) * right[0].unsqueeze(0)
    for column in range(1, left.shape[1]):
        out.addcmul_(left[:, column].unsqueeze(1), right[column].unsqueeze(0))
    return out
