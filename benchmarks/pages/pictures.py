"""The pictures of README.md that show results: one for each of its first four questions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from jurygcn.canvas import canvas, save_figure
from pages.rows import CITATION, SPLIT, Documents, column, values_of

# colours that all common kinds of colour vision tell apart (Okabe and Ito); the shapes differ as well
BLUE, SKY, GREEN, RED, GREY = "#0072B2", "#56B4E9", "#009E73", "#D55E00", "#8C8C8C"
Look = tuple[str, str, str]  # name, colour, marker
KINDS: Mapping[str, Look] = {
    "stacked": ("stacked jury (default)", BLUE, "o"),
    "newton": ("model's jurors alone", SKY, "v"),
    "retrain": ("model's jurors, retrained", GREEN, "D"),
    SPLIT: (SPLIT, RED, "s"),
    "influence": ("influence, as in the paper", GREY, "^"),
}
ESTIMATES: Mapping[str, Look] = {
    "jury": ("the jury, no label spent", BLUE, "o"),
    "5-fold": ("5-fold cross-validation", GREEN, "D"),
    "30/30": ("half of the labels validate", RED, "s"),
    "training labels": ("the training labels", GREY, "^"),
}
STRATEGIES: Mapping[str, Look] = {
    "jury-design": ("jury-design", BLUE, "o"),
    "sopt": ("SOPT", SKY, "v"),
    "featprop": ("FeatProp", RED, "s"),
    "age": ("AGE", GREEN, "D"),
    "random": ("random", GREY, "^"),
}
METHODS = {
    "jury": "stacked jury (default)",
    "gcn": "the GCN itself",
    "mc-dropout": "MC dropout",
    "ensemble": "ensemble of ten",
    "temperature": "temperature scaling",
    "energy": "energy, GNNSafe, GEBM",
    "laplace": "Laplace",
    "gpn": "GPN",
    "sgnn": "S-GNN",
}
WIDTH = "the paper's width"
DASHES = (0, (4, 3))
MARKS = ((8, "#4D4D4D"), (4, "white"))  # size and filling of a mean, of one graph
Numbers = dict[str, Any]


def rounded(values: list[float], digits: int = 4) -> list[float]:
    """To what can be seen, so that a picture is not old because of rounding."""
    return [round(value, digits) for value in values]


def errors(found: Documents) -> Numbers:
    """AUROC of each method's best score over the three graphs, and of the paper's width."""
    rows = [row for row in found["evaluation"]["rows"] if row["table"] == "errors"]

    def aurocs(method: str, score: str) -> list[float]:
        return rounded([mean(column(rows, "auroc", dataset=d, method=method, score=score)) for d in CITATION])

    shown = {WIDTH: aurocs("jury", "width")}
    for method, words in METHODS.items():
        scores = ["doubt"] if method == "jury" else values_of([r for r in rows if r["method"] == method], "score")
        shown[words] = max((aurocs(method, score) for score in scores), key=mean)
    return dict(sorted(shown.items(), key=lambda entry: mean(entry[1])))


def draw_errors(shown: Numbers) -> Any:
    """The mean over graphs, and each graph as a small ring."""
    figure, (axes,) = canvas(1, width=7, height=3.6)
    for row, (method, values) in enumerate(shown.items()):
        colour = BLUE if method == METHODS["jury"] else "#4D4D4D"
        axes.plot([min(values), max(values)], [row, row], color="#CFCFCF", linewidth=2, zorder=2)
        axes.plot(values, [row] * len(values), "o", color=colour, markerfacecolor="white", markersize=4, zorder=3)
        axes.plot(mean(values), row, "o", color=colour, markersize=8, zorder=4)
    axes.axvline(0.5, color="#333333", linewidth=1, linestyle=DASHES, zorder=1)
    axes.annotate("chance", (0.5, len(shown) - 0.6), xytext=(4, 0), textcoords="offset points", va="top")
    axes.set(title="AUROC for wrong predictions, 60 labels", ylim=(-0.6, len(shown) - 0.4))
    axes.set_yticks(range(len(shown)), list(shown))
    marks = [axes.plot([], [], "o", color="#4D4D4D", markersize=s, markerfacecolor=f)[0] for s, f in MARKS]
    figure.legend(marks, ["mean", "one graph"], loc="outside lower right", ncols=2, frameon=False, handletextpad=0)
    return figure


def accuracy(found: Documents) -> Numbers:
    """The GCN's test accuracy, its estimates and their errors."""
    rows = [row for row in found["free_validation"]["rows"] if row["part"] == "accuracy" and row["kind"] == "GCN"]
    means = {
        key: {m: rounded([mean(column(rows, key, name=d, method=m)) for d in CITATION]) for m in ESTIMATES}
        for key in ("estimate", "rmse")
    }
    return {"test": rounded([mean(column(rows, "test", name=d, method="jury")) for d in CITATION]), **means}


