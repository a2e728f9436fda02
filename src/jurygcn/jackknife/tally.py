"""Running counts over a stream of ballots: everything a verdict needs, without keeping a ballot."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.errors import SettingError
from jurygcn.jackknife.intervals import LowerTail


def lac_scores(probabilities: Tensor) -> Tensor:
    r"""Least-ambiguous-classifier score :math:`s = 1 - \pi_y`, (..., C)."""
    return 1.0 - probabilities


def aps_scores(probabilities: Tensor) -> Tensor:
    r"""Adaptive-prediction-set score: the mass of all classes at least as probable, y included, (..., C).

    Deterministic (the conservative form): ties count in full.
    """
    ordered, order = probabilities.sort(dim=-1, descending=True)
    mass = ordered.cumsum(dim=-1)
    for c in range(mass.shape[-1] - 2, -1, -1):  # equal probabilities share the mass of the last of them
        tied = ordered[..., c] == ordered[..., c + 1]
        mass[..., c] = torch.where(tied, mass[..., c + 1], mass[..., c])
    return torch.empty_like(mass).scatter_(-1, order, mass)


SCORES = {"lac": lac_scores, "aps": aps_scores}


def score_named(name: str) -> str:
    """The name itself, if it is a known score."""
    if name not in SCORES:
        raise SettingError(f"Unknown score {name!r}: choose one of {', '.join(SCORES)}.")
    return name


@dataclass(frozen=True, eq=False)
class Own:
    """Where a batch's jurors stand among the asked nodes: juror ``juror[k]`` of the batch is node ``node[k]``."""

    juror: Tensor
    node: Tensor


class Interval:
    """The paper's interval (Eqs. 7-8), or jackknife+ on a scalar output, one batch of jurors at a time."""

    def __init__(self, alpha: float, num_jurors: int, *, exact: bool) -> None:
        self.below, self.above = (LowerTail(alpha, num_jurors, exact=exact) for _ in range(2))

    def add(self, sizes: Tensor, errors: Tensor, own: Own) -> None:
        """Take in ‖f₋ᵢ(u)‖ (b, m) and errᵢ (b,); a juror says nothing about itself (erratum E4)."""
        lower, upper = sizes - errors[:, None], -sizes - errors[:, None]
        lower[own.juror, own.node] = torch.inf
        upper[own.juror, own.node] = torch.inf
        self.below.add(lower)
        self.above.add(upper)

    def bounds(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper end for each node, (m,), (m,). Implements: Eq. (7)."""
        return self.below.quantile(counts), -self.above.quantile(counts)


class LabelCounts:
    r"""For every node and label, how many jurors find it no stranger than their own left-out label.

    .. math:: k(u, y) = \#\{i \ne u : s_{-i}(i, y_i) \ge s_{-i}(u, y)\}

    Shapes: counts (m, C); log_scores: one log-probability per juror of its own left-out label.
    """

    def __init__(self, score: str) -> None:
        self.score = SCORES[score]
        self.counts: Tensor | None = None
        self.log_scores: list[Tensor] = []

    def add(self, probabilities: Tensor, at_own: Tensor, labels: Tensor, own: Own) -> None:
        """Take in votes (b, m, C), the jurors' votes on their own nodes (b, C) and those nodes' labels (b,)."""
        scores = self.score(probabilities)
        self_score = self.score(at_own).gather(1, labels[:, None])  # (b, 1)
        within = scores <= self_score[:, :, None]
        within[own.juror, own.node] = False
        counts = within.sum(dim=0, dtype=torch.int32)
        self.counts = counts if self.counts is None else self.counts + counts
        self.log_scores.append(at_own.gather(1, labels[:, None]).clamp_min(1e-12).log().squeeze(1))

    @property
    def log_score(self) -> float:
        """Mean log-probability that jurors give their own left-out labels."""
        return float(torch.cat(self.log_scores).double().mean())


class Spread:
    """How much jurors disagree with each other and with the model: variance and changed labels."""

    def __init__(self, prediction: Tensor) -> None:
        self.prediction = prediction  # (m, C), the full model's
        self.label = prediction.argmax(dim=-1)
        self.total = torch.zeros_like(prediction, dtype=torch.float64)
        self.square = torch.zeros(len(prediction), dtype=torch.float64, device=prediction.device)
        self.flips = torch.zeros(len(prediction), dtype=torch.int64, device=prediction.device)

    def add(self, predictions: Tensor, own: Own) -> None:
        """Take in votes (b, m, C)."""
        shift = predictions - self.prediction  # deviations from the model's own output keep the sums small
        shift[own.juror, own.node] = 0.0
        changed = predictions.argmax(dim=-1) != self.label
        changed[own.juror, own.node] = False
        self.total += shift.sum(dim=0)
        self.square += (shift * shift).sum(dim=(0, 2))
        self.flips += changed.sum(dim=0)

    def variance(self, counts: Tensor) -> Tensor:
        r"""Jackknife variance :math:`\frac{n'-1}{n'} \sum_i \|f_{-i}(u) - \bar f(u)\|^2`, (m,)."""
        n = counts.clamp_min(1).double()
        centred = self.square - (self.total**2).sum(dim=1) / n
        return (n - 1) / n * centred.clamp_min(0.0)
