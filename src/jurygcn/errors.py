"""Errors and notices. Each message says what was expected, what arrived and what to do."""

from __future__ import annotations


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
