"""Coverage and size of label sets, on average and by group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from jurygcn.errors import DataError
from jurygcn.evaluation.arrays import Values, as_array, as_pair, as_sets


def set_coverage(sets: Values, truth: Values) -> float:
    """Share of nodes whose label set contains the true label. Shapes: sets (m, C) bool, truth (m,) int."""
    return float(_covered(sets, truth).mean())


def mean_set_size(sets: Values) -> float:
    """Mean number of labels in a set, empty sets included. Shapes: sets (m, C) bool."""
    return float(_sizes(sets).mean())


def empty_fraction(sets: Values) -> float:
    """Share of empty sets. Shapes: sets (m, C) bool."""
    return float((_sizes(sets) == 0).mean())


def singleton_accuracy(sets: Values, truth: Values) -> float:
    """Share of one-label sets that contain the true label; NaN if there are none. Shapes: (m, C) bool, (m,)."""
    covered, single = _covered(sets, truth), _sizes(sets) == 1
    return float(covered[single].mean()) if single.any() else float("nan")


def coverage_by(sets: Values, truth: Values, groups: Values) -> pd.DataFrame:
    """Coverage and mean size per group of nodes, sorted by group. Shapes: (m, C), (m,), (m,)."""
    covered, group = as_pair(_covered(sets, truth), groups, "label sets", "groups")
    rows = pd.DataFrame({"group": group, "covered": covered, "size": _sizes(sets)})
    found = rows.groupby("group", sort=True).agg(
        nodes=("covered", "size"), coverage=("covered", "mean"), mean_size=("size", "mean")
    )
    return found.reset_index()


def coverage_by_class(sets: Values, truth: Values) -> pd.DataFrame:
    """Coverage of each true class. Shapes: sets (m, C) bool, truth (m,)."""
    return coverage_by(sets, truth, truth)


def coverage_by_size(sets: Values, truth: Values) -> pd.DataFrame:
    """Coverage of the sets of each size. Shapes: sets (m, C) bool, truth (m,)."""
    return coverage_by(sets, truth, _sizes(sets))


def coverage_by_degree(sets: Values, truth: Values, degree: Values) -> pd.DataFrame:
    """Coverage by number of neighbours, in bands that double: 0, 1, 2, 3-4, 5-8, ... Shapes: (m, C), (m,), (m,)."""
    neighbours = as_array(degree, "degrees").astype(np.int64)
    upper = np.where(neighbours < 1, 0, 2 ** np.ceil(np.log2(neighbours.clip(1))).astype(np.int64))
    found = coverage_by(sets, truth, upper)
    return found.assign(group=[_band(int(high)) for high in found["group"]])


def _band(upper: int) -> str:
    return str(upper) if upper < 3 else f"{upper // 2 + 1}-{upper}"


def coverage_by_distance(sets: Values, truth: Values, distance: Values) -> pd.DataFrame:
    """Coverage by distance to the nearest label, from `distance_to_labels`; -1 means that no label is connected.

    Shapes: sets (m, C) bool, truth (m,), distance (m,).
    """
    return coverage_by(sets, truth, distance)


def distance_to_labels(edge_index: Tensor, train_nodes: Tensor, *, num_nodes: int) -> NDArray[np.int64]:
    """Hops from every node to the nearest labelled one; -1 if none is connected. Shapes: (2, E), (n,) -> (N,)."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import dijkstra

    sources = as_array(train_nodes, "training nodes").astype(np.int64)
    if sources.min() < 0 or sources.max() >= num_nodes:
        raise DataError(f"expected training nodes 0..{num_nodes - 1}, got others; pass node numbers of this graph")
    ends = as_array(edge_index, "edges", dimensions=2) if edge_index.numel() else np.zeros((2, 0), dtype=np.int64)
    links = coo_matrix((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(num_nodes, num_nodes)).tocsr()
    steps = dijkstra(links, directed=False, indices=sources, unweighted=True, min_only=True)
    return np.where(np.isfinite(steps), steps, -1).astype(np.int64)


def _covered(sets: Values, truth: Values) -> NDArray[np.bool_]:
    inside, true = as_sets(sets, truth)
    return np.asarray(inside[np.arange(len(true)), true])


def _sizes(sets: Values) -> NDArray[Any]:
    return np.asarray(as_array(sets, "label sets", dimensions=2).astype(bool).sum(axis=1))
