"""Create out-of-distribution nodes: classes left out of training, or random features.

Measure their detection with `error_auroc` and `error_aupr`; mark these nodes instead of the wrong ones.
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

    Shapes: labels (N,), renumbered from 0, -1 if unknown or left out; outlier (N,) bool; classes: the kept ones.
    """

    labels: Tensor
    outlier: Tensor
    classes: tuple[int, ...]


def leave_out_classes(labels: Tensor, left_out: int | Sequence[int]) -> LeftOut:
    """Leave out the given classes or, for a number k, the last k classes. Shapes: labels (N,)."""
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
    """A random share of the nodes, at least one, sorted. Shapes: (m,) -> (k,)."""
    if not 0.0 < share <= 1.0 or not len(nodes):
        raise SettingError(f"expected nodes and a share above 0 and up to 1, got {len(nodes)} and {share}; change it")
    count = max(1, round(share * len(nodes)))
    return nodes[torch.randperm(len(nodes), generator=generator)[:count]].sort().values


def shift_features(x: Tensor, nodes: Tensor, *, kind: str, generator: torch.Generator) -> Tensor:
    """A copy of the features with random values at ``nodes``.

    "normal" draws from N(0, 1), a far larger scale than normalised rows, so it is easy to detect; "bernoulli" draws 0
    or 1 per feature and scales each row to sum 1.

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
