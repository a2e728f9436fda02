"""What may be claimed of label sets and intervals, and what stands against it.

Coverage needs labelled nodes that are exchangeable with the others: drawn at random. Whether they were, the caller says
(``Jury(chosen=...)``); what the data themselves say against it is looked for here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, exp, lgamma, log

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.objective import Objective

CHOSEN = ("random", "actively")

# Chance, under random drawing, of what counts as evidence against it.
UNLIKELY = 1e-4

PLAIN_JACKKNIFE = "The plain jackknife promises nothing: use interval='jackknife+' or 'minmax'."


@dataclass(frozen=True)
class Claim:
    """What is promised of label sets (or of a regression's intervals) at a level.

    Attributes:
        alpha: the level.
        coverage: the probability, at least, with which they hold the truth; None if nothing is promised.
        against: why nothing is promised, a sentence each; empty if something is.
    """

    alpha: float
    coverage: float | None
    against: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The claim in words."""
        if self.coverage is None:
            return "No coverage is promised. " + " ".join(self.against)
        return f"At least {self.coverage:.0%} hold the truth, about {1 - self.alpha:.0%} in practice."


def claim_at(alpha: float, num_jurors: int, doubts: tuple[str, ...]) -> Claim:
    """The claim at a level, with so many jurors and these doubts about the labels."""
    needed = ceil(1 / alpha) - 1
    against = doubts
    if num_jurors < needed:
        against = (
            *doubts,
            f"With {num_jurors} jurors nothing can be excluded at level {alpha:g}: that takes {needed} labels.",
        )
    if alpha >= 0.5:
        against = (*against, f"At level {alpha:g} the guarantee, 1 - 2 alpha, is empty.")
    return Claim(alpha, None if against else 1 - 2 * alpha, against)


def doubts_about(objective: Objective, *, chosen: str, as_printed: bool) -> tuple[str, ...]:
    """What stands against claims of coverage: labels that were not drawn at random, or jurors that are none."""
    return tuple(_doubts(objective.data, objective.train_nodes, objective.targets, chosen, as_printed))


def _doubts(data: Data, train_nodes: Tensor, targets: Tensor, chosen: str, as_printed: bool) -> Iterator[str]:
    if as_printed:
        yield "The jurors follow the paper's formulas as printed, which move towards the left-out label."
    if chosen == "actively":
        yield "The labels were chosen actively, not drawn at random."
        return  # what such labels look like says no more
    degree = torch.bincount(data.edge_index[1].cpu(), minlength=int(data.num_nodes)).numpy()
    chance = degree_chance(degree, train_nodes.numpy())
    if chance < UNLIKELY:
        ours, theirs = np.median(degree[train_nodes.numpy()]), np.median(degree)
        yield (
            f"The labelled nodes have other degrees than the graph (median {ours:g} against {theirs:g}; random drawing "
            f"does that with probability {chance:.0e}): they were not drawn at random."
        )
    if not targets.is_floating_point():
        counts = torch.bincount(targets.cpu())
        if balance_chance(counts) < UNLIKELY:
            yield (
                f"Every class has exactly {int(counts[0])} labels: they were drawn class by class, not at random from "
                "all nodes."
            )


def degree_chance(degree: NDArray[np.int64], nodes: NDArray[np.int64]) -> float:
    """How likely random nodes differ so much in degree from the others, by the rank-sum test of Mann and Whitney.

    Shapes: degree (N,), nodes (n,).
    """
    N, n = len(degree), len(nodes)
    ties = np.bincount(degree).astype(float)  # degrees are small numbers: counted, not sorted
    spread = n * (N - n) / 12 * (N + 1 - ((ties**3 - ties) / (N * (N - 1))).sum()) if n < N else 0.0
    if spread <= 0:
        return 1.0
    ranks = ties.cumsum() - (ties - 1) / 2  # of equal degrees, their mean
    off = abs(ranks[degree[nodes]].sum() - n * (N + 1) / 2) - 0.5  # corrected for continuity
    return float(2 * ndtr(-max(0.0, off) / np.sqrt(spread)))


def balance_chance(counts: Tensor) -> float:
    """How likely, at most, labels drawn at random fall into classes of exactly equal size; 1 if they are not equal.

    That is most likely when the classes are equally large: n! / (k!)^C C^-n.
    """
    k, C = int(counts[0]), len(counts)
    if k == 0 or bool((counts != k).any()):
        return 1.0
    return exp(lgamma(k * C + 1) - C * lgamma(k + 1) - k * C * log(C))
