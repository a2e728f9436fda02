r"""Averaging votes over closed neighbourhoods, :math:`\tilde D^{-1}(A + I)`, before labels are scored.

On homophilous graphs the mean over a neighbourhood is a better estimate than the node's own probability. The average
treats all nodes equally, so the label sets stay valid. On heterophilous graphs the jurors' log score selects no
averaging.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.checks import in_short
from jurygcn.choices import MOST_STEPS
from jurygcn.data.heterogeneous import why_no_neighbours
from jurygcn.errors import SettingError
from jurygcn.graph.propagation import Propagation, is_everything, reached_rows
from jurygcn.graph.sparse import SparseMatrix

CANDIDATES = (0, 1, 2)


class NeighbourAverages:
    """Smooths votes at ``nodes`` for every candidate number of steps.

    Shapes: ``reach`` (r,) the nodes whose votes are needed; votes (r, C, b) -> per number of steps (|nodes|, C, b).
    """

    def __init__(self, data: Data, nodes: Tensor, steps: int | str) -> None:
        self.candidates = self._check(steps, why_no_neighbours(data))
        averaging = Propagation.of(data).averaging if max(self.candidates) > 0 else None
        everything = is_everything(nodes, int(data.num_nodes))
        levels = [nodes.cpu().numpy()]
        self._slices: list[sp.csr_matrix] = []
        for _ in range(max(self.candidates)):
            rows, below = reached_rows(averaging, levels[0], everything=everything)
            self._slices.insert(0, rows)  # maps the outer level to the next inner one
            levels.insert(0, below)
        self.reach = torch.from_numpy(levels[0])
        # positions of the queried nodes in each level, from the outermost inwards; None: the level is the queried nodes
        self._asked = [
            None if len(level) == len(nodes) else torch.from_numpy(np.searchsorted(level, levels[-1]))
            for level in levels
        ]
        self._matrices: dict[torch.dtype, list[SparseMatrix]] = {}

    def __call__(self, votes: Tensor) -> dict[int, Tensor]:
        """Votes at the queried nodes after 0 steps and after every candidate number of steps."""
        smooth = {0: take(votes, self._asked[0])}
        for step, matrix in enumerate(self._averages(votes), start=1):
            votes = (matrix @ votes.reshape(len(votes), -1)).view(-1, *votes.shape[1:])
            if step in self.candidates:
                smooth[step] = take(votes, self._asked[step])
        return smooth

    def _averages(self, votes: Tensor) -> list[SparseMatrix]:
        if votes.dtype not in self._matrices:
            made: dict[int, SparseMatrix] = {}
            for piece in self._slices:
                made.setdefault(id(piece), SparseMatrix(piece, dtype=votes.dtype, device=votes.device))
            self._matrices[votes.dtype] = [made[id(piece)] for piece in self._slices]
        return self._matrices[votes.dtype]

    @staticmethod
    def _check(steps: int | str, alone: str) -> tuple[int, ...]:
        if steps == "auto":
            return (0,) if alone else CANDIDATES
        if isinstance(steps, int) and not isinstance(steps, bool) and 0 <= steps <= MOST_STEPS:
            if steps and alone:
                raise SettingError(f"expected diffusion=0 or 'auto', got {steps}. {alone}")
            return (steps,)
        raise SettingError(
            f"expected diffusion to be 'auto' or a whole number between 0 and {MOST_STEPS}, got {in_short(steps)}; "
            "change it"
        )


def take(votes: Tensor, index: Tensor | None) -> Tensor:
    """Rows of ``votes``; None takes all of them without a copy."""
    return votes if index is None else votes[index]
