"""A folder with `nodes.csv` and `edges.csv`.

`nodes.csv` has a header and one row per node. Its columns: `id` (optional; else nodes are 0, 1, 2, ...),
`label` (optional; integers or names, empty for none) or `target` (optional; numbers, empty for none, for
regression); every other column is a feature. `edges.csv` has the columns `source`, `target` and,
optionally, `weight`.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from jurygcn.data.labels import read_classes
from jurygcn.errors import DataError

NODES, EDGES = "nodes.csv", "edges.csv"


def read_folder(folder: Path) -> Data:
    """Read the two tables as they are; `clean` has yet to check the graph."""
    missing = [file for file in (EDGES, NODES) if not (folder / file).is_file()]
    if missing:
        raise DataError(f"expected {EDGES} and {NODES} in {folder}, got no {' and no '.join(missing)}; add it")
    nodes, edges = _read_table(folder / NODES), _read_table(folder / EDGES)
    features = [c for c in nodes.columns if c not in ("id", "label", "target")]
    if not features:
        raise DataError(f"{NODES}: expected feature columns, got only {list(nodes.columns)}; add at least one")
    if nodes.empty:
        raise DataError(f"{NODES}: expected at least one node, got a header only; add a row per node")
    if "label" in nodes and "target" in nodes:
        raise DataError(f"{NODES}: expected one of 'label' and 'target', got both; rename one of them")
    x = np.column_stack([_numbers(nodes, column, NODES) for column in features]).astype(np.float32)
    data = Data(x=torch.from_numpy(x), name=folder.resolve().name, feature_names=features)
    if "label" in nodes:
        data.y, names = read_classes(nodes["label"].tolist(), where=f"{NODES}, column 'label'")
        if names is not None:
            data.class_names, data.num_classes = names, len(names)
    elif "target" in nodes:
        data.y = torch.from_numpy(_numbers(nodes, "target", NODES, gaps=True))
        data.num_classes = 0
    data.edge_index = _read_edges(edges, nodes)
    if "id" in nodes:
        data.node_names = nodes["id"].tolist()
    if "weight" in edges:
        data.edge_weight = torch.from_numpy(_numbers(edges, "weight", EDGES))
    return data


def _read_table(path: Path) -> pd.DataFrame:
    """All cells as stripped text; pandas fills short rows silently, so the rows are counted first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file)
            header = [cell.strip() for cell in next(rows, [])]
            for row in rows:
                if row and len(row) != len(header):
                    raise DataError(
                        f"{path.name}, line {rows.line_num}: expected {len(header)} cells as in the header, "
                        f"got {len(row)}; complete or correct the row"
                    )
        table = pd.read_csv(path, dtype=str, na_filter=False, index_col=False, encoding="utf-8-sig")
    except (UnicodeDecodeError, csv.Error, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{path.name}: expected a CSV table in UTF-8 with a header, got {error}; save it so") from error
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated or "" in header:
        got = f"{repeated} more than once" if repeated else "a column without name"
        raise DataError(f"{path.name}: expected one name per column, got {got}; rename it")
    table.columns = pd.Index(header)
    return pd.DataFrame({name: table[name].str.strip() for name in header})


def _numbers(table: pd.DataFrame, column: str, file: str, *, gaps: bool = False) -> NDArray[np.float64]:
    """A column of finite numbers; with `gaps`, an empty cell is NaN."""
    text = table[column]
    values = pd.to_numeric(text, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)
    bad = ~np.isfinite(values)
    if gaps:
        bad &= (text != "").to_numpy()
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"{file}, row {row + 1}, column {column!r}: expected a finite number, got {text.iloc[row]!r} "
            f"({int(bad.sum())} such cells); fill it, or drop the row or column"
        )
    return values


def _read_edges(edges: pd.DataFrame, nodes: pd.DataFrame) -> torch.Tensor:
    missing = [column for column in ("source", "target") if column not in edges]
    if missing:
        raise DataError(
            f"{EDGES}: expected the columns 'source' and 'target', got {list(edges.columns)}; add or rename them"
        )
    if "id" in nodes:
        names = pd.Index(nodes["id"])
        if not names.is_unique:
            raise DataError(f"{NODES}: expected each id once, got {names[names.duplicated()][0]!r} again; drop one")
    else:
        names = pd.Index([str(node) for node in range(len(nodes))])
    ends = [names.get_indexer(pd.Index(edges[column])) for column in ("source", "target")]
    unknown = (ends[0] < 0) | (ends[1] < 0)
    if unknown.any():
        row = int(unknown.argmax())
        column = "source" if ends[0][row] < 0 else "target"
        known = f"an id of {NODES}" if "id" in nodes else f"a node id 0..{len(nodes) - 1}"
        raise DataError(
            f"{EDGES}, row {row + 1}, column {column!r}: expected {known}, got {edges[column].iloc[row]!r}; "
            "correct the edge or add the node"
        )
    return torch.from_numpy(np.stack(ends).astype(np.int64))
