"""The labelling page on the results page."""

from __future__ import annotations

from pages.rows import Document, Row, Tables, markdown, named

WORDS = {
    "waiting": "one annotator without pauses",
    "browser": "one annotator in Chromium, from the key to the drawn page",
    "crowd": "{annotators} annotators at once, without pauses",
}
WAYS = {
    "application": "two annotators on the page",
    "active.run": "`active.run`, steps of 20",
    "random": "random nodes",
}


def tables(document: Document) -> Tables:
    """How long people wait, and what their labels are worth."""
    head = [
        "",
        "graph",
        "answers",
        "worker busy",
        "median, ms",
        "95 %, ms",
        "most, ms",
        "server's CPU, ms",
        "errors",
        "lost",
    ]
    yield "labelling: waiting", markdown(head, [_line(row) for row in document["rows"] if row["part"] in WORDS])
    rows = [row for row in document["rows"] if row["part"] == "worth"]
    body = [
        [
            WAYS[row["way"]],
            f"{row['accuracy']:.3f} ± {row['deviation']:.3f}",
            "" if row["way"] == "active.run" else f"{row['difference']:+.3f} ± {row['error']:.3f}",
            str(row["splits"]),
        ]
        for row in rows
    ]
    head = ["60 labels chosen by", "test accuracy", "difference to `active.run`", "splits"]
    yield "labelling: worth", markdown(head, body)


def _line(row: Row) -> list[str]:
    busy = f"{row['while_training']:.0%}" if "while_training" in row else ""
    times = [f"{row[key]:.0f}" for key in ("p50", "p95", "max")]
    cpu = f"{row['cpu']:.1f}" if "cpu" in row else ""
    counts = [str(row.get(key, "")) for key in ("errors", "lost")]
    words = WORDS[row["part"]].format(**row)
    return [words, named(row["dataset"]), str(row["answers"]), busy, *times, cpu, *counts]
