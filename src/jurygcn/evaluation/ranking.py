"""How well an uncertainty score separates wrong predictions, or out-of-distribution nodes, from the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jurygcn.errors import SettingError
from jurygcn.evaluation.arrays import Values, as_scores


def error_auroc(score: Values, wrong: Values) -> float:
    """Probability that a wrong prediction has a higher uncertainty score than a right one; ties count half.

    NaN if all predictions are right or all are wrong. With marks of out-of-distribution nodes instead of wrong ones, it
    measures how well the score detects those.

    Shapes: score (m,), high where uncertain; wrong (m,) bool.
    """
    from sklearn.metrics import roc_auc_score

    scores, errors = as_scores(score, wrong)
    if errors.all() or not errors.any():
        return float("nan")
    return float(roc_auc_score(errors, _ranks(scores)))


def error_aupr(score: Values, wrong: Values) -> float:
    r"""Average precision of finding the wrong predictions by a high score, :math:`\sum_k (R_k - R_{k-1}) P_k`.

    A random score gets the error rate. Equal scores are retrieved together. NaN if nothing is wrong.

    Shapes: score (m,), high where uncertain; wrong (m,) bool.
    """
    scores, errors = as_scores(score, wrong)
    return _average_precision(scores, errors)


def success_aupr(score: Values, wrong: Values) -> float:
    """Average precision of finding the right predictions by a low score; a random score gets the accuracy.

    Shapes: score (m,), high where uncertain; wrong (m,) bool.
    """
    scores, errors = as_scores(score, wrong)
    return _average_precision(-scores, ~errors)


def _average_precision(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(positive, _ranks(scores))) if positive.any() else float("nan")


def _ranks(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Ranks of the scores, so that infinite scores are allowed."""
    return np.unique(scores, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    r"""Error rate among the k least uncertain nodes, for every k.

    .. math:: r(k) = \frac{\text{errors among the first } k}{k}, \quad \text{AURC} = \frac{1}{m} \sum_k r(k)

    Shapes: coverage (m,) = k / m; risk (m,) = r(k), its mean over all orders of equal scores.
    """

    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]

    @property
    def area(self) -> float:
        """AURC."""
        return float(self.risk.mean())

    def accuracy_at(self, coverage: float) -> float:
        """Accuracy among the least uncertain share ``coverage`` of nodes."""
        if not 0.0 < coverage <= 1.0:
            raise SettingError(f"expected a coverage above 0 and up to 1, got {coverage}; change it")
        k = int(np.ceil(round(coverage * len(self.risk), 9)))
        return 1.0 - float(self.risk[k - 1])


def risk_coverage(score: Values, wrong: Values) -> RiskCoverage:
    """The risk-coverage curve; errors among equal scores are spread evenly over their positions.

    Shapes: score (m,), high where uncertain; wrong (m,) bool.
    """
    scores, errors = as_scores(score, wrong)
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    share = np.bincount(group, weights=errors) / sizes  # expected errors per position within a tie
    places = np.arange(1, len(scores) + 1)
    risk = np.cumsum(np.repeat(share, sizes)) / places
    return RiskCoverage(places / len(scores), risk)


def aurc(score: Values, wrong: Values) -> float:
    """Area under the risk-coverage curve: the mean error rate over all coverages, low is good. Shapes: (m,), (m,)."""
    return risk_coverage(score, wrong).area


def excess_aurc(score: Values, wrong: Values) -> float:
    """E-AURC: AURC minus that of a perfect score, which ranks all errors last. Shapes: (m,), (m,)."""
    _, errors = as_scores(score, wrong)
    return aurc(score, wrong) - risk_coverage(errors, errors).area
