"""Damping: an operator plus a multiple of the identity; keeps the operator's structure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ..errors import SettingError
from .operator import Factor, FiniteSumOperator, LowRankOperator, Operator


def shift(operator: Operator, damping: float) -> Operator:
    """A + damping I; low-rank, a finite sum, or both, if the operator is.

    Raises:
        SettingError: damping is negative or not finite.
    """
    if not (math.isfinite(damping) and damping >= 0):
        raise SettingError(f"expected damping >= 0, got {damping}; change it")
    if damping == 0:
        return operator
    low_rank, finite_sum = isinstance(operator, LowRankOperator), isinstance(operator, FiniteSumOperator)
    if low_rank and finite_sum:
        return _ShiftedLowRankSum(operator, damping)
    if low_rank:
        return _ShiftedLowRank(operator, damping)
    return _ShiftedSum(operator, damping) if finite_sum else _Shifted(operator, damping)


@dataclass(frozen=True, eq=False)
class _Shifted:
    base: Operator
    damping: float

    @property
    def size(self) -> int:
        return self.base.size

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def definite(self) -> bool | None:
        return self.base.definite

    def matmul(self, block: Tensor) -> Tensor:
        return self.base.matmul(block) + self.damping * block

    def to_dense(self) -> Tensor:
        matrix = self.base.to_dense().clone()
        matrix.diagonal().add_(self.damping)
        return matrix


class _ShiftedSum(_Shifted):
    @property
    def num_terms(self) -> int:
        return cast(FiniteSumOperator, self.base).num_terms

    def subset(self, terms: Tensor) -> Operator:
        return shift(cast(FiniteSumOperator, self.base).subset(terms), self.damping)


class _ShiftedLowRank(_Shifted):
    @property
    def diagonal(self) -> Tensor:
        return cast(LowRankOperator, self.base).diagonal + self.damping

    @property
    def factor(self) -> Factor:
        return cast(LowRankOperator, self.base).factor

    @property
    def definite(self) -> bool | None:
        return bool((self.diagonal > 0).all()) or None


class _ShiftedLowRankSum(_ShiftedLowRank, _ShiftedSum):
    pass
