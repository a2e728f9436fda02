"""Nonconformity scores of labels: high if the label does not fit the predicted probabilities.

One rule for ties holds everywhere. Probabilities and scores that differ by no more than 32 units in the last place are
equal. Labels with equal probabilities get equal scores. A label whose score equals the bound is in the set.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn.errors import SettingError

# Equal nodes have equal scores, but sums in another order differ in the last digits.
TIES = 32


def lac_scores(probabilities: Tensor) -> Tensor:
    r"""Least-ambiguous-classifier score :math:`s = 1 - \pi_y`; the 1 is dropped: same order, no rounding.

    Shapes: (m, C) or (m, C, b) -> the same.
    """
    return -probabilities


def aps_scores(probabilities: Tensor, draws: Tensor | None = None) -> Tensor:
    r"""Adaptive-prediction-set score: the mass of the more probable labels, and a part d of the mass of those equal.

    .. math:: s(u, y) = \sum_{c : \pi_{uc} > \pi_{uy}} \pi_{uc} + d_u \sum_{c : \pi_{uc} = \pi_{uy}} \pi_{uc} - 1

    The label itself is one of those equal. ``draws`` are uniform on (0, 1), one per node. Without them d = 1, which is
    deterministic and conservative. The sums are taken over the less probable labels, so the 1 drops out and the score
    of the least probable label is exactly 0 for d = 1.

    Shapes: probabilities (m, C) or (m, C, b), draws (m,) -> the same as probabilities.
    """
    ordered, order = probabilities.sort(dim=1)
    upto = ordered.cumsum(dim=1)
    below = upto - ordered
    below[:, 0] = 0.0
    classes = below.shape[1]
    tied = ordered[:, :-1] >= ordered[:, 1:] * (1.0 - rounding(probabilities))  # label c with label c + 1
    for c in range(1, classes):  # equal probabilities have the same labels below them
        below[:, c] = torch.where(tied[:, c - 1], below[:, c - 1], below[:, c])
    if draws is not None:
        for c in range(classes - 2, -1, -1):  # and the same labels above them
            upto[:, c] = torch.where(tied[:, c], upto[:, c + 1], upto[:, c])
        part = draws.view(-1, *[1] * (below.dim() - 1))
        below = part * below + (1.0 - part) * upto
    return torch.empty_like(below).scatter_(1, order, -below)


def rounding(probabilities: Tensor) -> float:
    """The difference up to which probabilities (relative to their size) or scores count as equal."""
    return TIES * torch.finfo(probabilities.dtype).eps


def with_ties(bound: Tensor, score: str) -> Tensor:
    """The largest score that counts as equal to ``bound``: LAC compares by ratio, sums of probabilities by difference.

    Shapes: any -> the same.
    """
    slack = rounding(bound)
    return bound * (1.0 - slack) if score == "lac" else bound + slack


SCORES = {"lac": lac_scores, "aps": aps_scores}


def check_score(name: str) -> str:
    """Return the name; raise SettingError for an unknown score."""
    if name not in SCORES:
        raise SettingError(f"expected nonconformity to be one of {', '.join(SCORES)}, got {name!r}; choose one")
    return name
