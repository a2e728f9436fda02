"""Headline numbers and the data of the charts, from a verdict and the known labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jurygcn import evaluation as measure
from jurygcn.verdict import Verdict

LEVELS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5)
BARS, POINTS = 20, 60  # of the histogram and of the risk curve


@dataclass(frozen=True, eq=False)
class MeasuredVerdict:
    """A verdict with the known labels and the positions of its nodes in the graph.

    Shapes: truth (m,), meaningful where ``known`` (m,); tested (t,) positions to measure on; degree, distance (m,).
    """

    verdict: Verdict
    truth: Tensor
    known: Tensor
    tested: Tensor
    degree: Tensor
    distance: Tensor
    alpha: float

    @property
    def classify(self) -> bool:
        """Whether labels, not numbers, are predicted."""
        return self.verdict.label_counts is not None

    @property
    def covered(self) -> Tensor:
        """At the tested nodes, whether the set or interval contains the truth, (t,) bool."""
        truth = self.truth[self.tested]
        if self.classify:
            return self.verdict.label_sets(self.alpha)[self.tested, truth]
        lower, upper = (end[self.tested].reshape(-1) for end in (self.verdict.lower, self.verdict.upper))
        return (lower <= truth) & (truth <= upper)

    @property
    def wrong(self) -> Tensor:
        """At the tested nodes, whether the predicted class is not the true one, (t,) bool."""
        return self.verdict.predicted_class[self.tested] != self.truth[self.tested]


def headline(found: MeasuredVerdict) -> list[dict[str, str]]:
    """The headline numbers: what, value, note."""
    tiles = _class_tiles(found) if found.classify else _interval_tiles(found)
    return [{"what": what, "value": value, "note": note} for what, value, note in tiles]


def _class_tiles(found: MeasuredVerdict) -> list[tuple[str, str, str]]:
    verdict, tested = found.verdict, found.tested
    sets = verdict.label_sets(found.alpha)
    sizes = sets.sum(dim=1)
    single = f"{percent(float((sizes == 1).double().mean()))} of all nodes have a set of one label"
    tiles = [("Labels per set", f"{float(sizes.double().mean()):.2f}", single)]
    if not len(tested):
        return tiles
    truth, wrong = found.truth[tested], found.wrong
    on = f"of {len(tested):,} test nodes are predicted right"
    claim = verdict.claim(found.alpha)
    asked = f"{claim.brief}, see above" if claim.kind == "none" else claim.brief
    held = f"of test nodes have their true label in the set; {asked}"
    tiles = [
        ("Accuracy", percent(measure.accuracy(verdict.predicted_class[tested], truth)), on),
        ("Coverage", percent(measure.set_coverage(sets[tested], truth)), held),
        *tiles,
    ]
    alone = measure.singleton_accuracy(sets[tested], truth)
    if alone == alone:
        tiles.append(
            ("Accuracy of single labels", percent(alone), "of test nodes with one label in the set have that label")
        )
    auroc = measure.error_auroc(verdict.uncertainty()[tested], wrong)
    if auroc == auroc:
        words = "how well the score ranks wrong predictions above right ones: 0.5 is chance, 1 is perfect"
        tiles.append(("AUROC for errors", f"{auroc:.3f}", words))
    off = measure.ece(verdict.outputs[tested], truth)
    tiles.append(("Calibration error", percent(off), "mean gap between probability and accuracy (ECE)"))
    if verdict.advice is not None:
        right = measure.accuracy(verdict.jury_class[tested], truth)
        off = measure.ece(verdict.calibrated[tested], truth)
        said = (
            f"of test nodes have the class that the stacked jury would predict; its calibration error is {percent(off)}"
        )
        tiles.append(("Jury's accuracy", percent(right), said))
    return tiles


def _interval_tiles(found: MeasuredVerdict) -> list[tuple[str, str, str]]:
    width = found.verdict.width.reshape(-1)
    finite = width[width.isfinite()]
    usual = f"{float(finite.median()):.3g}" if len(finite) else "infinite"
    tiles = [("Interval width", usual, "median over all nodes")]
    if len(found.tested):
        held = f"of {len(found.tested):,} test nodes have their target inside; {found.verdict.claim().brief}"
        error = found.verdict.outputs[found.tested, 0] - found.truth[found.tested]
        tiles = [
            ("Coverage", percent(float(found.covered.double().mean())), held),
            *tiles,
            ("Mean error", f"{float(error.abs().mean()):.3g}", "mean distance between prediction and target"),
        ]
    return tiles


def charts(found: MeasuredVerdict) -> dict[str, Any]:
    """The data of the charts; None for charts that need unknown labels or do not apply."""
    return {
        "scores": score_histogram(found),
        "sizes": _sizes(found) if found.classify else None,
        "reliability": _reliability(found) if found.classify and len(found.tested) else None,
        "levels": _levels(found) if found.classify and len(found.tested) else None,
        "risk": _risk(found) if found.classify and len(found.tested) else None,
        "groups": _groups(found) if len(found.tested) else [],
    }


def score_histogram(found: MeasuredVerdict) -> dict[str, Any]:
    """Counts of nodes by score, for right, wrong and untested predictions."""
    score = found.verdict.uncertainty().reshape(-1)
    finite = score.isfinite()
    state = torch.full((len(score),), 2)  # not tested
    state[found.tested] = (~found.covered if not found.classify else found.wrong).long()
    low, high = (float(score[finite].min()), float(score[finite].max())) if finite.any() else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, BARS + 1)
    names = ("right", "wrong", "unknown") if found.classify else ("inside", "outside", "unknown")
    series = {
        name: np.histogram(score[finite & (state == number)].double().numpy(), bins=edges)[0].tolist()
        for number, name in enumerate(names)
    }
    return {
        "name": found.verdict.score_name,
        "edges": edges.tolist(),
        "series": {name: counts for name, counts in series.items() if sum(counts)},
        "left_out": int((~finite).sum()),
    }


def _sizes(found: MeasuredVerdict) -> dict[str, Any]:
    sizes = found.verdict.set_size(found.alpha)
    return {"counts": torch.bincount(sizes, minlength=found.verdict.outputs.shape[1] + 1).tolist()}


def _reliability(found: MeasuredVerdict) -> dict[str, Any]:
    bins = measure.reliability(found.verdict.outputs[found.tested], found.truth[found.tested])
    full = bins.count > 0
    columns = {"confidence": bins.confidence, "accuracy": bins.accuracy, "count": bins.count}
    return {"ece": bins.ece, **{name: values[full].tolist() for name, values in columns.items()}}


def _levels(found: MeasuredVerdict) -> dict[str, Any]:
    truth = found.truth[found.tested]
    sets = [found.verdict.label_sets(alpha)[found.tested] for alpha in LEVELS]
    return {
        "target": [1 - alpha for alpha in LEVELS],
        "nodes": len(found.tested),
        "coverage": [measure.set_coverage(s, truth) for s in sets],
        "size": [measure.mean_set_size(s) for s in sets],
    }


def _risk(found: MeasuredVerdict) -> dict[str, Any]:
    curve = measure.risk_coverage(found.verdict.uncertainty()[found.tested], found.wrong)
    picked = np.unique(np.linspace(0, len(curve.risk) - 1, POINTS).astype(int))
    return {
        "kept": curve.coverage[picked].tolist(),
        "accuracy": (1 - curve.risk[picked]).tolist(),
        "nodes": len(found.tested),
    }


def _groups(found: MeasuredVerdict) -> list[dict[str, Any]]:
    """Coverage by group. The marks are passed to `coverage_by` as label sets over one class."""
    held, zero = found.covered[:, None], torch.zeros(len(found.tested), dtype=torch.long)
    tables = {
        "by number of neighbours": measure.coverage_by_degree(held, zero, found.degree[found.tested]),
        "by steps to the nearest label": measure.coverage_by_distance(held, zero, found.distance[found.tested]),
    }
    if found.classify:
        by_class = measure.coverage_by(held, zero, found.truth[found.tested])
        names = found.verdict.names
        tables["by true class"] = by_class.assign(group=[names[c] if names else str(c) for c in by_class["group"]])
    return [
        {
            "title": title,
            "group": ["not connected" if str(group) == "-1" else str(group) for group in table["group"]],
            "nodes": table["nodes"].tolist(),
            "coverage": table["coverage"].tolist(),
        }
        for title, table in tables.items()
    ]


def percent(share: float) -> str:
    """A share as text."""
    return f"{100 * share:.1f}".removesuffix(".0") + " %"
