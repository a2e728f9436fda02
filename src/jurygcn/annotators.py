r"""Several answers for a node: what each annotator gets wrong, and which class the answers speak for.

The model of Dawid and Skene with one number for each annotator. Annotator a is wrong with probability :math:`e_a`, and
then says any other class with the same probability:

.. math::
    P(y_i = c \mid \text{answers}) \propto \pi_i(c) \prod_{(a, l) \text{ at } i}
    \begin{cases} 1 - e_a & l = c \\ e_a / (C - 1) & l \ne c \end{cases}

Expectation maximisation alternates this posterior with the error rates

.. math:: e_a = \frac{\sum_{(i, l) \text{ of } a} (1 - P(y_i = l))}{n_a + b}

for :math:`n_a` answers. b = 3 is a weak prior, Beta(1, 4): an annotator with few answers is taken to be right.

**Whose error rate can be known.** With equally probable classes, two annotators agree with probability
:math:`1/C + (1 - 1/C)\,r_a r_b`, where :math:`r = 1 - e\,C/(C - 1)`. Pairs of answers only tell the product: if anna
and ben disagree, either may be the careless one, and a maximum of the likelihood picks one of them by chance. Where a
third answers the same nodes, three products give the three rates. So without a given :math:`\pi_i` an annotator has an
error rate of their own only after answering THREE_ANSWERED nodes together with two or more others. All others count as
average annotators: they have the error rate of all answers together. The rule asks for more than is needed (a triangle
of pairs, or repeated answers, also tell the rates), which costs ties, not wrong labels.

**The prior of the classes.** :math:`\pi_i` may be given for each node. It is a further opinion on the node, and then
everybody has their own rate. Otherwise it is estimated, one for all nodes with an answer of somebody with their own
rate. Where all who answered are average, the classes are equally probable: the most frequent answer decides, one
against one is a tie, and no answer loses because its class is rare. How often people agree does not depend on how
frequent the classes are, because wrong answers are spread evenly. So the common rate needs no frequencies.

Without a given :math:`\pi_i`, a node with one answer is left out of the sums, because it says nothing of errors.
Several answers of an annotator for a node count as independent answers, but as one annotator.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jurygcn.errors import DataError

Array = NDArray[Any]

PRIOR_ANSWERS = 3.0  # b: so many right answers are added to those of each annotator
THREE_ANSWERED = 20  # nodes with answers of two others, after which an annotator has an error rate of their own
MOST_ITERATIONS, TOLERANCE = 1000, 1e-10
TIE = 1e-6  # difference of probabilities below which two classes are tied
MOST_NAMED = 10  # undecided nodes that are listed in words


@dataclass(frozen=True, eq=False)
class Agreement:
    """What is estimated from the answers.

    Attributes:
        error_rates: of each annotator, by name; the same number for all who have no error rate of their own.
        counts: the number of answers of each annotator.
        error_rate: of all answers together: the mean probability that an answer is wrong.
        compared: the number of answers of each annotator that say something of error rates.
        own: the annotators with an error rate of their own.

    Shapes: nodes (n,) sorted, posterior (n, C): the distribution of the class of each node.
    """

    nodes: Array = field(repr=False)
    posterior: Array = field(repr=False)
    error_rates: dict[str, float]
    counts: dict[str, int]
    error_rate: float
    compared: dict[str, int]
    own: frozenset[str]

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
        """The error rates, and which nodes are undecided."""
        return " ".join(filter(None, [self._errors(), self._undecided()]))

    def _errors(self) -> str:
        total = sum(self.compared.values())
        if not total:
            return "No node has several answers, so nothing tells how many are wrong."
        each = [f"{name} {_about(self.error_rates[name], self.compared[name])}" for name in sorted(self.own)]
        average = sorted(self.error_rates.keys() - self.own)
        if average:
            common = _about(self.error_rates[average[0]], total)
            each.append(f"all together {common}" if len(self.error_rates) > 1 else f"{average[0]} {common}")
        found = f"Estimated share of wrong answers: {', '.join(each)}."
        if len(self.error_rates) == 1 or not average:
            return found
        who = f"{_listed(average)} count{'s' if len(average) == 1 else ''} as average"
        return f"{found} {who}: a rate of one's own needs {THREE_ANSWERED} nodes with answers of two others."

    def _undecided(self) -> str:
        count = len(self.ties)
        if not count:
            return ""
        nodes = "1 node is" if count == 1 else f"{count} nodes are"
        return (
            f"{nodes} undecided and get{'s' if count == 1 else ''} no label: {_listed(self.ties)}. "
            "Ask again, best a third person."
        )


def _listed(things: Sequence[object]) -> str:
    more = len(things) - MOST_NAMED
    return ", ".join(map(str, things[:MOST_NAMED])) + (f" and {more} more" if more > 0 else "")


def _about(rate: float, answers: int) -> str:
    """The posterior mean under Beta(1, PRIOR_ANSWERS + 1), which few answers do not make 0."""
    mean = (1.0 + rate * (answers + PRIOR_ANSWERS)) / (answers + PRIOR_ANSWERS + 2.0)
    return f"{'under 1%' if mean < 0.01 else f'about {mean:.0%}'} of {answers}"


def agreement(
    answers: Iterable[tuple[int, str, int]], num_classes: int, *, prior: dict[int, Array] | None = None
) -> Agreement:
    """Estimate the class of each node and the error rate of each annotator.

    Args:
        answers: tuples of a node, the name of the annotator and the class. An annotator may answer for a node several
            times, if the answers are independent.
        num_classes: C, at least 2.
        prior: the distribution of the class of each node before its answers, for example what jurors without this node
            predict, (C,) each; by default it is estimated, and an annotator has an error rate of their own only
            after answering enough nodes together with two others (see the module).
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
    if prior is None:
        known, compared = _in_threes(where, who), np.bincount(where)[where] > 1
    else:
        known, compared = np.ones(len(names), dtype=bool), np.ones(len(said), dtype=bool)
    weighed = np.bincount(where, known[who]) > 0
    useful = np.bincount(who[compared], minlength=len(names))
    votes = np.zeros((len(nodes), num_classes))
    np.add.at(votes, (where, said), 1.0)
    posterior = votes / votes.sum(axis=1, keepdims=True)
    if log_prior is not None:  # a vote of the prior, which may disagree
        posterior = (votes + np.exp(log_prior)) / (votes.sum(axis=1, keepdims=True) + 1.0)
    for _ in range(MOST_ITERATIONS):
        before = posterior
        wrongs = np.bincount(who, (1.0 - posterior[where, said]) * compared, len(names))
        common = wrongs.sum() / (useful.sum() + PRIOR_ANSWERS)
        rates = np.where(known, wrongs / (useful + PRIOR_ANSWERS), common)
        rates = np.clip(rates, 1e-12, 1.0 - 1.0 / num_classes)
        share = np.log((posterior[weighed].sum(axis=0) + 1.0) / (weighed.sum() + num_classes))
        logs = np.outer(weighed, share) if log_prior is None else log_prior.copy()
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
        dict(zip(map(str, names), useful.tolist())),
        frozenset(map(str, names[known])),
    )


def _in_threes(where: Array, who: Array) -> Array:
    """Which annotators answered THREE_ANSWERED nodes together with two or more others."""
    pairs = np.unique(np.stack([where, who]), axis=1)  # an annotator counts once for a node
    shared = np.bincount(pairs[0])[pairs[0]] >= 3
    return np.asarray(np.bincount(pairs[1], shared, int(who.max()) + 1) >= THREE_ANSWERED)
