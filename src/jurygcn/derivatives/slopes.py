r"""Slopes of low rank: where outputs are linear in the hidden units, classes need not be told apart.

If a model's outputs are linear in the units q of the layer after a lifted weight, as in a GCN with two layers, the
slopes of a unit at different rows r are multiples of each other,

.. math:: G_{rqc} = \sum_{x \le \rho} A_{rqx} B_{qcx},

with a rank :math:`\rho` of 1, or of 2 where a node's own row has a weight of its own (GraphSAGE). Then a Gram matrix
needs :math:`\rho` columns per unit instead of one per class.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Slopes count as equal to their factors up to this share of their length: rounding, in single and double precision.
SAME = {torch.float32: 1e-6, torch.float64: 1e-13}


def factors_of(slopes: Tensor, *, most: int) -> tuple[Tensor, Tensor] | None:
    """A and B of the smallest rank that gives the slopes to rounding; None if that is above ``most``.

    Shapes: (R, h, C) -> (R, h, rho), (h, C, rho).
    """
    by_unit = slopes.transpose(0, 1)  # (h, R, C)
    directions = torch.linalg.eigh(by_unit.mT @ by_unit).eigenvectors.flip(2)  # of largest variance first
    drawn_in_single = slopes.dtype == torch.float64 and torch.equal(slopes, slopes.float().double())
    tolerance = SAME[torch.float32 if drawn_in_single else slopes.dtype] * float(slopes.norm())
    for rank in range(1, most + 1):
        B = directions[:, :, :rank]
        A = by_unit @ B  # (h, R, rho)
        if float(torch.baddbmm(by_unit, A, B.mT, alpha=-1.0).norm()) <= tolerance:
            return A.transpose(0, 1).contiguous(), B.contiguous()
    return None


def gram_of_factors(
    rows: Tensor, nodes: list[tuple[Tensor, Tensor]], B: Tensor, *, at_once: int, out: Tensor
) -> Tensor:
    """The Gram matrix of a lifted weight.

    ``nodes`` has the places of each node's rows, (r,), and their part of A, (r, h, rho); ``rows`` is X X^T.

    Shapes: (V, V), n nodes, (h, C, rho) -> out (n, C, n, C), filled here.
    """
    (h, C, rank), n, V = B.shape, len(nodes), len(rows)
    pairs = torch.einsum("qcx,qdy->cdqxy", B, B).reshape(C * C, -1)
    for first in range(0, n, at_once):
        some = nodes[first : first + at_once]
        m = len(some)
        seen = torch.empty(V, h, rank, m, dtype=out.dtype, device=out.device)  # X X^T A of some nodes
        for k, (places, A) in enumerate(some):
            seen[..., k] = (rows[:, places] @ A.flatten(1)).view(V, h, rank)
        inner = torch.empty(h, rank * m, rank, n - first, dtype=out.dtype, device=out.device)
        for k, (places, A) in enumerate(nodes[first:]):
            torch.bmm(seen[places].view(-1, h, rank * m).permute(1, 2, 0), A.transpose(0, 1), out=inner[..., k])
        inner = inner.view(h, rank, m, rank, -1).permute(0, 1, 3, 2, 4).reshape(h * rank * rank, -1)
        block = (pairs @ inner).view(C, C, m, n - first)
        out[first : first + m, :, first:] = block.permute(2, 0, 3, 1)
        out[first:, :, first : first + m] = block.permute(3, 1, 2, 0)
    return out
