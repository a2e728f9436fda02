"""Checks of settings and tensors."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from jurygcn.errors import SettingError

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 60  # the most characters of a wrong value in a message

# Settings beyond these bounds are mistakes: the arithmetic would overflow, or the work would never end.
MOST_EPOCHS = 10_000_000
MOST_HIDDEN = 65_536  # units of a layer
MOST_LAYERS = 1_000
MOST_DECAY = 1e6  # Adam squares it times a parameter, in float32
MOST_RATE = 1e6  # Adam changes every parameter by about this much per step
MOST_SEED = 2**63 - 1
MOST_REPEATS = 10_000  # splits of a comparison, runs of a reproduction


def check_real(value: Any, name: str, *, least: float = 0.0, most: float | None = None) -> float:
    """Return the value; raise SettingError unless it is a finite number from ``least`` to ``most``."""
    above = sys.float_info.max if most is None else most
    if isinstance(value, bool) or not isinstance(value, Real) or not least <= value <= above:  # type: ignore[operator]
        between = f"finite number of at least {least:g}" if most is None else f"number between {least:g} and {most:g}"
        raise SettingError(f"expected {name} as a {between}, got {in_short(value)}; change it")
    return float(value)


def check_choice(value: Any, name: str, choices: Sequence[str]) -> str:
    """Return the value; raise SettingError unless it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise SettingError(f"expected {name} to be one of {', '.join(choices)}, got {in_short(value)}; choose one")
    return value


def check_rate(value: Any) -> float:
    """Return the value; raise SettingError unless it is a learning rate."""
    if check_real(value, "lr", most=MOST_RATE) == 0.0:
        raise SettingError(f"expected lr above 0, got {value}; change it")
    return float(value)


def check_dropout(value: Any) -> float:
    """Return the value; raise SettingError unless it is a dropout rate, from 0 to below 1."""
    if check_real(value, "dropout", most=1.0) == 1.0:
        raise SettingError(f"expected dropout below 1, got {value}; change it")
    return float(value)


def check_count(value: Any, name: str, *, least: int = 1, most: int | None = None) -> int:
    """Return the value; raise SettingError unless it is a whole number from ``least`` to ``most``."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or int(value) < least or (most is not None and int(value) > most):
        between = f"of at least {least}" if most is None else f"between {least} and {most}"
        raise SettingError(f"expected {name} as a whole number {between}, got {in_short(value)}; change it")
    return int(value)


def in_short(value: Any) -> str:
    """The value's repr, cut at LONGEST characters; Python cannot convert numbers of thousands of digits."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)  # the repr of a NumPy number includes its type
        if abs(value) >= 10**LONGEST:
            return f"a number of more than {LONGEST} digits"
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def all_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite; reads the entries once, unless their sum overflows."""
    import torch  # here, because the command line uses this module too, and prints help without torch

    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())
