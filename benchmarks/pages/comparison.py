"""The jury beside other methods on the results page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from pages.rows import Document, Row, Tables, markdown, named, values_of

SAME, JURY = "the same GCN", "jury"


def part(document: Document, table: str) -> list[Row]:
    return [row for row in document["rows"] if row["table"] == table]


def across(rows: Sequence[Row], key: str) -> dict[tuple[str, str], float]:
    """The mean over graphs of every method and score."""
    names = dict.fromkeys((row["method"], row.get("score", "")) for row in rows)
    return {
        (method, score): mean(row[key] for row in rows if (row["method"], row.get("score", "")) == (method, score))
        for method, score in names
    }


def tables(document: Document) -> Tables:
    """Errors, probabilities, label sets, left-out classes."""
    errors, strange = part(document, "errors"), part(document, "strange")
    names = values_of(errors, "dataset")
    yield (
        "evaluation: errors",
        markdown(
            ["method, score", "errors of", *map(named, names), "AUROC", "AUPR", "AURC"],
            [
                [*_name(key, errors), *_cells(errors, key, names), *(f"{across(errors, m)[key]:.3f}" for m in METRICS)]
                for key in _order(errors)
            ],
            text=2,
        ),
    )
    probabilities = part(document, "probabilities")
    yield (
        "evaluation: probabilities",
        markdown(
            ["method", *map(named, names), "accuracy", "ECE", "NLL", "Brier"],
            [
                [
                    key[0],
                    *_cells(probabilities, key, names, "accuracy"),
                    *(f"{across(probabilities, m)[key]:.3f}" for m in ("accuracy", "ece", "nll", "brier")),
                ]
                for key in across(probabilities, "accuracy")
            ],
        ),
    )
    sets = part(document, "sets")
    yield (
        "evaluation: label sets",
        markdown(
            ["method", *map(named, names), "labels per set, mean"],
            [
                [key[0], *(_set_cell(sets, key[0], name) for name in names), f"{size:.2f}"]
                for key, size in across(sets, "size").items()
            ],
        ),
    )
    there = values_of(strange, "dataset")
    yield (
        "evaluation: classes left out",
        markdown(
            ["method, score", *map(named, there), "mean"],
            [
                [_name(key, strange)[0], *_cells(strange, key, there), f"{across(strange, 'auroc')[key]:.3f}"]
                for key in _order(strange)
            ],
        ),
    )


METRICS = ("auroc", "aupr", "aurc")


def _order(rows: Sequence[Row]) -> list[tuple[str, str]]:
    found = across(rows, "auroc")
    return sorted(found, key=lambda key: -found[key])


def _name(key: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    model = next(row["model"] for row in rows if (row["method"], row["score"]) == key)
    words = f"{key[0]}, {key[1].replace('_', ' ')}"
    return [f"**{words}**" if key[0] == JURY else words, "the GCN" if model == SAME else "its own model"]


def _cells(rows: Sequence[Row], key: tuple[str, str], names: Sequence[str], value: str = "auroc") -> list[str]:
    by = {row["dataset"]: row for row in rows if (row["method"], row.get("score", "")) == key}
    return [f"{by[name][value]:.3f} ± {by[name][f'{value}_sd']:.3f}" if name in by else "" for name in names]


def _set_cell(rows: Sequence[Row], method: str, name: str) -> str:
    row = next(row for row in rows if (row["method"], row["dataset"]) == (method, name))
    single = "none" if row["singleton_accuracy"] is None else f"{row['singleton_accuracy']:.3f}"
    fewer = f" ({row['splits']} splits)" if row["splits"] < max(other["splits"] for other in rows) else ""
    return f"{row['coverage']:.3f}; {row['size']:.2f}; {single}{fewer}"
