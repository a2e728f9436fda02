"""Many small systems at once, with the systems along the last axis; and the inverse of a triangle."""

from __future__ import annotations

import torch
from scipy.linalg.lapack import get_lapack_funcs
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


def inverse_of_triangle(lower: Tensor) -> Tensor:
    """L⁻ᵀ of a lower triangular L with a positive diagonal, (k, k) -> (k, k).

    Torch would solve L X = I, which takes three times as many operations.
    """
    if not len(lower):  # LAPACK refuses it
        return lower.T
    array = lower.cpu().numpy()
    (invert,) = get_lapack_funcs(("trtri",), (array,))
    inverse, _ = invert(array, lower=1)  # with its columns in one piece, as torch's factors have theirs
    return torch.from_numpy(inverse).T.to(lower.device)
