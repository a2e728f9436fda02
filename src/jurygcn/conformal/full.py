r"""Full conformal prediction with leave-one-out scores, without retraining.

The bag of node u with label y is the labels and (u, y). Every member is scored by the model that learned all others:
u by the trained model, a labelled node i by the juror that left out i and learned (u, y). If scores come from
retraining and nodes are exchangeable, so are the n + 1 scores, and

.. math:: p(u, y) = \frac{1 + \#\{i : s_i \ge s_u\}}{n + 1}

is at most alpha with a probability of at most alpha: sets cover with 1 - alpha (jackknife+ sets with 1 - 2 alpha).

What an added label changes is in :mod:`jurygcn.conformal.changes`: to first order for all bags, and exactly for those
where the first order does not decide which score is higher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.conformal.asked import Asked
from jurygcn.conformal.changes import Changes, Learned, learn
from jurygcn.conformal.counts import FLOOR
from jurygcn.conformal.scores import SCORES, lac_scores, rounding, with_ties
from jurygcn.leave_one_out.added import AddedLabels, Kernels
from jurygcn.leave_one_out.added_panel import AddedToPanel

# Numbers in the arrays of all pairs of some nodes and all jurors. More leave the processor's cache; fewer take longer,
# because the calls themselves cost time.
PAIR_NUMBERS = 800_000

# Nodes at a time where no kernels are needed.
NODES = 4096

# Logarithms of probabilities that are as close as this are compared exactly: rounding is far less.
MARGIN = 1e-3


@dataclass(frozen=True, eq=False)
class FullCounts:
    """For every node and label, how many labelled nodes have a score at least, and exactly, as high in its bag.

    Shapes: all (m, C); ``by_class`` counts labelled nodes of the label's own class, ``by_group`` those of the node's
    group (None without groups); ``ties`` are those with an equal score.
    """

    counts: Tensor
    ties: Tensor
    by_class: Tensor
    by_group: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Bags:
    """What the scores of the members of a bag are computed from.

    Attributes:
        asked: the question, the nodes and the jurors.
        own: predictions of the model's jurors at their own nodes before a label is added, (n, C).
        added: the kernels of the model; None if the panel votes alone.
        panel: the advisers' answers after a label was added; None without advice.
        share: the weight of the model with each juror, (n,); ones without advice.
    """

    asked: Asked
    own: Tensor
    added: AddedLabels | None
    panel: AddedToPanel | None
    share: Tensor


def count_full(
    bags: Bags,
    nodes: Tensor,
    outputs: Tensor,
    *,
    groups: Tensor | None,
    memory: float,
    advance: Callable[[int], None],
) -> FullCounts:
    """Count the scores of all bags of ``nodes``.

    Args:
        bags: the members.
        nodes: nodes without a label, (m,).
        outputs: the predictions that score them, (m, C).
        groups: the group of every node of the graph, (N,), if there are any.
        memory: bytes for the kernels of some nodes at a time.
        advance: called with the number of nodes that were counted.
    """
    asked, C = bags.asked, outputs.shape[1]
    score = SCORES[asked.question.nonconformity]
    mine = score(outputs if bags.panel is None else outputs.double())
    targets = asked.own_targets
    found = {name: torch.zeros(len(nodes), C, dtype=torch.int32) for name in ("counts", "ties", "by_class", "by_group")}
    for places, kernels in in_turn(bags, nodes, memory):
        learned = None if kernels is None else learn(kernels.outputs, kernels.own)
        for some in _slices(len(places), max(1, PAIR_NUMBERS // (asked.num_jurors * C * C))):
            rows = places[some]
            bound = mine[rows].unsqueeze(2)
            own = _own_scores(bags, kernels, learned, rows, some, bound)
            within = bound <= with_ties(own, asked.question.nonconformity)
            found["counts"][rows] = within.sum(dim=2, dtype=torch.int32)
            strict = own > bound + rounding(own) * bound.abs()
            found["ties"][rows] = (within & ~strict).sum(dim=2, dtype=torch.int32)
            alike = targets[None, :] == torch.arange(C)[:, None]  # (y, n)
            found["by_class"][rows] = (within & alike).sum(dim=2, dtype=torch.int32)
            if groups is not None:
                same = groups[nodes[rows]][:, None] == groups[asked.own_nodes][None, :]
                found["by_group"][rows] = (within & same.unsqueeze(1)).sum(dim=2, dtype=torch.int32)
            advance(len(rows))
    if groups is None:
        del found["by_group"]
    return FullCounts(**found)


def in_turn(bags: Bags, nodes: Tensor, memory: float) -> Iterator[tuple[Tensor, Kernels | None]]:
    """Some nodes after the other: their places in ``nodes``, and their kernels unless the panel votes alone."""
    if bags.added is None:
        yield from ((places, None) for places in torch.arange(len(nodes)).split(NODES))
    else:
        yield from bags.added.at(nodes, memory=memory)


def _slices(count: int, size: int) -> Iterator[slice]:
    """Slices that take ``size`` of ``count`` things each: they copy nothing."""
    yield from (slice(start, min(start + size, count)) for start in range(0, count, size))


def _own_scores(
    bags: Bags, kernels: Kernels | None, learned: Learned | None, rows: Tensor, here: slice, bound: Tensor
) -> Tensor:
    """Scores of the jurors' own labels in the bags of some nodes, (r, y, n): ``here`` among those with kernels.

    They are exact where it matters which of them and ``bound``, (r, y, 1), is higher.
    """
    score, targets = bags.asked.question.nonconformity, bags.asked.own_targets
    base = _without_model(bags, rows)
    if kernels is None:
        return own_scores(base, targets, score)
    assert bags.added is not None
    assert learned is not None
    weight = bags.share.to(base)
    changes = Changes(kernels, here, learned.at(here), bags.added.jumps, targets)
    first = changes.first_order()
    own = own_scores(torch.addcmul(base, weight, first), targets, score)
    near = weight * changes.bound() * (1.0 + MARGIN) + MARGIN
    decided = (own / bound).log_().abs_() > near if score == "lac" else torch.zeros_like(own, dtype=torch.bool)
    u, y, i = (~decided).nonzero().unbind(dim=1)
    logits = base.expand_as(first)[u, y, :, i].T + weight[i] * changes.exact(u, y, i)
    own[u, y, i] = own_scores(logits.unsqueeze(0), targets[i], score).squeeze(0)
    return own


def _without_model(bags: Bags, rows: Tensor) -> Tensor:
    """Logits at the jurors' own nodes before the model learned labels of some nodes, relative to the own label's.

    Shapes: (r, y, C, n) with the panel, else (1, 1, C, n).
    """
    targets, total = bags.asked.own_targets, bags.share * bags.own.clamp_min(FLOOR).log().T  # (C, n)
    if bags.panel is None:
        total = total[None, None].to(bags.asked.engine.source_dtype)
    else:
        C, (fixed, gain) = len(total), bags.panel.at(rows)
        total = (total + fixed.mT).unsqueeze(1).repeat(1, C, 1, 1)
        total.diagonal(dim1=1, dim2=2).add_(gain.unsqueeze(2))  # of the added label's class
    return total - total[:, :, targets, torch.arange(len(targets))].unsqueeze(2)


def own_scores(logits: Tensor, targets: Tensor, nonconformity: str) -> Tensor:
    """Scores of the jurors' own labels from logits relative to theirs, (..., C, n) -> (..., n)."""
    if nonconformity == "lac":
        return lac_scores(logits.exp().sum(dim=-2).reciprocal_())
    flat = SCORES[nonconformity](torch.softmax(logits, dim=-2).view(-1, *logits.shape[-2:]))
    return flat[:, targets, torch.arange(len(targets))].view(*logits.shape[:-2], -1)
