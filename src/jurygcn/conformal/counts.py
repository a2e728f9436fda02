"""Running counts over batches of votes: everything a verdict needs, without storing the votes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import log

import torch
from torch import Tensor

from jurygcn.conformal.intervals import LowerTail, upper_error
from jurygcn.conformal.scores import SCORES, with_ties
from jurygcn.errors import SettingError

INTERVALS = ("jackknife+", "jackknife", "minmax", "full")

# The lower bound of a juror's probability of its own label, so that its logarithm is finite.
FLOOR = 1e-12
LOWEST = log(FLOOR)


@dataclass(frozen=True, eq=False)
class Own:
    """The jurors of a batch whose left-out node is queried: juror ``juror[k]`` left out node ``node[k]``."""

    juror: Tensor
    node: Tensor


class Interval:
    """Intervals of K quantities per node, one batch of jurors at a time, without keeping the batches.

    For classification K = 1 and the quantity is the output norm (the paper's Eq. 7); for regression the quantities
    are the outputs, with ``method`` "jackknife+", "jackknife" or "minmax".

    Deviates from the paper: the jackknife's residuals are the training nodes' own (erratum E5).

    Shapes: predictions (m, K, b), errors (b, K) -> lower (m, K), upper (m, K).
    """

    def __init__(self, method: str, alpha: float, num_jurors: int, *, exact: bool) -> None:
        if method not in INTERVALS:
            raise SettingError(f"expected interval to be one of {', '.join(INTERVALS)}, got {method!r}; choose one")
        # labelled nodes have jackknife+ intervals; full ones of the others replace them in `full_intervals`
        self.method, self.alpha = "jackknife+" if method == "full" else method, alpha
        self.errors: list[Tensor] = []
        self.low, self.high = (LowerTail(alpha, num_jurors, exact=exact) for _ in range(2))
        if method == "minmax":
            self.low.keep = self.high.keep = 1

    def add(self, predictions: Tensor, errors: Tensor, own: Own) -> None:
        """Add one batch; a juror does not vote on its own node (erratum E4)."""
        self.errors.append(errors)
        if self.method == "jackknife":
            return
        reach = errors.T if self.method == "jackknife+" else torch.zeros_like(errors.T)
        for tail, values in ((self.low, predictions - reach), (self.high, -predictions - reach)):
            values[own.node, :, own.juror] = torch.inf
            tail.add(values.flatten(0, 1))

    def merge(self, other: Interval) -> None:
        """Add the counts of the next chunk of jurors."""
        self.errors += other.errors
        self.low.merge(other.low)
        self.high.merge(other.high)

    def bounds(self, prediction: Tensor, voters: Tensor, own: Own) -> tuple[Tensor, Tensor]:
        """Lower and upper ends; ``own`` are the jurors whose left-out node is queried. Implements: Eq. (1), Eq. (7).

        Shapes: prediction (m, K) the full model's, voters (m,) -> (m, K), (m, K).
        """
        K = prediction.shape[1]
        if self.method == "jackknife+":
            counts = voters.repeat_interleave(K)
            return self.low.quantile(counts).view(-1, K), -self.high.quantile(counts).view(-1, K)
        half = torch.stack([self._half(error, len(prediction), own) for error in torch.cat(self.errors).T], dim=1)
        low = high = prediction
        if self.method == "minmax":
            assert self.low.smallest is not None
            assert self.high.smallest is not None
            voted = (voters > 0)[:, None]  # without votes on a node, half is infinite
            low = torch.where(voted, self.low.smallest.view(-1, K), prediction)
            high = torch.where(voted, -self.high.smallest.view(-1, K), prediction)
        return low - half, high + half

    def _half(self, errors: Tensor, m: int, own: Own) -> Tensor:
        half = upper_error(errors, alpha=self.alpha).repeat(m)
        for juror, node in zip(own.juror.tolist(), own.node.tolist()):
            others = torch.cat([errors[:juror], errors[juror + 1 :]])
            half[node] = upper_error(others, alpha=self.alpha)
        return half


class LabelCounts:
    r"""For every node and label, how many jurors give it at most the score of their own left-out label.

    .. math:: k(u, y) = \#\{i \ne u : s_{-i}(i, y_i) \ge s_{-i}(u, y)\}

    Shapes: counts (m, C); by_class (m, C) the jurors of the label's own class alone; by_group (m, C) those of the
    node's group alone, if there are groups; log_scores: one log-probability per juror of its own left-out label.
    """

    def __init__(self, score: str) -> None:
        self.score = score
        self.counts: Tensor | None = None
        self.by_class: Tensor | None = None
        self.by_group: Tensor | None = None
        self.log_scores: list[Tensor] = []

    def add_own(self, at_own: Tensor, labels: Tensor) -> None:
        """Store the log-probabilities of some jurors' own left-out labels: votes (b, C), labels (b,)."""
        self.log_scores.append(at_own.gather(1, labels[:, None]).clamp_min(FLOOR).log().squeeze(1))

    def add(self, probabilities: Tensor, at_own: Tensor, labels: Tensor, own: Own, same: Tensor | None = None) -> None:
        """Add votes (m, C, b), the jurors' votes on their own nodes (b, C) and those nodes' labels (b,).

        ``same`` says which jurors' nodes are in the group of which node, (m, b).
        """
        scores = SCORES[self.score]
        bound = with_ties(scores(at_own).gather(1, labels[:, None]).squeeze(1), self.score)  # (b,)
        # for LAC compare probabilities directly, which saves one pass over the votes
        if self.score == "lac":
            within = torch.ge(probabilities, -bound, out=torch.empty_like(probabilities))
        else:
            within = scores(probabilities).le_(bound)
        within[own.node, :, own.juror] = 0.0
        counts = within.sum(dim=2).int()  # floats are compared and added faster than booleans
        by_group = None if same is None else (within @ same.to(within).unsqueeze(2)).squeeze(2).int()
        classes = torch.arange(within.shape[1], device=labels.device)
        by_class = within.mul_(labels == classes[:, None]).sum(dim=2).int()  # in place: selecting jurors copies more
        self._include(counts, by_class, by_group)

    def _include(self, counts: Tensor, by_class: Tensor | None, by_group: Tensor | None) -> None:
        for name, part in (("counts", counts), ("by_class", by_class), ("by_group", by_group)):
            held = getattr(self, name)
            setattr(self, name, part if held is None or part is None else held + part)

    def merge(self, other: LabelCounts) -> None:
        """Add the counts of another chunk of jurors."""
        assert other.counts is not None
        self._include(other.counts, other.by_class, other.by_group)
        self.log_scores += other.log_scores

    @property
    def log_score(self) -> float:
        """Mean log-probability that jurors give their own left-out labels."""
        return float(torch.cat(self.log_scores).double().mean())


class Spread:
    """The variance of the jurors' votes, and how many predict another label than the model."""

    def __init__(self, prediction: Tensor) -> None:
        self.prediction = prediction  # (m, C), the full model's
        self.label = prediction.argmax(dim=-1)
        self.total = torch.zeros_like(prediction, dtype=torch.float64)
        self.square = torch.zeros(len(prediction), dtype=torch.float64, device=prediction.device)
        self.flips = torch.zeros(len(prediction), dtype=torch.int64, device=prediction.device)

    def add(self, predictions: Tensor, own: Own) -> None:
        """Add votes (m, C, b)."""
        shift = predictions - self.prediction.unsqueeze(2)  # deviations from the model's own output keep sums small
        shift[own.node, :, own.juror] = 0.0
        rows = torch.arange(len(self.label), device=self.label.device) * predictions.shape[1] + self.label
        highest = reduce(torch.maximum, predictions.unbind(1))
        changed = torch.gt(highest, predictions.flatten(0, 1).index_select(0, rows), out=torch.empty_like(highest))
        changed[own.node, own.juror] = 0.0
        self.total += shift.sum(dim=2)
        self.square += shift.square_().sum(dim=(1, 2))
        self.flips += changed.sum(dim=1).long()

    def merge(self, other: Spread) -> None:
        """Add the counts of another chunk of jurors."""
        self.total += other.total
        self.square += other.square
        self.flips += other.flips

    def variance(self, counts: Tensor) -> Tensor:
        r"""Jackknife variance :math:`\frac{n'-1}{n'} \sum_i \|f_{-i}(u) - \bar f(u)\|^2`, (m,)."""
        n = counts.clamp_min(1).double()
        centred = self.square - (self.total**2).sum(dim=1) / n
        return (n - 1) / n * centred.clamp_min(0.0)


@dataclass(frozen=True, eq=False)
class Counts:
    """All counts of one chunk of jurors; ``labels`` has one entry per number of averages over neighbourhoods."""

    bounds: Interval
    labels: dict[int, LabelCounts]
    spread: Spread

    @property
    def jurors(self) -> int:
        """The number of jurors counted so far."""
        return sum(map(len, self.bounds.errors))

    @property
    def best_average(self) -> int:
        """The number of averages with which jurors predict their own left-out labels best, by mean log-probability."""
        return max(self.labels, key=lambda k: self.labels[k].log_score)

    def merge(self, other: Counts) -> Counts:
        """These counts with those of the next chunk of jurors."""
        self.bounds.merge(other.bounds)
        self.spread.merge(other.spread)
        for k, counts in self.labels.items():
            counts.merge(other.labels[k])
        return self
