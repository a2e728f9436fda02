r"""Averaging ballots over closed neighbourhoods, :math:`\tilde D^{-1}(A + I)`, before labels are scored.

On homophilous graphs a neighbourhood's mean is a better probability than the node's own. The average treats all nodes
alike, so the label sets stay valid; on heterophilous graphs the jurors' own log score chooses not to average.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.errors import SettingError
from jurygcn.models.receptive_field import Propagation, SparseMatrix, side_by_side

CANDIDATES = (0, 1, 2)


class Diffusion:
    """Smooths votes at ``nodes`` for every candidate number of steps.

    Shapes: ``reach`` (r,) the nodes whose votes are needed; votes (b, r, C) -> (b, |nodes|, C).
    """

    def __init__(self, data: Data, nodes: Tensor, steps: int | str) -> None:
        self.candidates = self._check(steps)
        self.nodes = nodes
        levels = [nodes.cpu().numpy()]
        self._slices: list[sp.csr_matrix] = []
        if max(self.candidates) > 0:
            pattern = Propagation.of(data).adjacency
            for _ in range(max(self.candidates)):
                rows = pattern[levels[-1]]
                below = np.unique(rows.indices)
                averaging = sp.csr_matrix(
                    (np.repeat(1.0 / np.diff(rows.indptr), np.diff(rows.indptr)), rows.indices, rows.indptr),
                    shape=rows.shape,
                )
                self._slices.append(averaging[:, below])
                levels.append(below)
        self.reach = torch.from_numpy(levels[-1])
        # positions of each level's nodes among the reached ones; every level contains the one before it
        self._positions = [torch.from_numpy(np.searchsorted(levels[-1], level)) for level in levels]
        if len(levels) == 1:
            self._positions = [torch.arange(len(nodes))]
        self._matrices: dict[torch.dtype, list[SparseMatrix]] = {}

    def __call__(self, votes: Tensor, steps: int) -> Tensor:
        """Votes at the asked nodes after ``steps`` averages."""
        at = self._positions[steps]
        level = votes if len(at) == votes.shape[1] and steps == len(self._slices) else votes[:, at]
        for matrix in reversed(self._averages(votes)[:steps]):
            flat = matrix @ side_by_side(level)
            level = flat.view(matrix.shape[0], len(votes), -1).transpose(0, 1)
        return level

    def _averages(self, votes: Tensor) -> list[SparseMatrix]:
        if votes.dtype not in self._matrices:
            self._matrices[votes.dtype] = [
                SparseMatrix(piece, dtype=votes.dtype, device=votes.device) for piece in self._slices
            ]
        return self._matrices[votes.dtype]

    @staticmethod
    def _check(steps: int | str) -> tuple[int, ...]:
        if steps == "auto":
            return CANDIDATES
        if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 0:
            return (steps,)
        raise SettingError(f"diffusion must be 'auto' or a number of steps such as 0, 1 or 2, got {steps!r}.")
