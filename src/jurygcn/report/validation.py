"""Check the content of a report: columns of one length, shares between 0 and 1, sets of their stated sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

SHARES = ("probability", "doubt", "jury_doubt", "credibility", "ambiguity")
NUMBERS = ("width", "lower", "upper")
ROUNDING = 1e-3  # shares may leave 0 to 1 by this much


def check_content(content: Mapping[str, Any]) -> None:
    """Raise a ValueError that names the part of the report that is not valid."""
    classes, rows, details = content["classes"], content["rows"], content["details"]
    classify, count = content["kind"] == "classes", len(rows["node"])
    texts = [
        content["title"],
        content["caution"],
        *classes,
        *content["notes"],
        *_cells(content["headline"]),
        *_cells(content["columns"]),
    ]
    _need(content["kind"] in ("classes", "target") and bool(classes) == classify, "kind")
    _need(_numbers([content["alpha"]], 0, 1), "alpha")
    _need(all(isinstance(text, str) for text in texts), "words")
    _need(all(len(rows[key]) == count for key in rows if key != "sets"), "number of rows")
    _need(len(set(rows["node"])) == count and _whole(rows["node"]) and _whole(rows["degree"]), "nodes")
    _need(_whole(rows["trained"], 2) and {column["key"] for column in content["columns"]} <= rows.keys(), "columns")
    _need(all(_numbers(rows[key], 0, 1) for key in SHARES if key in rows), "shares")
    _need(all(_numbers(rows[key]) for key in NUMBERS if key in rows), "numbers")
    if classify:
        sets, C = rows["sets"], len(classes)
        _need(all(_whole(labels, C) and len(set(labels)) == len(labels) for labels in sets), "label sets")
        _need(_whole(rows["set"], len(sets)) and rows["size"] == [len(sets[number]) for number in rows["set"]], "sizes")
        known = [label for label in rows["truth"] if label is not None]
        said = rows.get("jury_class", [])
        _need(_whole(rows["prediction"], C) and _whole(known, C) and _whole(said, C), "classes")
        _need(all(len(row) == C and _numbers(row, 0, 1) for row in details["p_values"]), "p-values")
    else:
        _need(_numbers(rows["prediction"]) and _numbers(rows["truth"]), "targets")
    _check_left_out(content["left_out"], len(classes))
    training, pairs = content["training"], content["edges"]["pairs"]
    _need(_whole(training["node"]) and len(training["node"]) == len(training["label"]), "training nodes")
    _need(_whole(pairs) and len(pairs) % 2 == 0, "edges")
    _need(_whole([details["count"]], count + 1), "number of details")
    for part in ("p_values", "drivers", "support"):
        _need(details[part] is None or len(details[part]) == details["count"], part)
    for drivers, support in zip(details["drivers"] or (), details["support"] or ()):
        _need(_whole(drivers, len(training["node"])) and len(drivers) == len(support) and _numbers(support), "drivers")

    links = details.get("links")  # reports of earlier versions have none
    if links is not None:
        _need(len(links["rows"]) <= details["count"], "number of links")
        for row in links["rows"]:
            _need(_whole(row["node"]) and _numbers(row["direct"]) and _numbers(row["through"]), "links")
            _need(_whole(row["without"], len(classes)) if classify else _numbers(row["without"]), "links")
            _need(len({len(values) for values in row.values()}) == 1, "number of links")


def _check_left_out(found: Mapping[str, Any] | None, classes: int) -> None:
    """Check what left-out labels say; None where they say nothing."""
    if found is None:
        return
    table, listed = found["classes"], found["suspicious"]
    words = [found["words"], found["calibration"], listed["words"], *listed["neighbours"]]
    _need(all(isinstance(text, str) for text in words), "words about left-out labels")
    shares = [found["accuracy"], *found["interval"], found["level"], found["noise"], *listed["wrong"]]
    shares += [*listed["probability"], *table["recall"], *table["lower"], *table["upper"]]
    _need(_whole([found["labels"], found["others"]]), "numbers of labels and other nodes")
    _need(_numbers(shares, 0, 1) and _numbers([found["temperature"]], 0), "shares of left-out labels")
    _need(all(len(column) == classes for column in (*table.values(), found["confusion"])), "classes of left-out labels")
    counts = [*table["labels"], *table["right"], *(number for row in found["confusion"] for number in row)]
    _need(_whole(counts) and all(len(row) == classes for row in found["confusion"]), "confusion")
    columns = [listed[key] for key in ("node", "label", "suggested", "probability", "wrong", "against", "neighbours")]
    _need(len({len(column) for column in columns}) == 1 and _whole([listed["more"]]), "suspicious labels")
    _need(_whole(listed["node"]) and all(map(_whole, listed["against"])), "suspicious nodes")
    _need(_whole(listed["label"], classes) and _whole(listed["suggested"], classes), "suspicious classes")


def _need(fine: bool, what: str) -> None:
    if not fine:
        raise ValueError(f"invalid {what}")


def _cells(table: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [cell for row in table for cell in row.values()]


def _whole(values: Iterable[Any], end: float = math.inf) -> bool:
    """Whether these are whole numbers from 0 up to but without ``end``."""
    return all(type(value) is int and 0 <= value < end for value in values)


def _numbers(values: Iterable[Any], low: float = -math.inf, high: float = math.inf) -> bool:
    """Whether these are numbers in this range, or None for infinite or unknown values."""
    there = [value for value in values if value is not None]
    return all(type(value) in (int, float) and low - ROUNDING <= value <= high + ROUNDING for value in there)
