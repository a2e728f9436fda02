"""The coverage that label sets and intervals claim, and the reasons.

A theorem guarantees coverage under three conditions: the jurors are retrained from scratch by a method that treats all
labels equally, all settings were fixed beforehand, and the labelled nodes were drawn at random. Estimated jurors aim at
the same coverage, without a proof. docs/claims.md has the table of all cases; tests/trust/test_claims.py has a test for
each row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, exp, floor, lgamma, log

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from jurygcn.data.heterogeneous import all_edges
from jurygcn.engine import Engine

# Degrees that random drawing gives with a smaller probability count as not drawn at random.
UNLIKELY = 1e-4

# Equal class counts that random drawing gives with a smaller probability count as drawn class by class.
EQUAL_BY_CHANCE = 0.05


@dataclass(frozen=True)
class Claim:
    """The claimed coverage of label sets, or of a regression's intervals, at a level.

    Attributes:
        alpha: the level.
        kind: "promise" (a theorem applies), "target" (no theorem applies) or "none".
        coverage: a lower bound of the probability that the truth is inside (promise), or the probability that the
            method aims at (target); None if nothing is claimed.
        over: what coverage is averaged over: "nodes", "classes" where labels were drawn class by class, or "each
            class" or "each group" where it is claimed for each of them.
        reasons: why nothing is claimed, or why a target is not a promise; one sentence each.
        remarks: what else is to be known of the sets, whatever is claimed; one sentence each.
        full: whether the theorem is that of full conformal prediction.
    """

    alpha: float
    kind: str
    coverage: float | None
    over: str = "nodes"
    reasons: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    full: bool = False

    @property
    def words(self) -> str:
        """The claim as sentences."""
        average = ", on average over classes" if self.over == "classes" else f", in {self.over}" * ("each" in self.over)
        said = f"The target is that {percent(self.coverage or 0)} contain the truth{average}. This is not proven."
        if self.coverage is None:
            said = "No coverage is claimed."
        elif self.kind == "promise":
            by = "by full conformal prediction" if self.full else "by the jackknife+ theorem"
            said = f"At least {percent(self.coverage)} contain the truth{average}, {by}."
        return " ".join((said, *self.reasons, *self.remarks))

    @property
    def brief(self) -> str:
        """The claim in a few words, without reasons."""
        if self.coverage is None:
            return "nothing is claimed"
        return f"{'at least' if self.kind == 'promise' else 'target:'} {percent(self.coverage)}"


def percent(coverage: float) -> str:
    """A coverage as text, rounded down to tenths of a percent: a claim must not say more than the theorem."""
    return f"{floor(1000 * coverage + 1e-6) / 10:g}%"


@dataclass(frozen=True)
class Agreement:
    """How estimated jurors compare with retrained ones: correlation, and both mean leave-one-out errors."""

    correlation: float
    estimated: float
    retrained: float
    trusted: bool

    @property
    def words(self) -> str:
        """The comparison in one sentence."""
        return (
            f"Estimated jurors correlate {self.correlation:.3f} with retrained ones; the mean leave-one-out error is "
            f"{self.estimated:.3f}, retrained {self.retrained:.3f}."
        )


@dataclass(frozen=True)
class Grounds:
    """The conditions that determine the claim of a verdict.

    Attributes:
        leave_out: how jurors were computed, "retrain", "newton", "influence" or "printed".
        symmetric: whether retrained jurors start from scratch and leave out the loss alone.
        votes: "exact" or "linearized".
        diffusion_chosen: whether the number of averages was chosen with the same labels.
        advised: whether jurors took advice, with weights that the same labels chose.
        panel_alone: whether the panel votes without the model, with fixed weights: its leave-one-out is exact.
        landmarks: whether the panel is spanned by some of the labelled nodes, because there are many.
        full: whether sets or intervals are full conformal ones.
        by: "class" or "group" if labels are compared within it, else None.
        too_few: the share of comparisons within a class or group that has too few labels to exclude any.
        interval: "jackknife+", "jackknife" or "minmax"; not used for classification.
        classify: whether the claim is about label sets.
        exact_ranks: whether interval ends are exact order statistics; not used for label sets.
        dropout: the largest dropout probability of the model's modules.
        random_in_training: whether the model has dropout in any form.
        dropout_masks: the draws of dropout that derivatives are averages over; 0 for derivatives in eval mode.
        batch_norm: whether the model normalises by the statistics of a batch, which couples nodes in training.
        effective: whether the weight decay is the effective one, which accounts for dropout and early stopping.
        decayed: whether any parameter has weight decay.
        grown: whether the verdict is on a graph that grew after training.
        over: "nodes", or "classes" for labels drawn class by class.
        against: reasons why the labels were not drawn at random; one sentence each.
        notes: notes on labels drawn class by class.
        agreement: the comparison with retrained jurors, if there was one.
        remarks: what else is to be known of the sets; it changes no claim.
    """

    leave_out: str = "newton"
    symmetric: bool = True
    votes: str = "exact"
    diffusion_chosen: bool = False
    advised: bool = False
    panel_alone: bool = False
    landmarks: bool = False
    full: bool = False
    by: str | None = None
    too_few: float = 0.0
    interval: str = "jackknife+"
    classify: bool = True
    exact_ranks: bool = True
    dropout: float = 0.0
    random_in_training: bool = False
    dropout_masks: int = 0
    batch_norm: bool = False
    effective: bool = False
    decayed: bool = True
    grown: bool = False
    over: str = "nodes"
    against: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    agreement: Agreement | None = None
    remarks: tuple[str, ...] = ()

    def claim(self, alpha: float, num_jurors: int) -> Claim:
        """The strongest valid claim at this level, with this many jurors."""
        over = self.over if self.by is None else f"each {self.by}"
        notes = () if self.by == "class" else self.notes  # within a class, labels drawn class by class are random
        remarks = (*self._few(alpha), *self.remarks)
        against = (*self._against(alpha, num_jurors), *self.against)
        if against:
            return Claim(alpha, "none", None, over, against, remarks)
        unproven = (*self._unproven(), *notes)
        if unproven:
            return Claim(alpha, "target", 1 - alpha, over, unproven, remarks)
        whole = self.full or (self.interval == "minmax" and not self.classify)
        return Claim(alpha, "promise", 1 - alpha if whole else 1 - 2 * alpha, over, remarks=remarks, full=self.full)

    def _few(self, alpha: float) -> Iterator[str]:
        """What sets say where a class or group has too few labels."""
        if self.by is not None and self.too_few > 0:
            then = "the class is in every set" if self.by == "class" else "sets have all labels"
            yield (
                f"At level {alpha:g} comparisons within a {self.by} need {ceil(1 / alpha) - 1} labels of it. "
                f"{self.too_few:.0%} of the comparisons have fewer: there {then}."
            )

    def _against(self, alpha: float, num_jurors: int) -> Iterator[str]:
        """Reasons why nothing may be claimed."""
        if not self.classify and self.interval == "jackknife":
            yield "The plain jackknife has no guarantee: use interval='jackknife+' or 'minmax'."
        if not self.panel_alone:
            yield from self._against_jurors()
        needed = ceil(1 / alpha) - 1
        if num_jurors < needed:
            yield f"With {num_jurors} jurors no label can be excluded at level {alpha:g}; that needs {needed} jurors."
        if alpha >= 0.5 and not self.full:
            yield f"At level {alpha:g} the guarantee 1 - 2 alpha is not positive."

    def _against_jurors(self) -> Iterator[str]:
        """Reasons why nothing may be claimed of votes of the model's jurors."""
        if self.leave_out == "printed":
            yield "The jurors follow the paper's formulas as printed, which move towards the left-out label."
        elif self.leave_out == "influence":
            yield "Influence jurors move too little, so their coverage is too low: use leave_out='newton'."
        if self.agreement is not None:
            if not self.agreement.trusted:
                yield (
                    f"{self.agreement.words} They differ too much: train the model longer, or use leave_out='retrain'."
                )
            return
        if self.leave_out == "retrain":
            return
        if self.batch_norm:
            yield (
                "The model has batch normalisation. Estimated jurors of such models often differ from retrained ones: "
                "compare them with jury.fidelity(), or use leave_out='retrain'."
            )
        if not self.decayed:
            yield (
                "The model has no weight decay, so its jurors rest on an estimated one: compare them with retrained "
                "ones by jury.fidelity()."
            )

    def _unproven(self) -> Iterator[str]:
        """Reasons why a target is not a promise."""
        if self.grown:
            yield (
                "The graph grew after training. New nodes must be like the labelled ones, in features, labels and "
                "edges. The model saw the surroundings of labelled nodes in training, but not theirs."
            )
        if self.panel_alone:
            if self.landmarks:
                yield "The panel is spanned by some of the labelled nodes, which it does not treat like the others."
            if not self.classify and not self.exact_ranks:
                yield "The ends are interpolated: use exact_ranks=True."
            return
        if self.full:
            yield "Jurors that learn the added label are estimated, not retrained."
        if self.leave_out == "retrain":
            if not self.symmetric:
                yield "The jurors did not start from scratch or left out more than a loss: the theorem does not apply."
        elif self.agreement is None:
            yield "The jurors are estimated and were not compared with retrained ones; use jury.fidelity()."
        else:
            yield f"The jurors are estimated. {self.agreement.words}"
        if self.leave_out != "retrain" and self.agreement is None:
            yield from self._about_dropout()
        if self.votes == "linearized":
            yield "The votes are first-order approximations."
        if self.classify and self.diffusion_chosen:
            yield "The number of averages was chosen with the same labels: fix it with diffusion=0, 1 or 2."
        if self.advised:
            yield "The weights of the advice were chosen with the same labels: leave it out with advice=None."
        if not self.classify and not self.exact_ranks:
            yield "The ends are interpolated: use exact_ranks=True."

    def _about_dropout(self) -> Iterator[str]:
        if self.dropout_masks:
            yield f"Gradients and curvature are averages over {self.dropout_masks} draws of the model's dropout."
        elif self.random_in_training and not self.effective:
            rate = f" ({self.dropout:g})" if self.dropout > 0 else ""
            yield (
                f"The model has dropout{rate}, which is off here. If it was on in training, jurors move "
                "too little and the coverage may be lower."
            )


