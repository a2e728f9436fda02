"""Labels in files: which node has which class, by number or by name."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.errors import DataError
from jurygcn.files import write_text
from jurygcn.spreadsheet import as_csv, unquoted


def class_words(data: Data) -> list[str]:
    """The classes' names; their numbers where they have none."""
    names = getattr(data, "class_names", None)
    return [str(name) for name in names] if names else [str(number) for number in range(int(data.num_classes))]


def node_words(node: int, data: Data) -> str:
    """A node by its number and, where it has one, its name."""
    names = getattr(data, "node_names", None)
    return f"node {node} ({names[node]})" if names and str(names[node]) != str(node) else f"node {node}"


def class_number(given: Any, data: Data) -> int:
    """The class that a name or a number stands for; names first, since names may be numbers."""
    text, words = str(given).strip(), class_words(data)
    for written in (str(given), text):
        if written in words:
            return words.index(written)
    if _is_below(text, int(data.num_classes)):
        return int(text)
    raise DataError(f"expected one of the classes {', '.join(words)}, got {text!r}; correct it")


def node_number(given: Any, data: Data) -> int:
    """The node that a number or a name stands for; numbers first."""
    text, count = str(given).strip(), int(data.num_nodes)
    if _is_below(text, count):
        return int(text)
    names = [str(name) for name in getattr(data, "node_names", None) or []]
    for written in (str(given), text):
        if written in names:
            return names.index(written)
    expected = f"a node number 0..{count - 1}" + (" or a node name" if names else "")
    raise DataError(f"expected {expected}, got {text!r}; correct it")


def _is_below(text: str, count: int) -> bool:
    """Whether the text is a number 0..count-1; Python refuses to read numbers of thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < count


def read_labels(path: Path, data: Data) -> tuple[Tensor, Tensor]:
    """Nodes and classes from a CSV file with the columns node and label; lines without a label are passed over.

    Shapes: returns (n,), (n,).
    """
    answers = ((row["node"], row["label"], f"line {line}", row.get("name")) for line, row in _rows(path))
    return gather(answers, data, path.name)


def has_labels(path: Path) -> bool:
    """Whether the file is a CSV table with the columns node and label."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            heading = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False  # whoever reads it for good says what is wrong
    return {"node", "label"} <= set(heading)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and rows of a CSV file with the columns node and label; cells as they were before `quoted`."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from _table(csv.DictReader(file), path)
    except csv.Error as error:
        raise DataError(f"expected a CSV table in {path.name}, got {error}; save it anew") from error
    except OSError as error:
        raise DataError(f"expected a file of labels at {path}, got {error.strerror}; check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"expected CSV text in {path.name}, got other bytes; save it as CSV in UTF-8") from error


def _table(rows: csv.DictReader[str], path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    if not {"node", "label"} <= set(rows.fieldnames or ()):
        raise DataError(
            f"expected the columns node and label in {path.name}, got {_shortened(rows.fieldnames or ['nothing'])}; "
            "name them in the first line"
        )
    for row in rows:
        yield rows.line_num, {key: unquoted(cell) if isinstance(cell, str) else cell for key, cell in row.items()}


def _shortened(names: Sequence[str]) -> str:
    """Column names on one line: a quote that is never closed makes one of a whole file."""
    return ", ".join(" ".join(name.split())[:40] for name in names[:20])


def with_classes(data: Data, labels: Path | None, classes: Sequence[str] | None = None) -> Data:
    """The graph with its classes: its own, else those given, else the words in the file of labels, sorted."""
    if int(data.num_classes) >= 2 and classes is None:
        return data
    words = [word.strip() for word in classes or ()]
    if not words and labels is not None:
        words = sorted({row["label"].strip() for _, row in _rows(labels) if (row["label"] or "").strip()})
    if len(set(words)) < 2 or len(set(words)) != len(words) or not all(words):
        raise DataError(
            f"expected at least two different classes, got {', '.join(words) or 'none'}; label a node of each class, "
            "or name the classes (--classes a,b,c on the command line)"
        )
    if int(data.num_classes) >= 2 and len(words) != int(data.num_classes):
        raise DataError(f"expected names for the graph's {int(data.num_classes)} classes, got {len(words)}; name all")
    named = copy(data)
    named.num_classes, named.class_names = len(words), words
    return named


def gather(answers: Iterable[tuple[Any, ...]], data: Data, source: str) -> tuple[Tensor, Tensor]:
    """Nodes and classes from (node, label, place[, name]); refuses two labels for a node, and another node's name.

    Shapes: returns (n,), (n,).
    """
    found: dict[int, int] = {}
    for node, label, place, *named in answers:
        if label is None or not str(label).strip():
            continue
        try:
            number, kind = node_number(node, data), class_number(label, data)
            _check_name(number, next(iter(named), None), data)
        except DataError as error:
            raise DataError(f"{source}, {place}: {error}") from None
        if found.setdefault(number, kind) != kind:
            words = class_words(data)
            raise DataError(
                f"{source}, {place}: expected one label for node {number}, got {words[kind]!r} after "
                f"{words[found[number]]!r}; settle it"
            )
    return torch.tensor(list(found), dtype=torch.long), torch.tensor(list(found.values()), dtype=torch.long)


def _check_name(node: int, name: Any, data: Data) -> None:
    """Tasks name each node twice, by number and by name: refuse an answer whose two do not agree."""
    names = getattr(data, "node_names", None) or range(int(data.num_nodes))
    known = str(names[node])
    if name is not None and str(name) != known and str(name) in map(str, names):
        raise DataError(
            f"expected the name {known[:40]!r} beside node {node}, got {str(name)[:40]!r}, which is another node's; "
            "correct one of them"
        )


def merged(old: Mapping[int, int], new: Mapping[int, int], data: Data, source: str) -> dict[int, int]:
    """Old and new labels together; refuses a node that would get another label than it has."""
    words = class_words(data)
    for node, label in new.items():
        if old.get(node, label) != label:
            raise DataError(
                f"{source}: expected node {node} to keep its label {words[old[node]]!r}, got {words[label]!r}; "
                "settle it"
            )
    return {**old, **new}


def write_labels(path: Path, labels: Mapping[int, int], data: Data) -> None:
    """A CSV file with the columns node and label, classes by name, in one piece."""
    words = class_words(data)
    write_text(path, as_csv(["node", "label"], ([node, words[label]] for node, label in labels.items())))
