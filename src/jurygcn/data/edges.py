"""Edges as an undirected simple graph: both directions, sorted, no self-loops, no duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class UndirectedEdges:
    """The repaired edges and the number of repairs of each kind.

    Shapes:
        edge_index: (2, E), sorted by source then target.
        weight: (E,) or None.
    """

    edge_index: IntArray
    weight: FloatArray | None
    self_loops: int
    duplicates: int
    one_way: int
    uneven_weights: int

    @property
    def repaired(self) -> bool:
        """Whether any edge had to be added or removed."""
        return bool(self.self_loops or self.duplicates or self.one_way)


def make_undirected(edge_index: NDArray[Any], num_nodes: int, weight: NDArray[Any] | None = None) -> UndirectedEdges:
    """Symmetrise, coalesce and sort edges; node ids must be in range.

    Edge (i, j) is handled as the 64-bit number i·N + j, so that coalescing is one in-place sort.
    The weight of {i, j} is the mean of the weights given for it, in either direction.
    """
    source, target = edge_index.astype(np.int64, copy=False)
    loops = source == target
    self_loops = int(np.count_nonzero(loops))
    if self_loops:
        source, target = source[~loops], target[~loops]
        weight = None if weight is None else weight[~loops]
    del loops
    keys = source * num_nodes
    keys += target
    if weight is not None:
        pairs, pair_weight, uneven = _pair_weights(source, target, num_nodes, weight)
    del source, target

    given = keys.size
    keys = sorted_unique(keys)
    duplicates = given - keys.size
    reverse = transposed(keys, num_nodes)
    reverse.sort()
    one_way = 0
    if not np.array_equal(keys, reverse):
        before = keys.size
        keys = sorted_unique(np.concatenate([keys, reverse]))
        one_way = keys.size - before
    del reverse

    both = split_keys(keys, num_nodes)
    if weight is None:
        return UndirectedEdges(both, None, self_loops, duplicates, one_way, 0)
    wanted = np.minimum(both[0], both[1]) * num_nodes + np.maximum(both[0], both[1])
    mean = pair_weight[np.searchsorted(pairs, wanted)].astype(np.float32)
    return UndirectedEdges(both, mean, self_loops, duplicates, one_way, uneven)


def sorted_unique(keys: IntArray) -> IntArray:
    """Sort in place and drop repeats; a strictly increasing input is returned as it is."""
    if keys.size < 2:
        return keys
    if not np.all(keys[1:] > keys[:-1]):
        keys.sort()
        first = np.empty(keys.size, dtype=bool)
        first[0] = True
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        if not first.all():
            keys = keys[first]
    return keys


def transposed(keys: IntArray, num_nodes: int) -> IntArray:
    """The keys of the reversed edges, in the same order."""
    source = keys // num_nodes
    target = keys - source * num_nodes
    target *= num_nodes
    target += source
    return target


def split_keys(keys: IntArray, num_nodes: int) -> IntArray:
    """Turn keys i·N + j back into a (2, E) edge index."""
    both = np.empty((2, keys.size), dtype=np.int64)
    np.floor_divide(keys, num_nodes, out=both[0])
    np.multiply(both[0], -num_nodes, out=both[1])
    both[1] += keys
    return both


def _pair_weights(
    source: IntArray, target: IntArray, num_nodes: int, weight: NDArray[Any]
) -> tuple[IntArray, NDArray[np.float64], int]:
    """Mean weight of each unordered pair, and how many entries differ from their pair's mean."""
    pair = np.minimum(source, target) * num_nodes + np.maximum(source, target)
    pairs, position = np.unique(pair, return_inverse=True)
    given = weight.astype(np.float64)
    mean = np.bincount(position, given, minlength=pairs.size) / np.bincount(position, minlength=pairs.size)
    uneven = int(np.count_nonzero(~np.isclose(given, mean[position], rtol=1e-5, atol=0)))
    return pairs, mean, uneven