def origin_of_labels(engine: Engine, chosen: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """What coverage is averaged over, reasons against any claim, and notes, from how the labels were chosen."""
    if chosen == "actively":
        return "nodes", ("The labels were chosen actively, not drawn at random.",), ()
    against = tuple(_other_degrees(engine))
    counts = torch.empty(0) if engine.targets.is_floating_point() else torch.bincount(engine.targets.cpu())
    equal = len(counts) > 1 and balance_chance(counts) < EQUAL_BY_CHANCE
    if chosen == "per class" or equal:
        how = (
            "The labels were drawn class by class"
            if chosen == "per class"
            else f"Every class has exactly {int(counts[0])} labels, as if drawn class by class"
        )
        return "classes", against, (f"{how}: all classes have the same weight, whatever their size in the graph.",)
    return "nodes", against, ()


def _other_degrees(engine: Engine) -> Iterator[str]:
    nodes = engine.train_nodes.numpy()
    pairs, everyone = all_edges(engine.data)
    degree = torch.bincount(pairs[1].cpu().long(), minlength=everyone)[: int(engine.data.num_nodes)].numpy()
    chance = degree_chance(degree, nodes)
    if chance < UNLIKELY:
        ours, theirs = np.median(degree[nodes]), np.median(degree)
        yield (
            f"The labelled nodes have other degrees than the graph (median {ours:g} against {theirs:g}; under random "
            f"drawing the probability is {chance:.0e}), so they were not drawn at random."
        )


def degree_chance(degree: NDArray[np.int64], nodes: NDArray[np.int64]) -> float:
    """The probability that random nodes differ this much in degree from the others, by the Mann-Whitney test.

    Shapes: degree (N,), nodes (n,).
    """
    N, n = len(degree), len(nodes)
    ties = np.bincount(degree).astype(float)  # counting is faster than sorting, because degrees are small
    spread = n * (N - n) / 12 * (N + 1 - ((ties**3 - ties) / (N * (N - 1))).sum()) if n < N else 0.0
    if spread <= 0:
        return 1.0
    ranks = ties.cumsum() - (ties - 1) / 2  # the mean rank of equal degrees
    off = abs(ranks[degree[nodes]].sum() - n * (N + 1) / 2) - 0.5  # corrected for continuity
    return float(2 * ndtr(-max(0.0, off) / np.sqrt(spread)))


def balance_chance(counts: Tensor) -> float:
    """Upper bound of the probability that random labels have exactly equal class counts; 1 if they are not equal.

    The bound is the probability for equally large classes, n! / (k!)^C C^-n.
    """
    k, C = int(counts[0]), len(counts)
    if k == 0 or bool((counts != k).any()):
        return 1.0
    return exp(lgamma(k * C + 1) - C * lgamma(k + 1) - k * C * log(C))
