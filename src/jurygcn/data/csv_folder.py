"""A folder with `nodes.csv` and `edges.csv`.

`nodes.csv` has a header and one row per node. Its columns: `id` (optional; else nodes are 0, 1, 2, ...),
`label` (optional; integers or names, empty for none) or `target` (optional; numbers, empty for none, for
regression); every other column is a feature. `edges.csv` has the columns `source`, `target` and,
optionally, `weight`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from jurygcn.data.labels import read_classes
from jurygcn.errors import DataError, excerpt
from jurygcn.io.spreadsheet import check_header, read_rows

NODES, EDGES = "nodes.csv", "edges.csv"
BLOCK = 1 << 20  # cells that are converted to numbers at once, to bound memory


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
        raise DataError(f"expected {EDGES} and {NODES} in {folder}, got no {' and no '.join(missing)}; add it")
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
    elif "target" in nodes.text:
        data.y = torch.from_numpy(_numbers(nodes.text["target"], ["target"], NODES, nodes.rows, gaps=True))
        data.num_classes = 0
    data.edge_index = _read_edges(edges, nodes)
    if "id" in nodes.text:
        data.node_names = nodes.text["id"]
    if "weight" in edges.text:
        data.edge_weight = torch.from_numpy(_numbers(edges.text["weight"], ["weight"], EDGES, edges.rows))
    return data


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
    blocks, cells, count = [np.empty(0, np.float32)], list[str](), 0
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
            blocks.append(_single(_numbers(cells, columns, path.name, count)))
            cells = []
    blocks.append(_single(_numbers(cells, columns, path.name, count)))
    return Table(header, kept, columns, np.concatenate(blocks).reshape(count, len(columns)), count)


def _numbers(cells: list[str], columns: list[str], file: str, rows: int, *, gaps: bool = False) -> NDArray[np.float64]:
    """Convert cells, which end at row ``rows`` of the file, to finite numbers; with `gaps`, an empty cell is NaN."""
    written = np.array(cells, dtype=object)
    values = np.asarray(pd.to_numeric(written, errors="coerce"), dtype=np.float64)
    bad = ~np.isfinite(values)
    if gaps:
        bad &= written != ""
    if bad.any():
        row, column = divmod(int(bad.argmax()), len(columns))
        raise DataError(
            f"{file}, row {rows - len(cells) // len(columns) + row + 1}, column {excerpt(columns[column])}: expected a "
            f"finite number, got {excerpt(written[bad.argmax()])}; fill it, or drop the row or column"
        )
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
            raise DataError(f"{NODES}, row {row + 1}: expected an id, got an empty cell; give every node one")
        if position.setdefault(name, row) != row:
            raise DataError(f"{NODES}: expected each id once, got {excerpt(name)} again; drop one")
    ends = np.array([[position.get(name, -1) for name in edges.text[end]] for end in ("source", "target")], np.int64)
    if (ends < 0).any():
        row = int((ends < 0).any(axis=0).argmax())
        column = "source" if ends[0, row] < 0 else "target"
        known = f"a node id 0..{nodes.rows - 1}" if ids is None else f"an id of {NODES}"
        raise DataError(
            f"{EDGES}, row {row + 1}, column {column!r}: expected {known}, got {excerpt(edges.text[column][row])}; "
            "correct the edge or add the node"
        )
    return torch.from_numpy(ends.reshape(2, -1))
