"""The training labels that drive each prediction, for many nodes at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from jurygcn.jackknife import Jury
from jurygcn.jackknife.ballots import Ballots


class Drivers(NamedTuple):
    """Per node the seats of the jurors that matter most to it, and their signed support.

    Shapes: seats (m, k) positions among the training nodes, support (m, k).
    """

    seats: Tensor
    support: Tensor


@torch.no_grad()
def drivers_of(jury: Jury, nodes: Tensor, *, count: int = 8) -> Drivers:
    r"""The ``count`` labels whose absence changes each prediction most, most first.

    .. math:: \text{support}_i(u) = f(u)_c - f_{-i}(u)_c

    with c the predicted class (or the one output of a regression): what `Jury.influence_on` says of a single node.
    Ballots are dropped batch by batch.

    Shapes: nodes (m,) -> (m, k), k = min(count, jurors).
    """
    ballots = Ballots(jury.objective, jury.jurors.steps, nodes, memory=jury.memory)
    whole = ballots.predictions(jury.objective.theta[None])[:, :, 0]  # (m, C)
    output = whole.argmax(dim=1) if jury.objective.loss.name == "cross_entropy" else torch.zeros_like(nodes)
    rows = torch.arange(len(nodes))
    kept, seats = torch.empty(len(nodes), 0, dtype=whole.dtype), torch.empty(len(nodes), 0, dtype=torch.long)
    for positions, votes in ballots:
        support = whole[rows, output][:, None] - votes[rows, output]  # (m, b)
        kept = torch.cat([kept, support], dim=1)
        seats = torch.cat([seats, positions.expand(len(nodes), -1)], dim=1)
        best = kept.abs().topk(min(count, kept.shape[1]), dim=1).indices
        kept, seats = kept.gather(1, best), seats.gather(1, best)
    return Drivers(jury.seats[seats], kept)
