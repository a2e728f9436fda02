r"""How good the model is, without a validation set.

Juror i is the model without label i, so its prediction at node i is one draw of what the model does at a node that it
has not learned. With labels drawn at random, the mean over all labels estimates the accuracy of a model with n - 1
labels. The estimate has no bias if jurors are retrained: a label that was left out is a random node. Its error is that
of n labels,

.. math:: \sqrt{a (1 - a) / n}

"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from jurygcn.checks import in_short
from jurygcn.diagnostics.left_out import LeftOut, class_names_of
from jurygcn.errors import SettingError
from jurygcn.losses import FLOOR

if TYPE_CHECKING:
    from jurygcn.jury import Jury

RESAMPLED = 2_000  # draws of the bootstrap


@dataclass(frozen=True, eq=False)
class ExpectedAccuracy:
    """What the model is expected to do at nodes like the labelled ones, from labels that were left out.

    Attributes:
        of: "model", or "jury" for the stacked jury.
        accuracy: the share of labels that are predicted right by the juror that did not see them.
        interval: Wilson's interval of the accuracy at ``level``, for n labels.
        log_loss, log_loss_interval: the mean negative log-probability of left-out labels, and its bootstrap interval.
        brier: the mean squared distance between probabilities and left-out labels, from 0 to 2.
        n: the number of left-out labels.
        level: the confidence level of the intervals.
        confusion: how many labels of each class (rows) were predicted as each class (columns).
        per_class: a row per class: its labels, how many were predicted right, the recall with its interval, and the
            precision.
        notes: what stands against the estimate, or what it is an average over; one sentence each.
        promised: whether nothing stands against it.
    """

    of: str
    accuracy: float
    interval: tuple[float, float]
    log_loss: float
    log_loss_interval: tuple[float, float]
    brier: float
    n: int
    level: float
    confusion: pd.DataFrame = field(repr=False)
    per_class: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()
    promised: bool = True

    @property
    def words(self) -> str:
        """The estimate in sentences."""
        low, high = self.interval
        who = "the model" if self.of == "model" else "the stacked jury"
        said = (
            f"{who} is expected to predict {self.accuracy:.0%} of nodes like the labelled ones right ({self.level:.0%} "
            f"interval {low:.0%} to {high:.0%}, from {self.n:,} left-out labels)."
        )
        return " ".join((said[0].upper() + said[1:], *self.notes))


def expected_accuracy_of(jury: Jury, *, of: str = "model", level: float = 0.95) -> ExpectedAccuracy:
    """The estimate for the model, or for the stacked jury."""
    if not (isinstance(level, float) and 0.0 < level < 1.0):
        raise SettingError(f"expected level between 0 and 1, got {in_short(level)}; change it")
    found = jury.left_out(of)
    over, against, notes = jury.label_origin
    if over == "classes":
        notes = (*notes, "Leaving a label out makes its class rarer, so the estimate tends to be too low.")
    if against:
        notes = (*against, "The estimate says nothing about other nodes.", *notes)
    return summarised(found, of=of, level=level, names=class_names_of(jury), notes=notes, promised=not against)


def summarised(
    found: LeftOut, *, of: str, level: float, names: list[str], notes: tuple[str, ...] = (), promised: bool = True
) -> ExpectedAccuracy:
    """All numbers from the predictions of left-out labels."""
    labels, n = found.labels, len(found.labels)
    C = found.probabilities.shape[1]
    predicted = found.probabilities.argmax(dim=1)
    confusion = torch.bincount(labels * C + predicted, minlength=C * C).view(C, C)
    right, given, said = confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)
    losses = -found.own.clamp_min(FLOOR).log()
    truth = torch.nn.functional.one_hot(labels, C).to(found.probabilities)
    recalls = [wilson(int(k), int(m), level=level) for k, m in zip(right, given)]
    per_class = pd.DataFrame(
        {
            "class": names,
            "labels": given.tolist(),
            "right": right.tolist(),
            "recall": (right / given).tolist(),
            "lower": [low for low, _ in recalls],
            "upper": [high for _, high in recalls],
            "precision": (right / said).tolist(),
        }
    )
    return ExpectedAccuracy(
        of=of,
        accuracy=float(right.sum()) / n,
        interval=wilson(int(right.sum()), n, level=level),
        log_loss=float(losses.mean()),
        log_loss_interval=bootstrap_mean(losses.numpy(), level=level),
        brier=float((found.probabilities - truth).square().sum(dim=1).mean()),
        n=n,
        level=level,
        confusion=pd.DataFrame(confusion.numpy(), index=names, columns=names),
        per_class=per_class,
        notes=notes,
        promised=promised,
    )


def wilson(right: int, n: int, *, level: float) -> tuple[float, float]:
    """Wilson's interval of a share; 0 to 1 for no labels."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap_mean(values: np.ndarray, *, level: float) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean; always the same for the same values."""
    drawn = np.random.default_rng(0).integers(len(values), size=(RESAMPLED, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
