"""A folder with `nodes.csv` and `edges.csv`.

`nodes.csv` has a header and one row per node. Its columns: `id` (optional; else nodes are 0, 1, 2, ...),
`label` (optional; integers or names, empty for none) or `target` (optional; numbers, empty for none, for
regression); every other column is a feature. A column of text with few different texts becomes one feature
per text (1 where a row has it, else 0); one with many is left out. `edges.csv` has the columns `source`,
`target` and, optionally, `weight`.
"""

from __future__ import annotations

import difflib
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from jurygcn.data.labels import read_classes
from jurygcn.errors import DataError, DataNotice, excerpt, listing
from jurygcn.io.spreadsheet import check_header, read_rows

NODES, EDGES = "nodes.csv", "edges.csv"
BLOCK = 1 << 20  # cells that are converted to numbers at once, to bound memory
MOST_CATEGORIES = 20  # different texts up to which a column of text becomes features
MISSING = {"", "na", "n/a", "nan", "null", "none", "inf", "-inf", "+inf", "infinity", "-infinity"}  # no category


@dataclass(frozen=True)
class Table:
    """A CSV table: some columns as stripped text, the others as numbers.

    Shapes: numbers (rows, len(columns)).
    """

    header: list[str]
    text: dict[str, list[str]]
    columns: list[str]
    numbers: NDArray[np.float32]
    rows: int


def read_folder(folder: Path) -> Data:
    """Read the two tables; the caller passes the result to `clean`."""
    missing = [file for file in (EDGES, NODES) if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"expected {EDGES} and {NODES} in {folder}, got no {' and no '.join(missing)}; add what is missing"
        )
    nodes = _read_table(folder / NODES, ("id", "label", "target"), numbers=True)
    edges = _read_table(folder / EDGES, ("source", "target", "weight"), numbers=False)
    if not nodes.columns:
        raise DataError(f"{NODES}: expected feature columns, got only {excerpt(nodes.header)}; add at least one")
    if not nodes.rows:
        raise DataError(f"{NODES}: expected at least one node, got a header only; add a row per node")
    if "label" in nodes.text and "target" in nodes.text:
        raise DataError(f"{NODES}: expected one of 'label' and 'target', got both; rename one of them")
    data = Data(x=torch.from_numpy(nodes.numbers), name=folder.resolve().name, feature_names=nodes.columns)
    if "label" in nodes.text:
        data.y, names = read_classes(nodes.text["label"], where=f"{NODES}, column 'label'")
        if names is not None:
            data.class_names, data.num_classes = names, len(names)
    elif "target" not in nodes.text:
        _notice_misspelt(nodes.header)
    else:
        data.y = torch.from_numpy(_numbers(nodes.text["target"], "target", NODES, gaps=True))
        data.num_classes = 0
    data.edge_index = _read_edges(edges, nodes)
    if "id" in nodes.text:
        data.node_names = nodes.text["id"]
    if "weight" in edges.text:
        data.edge_weight = torch.from_numpy(_numbers(edges.text["weight"], "weight", EDGES))
    return data


def _notice_misspelt(header: list[str]) -> None:
    """Say that no label is known, if a column seems to be meant for labels."""
    lower = {name.lower(): name for name in header}
    for wanted in ("label", "target"):
        near = difflib.get_close_matches(wanted, [*lower, *(name.rstrip("s") for name in lower)], n=1, cutoff=0.75)
        if near:
            meant = next(name for low, name in lower.items() if low in (near[0], near[0] + "s"))
            warnings.warn(
                f"{NODES} has no column {wanted!r}, so column {excerpt(meant)} is a feature; "
                f"rename it to {wanted!r} if it was meant",
                DataNotice,
                stacklevel=2,
            )


def read_texts(folder: Path) -> dict[str, list[str]]:
    """The columns of text of nodes.csv, as they are written. `read_folder` makes features of some and drops others."""
    rows = read_rows(folder / NODES, largest=None)
    header = [name.strip() for name in next(rows, (0, []))[1]]
    kept: dict[int, list[str]] = {}
    for number, (_, row) in enumerate(rows):
        if not number:
            words = [k for k, cell in enumerate(row) if not _is_number(cell.strip())]
            kept = {k: [] for k in words if k < len(header) and header[k] not in ("id", "label", "target")}
        for column, cells in kept.items():
            cells.append(row[column].strip() if column < len(row) else "")
    return {header[column]: cells for column, cells in kept.items()}


def _is_number(cell: str) -> bool:
    return bool(np.isfinite(pd.to_numeric(cell, errors="coerce")))


def _read_table(path: Path, text: tuple[str, ...], *, numbers: bool) -> Table:
    """The columns called ``text`` as they are written, and with ``numbers`` all others as numbers.

    One pass, in time proportional to the number of cells.
    """
    rows = read_rows(path, largest=None)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{path.name}: expected a CSV table in UTF-8 with a header, got an empty file; add a header")
    header = check_header(first[1], path.name)
    place = {name: column for column, name in enumerate(header) if name in text}
    others = [column for column, name in enumerate(header) if name not in place] if numbers else []
    columns = [header[column] for column in others]
    kept: dict[str, list[str]] = {name: [] for name in place}
    blocks, cells, count = [np.empty(0, np.float64)], list[str](), 0
    faults = Faults(path.name, columns)
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{path.name}, line {line}: expected {len(header)} cells as in the header, got {len(row)}; "
                "complete or correct the row"
            )
        for name, column in place.items():
            kept[name].append(row[column].strip())
        cells += [row[column].strip() for column in others]
        count += 1
        if len(cells) >= BLOCK:
            blocks.append(faults.convert(cells, count))
            cells = []
    blocks.append(faults.convert(cells, count))
    numbers_read, columns = _with_categories(np.concatenate(blocks).reshape(count, len(columns)), columns, faults)
    return Table(header, kept, columns, _single(numbers_read), count)


