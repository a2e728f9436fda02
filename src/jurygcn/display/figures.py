"""Small figures of a verdict, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from jurygcn.canvas import BLUE, GREY, ORANGE, canvas, plain_text
from jurygcn.conformal.intervals import check_alpha
from jurygcn.display.words import position_of
from jurygcn.errors import DataError, SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jurygcn.verdict import Verdict


def plot_verdict(verdict: Verdict, *, alpha: float) -> Figure:
    """Two panels: the scores of all nodes, and the sizes of label sets, or the intervals of a regression."""
    check_alpha(alpha, below=1.0)
    classify = verdict.label_counts is not None
    if not classify:
        _interval(verdict)  # raises an error for several targets before anything is drawn
    figure, (left, right) = canvas(2, width=8.0)
    score = verdict.uncertainty()
    left.hist(score[score.isfinite()].numpy(), bins=20, color=BLUE)
    left.set(xlabel=verdict.score_name if classify else "width of the interval", ylabel="nodes", title="Scores")
    if classify:
        sizes = np.bincount(verdict.set_size(alpha).numpy(), minlength=verdict.outputs.shape[1] + 1)
        right.bar(range(len(sizes)), sizes, color=BLUE)
        right.set(xlabel="labels in the set", ylabel="nodes", title=f"Label sets at level {alpha:g}")
        return figure
    prediction, lower, upper = _interval(verdict)
    order = prediction.argsort()
    places = range(len(order))
    right.fill_between(places, lower[order].numpy(), upper[order].numpy(), color=GREY, label="interval")
    right.plot(places, prediction[order].numpy(), color=BLUE, label="prediction")
    right.set(xlabel="nodes, by prediction", ylabel="target", title=f"Intervals at level {verdict.alpha:g}")
    right.legend(frameon=False)
    return figure


def plot_node(verdict: Verdict, node: int, *, alpha: float) -> Figure:
    """One node: p-values and probabilities of its labels, those in the set filled; or its interval."""
    check_alpha(alpha, below=1.0)
    place = position_of(verdict, node)
    if place < 0:
        raise DataError(f"expected a node of this verdict, got {node}; choose one of verdict.nodes")
    figure, (axes,) = canvas(1, width=5.0)
    if verdict.label_counts is None:
        centre, lower, upper = (float(values[place]) for values in _interval(verdict))
        axes.hlines(0, lower, upper, color=GREY, linewidth=8, label="interval")
        axes.plot([centre], [0], "o", color=BLUE, label="prediction")
        axes.set(xlabel="target", yticks=[], title=f"Node {node}")
        axes.legend(frameon=False)
        return figure
    p_values, inside = verdict.p_values[place].numpy(), verdict.label_sets(alpha)[place].numpy()
    names = [plain_text(name) for name in verdict.names or range(len(p_values))]
    rows = np.arange(len(p_values))
    axes.barh(rows[inside], p_values[inside], color=BLUE, label="p-value, in the set")
    axes.barh(rows[~inside], p_values[~inside], color="none", edgecolor=BLUE, hatch="//", label="p-value, excluded")
    axes.plot(verdict.outputs[place].numpy(), rows, "D", color=ORANGE, markeredgecolor="black", label="probability")
    axes.axvline(alpha, color="black", linestyle=":", linewidth=1)
    axes.set(yticks=rows, yticklabels=names, xlim=(0, 1.02), title=f"Node {node}, level {alpha:g}")
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize="small")
    return figure


def _interval(verdict: Verdict) -> tuple[Tensor, Tensor, Tensor]:
    """Prediction, lower and upper end of the one target, (m,) each."""
    if verdict.outputs.shape[1] != 1:
        targets = verdict.outputs.shape[1]
        raise SettingError(
            f"expected a verdict on classes or on one target, got {targets} targets; use one jury per target"
        )
    return verdict.outputs[:, 0], verdict.lower.reshape(-1), verdict.upper.reshape(-1)
