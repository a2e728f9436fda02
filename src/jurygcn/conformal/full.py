r"""Full conformal prediction with leave-one-out scores, without retraining.

The bag of node u with label y is the labels and (u, y). Every member is scored by the model that learned all others:
u by the trained model, a labelled node i by the juror that left out i and learned (u, y). If scores come from
retraining and nodes are exchangeable, so are the n + 1 scores, and

.. math:: p(u, y) = \frac{1 + \#\{i : s_i \ge s_u\}}{n + 1}

is at most alpha with a probability of at most alpha: sets cover with 1 - alpha (jackknife+ sets with 1 - 2 alpha).

The juror with the added label minimises its quadratic model of the other labels plus the loss of (u, y). That loss is
far from quadratic for a label that the model excludes: one Newton step from the trained model overshoots by orders of
magnitude. So the new logits of u are found first, by the proximal problem :math:`z' = z_u - K_{uu}(\pi(z') - e_y)`, and
the joint Newton step (leave out i, add u) is taken around them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.conformal.asked import Asked
from jurygcn.conformal.counts import FLOOR
from jurygcn.conformal.scores import SCORES, lac_scores, rounding, with_ties
from jurygcn.leave_one_out.added import AddedLabels, Kernels
from jurygcn.leave_one_out.added_panel import AddedToPanel
from jurygcn.linalg import outer_sums, solve_small
from jurygcn.losses import Loss

# Numbers in the arrays of all pairs of some nodes and all jurors: small enough for the processor's cache.
PAIR_NUMBERS = 4_000_000

# Nodes at a time where no kernels are needed.
NODES = 4096

# Newton steps for the logits of an added label; halvings of a step; a change of the residual that ends them.
STEPS, HALVINGS, CLOSE = 60, 30, 1e-7


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
        for rows in places.split(max(1, PAIR_NUMBERS // (asked.num_jurors * C * C * (C + 4)))):
            own = own_scores(_own_logits(bags, kernels, rows, int(places[0])), targets, asked.question.nonconformity)
            bound = mine[rows].unsqueeze(2)
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


def _own_logits(bags: Bags, kernels: Kernels | None, rows: Tensor, start: int) -> Tensor:
    """Logits at the jurors' own nodes in the bags of some nodes, (r, y, n, C), up to a common shift of all classes."""
    C = bags.own.shape[1]
    total: Tensor | float = 0.0
    if kernels is not None:
        assert bags.added is not None
        change = class_changes(bags.asked.engine.loss, kernels, bags.added.jumps, rows - start)
        total = change.add_(bags.own.clamp_min(FLOOR).log().to(change))
        if bags.panel is not None:
            total = bags.share[:, None] * total
    if bags.panel is not None:
        fixed, gain = bags.panel.at(rows)
        total = (total + fixed.unsqueeze(1)).expand(-1, C, -1, -1).clone()
        total.diagonal(dim1=1, dim2=3).add_(gain.unsqueeze(2))  # of the added label's class
    assert isinstance(total, Tensor)
    return total


def own_scores(logits: Tensor, targets: Tensor, nonconformity: str) -> Tensor:
    """Scores of the jurors' own labels, (r, y, n, C) -> (r, y, n); LAC scores without all other probabilities."""
    where = targets[None, None, :, None].expand(*logits.shape[:3], 1)
    if nonconformity == "lac":
        return lac_scores((logits - logits.gather(3, where)).exp_().sum(dim=3).reciprocal_())
    flat = SCORES[nonconformity](torch.softmax(logits, dim=3).flatten(0, 2)).view(logits.shape)
    return flat.gather(3, where).squeeze(3)


