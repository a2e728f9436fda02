"""Numbers must be numbers: settings in range, tensors without NaN and infinity."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from jurygcn.errors import SettingError


def check_real(value: Any, name: str, *, least: float = 0.0) -> float:
    """The value, if it is a finite number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= float(value) < math.inf:
        raise SettingError(f"{name} must be a finite number of at least {least:g}, got {value!r}.")
    return float(value)


def check_count(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """The value, if it is a whole number of at least ``least`` and at most ``most``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):
        between = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise SettingError(f"{name} must be a whole number {between}, got {value!r}.")
    return int(value)


def all_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one pass over them, unless their sum overflows."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
