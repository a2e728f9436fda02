"""The paper's tables and figures on the results page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from jurygcn.experiments import EXPERIMENTS
from jurygcn.experiments.paper import SPEEDUP
from pages.rows import Document, listed, named, values_of

Markdown = Callable[[Sequence[str], Any], str]


def tables(document: Document, markdown: Markdown) -> Iterator[str]:
    """Every table in the paper's layout; figures also as pictures."""
    for name in values_of(document["rows"], "experiment"):
        experiment = EXPERIMENTS[name]
        frame = pd.DataFrame([row for row in document["rows"] if row["experiment"] == name])
        yield f"### {experiment.title}"
        yield experiment.about
        if experiment.draw is not None:
            yield f"![{experiment.title}](figures/{name}.png)"
        for title, shown in experiment.shown(frame).items():
            yield f"{title}:"
            yield markdown(list(shown.columns), shown.astype(str).to_numpy().tolist())


def findings(document: Document) -> Iterator[str]:
    """What the paper's figures look like here."""
    rows = [row for row in document["rows"] if row["experiment"] == "figure2" and row["part"] == "time"]
    speedups = [row["speedup"] for row in rows]
    if speedups and (speedups != sorted(speedups) or speedups[-1] < SPEEDUP):
        yield (
            f"**In Figure 2 the speed-up over this library's own retraining is {speedups[-1]:,.0f}** at "
            f"{rows[-1]['labels']:,} labels; the paper has over {SPEEDUP}."
        )
    alpha = [row for row in document["rows"] if row["experiment"] == "figure3" and row["method"] == "2α"]
    moved = []
    for name in values_of(alpha, "dataset"):
        means = {row["value"]: row["mean"] for row in alpha if row["dataset"] == name}
        low, high = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        if means[high] - means[low] > 3:
            moved.append(f"from {means[low]:.1f} % at 2α = {low:g} to {means[high]:.1f} % at {high:g} on {named(name)}")
    if moved:
        yield (
            f"**The paper's active learning does depend on α**: Micro-F1 at the third query step goes {listed(moved)}. "
            "The paper reports a slight decrease."
        )
