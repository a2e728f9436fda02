r"""How good the model is, without a validation set.

Juror i is the model without label i, so its prediction at node i is one draw of what the model does at a node that it
has not learned. With labels drawn at random, the mean over all labels estimates the accuracy of a model with n - 1
labels. The estimate has no bias if jurors are retrained: a label that was left out is a random node. Its error is that
of n labels, :math:`\sqrt{a (1 - a) / n}`.

Nodes without a label lower this error. The stacked jury's probabilities :math:`\tilde\pi` are nearly calibrated, so
their mean for the classes :math:`\hat y` that the model predicts estimates the accuracy as well, and labels are needed
only to correct it, as in prediction-powered inference:

.. math::
    \frac{1}{m} \sum_u \tilde\pi(u)_{\hat y(u)} + \lambda r, \qquad
    r = \frac{1}{n} \sum_i \Big(1[\hat y_{-i}(i) = y_i] - \tilde\pi_{-i}(i)_{\hat y_{-i}(i)}\Big)

With :math:`\lambda = 1` and retrained jurors this has no bias, whatever the probabilities. Jurors that are estimated
can err, and r with them, so :math:`\lambda` is smaller.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from jurygcn.checks import in_short
from jurygcn.diagnostics.left_out import LeftOut, class_names_of, others_of
from jurygcn.errors import SettingError
from jurygcn.losses import FLOOR

if TYPE_CHECKING:
    from jurygcn.jury import Jury

RESAMPLED = 2_000  # draws of the bootstrap
# How much of r is applied. Chosen on digits, synthetic graphs, webkb_texas and amazon_photo, with GCN, GAT and
# GraphSAGE: 1 is better by a little for GCNs without dropout, 0 is far better where estimated jurors are too hopeful.
CORRECTED = 0.25


@dataclass(frozen=True, eq=False)
class ExpectedAccuracy:
    """What the model is expected to do at nodes like the labelled ones, from labels that were left out.

    Attributes:
        of: "model", or "jury" for the stacked jury.
        accuracy: the expected share of nodes that are predicted right.
        interval: the interval of the accuracy at ``level``.
        error: the standard error of the accuracy.
        others: the number of nodes without a label whose probabilities by the stacked jury enter the accuracy; 0 where
            it is ``left_out_accuracy``, because labels were not drawn at random or there is no stacked jury.
        left_out_accuracy, left_out_interval: the share of labels that are predicted right by the juror that did not
            see them, and Wilson's interval for n labels.
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
    error: float
    others: int
    left_out_accuracy: float
    left_out_interval: tuple[float, float]
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
        known = f"{self.n:,} left-out labels" + (f" and {self.others:,} nodes without a label" if self.others else "")
        said = (
            f"{who} is expected to predict {self.accuracy:.0%} of nodes like the labelled ones right ({self.level:.0%} "
            f"interval {low:.0%} to {high:.0%}, from {known})."
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
    drawn = over == "nodes" and not against and jury.chosen == "random" and not jury.drawn
    assisted = assisted_by(jury, found, of) if drawn else None
    return summarised(
        *(found, assisted), of=of, level=level, names=class_names_of(jury), notes=notes, promised=not against
    )


@dataclass(frozen=True)
class Assisted:
    """An accuracy with the help of ``others`` nodes without a label, and its standard error."""

    accuracy: float
    error: float
    others: int


@torch.no_grad()
def assisted_by(jury: Jury, found: LeftOut, of: str) -> Assisted | None:
    """The accuracy with the help of the stacked jury at nodes without a label; None where there is none."""
    others = others_of(jury)
    if others is None:
        return None
    said = (others.logits if of == "model" else others.stacked).argmax(dim=1)
    return assisted_accuracy(found, jury.left_out("jury").probabilities, said, others.stacked)


def assisted_accuracy(found: LeftOut, left_out: Tensor, said: Tensor, stacked: Tensor) -> Assisted:
    """The estimate and its error.

    The error is that of r, and at least that of calibrated probabilities; the part of r that is not applied adds to it.

    Args:
        found: predictions of left-out labels.
        left_out: calibrated probabilities for the left-out labels.
        said: the classes predicted at other nodes.
        stacked: calibrated probabilities there.

    Shapes: left_out (n, C), said (m,), stacked (m, C).
    """
    classes, n = found.probabilities.argmax(dim=1), len(found.labels)
    sure = left_out.gather(1, classes[:, None]).squeeze(1)
    gaps = (classes == found.labels).double() - sure
    spread = max(float(gaps.var()) if n > 1 else 0.0, float((sure * (1.0 - sure)).mean()))
    r = float(gaps.mean())
    mean = float(stacked.gather(1, said[:, None]).mean())
    accuracy = min(max(mean + CORRECTED * r, 0.0), 1.0)
    return Assisted(accuracy, (spread / n + ((1.0 - CORRECTED) * r) ** 2) ** 0.5, len(said))


def summarised(
    found: LeftOut,
    assisted: Assisted | None = None,
    *,
    of: str,
    level: float,
    names: list[str],
    notes: tuple[str, ...] = (),
    promised: bool = True,
) -> ExpectedAccuracy:
    """All numbers from the predictions of left-out labels, and the accuracy with the help of other nodes."""
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
    share, interval = int(right.sum()) / n, wilson(int(right.sum()), n, level=level)
    likely = (int(right.sum()) + 1) / (n + 2)  # never 0 or 1
    best, ends = Assisted(share, (likely * (1 - likely) / n) ** 0.5, 0), interval
    if assisted is not None:
        best, half = assisted, NormalDist().inv_cdf((1 + level) / 2) * assisted.error
        ends = max(0.0, best.accuracy - half), min(1.0, best.accuracy + half)
    return ExpectedAccuracy(
        of=of,
        accuracy=best.accuracy,
        interval=ends,
        error=best.error,
        others=best.others,
        left_out_accuracy=share,
        left_out_interval=interval,
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