def class_changes(loss: Loss, kernels: Kernels, jumps: Tensor, rows: Tensor) -> Tensor:
    r"""Changes of the logits at the jurors' own nodes if label y of node u is added, (r, y, n, C).

    The joint Newton step around the fitted logits z' of u, with :math:`L L^T = S(z')`, L w = pi(z') - e_y:

    .. math::
        (I + L^T K^{-i}_{uu} L)\, b = w + L^T (z_{-i}(u) - z'), \qquad a = L b
    """
    z, own, cross = kernels.outputs[rows], kernels.own[rows], kernels.cross[rows]
    (r, C), (n, K) = z.shape, jumps.shape
    fitted = fitted_logits(z.double(), own.double()).to(z)  # (r, y, C)
    flat = fitted.flatten(0, 1)
    root = loss.root(flat).view(r, C, C, K)
    start = loss.whitened(flat, torch.arange(C).repeat(r)).view(r, C, K).to(z)
    start = start + (root.mT @ (z.unsqueeze(1) - fitted).unsqueeze(3)).squeeze(3)
    # L^T A_ui for all labels and jurors of a node by one product, and L^T of what leaving i out moved
    tall = root.mT.reshape(r, C * K, C)
    seen = (tall @ cross.flatten(2)).view(r, C, K, n, K).permute(2, 4, 0, 1, 3).reshape(K, K, r * C * n)
    moved = (tall @ (cross * jumps).sum(dim=3)).view(r, C, K, n) + start.unsqueeze(3)
    system = outer_sums(seen).view(K, K, r, C, n)
    system += (root.mT @ own.unsqueeze(1) @ root).permute(2, 3, 0, 1).unsqueeze(4)
    system.diagonal(dim1=0, dim2=1).add_(1.0)
    b = solve_small(system.view(K, K, -1), moved.permute(2, 0, 1, 3).reshape(K, -1))
    reached = (seen * b.unsqueeze(1)).sum(dim=0).view(K, r * C, n)  # A_ui^T a
    change = -torch.bmm(reached.permute(2, 1, 0), kernels.through.mT).view(n, r, C, C).permute(1, 2, 0, 3)
    if kernels.read is None:
        return change
    residual = b.view(K, r, C, n).permute(1, 2, 3, 0) @ root.mT  # (r, y, n, C)
    averages = residual.transpose(1, 2) @ kernels.read[rows].transpose(1, 2)
    return change - averages.transpose(1, 2)


def fitted_logits(z: Tensor, kernel: Tensor) -> Tensor:
    r"""The logits of a node after each of its labels is learned: :math:`z' = z - K a`, :math:`a = \pi(z') - e_y`.

    They minimise the convex :math:`\frac12 a^T K a - \log \pi_y(z - K a)`; Newton's method with halved steps.

    Shapes: z (r, C), kernel (r, C, C) -> (r, C labels, C).
    """
    (r, C), eye = z.shape, torch.eye(z.shape[1], dtype=z.dtype, device=z.device)
    z = z.unsqueeze(1).expand(r, C, C).reshape(-1, C)
    kernel = kernel.unsqueeze(1).expand(r, C, C, C).reshape(-1, C, C)
    truth, residual, open_ = eye.repeat(r, 1), torch.zeros_like(z), torch.arange(r * C)

    def value(a: Tensor, rows: Tensor) -> Tensor:
        pulled = (kernel[rows] @ a.unsqueeze(2)).squeeze(2)
        moved = z[rows] - pulled
        return 0.5 * (a * pulled).sum(dim=1) + moved.logsumexp(dim=1) - (moved * truth[rows]).sum(dim=1)

    for _ in range(STEPS):
        a, K = residual[open_], kernel[open_]
        p = torch.softmax(z[open_] - (K @ a.unsqueeze(2)).squeeze(2), dim=1)
        S = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
        step = torch.linalg.solve(eye + S @ K, p - truth[open_] - a)
        before, size = value(a, open_), torch.ones(len(open_), 1, dtype=z.dtype)
        tried = torch.arange(len(open_))
        for _ in range(HALVINGS):
            now = value((a + size * step)[tried], open_[tried])
            tried = tried[now > before[tried] + 1e-12 * (1.0 + before[tried].abs())]
            if not len(tried):
                break
            size[tried] /= 2
        residual[open_] = a + size * step
        open_ = open_[(size * step).abs().amax(dim=1) > CLOSE]
        if not len(open_):
            break
    return (z - (kernel @ residual.unsqueeze(2)).squeeze(2)).view(r, C, C)
