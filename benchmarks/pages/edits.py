"""Tables of `what_if.py`: edits against retraining, sequences, time, explanations."""

from __future__ import annotations

from pages.rows import Document, Tables, markdown

MODELS = {("SGC", 0): "SGC", ("GCN", 200): "GCN, 200 epochs", ("GCN", 1000): "GCN, 1,000 epochs", ("GAT", 100): "GAT"}
METHODS = ("newton", "plain influence", "GIF")


def tables(document: Document) -> Tables:
    """One table for each part that has been measured."""
    rows = document["rows"]
    for part, write in (
        ("retraining", _retraining),
        ("paths", _paths),
        ("sequence", _sequence),
        ("time", _time),
        ("explanations", _explained),
    ):
        found = [row for row in rows if row["part"] == part]
        if found:
            yield f"what_if: {part}", write(found)


def _retraining(rows: list[Document]) -> str:
    head = ["model", "graph", "edit", "edits", *(f"{m}: risk / predictions" for m in (*METHODS, "trained again"))]
    body, order = [], list(MODELS)
    for row in sorted(rows, key=lambda row: order.index((row["model"], row["epochs"]))):
        found = [row["methods"].get(m) for m in (*METHODS, "trained again")]
        cells = ["" if m is None else f"{m['risk']:.3f} / {m['predictions']:.3f}" for m in found]
        body.append([MODELS[row["model"], row["epochs"]], row["graph"], row["kind"], str(row["edits"]), *cells])
    return markdown(head, body, text=3)


def _paths(rows: list[Document]) -> str:
    head = ["model", "graph", "edits", "relative gradient", "newton", "ten times a tenth of the edit", "trained again"]
    names = {"relu": "GCN", "linear": "GCN without ReLU", "elu": "GAT"}
    body = [
        [
            f"{names[row['activation']]}, {row['epochs']:,} epochs",
            row["graph"],
            f"{row['edits']} ({row['kind']})",
            f"{row['gradient']:.3f}",
            *(f"{row[k]:.3f}" for k in ("newton", "tenth", "again")),
        ]
        for row in rows
    ]
    return markdown(head, body, text=2)


def _sequence(rows: list[Document]) -> str:
    head = ["model", "deletions", "error", "error without the step", "same class", "remaining", "drift", "says retrain"]
    body = [
        [
            MODELS[row["model"], row["epochs"]],
            str(at["deletions"]),
            f"{at['error']:.1e}",
            f"{at['without_step']:.1e}",
            f"{100 * at['same_class']:.1f} %",
            f"{at['remaining']:.3f}",
            f"{at['drift']:.1f}",
            "yes" if at["retrain"] else "no",
        ]
        for row in rows
        for at in row["after"]
    ]
    return markdown(head, body)


def _time(rows: list[Document]) -> str:
    head = ["graph", "way", "milliseconds per edit", "faster than PyG's loop", "faster than this library's loop"]
    body = [
        [row["graph"], way, f"{t['milliseconds']:.1f}", f"{t['usual']:.0f} ×", f"{t['own']:.0f} ×"]
        for row in rows
        for way, t in row["ways"].items()
    ]
    return markdown(head, body, text=2)


def _explained(rows: list[Document]) -> str:
    head = ["graph", "method", "fidelity+", "fidelity−", "unfaithfulness", "edges in the motif", "seconds per node"]
    body = [
        [
            row["graph"],
            name,
            f"{m['fidelity_plus']:.2f}",
            f"{m['fidelity_minus']:.2f}",
            f"{m['unfaithfulness']:.3f}",
            "" if m["in_motif"] is None else f"{100 * m['in_motif']:.0f} %",
            f"{m['seconds']:.2f}",
        ]
        for row in rows
        for name, m in row["methods"].items()
    ]
    return markdown(head, body, text=2)
