"""Groups of nodes for label sets by group: from a file, or bands of degrees."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.active.labels import node_words, rows_of
from jurygcn.data.names import Names
from jurygcn.errors import DataError, SettingError, excerpt

DEGREE = Path("degree")  # the value of --groups that means bands of degrees
BANDS = 4


def groups_of(given: Path | None, by: str, data: Data) -> Tensor | None:
    """The group of every node, (N,), by --groups; raise SettingError unless it comes with --by group."""
    if (given is not None) != (by == "group"):
        raise SettingError(
            f"expected --groups and --by group together, got {'--groups' if given else '--by group'} alone; give both, "
            "or neither"
        )
    if given is None:
        return None
    return degree_bands(data) if given == DEGREE else read_groups(given, data)


def degree_bands(data: Data) -> Tensor:
    """Four bands of the number of neighbours, as equal in size as ties allow, (N,)."""
    degrees = torch.bincount(data.edge_index[1], minlength=int(data.num_nodes)).double()
    bounds = degrees.quantile(torch.arange(1, BANDS, dtype=torch.float64) / BANDS)
    return torch.bucketize(degrees, bounds)


def read_groups(path: Path, data: Data) -> Tensor:
    """Groups from a CSV file with the columns node and group: one line for every node of the graph, (N,)."""
    nodes, numbers = Names.of_nodes(data), dict[str, int]()
    found = torch.full((int(data.num_nodes),), -1)
    for line, row in rows_of(path, "group"):
        try:
            node = nodes.position(row["node"], row.get("name"))
        except DataError as error:
            raise DataError(f"{path.name}, line {line}: {error}") from None
        word = row["group"].strip()
        group = numbers.setdefault(word, len(numbers))
        if not word or int(found[node]) not in (-1, group):
            raise DataError(
                f"{path.name}, line {line}: expected one group for {node_words(node, data)}, got "
                f"{excerpt(word) if word else 'an empty cell'}; correct the line"
            )
        found[node] = group
    missing = (found < 0).nonzero().squeeze(1)
    if len(missing):
        raise DataError(
            f"expected a group for every node in {path.name}, got none for {node_words(int(missing[0]), data)}; add "
            f"{len(missing)} lines"
        )
    return found
