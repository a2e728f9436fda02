r"""A view of a graph in few dimensions: every node's row, projected on the leading directions of all rows.

The rows of a view (:mod:`jurygcn.graph.similarity`) are as long as there are features, or nodes. A subspace iteration
finds their leading directions from products with the rows alone, so the rows are never formed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn.graph.similarity import Similarities, View

SPARE = 16  # directions beside those that are asked for: the last ones converge slowly
SWEEPS = 3  # of the iteration: each multiplies the weight of a direction by its squared singular value


def leading_rows(similarities: Similarities, view: View, dimensions: int) -> Tensor:
    """The rows of all nodes on their leading directions, largest first, (N, at most ``dimensions``), in float64.

    Products of these rows are those of the best approximation of so many dimensions, up to the iteration's error.
    """
    count = similarities.num_nodes
    start = torch.Generator().manual_seed(0)
    basis = torch.randn(count, min(count, dimensions + SPARE), generator=start, dtype=torch.float64)
    for _ in range(SWEEPS):
        basis = torch.linalg.qr(similarities.product(view, similarities.pulled(view, basis)))[0]
    pulled = similarities.pulled(view, basis)
    squares, turned = torch.linalg.eigh(pulled.T @ pulled)
    kept = torch.arange(len(squares) - 1, max(len(squares) - dimensions, 0) - 1, -1)
    rows: Tensor = basis @ turned[:, kept] * squares[kept].clamp_min(0.0).sqrt()
    return rows
