"""A query of a verdict: its settings, its nodes and its jurors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from jurygcn.conformal.counts import Counts, Interval, LabelCounts, Own, Spread
from jurygcn.conformal.intervals import check_alpha, loo_errors
from jurygcn.conformal.scores import check_score
from jurygcn.engine import Engine
from jurygcn.graph.propagation import is_everything


@dataclass(frozen=True)
class Question:
    """How votes are counted; see :meth:`jurygcn.Jury.verdict` for the meaning of each field."""

    alpha: float
    exact_ranks: bool
    interval: str
    nonconformity: str
    diffusion: int | str


class Asked:
    """The queried nodes, the jurors that vote on them, and the settings of the verdict.

    Juror k left out the training node at position ``positions[k]``.

    Shapes: m queried nodes, n jurors; nodes (m,), positions (n,); groups (N,), a number for every node of the graph.
    """

    def __init__(
        self, engine: Engine, positions: Tensor, nodes: Tensor, question: Question, groups: Tensor | None = None
    ) -> None:
        check_alpha(question.alpha)
        check_score(question.nonconformity)
        self.engine, self.positions, self.nodes, self.question = engine, positions, nodes, question
        self.num_jurors, self.groups = len(positions), groups
        self.own_nodes, self.own_targets = engine.train_nodes[positions], engine.targets[positions]
        self.classify = engine.loss.name == "cross_entropy"
        self.everything = is_everything(nodes, int(engine.data.num_nodes))
        self._sorted, self._order = (nodes, nodes) if self.everything else nodes.sort()

    def own(self, jurors: Tensor) -> Own:
        """The jurors whose left-out node is queried, and the positions of these nodes."""
        mine = self.own_nodes[jurors]
        found = torch.searchsorted(self._sorted, mine).clamp_max(len(self.nodes) - 1)
        node = self._order[found]
        hit = self.nodes[node] == mine
        return Own(hit.nonzero().squeeze(1), node[hit])

    def voters(self) -> Tensor:
        """The number of jurors that vote on each node, (m,): all, except the juror that left the node out."""
        own = self.own(torch.arange(self.num_jurors))
        return self.num_jurors - torch.zeros(len(self.nodes), dtype=torch.long).index_fill_(0, own.node, 1)

    def same_group(self, jurors: Tensor) -> Tensor | None:
        """Which of some jurors' nodes are in the group of which node, (m, b); None without groups."""
        if self.groups is None:
            return None
        return self.groups[self.nodes][:, None] == self.groups[self.own_nodes[jurors]][None, :]

    def class_voters(self) -> Tensor:
        """The number of jurors of each class that vote on each node, (m, C)."""
        labels, own = self.own_targets, self.own(torch.arange(self.num_jurors))
        sizes = torch.bincount(labels, minlength=self.engine.num_outputs).repeat(len(self.nodes), 1)
        sizes[own.node, labels[own.juror]] -= 1
        return sizes

    def group_voters(self) -> Tensor:
        """The number of jurors of a node's own group that vote on it, (m, 1); with groups alone."""
        assert self.groups is not None
        own = self.own(torch.arange(self.num_jurors))
        sizes = torch.bincount(self.groups[self.own_nodes], minlength=int(self.groups.max()) + 1)
        voters = sizes[self.groups[self.nodes]]
        voters[own.node] -= 1
        return voters[:, None]

    def empty_counts(self, outputs: Tensor, averages: tuple[int, ...]) -> Counts:
        """The counts before any vote; ``outputs`` (m, C) are the trained model's."""
        ask = self.question
        bounds = Interval(ask.interval, ask.alpha, self.num_jurors, exact=ask.exact_ranks)
        labels = {k: LabelCounts(ask.nonconformity) for k in averages} if self.classify else {}
        return Counts(bounds, labels, Spread(outputs))

    def quantity(self, predictions: Tensor) -> Tensor:
        """The quantity of the interval: the norm of the class probabilities, or the outputs, (m, C, *) -> (m, K, *)."""
        if not self.classify:
            return predictions
        first, *others = predictions.unbind(1)
        return reduce(lambda total, p: total.addcmul_(p, p), others, first.square()).sqrt_().unsqueeze(1)


def errors_of(at_own: Tensor, targets: Tensor) -> Tensor:
    """Leave-one-out errors of some jurors from their predictions at their own nodes, (b, C) -> (b, K).

    Implements: Eq. (6); for regression the absolute error of each output.
    """
    if targets.is_floating_point():
        return (targets.to(at_own.dtype) - at_own).abs()
    return loo_errors(functional.one_hot(targets, at_own.shape[1]).to(at_own.dtype), at_own)[:, None]
