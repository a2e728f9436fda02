"""Reading results, and the words for what is in them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
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
SPLIT, DEFAULT, MAX_PROBABILITY, WIDTH = "split conformal", "default (ambiguity)", "max-probability", "paper's width"
NEIGHBOURS = "neighbour doubt"
OPINION = "ridge panel"

Row = Mapping[str, Any]
Document = Mapping[str, Any]
Documents = Mapping[str, Document]


def documents(root: Path) -> dict[str, Any]:
    """Every full result, by the name of its benchmark, with the words of the script that made it."""
    found = {}
    for path in sorted((root / "benchmarks" / "results").glob("*.json")):
        script = root / "benchmarks" / f"{path.stem}.py"
        if not script.exists():  # quick results have a name of their own, and no script of that name
            continue
        words = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
        text = path.read_text(encoding="utf-8").replace('"neighbour mass"', f'"{NEIGHBOURS}"')  # its first name
        found[path.stem] = json.loads(text) | {"words": words}
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


def width_ratio(rows: Sequence[Row], graph: str) -> float:
    """How wide jackknife+ intervals are, in units of split conformal's."""
    plus, split = (mean(column(rows, "width", graph=graph, kind=kind)) for kind in ("jackknife+", SPLIT))
    return plus / split


def size_ratios(rows: Sequence[Row]) -> list[float]:
    """Set size of the jury over that of split conformal at target 0.9, for each citation graph."""
    sizes = {
        kind: [mean(column(rows, "size", dataset=name, kind=kind, alpha=0.1)) for name in CITATION]
        for kind in ("newton", SPLIT)
    }
    return [mine / other for mine, other in zip(sizes["newton"], sizes[SPLIT])]


def named(dataset: str) -> str:
    """A graph's name for people."""
    return NAMES.get(dataset, f"`{dataset}`")


def listed(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
