"""Nonconformity scores of labels: high if the label does not fit the predicted probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn.errors import SettingError

# Scores that differ by at most this many units in the last place count as equal, and a tie counts for the label.
# Equal nodes have equal scores, but sums in another order differ in the last digits.
TIES = 32


def lac_scores(probabilities: Tensor) -> Tensor:
    r"""Least-ambiguous-classifier score :math:`s = 1 - \pi_y`, (m, C, b); the 1 is dropped: same order, no rounding."""
    return -probabilities


def aps_scores(probabilities: Tensor) -> Tensor:
    r"""Adaptive-prediction-set score: the mass of all classes at least as probable as y, y included, (m, C, b).

    Deterministic (the conservative form): ties count in full. Computed as minus the mass of the less probable
    classes, which differs by the constant 1 and is exactly 0 for the least probable class.
    """
    ordered, order = probabilities.sort(dim=1)
    below = ordered.cumsum(dim=1) - ordered
    below[:, 0] = 0.0
    for c in range(1, below.shape[1]):  # equal probabilities have the same classes below them
        tied = ordered[:, c - 1] >= ordered[:, c] * (1.0 - rounding(probabilities))
        below[:, c] = torch.where(tied, below[:, c - 1], below[:, c])
    return torch.empty_like(below).scatter_(1, order, -below)


def rounding(probabilities: Tensor) -> float:
    """The relative difference up to which probabilities or scores count as equal."""
    return TIES * torch.finfo(probabilities.dtype).eps


SCORES = {"lac": lac_scores, "aps": aps_scores}


def check_score(name: str) -> str:
    """Return the name; raise SettingError for an unknown score."""
    if name not in SCORES:
        raise SettingError(f"expected nonconformity to be one of {', '.join(SCORES)}, got {name!r}; choose one")
    return name
