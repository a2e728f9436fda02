"""Pseudo-labels: which nodes get one, and how much it weighs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Nodes that were given a label by the teacher, with the weight of their loss (a real label's is 1).

    Shapes: nodes, labels, weights (k,).
    """

    nodes: Tensor
    labels: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.nodes)


NOTHING = PseudoLabels(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(0))


@dataclass(frozen=True, eq=False)
class Belief:
    """What the judge thinks: every node's likeliest label, how sure that is (for ranking), and its weight as a label.

    Shapes: label, score, weight (N,).
    """

    label: Tensor
    score: Tensor
    weight: Tensor


def class_shares(labels: Tensor, classes: int, *, balance: float) -> Tensor:
    """Each class's share of the pseudo-labels: as in the labels, drawn towards equal shares of the classes seen.

    Shapes: (n,) -> (C,).
    """
    counts = torch.bincount(labels.cpu(), minlength=classes).float()
    counts = torch.where(counts > 0, counts + balance, 0.0)
    return counts / counts.sum()


def believe(probabilities: Tensor, p_values: Tensor, *, trust: float) -> Belief:
    r"""The teacher's label c with the score :math:`\pi_c\, p_c^\rho` and the weight :math:`p_c^\rho`.

    The trust :math:`\rho = n / (n + 5C)` grows with the labels, because n labels give p-values only n + 1 levels.

    Shapes: (N, C), (N, C).
    """
    top, label = probabilities.max(dim=1)
    credible = p_values.gather(1, label[:, None])[:, 0] ** trust
    return Belief(label, top * credible, credible)


def choose(belief: Belief, quota: Tensor, nodes: Tensor, *, weight: float) -> PseudoLabels:
    """In every class the surest nodes, up to its quota; labelled nodes keep their labels."""
    free = torch.ones(len(belief.label), dtype=torch.bool)
    free[nodes] = False
    chosen = []
    for number, count in enumerate(quota.tolist()):
        members = ((belief.label == number) & free).nonzero()[:, 0]
        order = belief.score[members].argsort(descending=True, stable=True)
        chosen.append(members[order[: int(round(count, 3))]])  # 6.99999 is seven
    picked = torch.cat(chosen)
    return PseudoLabels(picked, belief.label[picked], weight * belief.weight[picked])


def changes(before: PseudoLabels, after: PseudoLabels) -> int:
    """How many of the earlier pseudo-labels are gone or have another label."""
    kept = dict(zip(after.nodes.tolist(), after.labels.tolist()))
    return sum(kept.get(node) != label for node, label in zip(before.nodes.tolist(), before.labels.tolist()))
