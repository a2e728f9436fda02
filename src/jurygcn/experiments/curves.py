"""Means over runs: as tables in the paper's layout, as curves with error bands, and as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from jurygcn.canvas import canvas, legend_below, looks
from jurygcn.experiments.cells import Row
from jurygcn.experiments.graphs import NAMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def over_runs(rows: Sequence[Row], *, x: str, value: str = "micro_f1") -> pd.DataFrame:
    """Mean, standard deviation and standard error over runs, per dataset, method and ``x``."""
    grouped = pd.DataFrame(rows).groupby(["dataset", "method", x], sort=False)[value]
    found = grouped.agg(runs="size", mean="mean", sd=lambda values: values.std(ddof=0)).reset_index()
    return found.assign(se=found["sd"] / (found["runs"] - 1).clip(lower=1) ** 0.5)


def with_paper(frame: pd.DataFrame, numbers: Mapping[tuple[Any, ...], float], *, x: str) -> pd.DataFrame:
    """The frame with a column of the paper's numbers, by dataset, method and ``x``; missing if there is none."""
    keys = zip(frame["dataset"], frame["method"], frame[x])
    return frame.assign(paper=pd.array([numbers.get(key) for key in keys], dtype="Float64"))


def in_layout(frame: pd.DataFrame, *, x: str) -> dict[str, pd.DataFrame]:
    """A table per dataset, with a row per method and a column per ``x``: mean ± sd [paper]."""
    papers = frame["paper"] if "paper" in frame else pd.Series(pd.NA, index=frame.index)
    words = [
        f"{mean:.1f} ± {sd:.1f}" + ("" if pd.isna(paper) else f" [{paper:.1f}]")
        for mean, sd, paper in zip(frame["mean"], frame["sd"], papers)
    ]
    found = {}
    for dataset, part in frame.assign(words=words).groupby("dataset", sort=False):
        wide = part.pivot(index="method", columns=x, values="words").fillna("")
        wide = wide.loc[list(dict.fromkeys(part["method"])), list(dict.fromkeys(part[x]))].reset_index()
        found[NAMES.get(str(dataset), str(dataset))] = wide.rename(columns=str)
    return found


def curves(
    frame: pd.DataFrame,
    *,
    x: str,
    xlabel: str,
    first: Sequence[str] = (),
    dashed: Mapping[str, str] | None = None,
    ylabel: str = "Micro-F1, %",
) -> Figure:
    """A panel per dataset, a line with a band per method; the methods ``first`` have thick lines on top.

    ``dashed`` maps methods to legend labels for the paper's numbers, which are drawn as dashed lines.
    """
    datasets, methods = list(dict.fromkeys(frame["dataset"])), list(dict.fromkeys(frame["method"]))
    style = looks([*(m for m in first if m in methods), *methods])
    width = max(4.6, 3.6 * min(len(datasets), 4))
    columns = max(2, int(width / 1.9))  # of the legend below the panels
    rows = -(-(len(methods) + len(dashed or ())) // columns)
    figure, panels = canvas(len(datasets), width=width, height=3.3 + 0.22 * rows, columns=4)
    for panel, dataset in zip(panels, datasets):
        for method in methods:
            part = frame[(frame["dataset"] == dataset) & (frame["method"] == method)].sort_values(x)
            if part.empty:
                continue
            strong = method in first
            look: dict[str, Any] = {**style[method], "zorder": 4 if strong else 3, "linewidth": 2.2 if strong else 1.2}
            panel.plot(part[x], part["mean"], label=method, markersize=4.5, **look)
            low, high = part["mean"] - part["se"], part["mean"] + part["se"]
            panel.fill_between(part[x], low, high, color=look["color"], alpha=0.16, linewidth=0, zorder=1)
            if dashed and method in dashed and "paper" in part and part["paper"].notna().any():
                known = part.dropna(subset="paper").assign(paper=lambda rows: rows["paper"].astype(float))
                dots: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white", "markersize": 4.5, "zorder": 2}
                panel.plot(known[x], known["paper"], label=dashed[method], **{**style[method], **dots})
        panel.set(
            title=NAMES.get(dataset, dataset), xlabel=xlabel, xticks=sorted(set(frame[frame["dataset"] == dataset][x]))
        )
        panel.grid(axis="y", color="#E6E6E6", linewidth=0.8)
        panel.set_axisbelow(True)
    panels[0].set_ylabel(ylabel)
    legend_below(figure, panels, columns=columns, fontsize=9)
    return figure


def bars(frame: pd.DataFrame, *, x: str, xlabel: str, first: Sequence[str] = (), ylabel: str = "Micro-F1, %") -> Figure:
    """A panel per dataset, a group of bars per ``x`` and a bar per method, with its standard deviation.

    The paper's numbers are short black lines across the bars.
    """
    datasets, methods = list(dict.fromkeys(frame["dataset"])), list(dict.fromkeys(frame["method"]))
    style, width = looks([*(m for m in first if m in methods), *methods]), 0.84 / len(methods)
    columns = len(datasets) if len(datasets) <= 3 else 2
    figure, panels = canvas(len(datasets), width=max(5.4, 4.8 * columns), height=3.1, columns=columns)
    for panel, dataset in zip(panels, datasets):
        part = frame[frame["dataset"] == dataset]
        groups = sorted(set(part[x]))
        for place, method in enumerate(methods):
            mine = part[part["method"] == method]
            spots = mine[x].map(groups.index) + (place - (len(methods) - 1) / 2) * width
            whisker = {"linewidth": 0.8, "ecolor": "#555555"}
            look: dict[str, Any] = {"color": style[method]["color"], "zorder": 2, "label": method}
            panel.bar(spots, mine["mean"], width=0.92 * width, yerr=mine["sd"], error_kw=whisker, **look)
            if "paper" in mine and mine["paper"].notna().any():
                known = mine["paper"].notna()
                ends = (spots[known] - width / 2, spots[known] + width / 2)
                panel.hlines(mine["paper"][known].astype(float), *ends, color="black", linewidth=1.8, zorder=4)
        panel.set(title=NAMES.get(dataset, dataset), xlabel=xlabel)
        panel.set_xticks(range(len(groups)), [str(group) for group in groups])
        panel.tick_params(axis="x", length=0)
        panel.grid(axis="y", color="#E6E6E6", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.set_ylabel(ylabel)
    legend_below(figure, panels, columns=len(methods), fontsize=9)
    return figure
