"""The one picture: label sets on the left, scores on the right."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from statistics import mean
from typing import Any

from pages.rows import CITATION, DEFAULT, SPLIT, Documents, auroc, column, scores_of

PICTURE = "docs/figures/headline.png"

# colours that all common kinds of colour vision tell apart (Okabe and Ito); the shapes differ as well
KINDS = {
    "stacked": ("stacked jury (default)", "#0072B2", "o"),
    "newton": ("model's jurors alone", "#56B4E9", "v"),
    "retrain": ("model's jurors, retrained", "#009E73", "D"),
    SPLIT: (SPLIT, "#D55E00", "s"),
    "influence": ("influence, as in the paper", "#8C8C8C", "^"),
}

DASHES = (0, (4, 3))
DOUBT = "stacked jury (default)"  # its score
MARKS = ((8, "#4D4D4D"), (4, "white"))  # size and filling of a mean, of one graph


def drawn_numbers(found: Documents) -> dict[str, Any]:
    """What the picture shows, rounded to what can be seen."""
    rows, errors = found["label_sets"]["rows"], found["error_detection"]
    alone = [kind for kind in KINDS if kind != "stacked"]
    shown = {
        key: {k: [round(mean(column(rows, key, dataset=d, kind=k, alpha=0.1)), 4) for d in CITATION] for k in alone}
        for key in ("coverage", "size")
    }
    stacked = {
        key: [
            round(column(found["advice"]["rows"], key, dataset=d, labels=60, method="stacked")[0], 4) for d in CITATION
        ]
        for key in ("coverage", "size", "auroc")
    }
    for key, by_kind in shown.items():
        by_kind["stacked"] = stacked[key]
    scores = sorted((s for s in scores_of(errors) if "," not in s), key=lambda s: auroc(errors, s))
    by_graph = {s: [round(mean(column(errors["rows"], s, dataset=d)), 4) for d in CITATION] for s in scores}
    by_graph = {"ambiguity" if s == DEFAULT else s: values for s, values in by_graph.items()} | {
        DOUBT: stacked["auroc"]
    }
    return {**shown, "auroc": dict(sorted(by_graph.items(), key=lambda entry: mean(entry[1])))}


def fingerprint(found: Documents) -> str:
    """A short name for what the picture shows; it is kept in the file, so that an old picture is noticed."""
    return hashlib.sha256(json.dumps(drawn_numbers(found)).encode()).hexdigest()[:16]


def is_current(path: Path, found: Documents) -> bool:
    """Whether the picture in ``path`` shows these results."""
    from PIL import Image

    if not path.exists():
        return False
    with Image.open(path) as picture:
        return picture.info.get("Description") == fingerprint(found)


def draw(path: Path, found: Documents) -> None:
    """Coverage and size of label sets, and AUROC of scores, on the three citation graphs."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = drawn_numbers(found)
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.edgecolor": "#555555",
        "axes.titlesize": 10.5,
        "axes.titlelocation": "left",
        "xtick.color": "#333333",
        "ytick.left": False,
        "figure.facecolor": "white",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(10, 3.7), layout=ConstrainedLayoutEngine(wspace=0.06))
        coverage, size, errors = figure.subplots(1, 3, width_ratios=(1.0, 1.0, 1.0))
        _draw_sets(coverage, shown["coverage"])
        _draw_sets(size, shown["size"])
        coverage.axvline(0.9, color="#333333", linewidth=1, linestyle=DASHES, zorder=1)
        coverage.annotate("target", (0.9, -0.5), xytext=(-4, 0), textcoords="offset points", ha="right", va="top")
        coverage.set(
            title="Coverage of label sets",
            xlim=(min(0.5, *map(min, shown["coverage"].values())), 1.0),
            yticks=range(len(CITATION)),
        )
        coverage.set_yticklabels(CITATION.values())
        size.set(title="Labels per set", xlim=(0, 1.1 * max(map(max, shown["size"].values()))), yticks=[])
        _draw_scores(errors, shown["auroc"])
        handles, labels = coverage.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=3, frameon=False, handletextpad=0.2)
        handles = [errors.plot([], [], "o", color="#4D4D4D", markersize=s, markerfacecolor=f)[0] for s, f in MARKS]
        figure.legend(
            handles, ["mean", "one graph"], loc="outside lower right", ncols=2, frameon=False, handletextpad=0
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=180, metadata={"Software": None, "Description": fingerprint(found)})


def _draw_sets(axes: Any, shown: dict[str, list[float]]) -> None:
    """One row per graph, one mark per kind of jury, a little below each other."""
    for position, (kind, (words, colour, marker)) in enumerate(KINDS.items()):
        heights = [row + 0.16 * (position - 2) for row in range(len(CITATION))]
        axes.plot(shown[kind], heights, marker, color=colour, markersize=7.5, label=words, linestyle="none", zorder=3)
    for row in range(1, len(CITATION)):
        axes.axhline(row - 0.5, color="#DDDDDD", linewidth=0.8, zorder=0)
    axes.set_ylim(len(CITATION) - 0.5, -0.5)


def _draw_scores(axes: Any, shown: dict[str, list[float]]) -> None:
    """The mean over graphs, and each graph as a small ring."""
    for row, (score, values) in enumerate(shown.items()):
        colour = KINDS["stacked"][1] if score == DOUBT else "#4D4D4D"
        axes.plot([min(values), max(values)], [row, row], color="#CFCFCF", linewidth=2, zorder=2)
        axes.plot(values, [row] * len(values), "o", color=colour, markerfacecolor="white", markersize=4, zorder=3)
        axes.plot(mean(values), row, "o", color=colour, markersize=8, zorder=4)
    axes.axvline(0.5, color="#333333", linewidth=1, linestyle=DASHES, zorder=1)
    axes.annotate(
        "chance", (0.5, len(shown) - 0.4), xytext=(4, 0), textcoords="offset points", va="top", color="#333333"
    )
    axes.set(title="AUROC for wrong predictions", yticks=range(len(shown)), ylim=(-0.6, len(shown) - 0.4))
    axes.set_yticklabels(shown)
