"""Files of labels: each line names a node and its class, by number or by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.choices import CHOSEN
from jurygcn.data.names import Names, check_names
from jurygcn.errors import DataError, excerpt, listing
from jurygcn.io.files import write_text
from jurygcn.io.spreadsheet import as_csv, check_header, read_rows, unquoted


def class_words(data: Data) -> list[str]:
    """The names of the classes, or their numbers if they have no names."""
    names = getattr(data, "class_names", None)
    return [str(name) for name in names] if names else [str(number) for number in range(int(data.num_classes))]


def node_words(node: int, data: Data) -> str:
    """The number of a node and, if it has one, its name."""
    names = getattr(data, "node_names", None)
    return (
        f"node {node} ({listing(names[node : node + 1])})"
        if names and str(names[node]) != str(node)
        else f"node {node}"
    )


def class_number(given: Any, data: Data) -> int:
    """The number of the class with this name or number."""
    return Names.of_classes(data).position(given)


def read_labels(path: Path, data: Data) -> tuple[Tensor, Tensor]:
    """Nodes and classes from a CSV file with the columns node and label. Lines without a label are skipped.

    Shapes: returns (n,), (n,).
    """
    answers = ((row["node"], row.get("name"), row["label"], f"line {line}") for line, row in rows_of(path))
    return parse_labels(answers, data, path.name)


def read_origins(path: Path, data: Data) -> dict[int, str]:
    """How nodes were chosen, by the column ``chosen`` of a file of labels; nodes with an empty cell are left out."""
    given = ((row["node"], row.get("name"), row.get("chosen"), f"line {line}") for line, row in rows_of(path))
    return parse_origins(given, data, path.name)


def parse_origins(given: Iterable[tuple[Any, Any, Any, str]], data: Data, source: str) -> dict[int, str]:
    """How nodes were chosen, from tuples (node, its name or None, "random", "per class" or "actively", place)."""
    nodes, found = Names.of_nodes(data), dict[int, str]()
    for node, name, how, place in given:
        if how is None or not str(how).strip():
            continue
        if how not in CHOSEN:
            raise DataError(
                f"{source}, {place}: expected chosen to be {', '.join(CHOSEN[:-1])} or {CHOSEN[-1]}, got "
                f"{excerpt(how)}; correct it, or leave it empty"
            )
        found[nodes.position(node, name)] = str(how)
    return found


def chosen_together(origins: Iterable[str]) -> str:
    """How labels were chosen as a whole: actively if one was, class by class if all were, else at random."""
    kinds = set(origins)
    if "actively" in kinds:
        return "actively"
    return "per class" if kinds == {"per class"} else "random"


def has_labels(path: Path) -> bool:
    """Whether the file is a CSV table with the columns node and label."""
    try:
        _, heading = next(read_rows(path), (0, []))
    except (OSError, DataError):
        return False  # read_labels reports the error
    return {"node", "label"} <= set(_columns(heading))


def has_column(path: Path, column: str) -> bool:
    """Whether the first line of the CSV table names this column."""
    return has_labels(path) and column in {cell.strip() for cell in next(read_rows(path))[1]}


def _columns(heading: Sequence[str]) -> list[str]:
    """The names of the columns. In a graph's nodes.csv the column id is the node, and only the labels are read."""
    names = [cell.strip() for cell in heading]
    if "node" in names or not {"id", "label"} <= set(names):
        return names
    return [{"id": "node", "label": "label"}.get(name, f"{name} of nodes.csv") for name in names]


def rows_of(path: Path, column: str = "label") -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and rows of a CSV file with the columns node and another. Cells are unquoted."""
    try:
        rows = read_rows(path)
        header = _columns(next(rows, (0, []))[1])
        if not {"node", column} <= set(header):
            raise DataError(
                f"expected the columns node and {column} in {path.name}, got {listing(header) or 'nothing'}; "
                "name them in the first line"
            )
        check_header(header, path.name)
        for line, row in rows:
            if len(row) > len(header):
                raise DataError(
                    f"{path.name}, line {line}: expected {len(header)} cells as in the header, got {len(row)}; put a "
                    "cell with a comma into quotation marks"
                )
            cells = [*map(unquoted, row), *[""] * (len(header) - len(row))]
            yield line, dict(zip(header, cells))
    except OSError as error:
        raise DataError(f"expected a file of {column}s at {path}, got {error.strerror}; check the path") from error


def with_classes(data: Data, labels: Path | None, classes: Sequence[str] | None = None) -> Data:
    """The graph with class names: those given, else the graph's own, else the sorted labels in the file."""
    if int(data.num_classes) >= 2 and classes is None:
        return data
    words = [word.strip() for word in classes or ()]
    if not words and labels is not None:
        words = sorted({row["label"].strip() for _, row in rows_of(labels)} - {""})
    if len(set(words)) < 2 or len(set(words)) != len(words) or not all(words):
        raise DataError(
            f"expected at least two different classes, got {listing(words) or 'none'}; label a node of each class, "
            "or name the classes (--classes a,b,c on the command line)"
        )
    if int(data.num_classes) >= 2 and len(words) != int(data.num_classes):
        raise DataError(
            f"expected names for the graph's {int(data.num_classes)} classes, got {len(words)}; name each class once"
        )
    named = copy(data)
    named.num_classes, named.class_names = len(words), check_names(words, len(words), "classes")
    return named


def parse_labels(answers: Iterable[tuple[Any, Any, Any, str]], data: Data, source: str) -> tuple[Tensor, Tensor]:
    """Nodes and classes from tuples (node, its name or None, label, place). Two different labels of a node are refused.

    Shapes: returns (n,), (n,).
    """
    nodes, classes, words = Names.of_nodes(data), Names.of_classes(data), class_words(data)
    found: dict[int, int] = {}
    for node, name, label, place in answers:
        if label is None or not str(label).strip():
            continue
        try:
            number, kind = nodes.position(node, name), classes.position(label)
        except DataError as error:
            raise DataError(f"{source}, {place}: {error}") from None
        if found.setdefault(number, kind) != kind:
            raise DataError(
                f"{source}, {place}: expected one label for {node_words(number, data)}, got "
                f"{excerpt(words[kind])} after {excerpt(words[found[number]])}; keep one of them"
            )
    return torch.tensor(list(found), dtype=torch.long), torch.tensor(list(found.values()), dtype=torch.long)


def merged(old: Mapping[int, int], new: Mapping[int, int], data: Data, source: str) -> dict[int, int]:
    """Old and new labels together. A new label that differs from the old one is refused."""
    words = class_words(data)
    for node, label in new.items():
        if old.get(node, label) != label:
            raise DataError(
                f"{source}: expected {node_words(node, data)} to keep its label {excerpt(words[old[node]])}, got "
                f"{excerpt(words[label])}; correct one of them"
            )
    return {**old, **new}


def write_labels(path: Path, labels: Mapping[int, int], data: Data, origins: Mapping[int, str] | None = None) -> None:
    """Write a CSV file with the columns node, label and chosen, atomically. Classes are written by name.

    Where nodes are written as numbers but have names, the names are a column, too: people look for them.
    """
    nodes, words = Names.of_nodes(data), class_words(data)
    named = nodes.names is not None and not nodes.numeric
    rows = (
        [
            nodes.text(node),
            *([nodes.names[node]] if named and nodes.names else []),
            words[label],
            (origins or {}).get(node, ""),
        ]
        for node, label in labels.items()
    )
    write_text(path, as_csv(["node", *["name"] * named, "label", "chosen"], rows))
