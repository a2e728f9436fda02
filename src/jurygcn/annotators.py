r"""Several answers for a node: what each annotator gets wrong, and which class the answers speak for.

The model of Dawid and Skene with one number for each annotator. Annotator a is wrong with probability :math:`e_a`, and
then says any other class with the same probability:

.. math::
    P(y_i = c \mid \text{answers}) \propto \pi_i(c) \prod_{(a, l) \text{ at } i}
    \begin{cases} 1 - e_a & l = c \\ e_a / (C - 1) & l \ne c \end{cases}

Expectation maximisation alternates this posterior with the error rates

.. math:: e_a = \frac{\sum_{(i, l) \text{ of } a} (1 - P(y_i = l))}{n_a + b}

for :math:`n_a` answers. b = 3 is a weak prior, Beta(1, 4): an annotator with few answers is taken to be right.
The prior :math:`\pi_i` of each node is given, or it is the same for all nodes and estimated like an error rate.

Answers without a second answer for the same node say nothing about error rates, unless :math:`\pi_i` is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jurygcn.errors import DataError

Array = NDArray[Any]

PRIOR_ANSWERS = 3.0  # b: so many right answers are added to those of each annotator
MOST_ITERATIONS, TOLERANCE = 1000, 1e-10
TIE = 1e-6  # difference of probabilities below which two classes are tied


@dataclass(frozen=True, eq=False)
class Agreement:
    """What is estimated from the answers.

    Attributes:
        error_rates: of each annotator, by name.
        counts: the number of answers of each annotator.
        error_rate: of all answers together: the mean probability that an answer is wrong.

    Shapes: nodes (n,) sorted, posterior (n, C): the distribution of the class of each node.
    """

    nodes: Array = field(repr=False)
    posterior: Array = field(repr=False)
    error_rates: dict[str, float]
    counts: dict[str, int]
    error_rate: float

    @property
    def labels(self) -> Array:
        """The most probable class of each node, (n,)."""
        return np.asarray(self.posterior.argmax(axis=1))

    @property
    def ties(self) -> list[int]:
        """The nodes whose two most probable classes are equally probable."""
        best = -np.sort(-self.posterior, axis=1)
        return [int(node) for node in self.nodes[best[:, 0] - best[:, 1] < TIE]]

    @property
    def decided(self) -> dict[int, int]:
        """The most probable class of each node, without ties."""
        tied = set(self.ties)
        return {int(n): int(c) for n, c in zip(self.nodes, self.labels) if n not in tied}

    @property
    def words(self) -> str:
        """The error rates in a sentence."""
        each = ", ".join(f"{name} {rate:.0%} of {self.counts[name]}" for name, rate in sorted(self.error_rates.items()))
        tied = f" {len(self.ties)} nodes are tied and have no label." if self.ties else ""
        return f"Estimated share of wrong answers: {self.error_rate:.0%} of all; by annotator: {each}.{tied}"


def agreement(
    answers: Iterable[tuple[int, str, int]], num_classes: int, *, prior: dict[int, Array] | None = None
) -> Agreement:
    """Estimate the class of each node and the error rate of each annotator.

    Args:
        answers: tuples of a node, the name of the annotator and the class. An annotator may answer for a node several
            times, if the answers are independent.
        num_classes: C, at least 2.
        prior: the distribution of the class of each node before its answers, for example what jurors without this node
            predict, (C,) each; by default one distribution for all nodes is estimated.
    """
    listed = list(answers)
    if not listed or num_classes < 2:
        raise DataError(f"expected answers of at least two classes, got {len(listed)} of {num_classes}; give more")
    nodes, where = np.unique([node for node, _, _ in listed], return_inverse=True)
    names, who = np.unique([name for _, name, _ in listed], return_inverse=True)
    said = np.array([label for _, _, label in listed])
    if said.min() < 0 or said.max() >= num_classes:
        raise DataError(f"expected classes 0..{num_classes - 1}, got {said.min()}..{said.max()}; correct them")
    counts = np.bincount(who, minlength=len(names))
    log_prior = None
    if prior is not None:
        log_prior = np.log(np.maximum(np.stack([np.asarray(prior[int(node)], dtype=float) for node in nodes]), 1e-300))
    votes = np.zeros((len(nodes), num_classes))
    np.add.at(votes, (where, said), 1.0)
    posterior = votes / votes.sum(axis=1, keepdims=True)
    if log_prior is not None:  # a vote of the prior, which may disagree
        posterior = (votes + np.exp(log_prior)) / (votes.sum(axis=1, keepdims=True) + 1.0)
    for _ in range(MOST_ITERATIONS):
        before = posterior
        rates = np.bincount(who, 1.0 - posterior[where, said], len(names)) / (counts + PRIOR_ANSWERS)
        rates = np.clip(rates, 1e-12, 1.0 - 1.0 / num_classes)
        share = np.log((posterior.sum(axis=0) + 1.0) / (len(nodes) + num_classes))
        logs = np.tile(share, (len(nodes), 1)) if log_prior is None else log_prior.copy()
        wrong = np.log(rates[who] / (num_classes - 1))
        np.add.at(logs, where, wrong[:, None])
        np.add.at(logs, (where, said), np.log1p(-rates[who]) - wrong)
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        if np.abs(posterior - before).max() < TOLERANCE:
            break
    doubt = 1.0 - posterior[where, said]
    return Agreement(
        nodes,
        posterior,
        dict(zip(map(str, names), rates.tolist())),
        dict(zip(map(str, names), counts.tolist())),
        float(doubt.mean()),
    )
