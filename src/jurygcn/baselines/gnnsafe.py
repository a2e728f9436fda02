"""GNNSafe: energies averaged over neighbours, a score for nodes unlike the labelled ones.

Wu, Chen, Yang and Yan, "Energy-based out-of-distribution detection for graph neural networks".
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS, KEPT = 2, 0.5  # the authors' K and alpha


def propagated_energy(energy: Tensor, edge_index: Tensor) -> Tensor:
    r"""The energies after two steps :math:`e \leftarrow \frac12 e + \frac12 D^{-1} A e`, without self-loops.

    Deviates from the released code: a node without neighbours keeps its energy, where the code halves it.

    Shapes: energy (N,), edge_index (2, E) -> (N,).
    """
    source, target = edge_index
    other = source != target
    source, target = source[other], target[other]
    degree = torch.zeros_like(energy).index_add_(0, target, torch.ones_like(energy[target]))
    for _ in range(STEPS):
        around = torch.zeros_like(energy).index_add_(0, target, energy[source]) / degree.clamp_min(1)
        energy = torch.where(degree > 0, KEPT * energy + (1 - KEPT) * around, energy)
    return energy
