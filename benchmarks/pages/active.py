"""Active learning on the results page."""

from __future__ import annotations

from pages.rows import CITATION, Document, Row, Tables, markdown, named, values_of

OURS = "jury-design"


def tables(document: Document) -> Tables:
    """Accuracy on each graph, then what choosing costs."""
    for name in values_of(document["rows"], "dataset"):
        rows = [row for row in document["rows"] if row["dataset"] == name]
        sizes = values_of(rows, "labels")
        body = [
            [_strong(strategy), *(_cell(row) for row in rows if row["strategy"] == strategy)]
            for strategy in values_of(rows, "strategy")
        ]
        yield f"active_learning: {name}", markdown(["strategy", *map(str, sizes)], body)
    yield "active_learning: seconds", seconds(document)


def _strong(strategy: str) -> str:
    return f"**{strategy}**" if strategy == OURS else strategy


def _cell(row: Row) -> str:
    arrow = "" if row["strategy"] == OURS or row["p"] >= 0.05 else " ▼" if row["ours_minus_it"] > 0 else " ▲"
    paper = "" if row["paper"] is None else f" [{row['paper']:.1f}]"
    return f"{row['mean']:.1f} ± {row['sd']:.1f}{arrow}{paper}"


def seconds(document: Document) -> str:
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
    return markdown(["strategy", *map(named, names)], body)


def ablation(document: Document) -> str:
    """What each part of jury-design brings."""
    rows = document["rows"]
    names = [name for name in CITATION if name in rows[0]]
    body = [
        [row["variant"], *(f"{row[name]['mean']:.1f} ± {row[name]['sd']:.1f}" for name in names), f"{row['mean']:.1f}"]
        for row in rows
    ]
    return markdown(["variant", *map(named, names), "mean"], body)