def draw_accuracy(shown: Numbers) -> Any:
    """Estimates around the truth on the left, how far a single one is off on the right."""
    figure, (means, wrong) = canvas(2, width=9, height=3.2)
    for row, truth in enumerate(shown["test"]):
        words = {"label": "test accuracy"} if row == 0 else {}
        means.plot([truth, truth], [row - 0.4, row + 0.4], color="black", linewidth=2, zorder=2, **words)
    _rows(means, shown["estimate"], ESTIMATES, list(CITATION.values()))
    _rows(wrong, shown["rmse"], ESTIMATES, None)
    means.set(title="Estimated accuracy, mean of 20 splits")
    wrong.set(title="Error of a single estimate (RMSE)", xlim=(0, None))
    means.set(xlim=(means.get_xlim()[0], 1.05))
    figure.legend(*means.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    return figure


def sets(found: Documents) -> Numbers:
    """Coverage and size of label sets at target 0.9."""
    rows, advised = found["label_sets"]["rows"], found["advice"]["rows"]
    shown: Numbers = {}
    for key in ("coverage", "size"):
        stacked = [column(advised, key, dataset=d, labels=60, method="stacked")[0] for d in CITATION]
        alone = [kind for kind in KINDS if kind != "stacked"]
        others = {k: [mean(column(rows, key, dataset=d, kind=k, alpha=0.1)) for d in CITATION] for k in alone}
        shown[key] = {kind: rounded(values) for kind, values in {"stacked": stacked, **others}.items()}
    return shown


def draw_sets(shown: Numbers) -> Any:
    """Coverage on the left, labels per set on the right."""
    figure, (coverage, size) = canvas(2, width=9, height=3.6)
    _rows(coverage, shown["coverage"], KINDS, list(CITATION.values()))
    _rows(size, shown["size"], KINDS, None)
    coverage.axvline(0.9, color="#333333", linewidth=1, linestyle=DASHES, zorder=1)
    coverage.annotate("target", (0.9, -0.5), xytext=(0, 1), textcoords="offset points", ha="center", va="bottom")
    coverage.set_title("Coverage of label sets", pad=16)
    coverage.set(xlim=(min(0.5, *map(min, shown["coverage"].values())), 1.0))
    size.set_title("Labels per set", pad=16)
    size.set(xlim=(0, 1.1 * max(map(max, shown["size"].values()))))
    figure.legend(*coverage.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False)
    return figure


def labelling(found: Documents) -> Numbers:
    """Test accuracy of the GCN after each batch of labels, on the same splits."""
    rows = [row for row in found["active_learning"]["rows"] if row["learner"] == "gcn"]
    shown: Numbers = {}
    for graph in CITATION:
        by = {s: [r for r in rows if (r["dataset"], r["strategy"]) == (graph, s)] for s in STRATEGIES}
        splits = by["jury-design"][0]["splits"]
        curves = {s: [[r["labels"], round(r["mean"], 2)] for r in by[s] if r["splits"] == splits] for s in by}
        shown[graph] = {"splits": splits, "curves": {s: points for s, points in curves.items() if points}}
    return shown


def draw_labelling(shown: Numbers) -> Any:
    """A panel for each graph, a line for each strategy."""
    figure, panels = canvas(len(shown), width=9.5, height=3.2)
    for axes, (graph, found) in zip(panels, shown.items()):
        for strategy, points in found["curves"].items():
            words, colour, marker = STRATEGIES[strategy]
            labels, accuracies = zip(*points)
            axes.plot(labels, accuracies, color=colour, marker=marker, label=words)
        axes.set(title=f"{CITATION[graph]}, mean of {found['splits']} splits", xlabel="labels", xticks=labels)
    panels[0].set(ylabel="test accuracy of the GCN, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    return figure


def _rows(axes: Any, shown: Mapping[str, list[float]], looks: Mapping[str, Look], names: list[str] | None) -> None:
    """One row per graph, one mark per kind, a little below each other."""
    for position, (kind, (words, colour, marker)) in enumerate(looks.items()):
        heights = [row + 0.16 * (position - (len(looks) - 1) / 2) for row in range(len(CITATION))]
        axes.plot(shown[kind], heights, marker, color=colour, markersize=7, label=words, linestyle="none", zorder=3)
    for row in range(1, len(CITATION)):
        axes.axhline(row - 0.5, color="#DDDDDD", linewidth=0.8, zorder=0)
    axes.set_ylim(len(CITATION) - 0.5, -0.5)
    axes.set_yticks(range(len(CITATION)) if names else [], names)
    axes.tick_params(axis="y", length=0)


@dataclass(frozen=True)
class Picture:
    """The numbers of a picture, and how to draw them."""

    numbers: Callable[[Documents], Numbers]
    draw: Callable[[Numbers], Any]

    def fingerprint(self, found: Documents) -> str:
        """A short name for what the picture shows; it is kept in the file, so that an old picture is noticed."""
        return hashlib.sha256(json.dumps(self.numbers(found)).encode()).hexdigest()[:16]

    def is_current(self, path: Path, found: Documents) -> bool:
        """Whether the file shows these results."""
        from PIL import Image

        if not path.exists():
            return False
        with Image.open(path) as picture:
            return picture.info.get("Description") == self.fingerprint(found)

    def write(self, path: Path, found: Documents) -> None:
        """Draw these results into the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        save_figure(self.draw(self.numbers(found)), path, Description=self.fingerprint(found))


PICTURES = {
    "docs/figures/errors.png": Picture(errors, draw_errors),
    "docs/figures/expected_accuracy.png": Picture(accuracy, draw_accuracy),
    "docs/figures/label_sets.png": Picture(sets, draw_sets),
    "docs/figures/labelling.png": Picture(labelling, draw_labelling),
}
