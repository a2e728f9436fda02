"""Graphs that are already in memory: PyG `Data`, NetworkX graphs, SciPy adjacency matrices."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import torch
from scipy import sparse
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import is_sparse, to_edge_index

from jurygcn.data.checked_input import FOR_TYPES
from jurygcn.data.labels import read_classes
from jurygcn.data.validate import clean, normalize_rows
from jurygcn.errors import DataError


def as_data(
    graph: Any, *, x: Any = None, y: Any = None, name: str | None = None, normalize_features: bool = False
) -> Data:
    """Bring a graph from memory into the library's form (see `jurygcn.data.validate.clean`).

    Args:
        graph: a PyG `Data`, whose edges may be a sparse `adj_t` and whose labels `y` may be a list of texts; a
            NetworkX graph (features in the node attribute `x`, labels in `y` or
            `label`, weights in the edge attribute `weight` if every edge has it; nodes are numbered in the
            graph's order); or a square SciPy sparse matrix (entries other than 1 are kept as edge weights).
        x: features (N, F), in place of the graph's own; required with a SciPy matrix.
        y: labels (N,), in place of the graph's own; -1 or NaN for none, floats for regression.
        name: what to call the graph.
        normalize_features: scale the rows of non-negative features to sum 1.

    The input is not changed.
    """
    if isinstance(graph, Data):
        data = _from_pyg(graph)
    elif isinstance(graph, nx.Graph):
        data = _from_networkx(graph, with_x=x is None, with_y=y is None)
    elif sparse.issparse(graph):
        data = _from_scipy(graph)
    elif isinstance(graph, HeteroData):
        raise DataError(f"expected a PyG Data, got HeteroData; {FOR_TYPES}")
    else:
        raise DataError(
            "expected a PyG Data, a NetworkX graph or a SciPy sparse matrix, "
            f"got {type(graph).__name__}; convert it to one of these"
        )
    if x is not None:
        data.x = _tensor(x, "features `x`")
    if y is not None:
        data.y = _tensor(y, "integer labels `y`")
    if name is not None or "name" not in data:
        data.name = name or "graph"
    rows = data.x.shape[0] if isinstance(data.get("x"), Tensor) and data.x.dim() else None
    nodes = data.pop("expected_nodes") if "expected_nodes" in data else rows
    if rows is not None and nodes != rows:
        raise DataError(f"expected one row of features for each of {nodes} nodes, got {rows} rows; match the two")
    data = clean(data)
    if normalize_features:
        data.x = normalize_rows(data.x)
    return data


def _from_pyg(graph: Data) -> Data:
    """A copy with an edge_index in place of a sparse adjacency, and numbers in place of class names."""
    data = Data.from_dict(graph.to_dict())
    sparse_edges = [key for key in ("edge_index", "adj_t") if key in data and is_sparse(data[key])]
    if sparse_edges and ("edge_index" not in data or sparse_edges[0] == "edge_index"):
        ends, weight = to_edge_index(data[sparse_edges[0]])
        data.edge_index = ends.flip(0)  # the adjacency is stored transposed, as PyG's layers take it
        if weight is not None and not bool((weight == 1).all()):
            data.edge_weight = weight
    if sparse_edges and "adj_t" in data:
        del data["adj_t"]
    y = data.get("y")
    if isinstance(y, list | tuple) and any(isinstance(label, str) for label in y):
        data.y, names = read_classes(["" if label is None else str(label) for label in y], where="labels `y`")
        if names is not None:
            data.class_names, data.num_classes = names, len(names)
    return data


def _tensor(values: Any, what: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        array = values.toarray() if sparse.issparse(values) else np.asarray(values)
        if array.dtype.kind == "u":
            array = array.astype(np.int64)
        return torch.from_numpy(np.ascontiguousarray(array))
    except (TypeError, ValueError) as error:
        raise DataError(f"expected {what} as an array of numbers, got other values ({error}); convert them") from error


def _from_networkx(graph: Any, *, with_x: bool, with_y: bool) -> Data:
    nodes = list(graph.nodes)
    number = {node: position for position, node in enumerate(nodes)}
    pairs = [(number[u], number[v]) for u, v in graph.edges()]
    edge_index = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T
    weights = [w for _, _, w in graph.edges(data="weight") if w is not None]
    weight = _tensor(weights, "edge weights").double() if pairs and len(weights) == len(pairs) else None
    if not graph.is_directed():  # an undirected edge counts in both directions; a self-loop stays one edge
        twin = edge_index[0] != edge_index[1]
        edge_index = torch.cat([edge_index, edge_index[:, twin].flip(0)], dim=1)
        weight = None if weight is None else torch.cat([weight, weight[twin]])
    data = Data(edge_index=edge_index)
    data.expected_nodes = len(nodes)
    if weight is not None:
        data.edge_weight = weight
    if nodes != list(range(len(nodes))):
        data.node_names = [str(node) for node in nodes]
    if with_x:
        rows = _attributes(graph, "x")
        if rows is not None:
            data.x = _tensor([np.asarray(row) for row in rows], "features `x`")
            data.x = data.x[:, None] if data.x.dim() == 1 else data.x
    if with_y:
        _label_from_networkx(data, graph)
    return data


def _label_from_networkx(data: Data, graph: Any) -> None:
    for key in ("y", "label"):
        values = [value for _, value in graph.nodes(data=key)]
        if all(value is None for value in values):
            continue
        if any(isinstance(value, str) for value in values):
            texts = ["" if value is None else str(value) for value in values]
            data.y, names = read_classes(texts, where=f"node attribute {key!r}")
            if names is not None:
                data.class_names, data.num_classes = names, len(names)
        else:
            data.y = _tensor([np.nan if v is None else v for v in values], "integer labels `y`")
        return


def _attributes(graph: Any, key: str) -> list[Any] | None:
    values = [value for _, value in graph.nodes(data=key)]
    absent = sum(value is None for value in values)
    if absent == len(values):
        return None
    if absent:
        raise DataError(f"expected the attribute {key!r} on every node, got {absent} nodes without it; add it")
    return values


def _from_scipy(matrix: Any) -> Data:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"expected a square adjacency matrix, got shape {matrix.shape}; pass features as x=...")
    entries = sparse.coo_matrix(matrix, copy=True)
    entries.sum_duplicates()
    entries.eliminate_zeros()
    data = Data(edge_index=torch.from_numpy(np.stack([entries.row, entries.col]).astype(np.int64)))
    data.expected_nodes = matrix.shape[0]
    if not np.all(entries.data == 1):
        data.edge_weight = _tensor(entries.data, "edge weights")
    return data
