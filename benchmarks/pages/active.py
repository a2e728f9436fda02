"""Active learning on the results page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

from pages.rows import CITATION, Document, Row, listed, named, values_of

OURS = "jury-design"
Markdown = Callable[[Sequence[str], Any], str]


def tables(document: Document, markdown: Markdown) -> Iterator[str]:
    """Accuracy on each graph, then what choosing costs, then what was claimed."""
    for name in values_of(document["rows"], "dataset"):
        rows = [row for row in document["rows"] if row["dataset"] == name]
        sizes = values_of(rows, "labels")
        body = [
            [_strong(strategy), *(_cell(row) for row in rows if row["strategy"] == strategy)]
            for strategy in values_of(rows, "strategy")
        ]
        trained = "" if name in CITATION else ", with the longer training"
        yield f"**{named(name)}**, {rows[0]['splits']} splits{trained}; columns are numbers of labels:"
        yield markdown(["strategy", *map(str, sizes)], body)
    yield (
        f"Test accuracy in %, mean ± sd. An arrow says that the strategy differs from {OURS} (p < 0.05): ▼ below it, "
        "▲ above it. In brackets the paper's own number for the same strategy; its JuryGCN is `jury`."
    )
    yield claims(document["claims"])
    yield from times(document, markdown)


def _strong(strategy: str) -> str:
    return f"**{strategy}**" if strategy == OURS else strategy


def _cell(row: Row) -> str:
    arrow = "" if row["strategy"] == OURS or row["p"] >= 0.05 else " ▼" if row["ours_minus_it"] > 0 else " ▲"
    paper = "" if row["paper"] is None else f" [{row['paper']:.1f}]"
    return f"{row['mean']:.1f} ± {row['sd']:.1f}{arrow}{paper}"


def claims(found: Document) -> str:
    """How often jury-design wins, in a sentence."""
    better = [f"{name} {count}" for name, count in found["significantly_better_than"].items()]
    worse = [f"{s} on {named(d)} at {n}" for d, n, s in found["significantly_worse_than"]]
    lost = (
        f"It is significantly worse than {listed(worse)}." if worse else "It is never significantly worse than another."
    )
    return (
        f"Of the {found['cells']} cells of the paper's three graphs, {OURS} is significantly better in this many than "
        f"each of the paper's baselines: {', '.join(better)}. {lost}"
    )


def times(document: Document, markdown: Markdown) -> Iterator[str]:
    """Seconds per step and once per graph."""
    rows, names = document["rows"], values_of(document["rows"], "dataset")
    body = []
    for strategy in values_of(rows, "strategy"):
        cells = []
        for name in names:
            row = next((r for r in rows if (r["dataset"], r["strategy"]) == (name, strategy)), None)
            once = f" + {row['seconds_once']:.1f}" if row and row["seconds_once"] >= 0.05 else ""
            cells.append(f"{row['seconds_per_step']:.3f}{once}" if row else "")
        body.append([_strong(strategy), *cells])
    beside = document.get("choosing_seconds", {})
    body.append([f"*{OURS}, timed beside it*", *(f"{beside[name]:.3f}" if name in beside else "" for name in names)])
    body.append(["*training a plain PyG GCN*", *(f"{document['plain_training_seconds'][name]:.2f}" for name in names)])
    yield (
        "What choosing a batch costs, in seconds: each step + once per graph, measured while other work shared the "
        f"machine. The last two rows were timed one after the other: {OURS} per step, and an ordinary full-batch PyG "
        "GCN trained for 100 epochs."
    )
    yield markdown(["strategy", *map(named, names)], body)


def ablation(document: Document, markdown: Markdown) -> Iterator[str]:
    """What each part of jury-design brings."""
    rows = document["rows"]
    names = [name for name in CITATION if name in rows[0]]
    body = [
        [row["variant"], *(f"{row[name]['mean']:.1f} ± {row[name]['sd']:.1f}" for name in names), f"{row['mean']:.1f}"]
        for row in rows
    ]
    yield markdown(["variant", *map(named, names), "mean"], body)


def findings(document: Document) -> Iterator[str]:
    """What is worth knowing about the paper's own strategy, and where ours does not win."""
    rows = [row for row in document["rows"] if row["dataset"] in CITATION]

    def level(strategy: str) -> float:
        return mean(row["mean"] for row in rows if row["strategy"] == strategy)

    if level("jury") < level("random"):
        yield (
            "**The paper's strategy loses to random choice here.** Over all cells of its three graphs, the widest "
            f"interval reaches {level('jury'):.1f} % with the errata corrected and {level('jury-printed'):.1f} % as "
            f"printed, random choice {level('random'):.1f} %, {OURS} {level(OURS):.1f} %. The width hardly varies "
            "between nodes, and nothing keeps the nodes of a batch from telling the same."
        )
    cells = list(dict.fromkeys((row["dataset"], row["labels"]) for row in document["rows"]))
    for name in values_of(document["rows"], "dataset"):
        ahead = []
        for dataset, labels in cells:
            here = [row for row in document["rows"] if (row["dataset"], row["labels"]) == (dataset, labels)]
            best = max(here, key=lambda row: row["mean"])
            if dataset == name and best["strategy"] != OURS:
                ahead.append(f"{best['strategy']} at {labels} by {-best['ours_minus_it']:.1f} (p = {best['p']:.2f})")
        if ahead:
            yield f"**On {named(name)} {OURS} does not have the highest mean everywhere**: {listed(ahead)}."
