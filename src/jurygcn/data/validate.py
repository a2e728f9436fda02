"""Check and repair graphs before the library uses them."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.checks import all_finite
from jurygcn.data.edges import UndirectedEdges, make_undirected
from jurygcn.data.labels import check_labels, labelled
from jurygcn.data.names import check_names
from jurygcn.data.places import Sizes
from jurygcn.errors import DataError, DataNotice, excerpt

UNEVEN = 100.0  # times the median column; binary words and counts stay below
MASKS = ("train_mask", "val_mask", "test_mask")


def sizes(data: Data) -> Sizes:
    """The sizes of a clean graph, its edges counted once."""
    return Sizes(data.x.shape[0], data.edge_index.shape[1] // 2, data.x.shape[1], int(data.num_classes))


def clean(data: Data, *, quiet: bool = False) -> Data:
    """Check a graph and convert it to the library's form; the input is not changed.

    The result is a `Data` on the CPU with `x` float32 (N, F), `edge_index` int64 (2, E) in both directions,
    sorted, without self-loops and duplicates, `y` and `num_classes` as described in `jurygcn.data.labels`,
    optional `edge_weight` float32 (E,), boolean masks (N,) or (N, splits) of labelled nodes only, and
    `node_names` and `class_names` as lists of unique texts.
    Each repair issues a `DataNotice` unless `quiet`; other defects raise `DataError`.
    """
    x = _check_features(data.x if "x" in data else None)
    num_nodes = x.shape[0]
    edges = _check_edges(data, num_nodes)
    y, num_classes = check_labels(data.y if "y" in data else None, num_nodes, _given_classes(data))
    out = copy.copy(data)
    for key, count in (("node_names", num_nodes), ("class_names", num_classes)):
        if data.get(key) is not None:
            out[key] = check_names(data[key], count, key)
    if isinstance(data.get("name"), str):  # a path can hold bytes that are not valid text
        out.name = data.name.encode("utf-8", "replace").decode()
    if edges.repaired:
        _drop_edge_attributes(out, quiet=quiet)
    out.x, out.y, out.num_classes = x, y, num_classes
    out.edge_index = torch.from_numpy(edges.edge_index)
    if edges.weight is not None:
        out.edge_weight = torch.from_numpy(edges.weight)
    out.num_nodes = None  # follows from x
    _check_masks(out, quiet=quiet)
    if not quiet:
        _announce(edges)
    return out


def normalize_rows(x: Tensor) -> Tensor:
    """Scale each row to sum 1; zero rows and signed features are not changed.

    PyG's NormalizeFeatures differs: it shifts signed features and does not scale up small rows.
    """
    if x.numel() == 0 or float(x.min()) < 0:
        return x
    total = x.sum(dim=1, keepdim=True)
    return x / torch.where(total > 0, total, torch.ones_like(total))


def announce_sizes(x: Tensor, names: list[str] | None = None) -> None:
    """Issue a DataNotice if one column is far larger than most: a network then hardly learns from the others."""
    largest = x.abs().amax(dim=0)
    used = largest[largest > 0]
    if len(used) and float(largest.max()) > UNEVEN * float(used.median()):
        column = int(largest.argmax())
        what = f"column {excerpt(names[column])}" if names else f"column {column} of the features"
        warnings.warn(
            f"{what} reaches {float(largest[column]):.4g}, half of all columns at most {float(used.median()):.4g}: a "
            "network hardly learns from the small ones; bring each column to mean 0 and standard deviation 1",
            DataNotice,
            stacklevel=3,
        )


def announce_scaling(before: Tensor, after: Tensor) -> None:
    """Issue a DataNotice if rows were scaled."""
    if before is not after and not torch.allclose(before, after, rtol=1e-3):
        warnings.warn(
            "no feature is negative, so each row was scaled to sum 1, as for counts of words; "
            "load_dataset(..., normalize_features=False) leaves them as they are",
            DataNotice,
            stacklevel=3,
        )


def _check_features(given: Any) -> Tensor:
    if given is None:
        raise DataError(
            "expected node features `x`, got none; give a matrix with one row per node, "
            "for example the identity torch.eye(num_nodes)"
        )
    if not isinstance(given, Tensor):
        raise DataError(f"expected features `x` as a tensor, got {type(given).__name__}; use torch.tensor")
    x: Tensor = given.detach().cpu()
    x = x.to_dense() if x.layout != torch.strided else x
    if x.dim() != 2 or 0 in x.shape:
        raise DataError(
            f"expected features of shape (nodes, features), at least (1, 1), got {tuple(x.shape)}; "
            "give one row per node"
        )
    if x.is_complex():
        raise DataError("expected real features, got complex numbers; give their parts as two columns")
    x = x.float()
    if not all_finite(x):
        bad = ~torch.isfinite(x)
        node, column = (int(i) for i in bad.nonzero()[0])
        raise DataError(
            f"expected finite features, got {x[node, column].item()} at node {node}, column {column} "
            f"({int(bad.sum())} such values); fill or drop them"
        )
    return x


def _check_edges(data: Data, num_nodes: int) -> UndirectedEdges:
    edge_index = data.edge_index if "edge_index" in data else None
    if not isinstance(edge_index, Tensor):
        raise DataError(
            f"expected `edge_index` as a tensor of shape (2, E), got {type(edge_index).__name__}; "
            "convert a sparse `adj_t` with torch.stack(adj_t.t().coo()[:2])"
        )
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise DataError(f"expected `edge_index` of shape (2, E), got {tuple(edge_index.shape)}; transpose it")
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise DataError(f"expected integer node ids in `edge_index`, got {edge_index.dtype}; convert to int64")
    edge_index = edge_index.detach().cpu()
    if edge_index.numel():
        lowest, highest = int(edge_index.min()), int(edge_index.max())
        if lowest < 0 or highest >= num_nodes:
            raise DataError(
                f"expected node ids 0..{num_nodes - 1} in the edges, got "
                f"{lowest if lowest < 0 else highest}; number nodes from 0 in the order of the feature rows"
            )
    return make_undirected(edge_index.numpy(), num_nodes, _check_weight(data, edge_index.shape[1]))


def _check_weight(data: Data, num_edges: int) -> np.ndarray[Any, Any] | None:
    weight = data.edge_weight if "edge_weight" in data else None
    if weight is None:
        return None
    if not isinstance(weight, Tensor) or weight.numel() != num_edges or weight.is_complex():
        got = f"shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        raise DataError(f"expected one real edge weight per edge, shape ({num_edges},), got {got}; give a tensor")
    flat = weight.detach().cpu().reshape(-1).double()
    if not all_finite(flat) or bool((flat < 0).any()):
        bad = int((~torch.isfinite(flat) | (flat < 0)).nonzero()[0])
        raise DataError(
            f"expected finite edge weights of at least 0, got {flat[bad].item()} at edge {bad}; correct or drop it"
        )
    array: np.ndarray[Any, Any] = flat.numpy()
    return array


def _given_classes(data: Data) -> int | None:
    count = data.num_classes if "num_classes" in data else None
    if count is None:
        names = data.get("class_names")
        return len(names) if isinstance(names, list | tuple) else None
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise DataError(
            f"expected num_classes as an integer of at least 0, got {excerpt(count)}; correct it or leave it out"
        )
    return int(count)


def _check_masks(data: Data, *, quiet: bool) -> None:
    has_label = labelled(data)
    for name in MASKS:
        mask = data.get(name)
        if mask is None:
            continue
        if not isinstance(mask, Tensor) or mask.shape[:1] != has_label.shape or mask.dim() > 2:
            got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise DataError(f"expected `{name}` of shape ({has_label.numel()},), got {got}; give one entry per node")
        mask = mask.detach().cpu().bool()
        allowed = has_label if mask.dim() == 1 else has_label[:, None]
        if bool((mask & ~allowed).any()) and not quiet:
            warnings.warn(f"nodes without label were removed from {name}", DataNotice, stacklevel=4)
        data[name] = mask & allowed


def _drop_edge_attributes(data: Data, *, quiet: bool) -> None:
    for key in list(data.keys()):
        if key.startswith("edge_") and key not in ("edge_index", "edge_weight"):
            del data[key]
            if not quiet:
                warnings.warn(f"{key} was dropped, because the edges changed", DataNotice, stacklevel=4)


def _announce(edges: UndirectedEdges) -> None:
    notes = [
        (edges.one_way, "edge(s) had no reverse: the graph is read as undirected, and the reverse was added"),
        (edges.self_loops, "self-loop(s) removed; the models add their own"),
        (edges.duplicates, "duplicate edge(s) removed"),
        (edges.uneven_weights, "edge weight(s) differed between copies of an edge: their mean is used"),
    ]
    for count, note in notes:
        if count:
            warnings.warn(f"{count} {note}", DataNotice, stacklevel=4)