@dataclass
class Faults:
    """The cells of a table that are no finite numbers, by column and row."""

    file: str
    columns: list[str]
    cells: dict[int, dict[int, str]] = field(default_factory=dict)

    def convert(self, cells: list[str], rows: int, *, gaps: bool = False) -> NDArray[np.float64]:
        """Cells, which end at row ``rows`` of the file, as numbers; NaN and a note of it for others.

        With ``gaps``, empty cells are not noted.
        """
        written = np.array(cells, dtype=object)
        values = np.asarray(pd.to_numeric(written, errors="coerce"), dtype=np.float64)
        bad = ~np.isfinite(values)
        if gaps:
            bad &= written != ""
        first = rows - len(cells) // max(1, len(self.columns))
        for place in bad.nonzero()[0].tolist():
            row, column = divmod(place, len(self.columns))
            self.cells.setdefault(column, {})[first + row + 1] = cells[place]
        return values

    def check(self) -> None:
        """Raise one DataError about all of them."""
        if not self.cells:
            return
        column, found = min(self.cells.items(), key=lambda item: (min(item[1]), item[0]))
        row = min(found)
        got = excerpt(found[row]) if found[row] else "an empty cell"
        count = sum(map(len, self.cells.values()))
        more, what = "", "it, or drop the row or column"
        if count > 1:
            counts = [f"{self.columns[c]}: {len(self.cells[c])}" for c in sorted(self.cells)]
            more, what = f" ({count} such cells by column: {listing(counts)})", "them, or drop the rows or columns"
        raise DataError(
            f"{self.file}, line {row + 1}, column {excerpt(self.columns[column])}: expected a finite number, "
            f"got {got}{more}; fill {what}"
        )


def _with_categories(
    values: NDArray[np.float64], columns: list[str], faults: Faults
) -> tuple[NDArray[np.float64], list[str]]:
    """The table with columns of text as one column per text, or without them; raises DataError for other faults."""
    texts = {
        column: found
        for column, found in faults.cells.items()
        if len(found) == len(values) and any(text.lower() not in MISSING for text in found.values())
    }
    for column in texts:
        del faults.cells[column]
    faults.check()
    if not texts:
        return values, columns
    pieces: list[NDArray[np.float64]] = []
    names: list[str] = []
    for column, name in enumerate(columns):
        if column not in texts:
            pieces.append(values[:, column : column + 1])
            names.append(name)
            continue
        written = np.array([texts[column][row] for row in range(1, len(values) + 1)], dtype=object)
        kinds = sorted({text for text in written.tolist() if text.lower() not in MISSING})
        if len(kinds) > MOST_CATEGORIES:
            note = f"holds {len(kinds)} different texts, too many for features, and is left out"
        else:
            note = f"holds text: its {len(kinds)} different texts became features with the values 0 and 1"
            pieces.append((written[:, None] == np.array(kinds, dtype=object)).astype(np.float64))
            names += [f"{name}={kind}" for kind in kinds]
        warnings.warn(f"{faults.file}: column {excerpt(name)} {note}", DataNotice, stacklevel=2)
    return (np.concatenate(pieces, axis=1) if pieces else values[:, :0]), names


def _numbers(cells: list[str], column: str, file: str, *, gaps: bool = False) -> NDArray[np.float64]:
    """One column of finite numbers; with ``gaps``, an empty cell is NaN."""
    faults = Faults(file, [column])
    values = faults.convert(cells, len(cells), gaps=gaps)
    faults.check()
    return values


def _single(values: NDArray[np.float64]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # `clean` rejects the infinities
        return values.astype(np.float32)


def _read_edges(edges: Table, nodes: Table) -> torch.Tensor:
    if not {"source", "target"} <= edges.text.keys():
        raise DataError(
            f"{EDGES}: expected the columns 'source' and 'target', got {excerpt(edges.header)}; add or rename them"
        )
    ids = nodes.text.get("id")
    names = ids or [str(node) for node in range(nodes.rows)]
    position: dict[str, int] = {}
    for row, name in enumerate(names):
        if not name:
            raise DataError(f"{NODES}, line {row + 2}: expected an id, got an empty cell; give every node one")
        if position.setdefault(name, row) != row:
            raise DataError(f"{NODES}: expected each id once, got {excerpt(name)} again; drop one")
    ends = np.array([[position.get(name, -1) for name in edges.text[end]] for end in ("source", "target")], np.int64)
    if (ends < 0).any():
        row = int((ends < 0).any(axis=0).argmax())
        column = "source" if ends[0, row] < 0 else "target"
        known = f"a node id 0..{nodes.rows - 1}" if ids is None else f"an id of {NODES}"
        raise DataError(
            f"{EDGES}, line {row + 2}, column {column!r}: expected {known}, got {excerpt(edges.text[column][row])}; "
            "correct the edge or add the node"
        )
    return torch.from_numpy(ends.reshape(2, -1))
