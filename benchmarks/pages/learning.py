"""Learning from few labels and bandits on the results page."""

from __future__ import annotations

from pages.rows import Document, Row, Tables, markdown, named, values_of

LEVEL = 0.05


def tables(document: Document) -> Tables:
    """Micro-F1 on each graph, and on the public split."""
    few = [row for row in document["rows"] if row["labels"] != "public"]
    ours = document["ours"]
    for name in values_of(few, "dataset"):
        rows = [row for row in few if row["dataset"] == name]
        counts, most = values_of(rows, "labels"), max(row["runs"] for row in rows)
        body = []
        for method in values_of(rows, "method"):
            cells = {row["labels"]: row for row in rows if row["method"] == method}
            shown = [_cell(cells[count]) if count in cells else "" for count in counts]
            paper = document["paper"].get(method, {}).get(name)
            runs = min(row["runs"] for row in cells.values())
            label = f"**{method}**" if method == ours else method if runs == most else f"{method}, {_runs(runs)}"
            body.append([label, *shown, "" if paper is None else f"{paper:.1f}"])
        head = ["method", *map(str, counts), f"the paper, {counts[-1]}"]
        yield f"semi_supervised: {name}", markdown(head, body)
    public = [row for row in document["rows"] if row["labels"] == "public"]
    names, methods = values_of(public, "dataset"), values_of(public, "method")
    shown_cells = {(row["method"], row["dataset"]): f"{row['mean']:.1f} ± {row['sd']:.1f}" for row in public}
    body = [[method, *(shown_cells.get((method, name), "") for name in names)] for method in methods]
    yield "semi_supervised: public split", markdown(["method", *map(named, names)], body)


def _cell(row: Row) -> str:
    differs = row["p_value"] is not None and row["p_value"] < LEVEL
    arrow = "" if not differs else " ▼" if row["gain"] > 0 else " ▲"
    return f"{row['mean']:.1f} ± {row['sd']:.1f}{arrow}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def bandits(document: Document) -> str:
    """Regret of every policy."""
    rows = document["rows"]
    times = [key for key in rows[0] if key.startswith("regret_")]
    body = [
        [
            f"{named(row['dataset'])}, {row['policy']}",
            *(f"{row[key]:.1f}" for key in times),
            f"{row['sd']:.1f}",
            "" if row["p_value"] is None else f"{row['p_value']:.1e}",
        ]
        for row in rows
    ]
    heads = [f"after {key.removeprefix('regret_')}" for key in times]
    return markdown([f"regret, {_runs(rows[0]['runs'])}", *heads, "sd", "p against ucb-j"], body)
