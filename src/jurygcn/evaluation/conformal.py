"""Split conformal label sets, a baseline: they are calibrated on labels that the model was not trained on.

The calibration nodes must be exchangeable with the other nodes: neither chosen actively nor used to stop training.
"""

from __future__ import annotations

import scipy.sparse as sp
import torch
from torch import Tensor

from jurygcn.conformal.intervals import check_alpha, exact_rank
from jurygcn.conformal.scores import aps_scores, lac_scores, with_ties
from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation.graph_scores import (
    MIXINGS,
    diffuse_scores,
    navigated_scores,
    penalised_scores,
)

SCORES = ("lac", "aps", "raps", "daps", "snaps")


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
    similar: sp.csr_matrix | None = None,
    mixing: float = 0.5,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Label sets :math:`\{y : s(u, y) \le \hat q\}` of all nodes, calibrated on the nodes ``calibration``.

    With a ``generator``, all scores but "lac" draw the random part of their scores once per node. "daps" and "snaps"
    need ``edge_index``, "snaps" also ``similar``, from ``graph_scores.similar_nodes``. Scores and ties are those of the
    jury's own label sets, :mod:`jurygcn.conformal.scores`.

    Shapes: probabilities (N, C), truth (N,), calibration (m,) -> (N, C) bool.
    """
    if score not in SCORES:
        raise SettingError(f"expected score to be one of {', '.join(SCORES)}, got {score!r}; choose one")
    scores = lac_scores(probabilities) if score == "lac" else _drawn(probabilities, generator)
    if score == "raps":
        scores = penalised_scores(scores, probabilities)
    if score in ("daps", "snaps"):
        if edge_index is None:
            raise SettingError(f"expected edge_index for score={score!r}, got none; pass the graph's edges")
        if score == "daps":
            scores = diffuse_scores(scores, edge_index, mixing=mixing)
        elif similar is None:
            raise SettingError("expected similar for score='snaps', got none; pass similar_nodes(data.x)")
        else:
            scores = navigated_scores(scores, edge_index, similar)
    threshold = conformal_threshold(scores[calibration, truth[calibration]], alpha=alpha)
    return scores <= with_ties(threshold, score)


def _drawn(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """APS scores, with a random part if there is a generator."""
    size = len(probabilities)
    draws = None if generator is None else torch.rand(size, generator=generator, dtype=probabilities.dtype)
    return aps_scores(probabilities, draws)


def tuned_diffusion(
    probabilities: Tensor,
    truth: Tensor,
    tuning: Tensor,
    calibration: Tensor,
    *,
    alpha: float = 0.1,
    edge_index: Tensor,
    generator: torch.Generator | None = None,
) -> Tensor:
    """DAPS sets with the mixing, of 0, 0.05, ..., 0.95, that makes the sets of the nodes ``tuning`` smallest.

    The sets of the tuning nodes have thresholds from the same nodes, as the authors' have; labels of ``calibration``
    then set the threshold of the sets that are returned.

    Shapes: probabilities (N, C), truth (N,), tuning (t,), calibration (m,) -> (N, C) bool.
    """
    scores = _drawn(probabilities, generator)
    best, smallest = scores, torch.inf
    for mixing in MIXINGS:
        mixed = diffuse_scores(scores, edge_index, mixing=mixing)
        threshold = conformal_threshold(mixed[tuning, truth[tuning]], alpha=alpha)
        size = float((mixed[tuning] <= with_ties(threshold, "daps")).sum())
        if size < smallest:
            best, smallest = mixed, size
    threshold = conformal_threshold(best[calibration, truth[calibration]], alpha=alpha)
    return best <= with_ties(threshold, "daps")
