"""Numbers must be numbers: settings in range, tensors without NaN and infinity."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from jurygcn.errors import SettingError

LONGEST = 60  # characters of a wrong value that a message repeats

# Settings beyond these bounds are mistakes: the arithmetic would overflow, or the work would never end.
MOST_EPOCHS = 10_000_000
MOST_HIDDEN = 65_536  # units of a layer
MOST_LAYERS = 1_000
MOST_DECAY = 1e6  # its square, times a parameter's, is well inside float32, which Adam's averages need
MOST_RATE = 1e6  # Adam moves every parameter by about this much
MOST_SEED = 2**63 - 1
MOST_REPEATS = 10_000  # splits of a comparison, runs of a reproduction


def check_real(value: Any, name: str, *, least: float = 0.0, most: float | None = None) -> float:
    """The value, if it is a finite number of at least ``least`` and at most ``most``."""
    above = sys.float_info.max if most is None else most
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= value <= above:  # type: ignore[operator]
        between = f"finite number of at least {least:g}" if most is None else f"number between {least:g} and {most:g}"
        raise SettingError(f"{name} must be a {between}, got {in_short(value)}.")
    return float(value)


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """The value, if it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise SettingError(f"Unknown {name} {in_short(value)}: choose one of {', '.join(choices)}.")
    return value


def check_rate(value: Any) -> float:
    """The value, if it is a learning rate."""
    if check_real(value, "lr", most=MOST_RATE) == 0.0:
        raise SettingError(f"lr must be positive, got {value}.")
    return float(value)


def check_dropout(value: Any) -> float:
    """The value, if it is a share of units to drop; all of them would leave nothing."""
    if check_real(value, "dropout", most=1.0) == 1.0:
        raise SettingError(f"dropout must be below 1, got {value}.")
    return float(value)


def check_count(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """The value, if it is a whole number of at least ``least`` and at most ``most``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):
        between = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise SettingError(f"{name} must be a whole number {between}, got {in_short(value)}.")
    return int(value)


def in_short(value: Any) -> str:
    """The value as Python writes it, cut where it is long; Python refuses to write numbers of thousands of digits."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)  # NumPy's numbers say their type
        if abs(value) >= 10**LONGEST:
            return f"a number of more than {LONGEST} digits"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def all_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one pass over them, unless their sum overflows."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
