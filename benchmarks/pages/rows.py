"""Reading results, and the names of what is in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

CITATION = {"cora": "Cora", "citeseer": "Citeseer", "pubmed": "PubMed"}
NAMES = {
    **CITATION,
    "reddit-like": "Reddit's stand-in",
    "citeseer, whole graph": "Citeseer, whole graph",
    "citeseer, largest component": "Citeseer, largest component",
}
SPLIT, DEFAULT, MAX_PROBABILITY = "split conformal", "default (ambiguity)", "max-probability"
NEIGHBOURS = "neighbour doubt"
# Results of scripts that have several.
OPTIONS = {"real_models_agreement": "real_models.py --agreement", "advice_splits": "advice.py --splits"}

# Results of version 0.1.0 were saved without a date. All of them are from these days.
UNDATED = "2026-11-16 to 18"

Row = Mapping[str, Any]
Document = Mapping[str, Any]
Documents = Mapping[str, Document]
Tables = Iterator[tuple[str, str]]  # the name of a table, and the table


def script_of(name: str) -> str:
    """The script that makes a result, with its option if it has several."""
    return OPTIONS.get(name, f"{name}.py")


def date_of(document: Document) -> str:
    """When a result was measured."""
    return str(document["environment"].get("date", UNDATED))


def documents(root: Path) -> dict[str, Any]:
    """Every full result, by the name of its benchmark."""
    found = {}
    for path in sorted((root / "benchmarks" / "results").glob("*.json")):
        script = root / "benchmarks" / script_of(path.stem).split()[0]
        if not script.exists():  # quick results have a name of their own, and no script of that name
            continue
        text = path.read_text(encoding="utf-8").replace('"neighbour mass"', f'"{NEIGHBOURS}"')  # its first name
        found[path.stem] = json.loads(text)
    return found


def column(rows: Iterable[Row], key: str, **where: Any) -> list[float]:
    """The values of ``key`` in the rows that have these values elsewhere."""
    return [row[key] for row in rows if all(row[k] == value for k, value in where.items())]


def values_of(rows: Iterable[Row], key: str) -> list[Any]:
    """The different values of a key, in order of appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def spread(values: Sequence[float], digits: int = 3) -> str:
    """Mean ± standard deviation, as the scripts print it."""
    return f"{mean(values):.{digits}f} ± {pstdev(values):.{digits}f}"


def scores_of(document: Document) -> list[str]:
    """The scores that error_detection compared."""
    about = ("dataset", "seed", "diffusion", "accuracy", "opinion_accuracy")
    return [key for key in document["rows"][0] if key not in about]


def auroc(document: Document, score: str) -> float:
    """Mean AUROC over the graphs, each graph counting the same."""
    rows = document["rows"]
    return mean(mean(column(rows, score, dataset=name)) for name in values_of(rows, "dataset"))


def named(dataset: str) -> str:
    """A graph's name for people."""
    return NAMES.get(dataset, f"`{dataset}`")


def markdown(head: Sequence[str], body: Iterable[Sequence[str]], *, text: int = 1) -> str:
    """A table: the first columns are text, the others are numbers."""
    lines = [head, [*["---"] * text, *["---:"] * (len(head) - text)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
