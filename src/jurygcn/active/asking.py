"""Answers that are asked again: which labels are doubtful, and what several answers settle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jurygcn.active.learners import ORACLE, LabelledGraph, suspicion
from jurygcn.annotators import agreement
from jurygcn.diagnostics.noise import NoiseModel

# The probability of being wrong above which a label is asked again, and listed on the labelling page.
DOUBTFUL = 0.2


def doubtful(given: LabelledGraph, most: int) -> tuple[Tensor, NoiseModel | None]:
    """At most so many labelled nodes with the most doubtful labels, and what is known of all labels."""
    if len(given.labelled) < 2 or most < 1:
        return torch.empty(0, dtype=torch.long), None
    noise = suspicion(given)
    order = noise.wrong.argsort(descending=True, stable=True)[:most]
    return given.labelled[order[noise.wrong[order] > DOUBTFUL]], noise


def settle(
    given: LabelledGraph, noise: NoiseModel, nodes: Tensor, answers: Sequence[int]
) -> tuple[tuple[int, ...], float]:
    """The labels of these nodes after the new answers, and the estimated share of wrong answers among all.

    The prior of a class is what was predicted for the node without its label. A node whose new answer is -1 keeps its
    label.
    """
    labels = dict(zip(given.labelled.tolist(), given.data.y[given.labelled].tolist()))
    said = [*(given.answers or labels.items()), *((n, a) for n, a in zip(nodes.tolist(), answers) if a >= 0)]
    prior = dict(zip(given.labelled.tolist(), noise.truth.numpy()))
    found = agreement(((node, ORACLE, label) for node, label in said), int(given.data.num_classes), prior=prior)
    now = dict(zip(found.nodes.tolist(), found.labels.tolist()))
    settled = tuple(int(now[n] if a >= 0 else labels[n]) for n, a in zip(nodes.tolist(), answers))
    return settled, found.error_rate
