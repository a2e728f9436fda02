"""Errors and notices. Each message says what was expected, what arrived and what to do."""

from __future__ import annotations

from collections.abc import Sequence

QUOTED, LISTED = 60, 6  # characters of a text and items of a list that a message repeats


class JuryError(Exception):
    """Anything the library refuses; the command line prints its message and exits with code 2."""


class DataError(JuryError, ValueError):
    """The graph, its features, labels or files are not what they must be."""


class ModelError(JuryError, ValueError):
    """The model cannot be quantified as it is."""


class SettingError(JuryError, ValueError):
    """An argument is outside its range or names something unknown."""


class SolverError(JuryError, ArithmeticError):
    """A linear system that the chosen solver cannot solve; the message says what to change."""


class JuryWarning(UserWarning):
    """A result that needs care (for example, a model that has not converged)."""


class DataNotice(UserWarning):
    """Input that was accepted after a harmless repair, such as removing self-loops."""


def excerpt(value: object) -> str:
    """A value from a file as a message quotes it: in full if it is short, else how it begins and how long it is."""
    if isinstance(value, list):
        items = [excerpt(item) for item in value[:LISTED]]
        return f"[{', '.join(items)}{f' and {len(value) - LISTED:,} more' * (len(value) > LISTED)}]"
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= QUOTED:
        return repr(value)
    return f"{text[:QUOTED]!r}... ({len(text):,} characters)"


def listing(values: Sequence[object], letters: int = QUOTED) -> str:
    """Values as a message lists them: the first few, each shortened, and how many more there are."""
    shown = [text if len(text := str(value)) <= letters else f"{text[:letters]}..." for value in values[:LISTED]]
    return ", ".join(shown) + (f" and {len(values) - LISTED:,} more" if len(values) > LISTED else "")
