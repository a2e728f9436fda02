"""Making nodes that a model has not learned about: classes left out of training, features from elsewhere.

Score them with `error_auroc` and `error_aupr`, the strange nodes being marked instead of the wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.errors import DataError, SettingError

SHIFTS = ("normal", "bernoulli")


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Labels without some classes; the nodes of those classes stay in the graph, unlabelled.

    Shapes: labels (N,), numbered anew from 0, -1 where unknown or left out; outlier (N,) bool; classes: the kept ones.
    """

    labels: Tensor
    outlier: Tensor
    classes: tuple[int, ...]


def leave_out_classes(labels: Tensor, left_out: int | Sequence[int]) -> LeftOut:
    """Leave out the named classes, or, given a number, that many with the highest indices. Shapes: labels (N,)."""
    there = labels[labels >= 0].unique().tolist()
    gone = set(there[max(0, len(there) - left_out) :] if isinstance(left_out, int) else left_out)
    if not gone or not gone < set(there):
        raise DataError(
            f"expected to leave out some but not all of the {len(there)} classes, got {left_out!r}; name others"
        )
    kept = [number for number in there if number not in gone]
    renumbered = torch.full_like(labels, -1)
    for position, number in enumerate(kept):
        renumbered[labels == number] = position
    return LeftOut(renumbered, (labels >= 0) & (renumbered < 0), tuple(kept))


def draw_nodes(nodes: Tensor, *, share: float = 0.1, generator: torch.Generator) -> Tensor:
    """That share of the nodes, at least one, drawn at random and sorted. Shapes: (m,) -> (k,)."""
    if not 0.0 < share <= 1.0 or not len(nodes):
        raise SettingError(f"expected nodes and a share above 0 and up to 1, got {len(nodes)} and {share}; change it")
    count = max(1, round(share * len(nodes)))
    return nodes[torch.randperm(len(nodes), generator=generator)[:count]].sort().values


def shift_features(x: Tensor, nodes: Tensor, *, kind: str, generator: torch.Generator) -> Tensor:
    """The features with those of ``nodes`` drawn anew; the input is left as it is.

    "normal" is N(0, 1), on a far larger scale than normalised rows, hence easy to detect; "bernoulli" is a fair coin
    per feature, scaled so that a row sums to 1.

    Shapes: x (N, F), nodes (k,) -> (N, F).
    """
    if kind not in SHIFTS:
        raise SettingError(f"expected kind to be one of {', '.join(SHIFTS)}, got {kind!r}; choose one")
    shape = (len(nodes), x.shape[1])
    if kind == "normal":
        fresh = torch.randn(shape, generator=generator, dtype=x.dtype)
    else:
        coins = (torch.rand(shape, generator=generator) < 0.5).to(x.dtype)
        fresh = coins / coins.sum(dim=1, keepdim=True).clamp_min(1)
    shifted = x.clone()
    shifted[nodes] = fresh
    return shifted
