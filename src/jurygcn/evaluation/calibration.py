"""Calibration of probabilities: reliability diagram, ECE, NLL, Brier score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jurygcn.errors import SettingError
from jurygcn.evaluation.arrays import Values, as_probabilities

BINNINGS = ("width", "mass")
SMALLEST = 1e-12  # probabilities are clipped here, so that one label of probability 0 does not make the NLL infinite


@dataclass(frozen=True, eq=False)
class Reliability:
    r"""Mean confidence and accuracy in bins (lower, upper] of the largest probability.

    .. math:: \text{ECE} = \sum_B \frac{|B|}{m} |\text{acc}(B) - \text{conf}(B)|

    Shapes: all (bins,); confidence and accuracy are NaN in empty bins.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    count: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]

    @property
    def ece(self) -> float:
        """Expected calibration error over these bins."""
        full = self.count > 0
        gaps = np.abs(self.accuracy[full] - self.confidence[full])
        return float((self.count[full] * gaps).sum() / self.count.sum())


def reliability(probabilities: Values, truth: Values, *, bins: int = 10, binning: str = "width") -> Reliability:
    """The bins of ECE and the reliability diagram, of equal width or (``binning="mass"``) of equal counts.

    Equal confidences share a bin, so that the order of nodes has no effect; bins of equal counts may then differ in
    size.

    Shapes: probabilities (m, C), truth (m,).
    """
    if binning not in BINNINGS:
        raise SettingError(f"expected binning to be one of {', '.join(BINNINGS)}, got {binning!r}; choose one")
    if bins < 1:
        raise SettingError(f"expected at least 1 bin, got {bins}; raise it")
    pi, true = as_probabilities(probabilities, truth)
    confidence, right = pi.max(axis=1), pi.argmax(axis=1) == true
    edges = np.linspace(0.0, 1.0, bins + 1)
    if binning == "mass":
        last = np.ceil(np.arange(1, bins + 1) * len(pi) / bins).astype(np.int64) - 1  # the last position of each bin
        edges = np.unique(np.concatenate([[0.0], np.sort(confidence)[last]]))
    place = (np.searchsorted(edges, confidence, side="left") - 1).clip(0, len(edges) - 2)
    count = np.bincount(place, minlength=len(edges) - 1)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(place, weights=values, minlength=len(count)) / count for values in (confidence, right)]
    return Reliability(edges[:-1], edges[1:], count, *means)


def ece(probabilities: Values, truth: Values, *, bins: int = 10, binning: str = "width") -> float:
    """Expected calibration error. Shapes: probabilities (m, C), truth (m,)."""
    return reliability(probabilities, truth, bins=bins, binning=binning).ece


def nll(probabilities: Values, truth: Values) -> float:
    r"""Mean negative log-likelihood :math:`-\frac{1}{m} \sum_u \ln \pi_{u y_u}`. Shapes: (m, C), (m,)."""
    pi, true = as_probabilities(probabilities, truth)
    return float(-np.log(pi[np.arange(len(true)), true].clip(SMALLEST)).mean())


def brier(probabilities: Values, truth: Values) -> float:
    r"""Brier score :math:`\frac{1}{m} \sum_u \sum_c (\pi_{uc} - [y_u = c])^2`, from 0 to 2.

    Shapes: (m, C), (m,).
    """
    pi, true = as_probabilities(probabilities, truth)
    return float(((pi - np.eye(pi.shape[1])[true]) ** 2).sum(axis=1).mean())
