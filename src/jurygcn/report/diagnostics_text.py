"""Health, fidelity and the reasons for caution in plain sentences."""

from __future__ import annotations

from typing import Any

from jurygcn.conformal.advice import Advice
from jurygcn.conformal.claims import Claim
from jurygcn.diagnostics.fidelity import Fidelity
from jurygcn.diagnostics.health import Health

MINOR = 0.05  # a share of the stacked jury below which its label sets hardly depend on the model's own jurors
NOT_MEASURED = "Not measured. Run jurygcn doctor, or jury.fidelity() in Python, to compare with retrained jurors."


def caution(claim: Claim, health: Health | None, fidelity: Fidelity | None, advice: Advice | None) -> str:
    """What a reader must know first: that nothing is claimed, or that the jurors may be inaccurate; else empty.

    Jurors that were compared with retrained ones are judged by that, not by their health.
    """
    if claim.kind == "none":
        return claim.words
    if fidelity is not None or health is None or not health.doubts:
        return ""
    if advice is not None and advice.model_share < MINOR:
        return (
            "The model's own jurors may be inaccurate (jurygcn doctor or jury.health() says why). They make up "
            f"{advice.model_share:.0%} of the stacked jury, so label sets, p-values and doubt hardly depend on them."
        )
    return " ".join(("The jurors may be inaccurate.", *health.doubts))


def checkup_words(health: Health | None, fidelity: Fidelity | None) -> list[dict[str, Any]]:
    """Two paragraphs, each with a heading, a state (good, care or unknown), sentences and advice."""
    return [_health(health), _fidelity(fidelity)]


def _health(health: Health | None) -> dict[str, Any]:
    if health is None:
        return _paragraph("Health", "unknown", ["Not measured. Run jurygcn doctor, or jury.health() in Python."])
    said = [
        "No problems were found." if health.well else "The jurors may be inaccurate; see the advice below.",
        f"The relative gradient is {health.relative_gradient:.1%}; it is 0 % at the minimum of the objective.",
        f"The jurors' equations are solved to a relative residual of {health.residual:.0e}.",
    ]
    if health.leverage is not None:
        said.append(
            f"The largest leverage of a label on its own prediction is {health.leverage[1]:.2f} (it is always below 1)."
        )
    said += health.remarks
    return _paragraph("Health", "good" if health.well else "care", said, list(health.advice))


def _fidelity(fidelity: Fidelity | None) -> dict[str, Any]:
    if fidelity is None:
        return _paragraph("Fidelity", "unknown", [NOT_MEASURED])
    state = "good" if fidelity.trusted else "care"
    said = [f"{len(fidelity.frame)} jurors were retrained for comparison.", fidelity.advice]
    return _paragraph("Fidelity", state, said)


def _paragraph(title: str, state: str, said: list[str], advice: list[str] | None = None) -> dict[str, Any]:
    return {"title": title, "state": state, "said": said, "advice": advice or []}
