"""From counted scores to p-values and label sets, over all jurors or those of one class or group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.choices import SETS
from jurygcn.conformal.intervals import check_alpha, exact_rank
from jurygcn.errors import SettingError

CATEGORIES = ("class", "group")


@dataclass(frozen=True, eq=False)
class Tally:
    """For each node and label, how many of ``voters`` scores are at least as high as the label's.

    Shapes: counts (m, C), voters (m, 1) or (m, C), ties (m, C) the scores among ``counts`` that are equal, if known.
    """

    counts: Tensor
    voters: Tensor
    ties: Tensor | None = None

    def p_values(self, *, smoothed: int | None = None) -> Tensor:
        r"""P-values, (m, C): :math:`\frac{1 + k}{1 + n}`.

        With a seed in ``smoothed`` the label's own score and those equal to it count by a uniform draw of each label:
        the p-value of the truth is then exactly uniform if scores are exchangeable, not only at most so.
        """
        above = 1.0 + self.counts.double()
        if smoothed is not None:
            if self.ties is None:
                raise SettingError("expected method='full' for smoothed p-values, got 'jackknife+'; leave smoothed out")
            equal = 1.0 + self.ties.double()
            draws = torch.rand(equal.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(smoothed))
            above = above - equal + draws * equal
        return above / (1.0 + self.voters.double())

    def sets(self, alpha: float) -> Tensor:
        """Labels whose p-value is above ``alpha``, (m, C) bool; integers decide, so that rounding does not."""
        check_alpha(alpha, below=1.0)
        sizes, where = self.voters.unique(return_inverse=True)
        ranks = torch.tensor([exact_rank(alpha, int(n)) for n in sizes], device=self.voters.device)
        return self.counts + 1 > ranks[where]

    def too_few(self, alpha: float) -> Tensor:
        """Where no score could exclude a label at this level, because there are too few, the shape of ``voters``."""
        check_alpha(alpha, below=1.0)
        sizes, where = self.voters.unique(return_inverse=True)
        return torch.tensor([exact_rank(alpha, int(n)) < 1 for n in sizes], device=self.voters.device)[where]


def check_method(method: str, by: str | None) -> tuple[str, str | None]:
    """Return both; raise SettingError for names that are not known."""
    if method not in SETS:
        raise SettingError(f"expected method to be one of {', '.join(SETS)}, got {method!r}; choose one")
    if by is not None and by not in CATEGORIES:
        raise SettingError(f"expected by to be one of {', '.join(CATEGORIES)} or None, got {by!r}; choose one")
    return method, by
