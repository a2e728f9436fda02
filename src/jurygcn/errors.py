"""Errors and warnings. Each message says what was expected, what was found and what to do."""

from __future__ import annotations

from collections.abc import Sequence

QUOTED, LISTED = 60, 6  # the most characters of a text and items of a list in a message


class JuryError(Exception):
    """Base class of the library's errors; the command line prints its message and exits with code 2."""


class DataError(JuryError, ValueError):
    """The graph, its features, its labels or its files are invalid."""


class ModelError(JuryError, ValueError):
    """The model cannot be quantified."""


class SettingError(JuryError, ValueError):
    """An argument is outside its range or names something unknown."""


class SolverError(JuryError, ArithmeticError):
    """The chosen solver cannot solve a linear system."""


class JuryWarning(UserWarning):
    """A result that needs care (for example, a model that has not converged)."""


class DataNotice(UserWarning):
    """Input that was accepted after a harmless repair, such as removing self-loops."""


def excerpt(value: object) -> str:
    """A value for a message: in full if it is short, else its beginning and its length."""
    if isinstance(value, list):
        items = [excerpt(item) for item in value[:LISTED]]
        return f"[{', '.join(items)}{f' and {len(value) - LISTED:,} more' * (len(value) > LISTED)}]"
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= QUOTED:
        return repr(value)
    return f"{text[:QUOTED]!r}... ({len(text):,} characters)"


def listing(values: Sequence[object], letters: int = QUOTED) -> str:
    """Values for a message: the first few, each shortened, and the number of the others."""
    shown = [text if len(text := str(value)) <= letters else f"{text[:letters]}..." for value in values[:LISTED]]
    return ", ".join(shown) + (f" and {len(values) - LISTED:,} more" if len(values) > LISTED else "")
