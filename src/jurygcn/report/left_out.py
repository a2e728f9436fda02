"""What left-out labels say about the model and about themselves, for the page."""

from __future__ import annotations

from typing import Any

from jurygcn.diagnostics.left_out import class_names_of
from jurygcn.errors import JuryError
from jurygcn.jury import Jury
from jurygcn.report.measures import percent

MOST_LABELS = 30  # suspicious labels on a page


def left_out_content(jury: Jury) -> dict[str, Any] | None:
    """Expected accuracy, calibration and suspicious labels as plain values; None for a regression."""
    if jury.engine.loss.name != "cross_entropy":
        return None
    try:
        expected, calibrated, errors = jury.expected_accuracy(), jury.calibrate().calibration, jury.label_errors()
    except JuryError:  # jurors for estimates cannot be found; the page says nothing then
        return None
    assert calibrated is not None
    names = class_names_of(jury)
    number = {name: c for c, name in reversed(list(enumerate(names)))}
    flagged = errors.table[errors.table["flagged"]][:MOST_LABELS]
    table = expected.per_class
    return {
        "accuracy": expected.accuracy,
        "interval": list(expected.interval),
        "level": expected.level,
        "labels": expected.n,
        "others": expected.others,
        "promised": expected.promised,
        "words": expected.words,
        "classes": {key: table[key].tolist() for key in ("labels", "right", "recall", "lower", "upper")},
        "confusion": expected.confusion.to_numpy().tolist(),
        "temperature": calibrated.temperature,
        "calibration": calibrated.words,
        "noise": errors.noise,
        "suspicious": {
            "words": errors.words,
            "more": int(errors.table["flagged"].sum()) - len(flagged),
            "node": flagged["node"].tolist(),
            "label": [number[name] for name in flagged["label"]],
            "suggested": [number[name] for name in flagged["suggested"]],
            "probability": flagged["probability"].tolist(),
            "wrong": flagged["wrong"].tolist(),
            "against": [list(nodes) for nodes in flagged["against"]],
            "neighbours": flagged["neighbours"].tolist(),
        },
    }


def expected_tile(found: dict[str, Any] | None) -> list[dict[str, str]]:
    """The headline number: what, value, note; none for a regression."""
    if found is None:
        return []
    low, high = (percent(round(end, 2)) for end in found["interval"])
    note = f"of nodes like the labelled ones, from {found['labels']:,} left-out labels"
    note += f" and {found['others']:,} nodes without a label" if found["others"] else ""
    note += f"; {found['level']:.0%} interval {low} to {high}"
    note += "" if found["promised"] else "; it says nothing about other nodes"
    return [{"what": "Expected accuracy", "value": percent(round(found["accuracy"], 2)), "note": note}]
