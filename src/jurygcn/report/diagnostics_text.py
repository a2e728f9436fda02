"""Health and fidelity in words, for people who know neither."""

from __future__ import annotations

from typing import Any

from jurygcn.diagnostics.fidelity import Fidelity
from jurygcn.diagnostics.health import Health

UNASKED = "Not measured. jurygcn doctor, or jury.fidelity() in Python, retrains some jurors and compares."


def checkup_words(health: Health | None, fidelity: Fidelity | None) -> list[dict[str, Any]]:
    """Two paragraphs, each with a heading, a state (good, care or unknown), sentences and advice."""
    return [_health(health), _fidelity(fidelity)]


def _health(health: Health | None) -> dict[str, Any]:
    if health is None:
        return _paragraph("Health", "unknown", ["Not examined; jurygcn doctor, or jury.health() in Python, does it."])
    said = [
        "Nothing stands in the way of believing the jurors."
        if health.well
        else "The jurors may be off; the advice below says why.",
        f"The gradient is {health.relative_gradient:.1%} of its parts; it is 0 % where training has ended.",
        f"The jurors' equations are solved to a relative residual of {health.residual:.0e}.",
    ]
    if health.leverage is not None:
        said.append(f"The leverage of a label on its own prediction is at most {health.leverage[1]:.2f} (below 1).")
    return _paragraph("Health", "good" if health.well else "care", said, list(health.advice))


def _fidelity(fidelity: Fidelity | None) -> dict[str, Any]:
    if fidelity is None:
        return _paragraph("Fidelity", "unknown", [UNASKED])
    state = "good" if fidelity.trusted else "care"
    said = [f"{len(fidelity.frame)} jurors were retrained to compare with.", fidelity.advice]
    return _paragraph("Fidelity", state, said)


def _paragraph(title: str, state: str, said: list[str], advice: list[str] | None = None) -> dict[str, Any]:
    return {"title": title, "state": state, "said": said, "advice": advice or []}
