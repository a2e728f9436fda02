"""Pseudo-labels: which nodes get one, and with which weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PseudoLabels:
    """Nodes that got their label from the teachers, and the weight of each in the loss (a true label has weight 1).

    Shapes: nodes, labels, weights (k,).
    """

    nodes: Tensor
    labels: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.nodes)


NO_PSEUDO_LABELS = PseudoLabels(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), torch.zeros(0))


@dataclass(frozen=True, eq=False)
class ScoredLabels:
    """The predicted label of every node, the score that ranks it, and its weight if it becomes a pseudo-label.

    Shapes: label, score, weight (N,).
    """

    label: Tensor
    score: Tensor
    weight: Tensor


def class_shares(labels: Tensor, classes: int, *, balance: float) -> Tensor:
    """The share of each class among the pseudo-labels.

    It is the class's share of the labels after ``balance`` is added to the count of each class that has a label. A
    large ``balance`` makes the shares of these classes equal. A class without labels has share 0.

    Shapes: (n,) -> (C,).
    """
    counts = torch.bincount(labels.cpu(), minlength=classes).float()
    counts = torch.where(counts > 0, counts + balance, 0.0)
    return counts / counts.sum()


def score_labels(probabilities: Tensor, p_values: Tensor, *, trust: float) -> ScoredLabels:
    r"""The teachers' predicted label c, with the score :math:`\pi_c\, p_c^\rho` and the weight :math:`p_c^\rho`.

    The trust :math:`\rho = n / (n + 5C)` grows with the number of labels n, because p-values from n labels have only
    n + 1 levels.

    Shapes: (N, C), (N, C).
    """
    top, label = probabilities.max(dim=1)
    weight = p_values.gather(1, label[:, None])[:, 0] ** trust
    return ScoredLabels(label, top * weight, weight)


def choose_pseudo_labels(scored: ScoredLabels, quota: Tensor, nodes: Tensor, *, weight: float) -> PseudoLabels:
    """For each class the nodes with the highest scores, up to the quota. Labelled ``nodes`` get no pseudo-label."""
    unlabelled = torch.ones(len(scored.label), dtype=torch.bool)
    unlabelled[nodes] = False
    chosen = []
    for number, count in enumerate(quota.tolist()):
        members = ((scored.label == number) & unlabelled).nonzero()[:, 0]
        order = scored.score[members].argsort(descending=True, stable=True)
        chosen.append(members[order[: int(round(count, 3))]])  # rounding makes 6.99999 count as 7
    picked = torch.cat(chosen)
    return PseudoLabels(picked, scored.label[picked], weight * scored.weight[picked])


def count_changes(before: PseudoLabels, after: PseudoLabels) -> int:
    """How many of the earlier pseudo-labels were dropped or have a different label now."""
    kept = dict(zip(after.nodes.tolist(), after.labels.tolist()))
    return sum(kept.get(node) != label for node, label in zip(before.nodes.tolist(), before.labels.tolist()))
