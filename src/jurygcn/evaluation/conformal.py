"""Split conformal label sets, a baseline: they are calibrated on labels that the model was not trained on.

The calibration nodes must be exchangeable with the other nodes: neither chosen actively nor used to stop training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jurygcn.conformal.intervals import check_alpha, exact_rank
from jurygcn.conformal.scores import aps_scores, lac_scores, with_ties
from jurygcn.errors import DataError, SettingError

SCORES = ("lac", "aps", "daps")


def diffuse_scores(scores: Tensor, edge_index: Tensor, *, mixing: float = 0.5) -> Tensor:
    r"""DAPS: scores mixed with their mean over neighbours; a node without neighbours keeps its own scores.

    .. math:: s'(u, y) = (1 - \lambda) s(u, y) + \frac{\lambda}{|N_u|} \sum_{v \in N_u} s(v, y)

    Shapes: scores (N, C), edge_index (2, E) in both directions -> (N, C).
    """
    if not 0.0 <= mixing <= 1.0:
        raise SettingError(f"expected mixing between 0 and 1, got {mixing}; change it")
    source, target = edge_index
    degree = torch.zeros(len(scores), dtype=scores.dtype).index_add_(0, target, torch.ones_like(scores[source, 0]))
    around = torch.zeros_like(scores).index_add_(0, target, scores[source]) / degree.clamp_min(1)[:, None]
    return torch.where(degree[:, None] > 0, (1 - mixing) * scores + mixing * around, scores)


def conformal_threshold(calibration: Tensor, *, alpha: float) -> Tensor:
    r"""The :math:`\lceil (1-\alpha)(m+1) \rceil`-th smallest of m scores; infinite if the rank is above m.

    Shapes: calibration (m,) -> ().
    """
    check_alpha(alpha, below=1.0)
    m = len(calibration)
    if m == 0:
        raise DataError("expected at least one calibration node, got none; set some labels aside")
    rank = m + 1 - exact_rank(alpha, m)
    if rank > m:
        return torch.tensor(torch.inf, dtype=calibration.dtype)
    return calibration.sort().values[rank - 1]


def split_conformal(
    probabilities: Tensor,
    truth: Tensor,
    calibration: Tensor,
    *,
    alpha: float = 0.1,
    score: str = "lac",
    edge_index: Tensor | None = None,
    mixing: float = 0.5,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Label sets :math:`\{y : s(u, y) \le \hat q\}` of all nodes, calibrated on the nodes ``calibration``.

    With a ``generator``, "aps" and "daps" draw the random part of their scores once per node. Scores and ties are those
    of the jury's own label sets, :mod:`jurygcn.conformal.scores`.

    Shapes: probabilities (N, C), truth (N,), calibration (m,) -> (N, C) bool.
    """
    if score not in SCORES:
        raise SettingError(f"expected score to be one of {', '.join(SCORES)}, got {score!r}; choose one")
    if score == "lac":
        scores = lac_scores(probabilities)
    else:
        size = len(probabilities)
        draws = None if generator is None else torch.rand(size, generator=generator, dtype=probabilities.dtype)
        scores = aps_scores(probabilities, draws)
    if score == "daps":
        if edge_index is None:
            raise SettingError("expected edge_index for score='daps', got none; pass the graph's edges")
        scores = diffuse_scores(scores, edge_index, mixing=mixing)
    threshold = conformal_threshold(scores[calibration, truth[calibration]], alpha=alpha)
    return scores <= with_ties(threshold, score)
