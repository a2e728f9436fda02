r"""Exact intervals from jurors' predictions, computed over batches of jurors.

A lower quantile depends only on the few smallest values per node, so only those are kept (`LowerTail`). An upper
quantile is minus the lower quantile of minus the values.
"""

from __future__ import annotations

from fractions import Fraction
from math import floor
from numbers import Real

import torch
from torch import Tensor

from jurygcn.checks import in_short
from jurygcn.errors import SettingError

# Values per node that are collected before all but the smallest are dropped, because selecting them is expensive.
WAITING = 64


def loo_errors(targets: Tensor, predictions: Tensor) -> Tensor:
    r"""Leave-one-out errors :math:`\mathrm{err}_i = \|y_i - f_{-i}(i)\|_2`.

    Implements: Eq. (6).
    Shapes: (n, C), (n, C) -> (n,).
    """
    norms: Tensor = torch.linalg.vector_norm(targets - predictions, dim=-1)
    return norms


def exact_rank(alpha: float, count: int) -> int:
    r"""The integer rank :math:`\lfloor \alpha (n + 1) \rfloor` of the exact jackknife+ quantile, free of rounding."""
    return floor(Fraction(str(alpha)) * (count + 1))


def check_alpha(alpha: float, *, below: float = 0.5) -> float:
    """Return alpha; raise SettingError unless it is strictly between 0 and ``below``."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0.0 < alpha < below:
        raise SettingError(
            f"expected alpha strictly between 0 and {below:g} (for example 0.025), got {in_short(alpha)}; change it"
        )
    return float(alpha)


class LowerTail:
    """The smallest values per node over batches of jurors, as many as one lower quantile needs.

    With ``exact`` the quantile is the floor(alpha (n' + 1))-th smallest of the n' values, minus infinity if that
    rank is below 1 (erratum E8). Otherwise it interpolates linearly between order statistics, which is finite with few
    labels and so suits rankings.

    Shapes: values (m, b) per batch of jurors; quantile (m,).
    """

    def __init__(self, alpha: float, num_jurors: int, *, exact: bool) -> None:
        self.alpha, self.exact = alpha, exact
        needed = exact_rank(alpha, num_jurors) if exact else floor(alpha * (num_jurors - 1)) + 2
        self.keep = max(1, min(needed, num_jurors))
        self._kept: list[Tensor] = []

    @property
    def smallest(self) -> Tensor | None:
        """The values kept so far, (m, at most ``keep``)."""
        if len(self._kept) > 1 or (self._kept and self._kept[0].shape[1] > self.keep):
            values = torch.cat(self._kept, dim=1)
            if values.shape[1] > self.keep:
                values = torch.topk(values, self.keep, dim=1, largest=False, sorted=False).values
            self._kept = [values]
        return self._kept[0] if self._kept else None

    @smallest.setter
    def smallest(self, values: Tensor | None) -> None:
        self._kept = [] if values is None else [values]

    def add(self, values: Tensor) -> None:
        """Add one batch of jurors; an excluded juror's value is +inf."""
        self._kept.append(values)
        if sum(part.shape[1] for part in self._kept) > WAITING:
            _ = self.smallest

    def merge(self, other: LowerTail) -> None:
        """Add the values that another tail has kept of other jurors."""
        for values in other._kept:
            self.add(values)

    def quantile(self, counts: Tensor) -> Tensor:
        """The quantile of each node, given the number of jurors that voted on it, (m,) -> (m,)."""
        assert self.smallest is not None
        ordered = self.smallest.sort(dim=1).values.T
        quantile = torch.full_like(ordered[0], -torch.inf)
        for n in counts.bincount().nonzero().squeeze(1).tolist():  # at most two different counts, n and n - 1
            quantile = torch.where(counts == n, self._quantile_of(ordered, n), quantile)
        return quantile

    def _quantile_of(self, ordered: Tensor, n: int) -> Tensor:
        """The quantile where n jurors voted; ordered (keep, m), the smallest first -> (m,)."""
        last = len(ordered) - 1
        rank = exact_rank(self.alpha, n) if self.exact else 1
        if min(n, rank) < 1:
            return torch.full_like(ordered[0], -torch.inf)
        if self.exact:
            return ordered[min(rank - 1, last)]
        below, weight = divmod(self.alpha * (n - 1), 1.0)
        low, high = ordered[int(below)], ordered[min(int(below) + 1, n - 1, last)]
        return low + weight * (high - low) if weight > 0 else low


def upper_error(errors: Tensor, *, alpha: float) -> Tensor:
    r"""The exact upper quantile :math:`Q^+_{n,\alpha}\{R_i\}`, infinite with too few errors: (n,) -> ()."""
    if len(errors) == 0:
        return errors.new_tensor(torch.inf)
    tail = LowerTail(alpha, len(errors), exact=True)
    tail.add(-errors[None, :])
    return -tail.quantile(torch.tensor([len(errors)], device=errors.device))[0]
