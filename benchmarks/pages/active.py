"""Active learning on the results page."""

from __future__ import annotations

from pages.rows import CITATION, Document, Row, Tables, markdown, named, values_of

OURS = "jury-design"


def tables(document: Document) -> Tables:
    """Accuracy of the GCN on each graph, of the advised learner, what was expected of it, counts, and costs."""
    by_learner = {learner: [r for r in document["rows"] if r["learner"] == learner] for learner in ("gcn", "advised")}
    for name in values_of(document["rows"], "dataset"):
        rows = [row for row in by_learner["gcn"] if row["dataset"] == name]
        sizes = values_of(rows, "labels")
        body = [_line(rows, strategy) for strategy in values_of(rows, "strategy")]
        yield f"active_learning: {name}", markdown(["strategy", *map(str, sizes), "splits"], body)
    yield "active_learning: advised", advised(by_learner["advised"])
    yield "active_learning: expected", expected(document["expectations"])
    yield "active_learning: counts", counts(document["claims"])
    yield "active_learning: seconds", seconds(document)


def _line(rows: list[Row], strategy: str) -> list[str]:
    mine = [row for row in rows if row["strategy"] == strategy]
    return [_strong(strategy), *map(_cell, mine), str(mine[0]["splits"])]


def advised(rows: list[Row]) -> str:
    """The advised learner on all graphs."""
    body = []
    for name in values_of(rows, "dataset"):
        here = [row for row in rows if row["dataset"] == name]
        body += [[named(name), *_line(here, strategy)] for strategy in values_of(here, "strategy")]
    return markdown(["graph", "strategy", "20 (10)", "40 (20)", "60 (30)", "80 (40)", "100 (50)", "splits"], body)


def expected(rows: list[Row]) -> str:
    """How far what is expected of the advised learner is from its test accuracy."""
    body = []
    for row in rows:
        pairs = [row[key] for key in ("expected_accuracy", "left_out_accuracy")]
        found = [text for pair in pairs for text in (f"{pair['error']:.1f}", f"{pair['bias']:+.1f}")]
        body.append([named(row["dataset"]), row["strategy"], *found])
    return markdown(["graph", "strategy", "expected: error", "bias", "left-out labels: error", "bias"], body)


def counts(claims: Row) -> str:
    """In how many cells jury-design is first or differs significantly."""
    body = []
    for words, found in claims.items():
        worse = "; ".join(f"{s} ({named(name)}, {labels})" for name, labels, s in found["significantly_worse_than"])
        better = ", ".join(f"{s} {count}" for s, count in found["significantly_better_than"].items() if count)
        body.append([words, str(found["cells"]), str(found["first"]), better or "none", worse or "none"])
    return markdown(["graphs, learner", "cells", "first", "better than, in cells", "worse than"], body)


def protocols(document: Document) -> Tables:
    """DiffusAL's and RIM's protocols, beside their numbers."""
    for protocol in ("diffusal", "noise"):
        rows = [row for row in document["rows"] if row["protocol"] == protocol]
        body = []
        for row in (r for r in rows if r["learner"] == "gcn"):
            same = [r for r in rows if all(r[k] == row[k] for k in ("dataset", "strategy", "labels"))]
            found = [f"{r['mean']:.1f} ± {r['sd']:.1f}" for r in same]
            where = [named(row["dataset"]), _strong(row["strategy"]), str(row["labels"])]
            body.append([*where, *found, f"{row['published']:.1f}", str(row["seeds"])])
        theirs = "DiffusAL" if protocol == "diffusal" else "RIM"
        learners = ["GCN" if name == "gcn" else name for name in dict.fromkeys(row["learner"] for row in rows)]
        head = ["graph", "strategy", "labels", *learners, theirs, "seeds"]
        yield f"active_protocols: {protocol}", markdown(head, body)


def gains(document: Document) -> Tables:
    """Closed-form gains beside retraining."""
    body = [[r["learner"], f"{r['correlation']:.3f} ± {r['sd']:.3f}", str(r["splits"])] for r in document["rows"]]
    yield "active_gains: correlations", markdown(["gain", "rank correlation with retraining", "splits"], body)
    times = [[name, f"{seconds:.2f}"] for name, seconds in document["seconds"].items()]
    yield "active_gains: seconds", markdown(["work", "seconds of processor time"], times)


def _strong(strategy: str) -> str:
    return f"**{strategy}**" if strategy == OURS else strategy


def _cell(row: Row) -> str:
    arrow = "" if row["strategy"] == OURS or row["p"] >= 0.05 else " ▼" if row["ours_minus_it"] > 0 else " ▲"
    paper = "" if row["paper"] is None else f" [{row['paper']:.1f}]"
    return f"{row['mean']:.1f} ± {row['sd']:.1f}{arrow}{paper}"


def seconds(document: Document) -> str:
    """Seconds of processor time per step and once per graph."""
    by_graph = document["seconds"]
    body = []
    for strategy in dict.fromkeys(strategy for found in by_graph.values() for strategy in found):
        cells = []
        for found in by_graph.values():
            once, step = (found.get(strategy, {}).get(key, 0.0) for key in ("once", "step"))
            more = f" + {once:.1f}" if once >= 0.05 else ""
            cells.append(f"{step:.3f}{more}" if strategy in found else "")
        body.append([_strong(strategy), *cells])
    return markdown(["strategy", *map(named, by_graph)], body)


def windows(document: Document) -> str:
    """What a fixed share of the window brings on other graphs."""
    body = []
    for row in document["rows"]:
        cells = []
        for learner in ("gcn", "advised"):
            found = row[learner]
            error = "" if found["error"] is None else f" ± {found['error']:.1f}"
            cells += ["" if found["difference"] is None else f"{found['difference']:+.1f}{error}", str(found["splits"])]
        body.append([named(row["dataset"]), row["variant"], *cells])
    return markdown(["graph", "window", "GCN", "splits", "advised", "splits"], body)


def ablation(document: Document) -> str:
    """What each part of jury-design brings."""
    rows = document["rows"]
    names = [name for name in CITATION if name in rows[0]]
    body = [
        [row["variant"], *(f"{row[name]['mean']:.1f} ± {row[name]['sd']:.1f}" for name in names), f"{row['mean']:.1f}"]
        for row in rows
    ]
    return markdown(["variant", *map(named, names), "mean"], body)
