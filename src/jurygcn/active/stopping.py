"""Rules that end a run before the budget is used up."""

from __future__ import annotations

from collections.abc import Callable

from jurygcn.active.history import History, Step
from jurygcn.errors import SettingError

# takes the history and returns the reason to stop, or an empty text to continue
StoppingRule = Callable[[History], str]


def reached(accuracy: float) -> StoppingRule:
    """Stop when the validation accuracy is at least ``accuracy``."""
    return _at_least(accuracy, "validation", lambda step: step.val_accuracy)


def expected(accuracy: float) -> StoppingRule:
    """Stop when ``accuracy`` is expected at unlabelled nodes. This needs no other labels, and promises nothing."""
    return _at_least(accuracy, "expected", lambda step: step.expected_accuracy)


def settled(*, share: float = 0.02, steps: int = 2) -> StoppingRule:
    """Stop when each of the last ``steps`` steps changed at most ``share`` of the predictions. This needs no labels."""
    if not 0.0 <= share < 1.0 or steps < 1:
        raise SettingError(f"expected a share in [0, 1) and at least 1 step, got {share} and {steps}; change them")

    def rule(history: History) -> str:
        last = history.steps[-steps:]
        enough = len(last) == steps and all(step.changed <= share for step in last)
        return f"at most {share:.0%} of predictions changed in {steps} steps" if enough else ""

    return rule


def _at_least(accuracy: float, kind: str, of: Callable[[Step], float]) -> StoppingRule:
    if not 0.0 < accuracy <= 1.0:
        raise SettingError(f"expected an accuracy above 0 and at most 1, got {accuracy}; change it")

    def rule(history: History) -> str:
        return f"{kind} accuracy of at least {accuracy:g}" if of(history.steps[-1]) >= accuracy else ""

    return rule
