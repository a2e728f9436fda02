"""A degree-corrected stochastic block model with class-dependent Gaussian features, up to Reddit's size."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from jurygcn.data.edges import IntArray, sorted_unique, split_keys, transposed
from jurygcn.errors import SettingError

_CHUNK = 4_000_000  # pairs drawn at a time, to bound memory
_MAX_ROUNDS = 60  # of drawing pairs, before the settings count as impossible
_MAX_PROPENSITY = 50.0  # times the mean: bounds the largest degrees


def synthetic(
    *,
    num_nodes: int = 3000,
    num_edges: int = 18_000,
    num_features: int = 32,
    num_classes: int = 5,
    homophily: float = 0.8,
    separation: float = 1.5,
    degree_exponent: float = 2.5,
    seed: int = 0,
) -> Data:
    """Draw a graph with labels, features and skewed degrees.

    Each node v has a class, uniform over C, and a propensity t_v from a Pareto law with the given
    exponent. Each edge draws u with P(u) ∝ t_u, then v of the same class with probability `homophily`, else
    of another class, again with P(v) ∝ t_v. Features are x_v ~ N(separation · g_c, I) with E|g_c|²
    = 1 for each class c.

    Args:
        num_nodes: N.
        num_edges: `data.num_edges` of the result: both directions counted, so it must be even.
        num_features: F.
        num_classes: C.
        homophily: expected share of edges inside a class (repeated draws are replaced, which shifts it
            slightly in dense graphs).
        separation: how far the class means lie from the origin, in units of the noise.
        degree_exponent: exponent of the degrees' power law, above 2; larger means more even degrees.
        seed: the same seed gives the same graph.

    Shapes:
        x: (num_nodes, num_features); edge_index: (2, num_edges); y: (num_nodes,).
    """
    _check(num_nodes, num_edges, num_features, num_classes, homophily, separation, degree_exponent)
    label_rng, edge_rng, feature_rng = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    y = label_rng.permutation(np.arange(num_nodes) % num_classes)
    propensity = (1 - label_rng.random(num_nodes)) ** (-1 / (degree_exponent - 1))
    np.minimum(propensity, _MAX_PROPENSITY * propensity.mean(), out=propensity)
    sampler = _PairSampler(y, propensity, num_classes, homophily, edge_rng)
    once = _draw_unique(sampler, num_edges // 2, edge_rng)
    keys = np.empty(2 * once.size, dtype=np.int64)
    keys[: once.size] = once
    keys[once.size :] = transposed(once, num_nodes)
    del once
    keys.sort()
    edge_index = split_keys(keys, num_nodes)
    del keys
    return Data(
        x=torch.from_numpy(_features(y, num_features, num_classes, separation, feature_rng)),
        edge_index=torch.from_numpy(edge_index),
        y=torch.from_numpy(y),
        num_classes=num_classes,
        name="synthetic",
    )


class _PairSampler:
    """Draws pairs of nodes. Nodes are sorted by class, so each class is an interval of the cumulative sums."""

    def __init__(
        self,
        y: IntArray,
        propensity: NDArray[np.float64],
        num_classes: int,
        homophily: float,
        rng: np.random.Generator,
    ) -> None:
        self.num_nodes = y.size
        self._order = np.argsort(y, kind="stable")
        self._block = y[self._order]
        self._sums = np.cumsum(propensity[self._order])
        self._total = float(self._sums[-1])
        ends = self._sums[np.cumsum(np.bincount(y, minlength=num_classes)) - 1]
        self._starts = np.concatenate([[0.0], ends[:-1]])
        self._mass = ends - self._starts
        self._homophily = homophily if num_classes > 1 else 1.0
        self._rng = rng

    def draw(self, count: int) -> IntArray:
        """At most `count` pairs u < v as keys u·N + v; pairs with u = v are left out."""
        rng = self._rng
        first = self._pick(rng.random(count) * self._total)
        block = self._block[first]
        mass = self._mass[block]
        inside = rng.random(count) < self._homophily
        point = rng.random(count)
        # Outside the class: a uniform point on the line without the class's interval.
        outside = point * (self._total - mass)
        outside += np.where(outside >= self._starts[block], mass, 0.0)
        second = self._pick(np.where(inside, self._starts[block] + point * mass, outside))
        u, v = self._order[first], self._order[second]
        keys: IntArray = (np.minimum(u, v) * self.num_nodes + np.maximum(u, v))[u != v]
        return keys

    def _pick(self, points: NDArray[np.float64]) -> IntArray:
        found = np.searchsorted(self._sums, points, side="right")
        inside: IntArray = np.minimum(found, self.num_nodes - 1)  # a point may round up to the total
        return inside


def _draw_unique(sampler: _PairSampler, wanted: int, rng: np.random.Generator) -> IntArray:
    """Draw until there are `wanted` different pairs, then drop the surplus at random; sorted."""
    keys = np.empty(0, dtype=np.int64)
    for _ in range(_MAX_ROUNDS):
        missing = wanted - keys.size
        if missing <= 0:
            break
        count = missing + missing // 20 + 16
        drawn = [sampler.draw(min(_CHUNK, count - done)) for done in range(0, count, _CHUNK)]
        fresh = np.concatenate([keys, *drawn])
        del drawn
        keys = sorted_unique(fresh)
    else:
        raise SettingError(
            f"expected room for {2 * wanted} edges, got {2 * keys.size} after {_MAX_ROUNDS} rounds of draws; "
            "ask for fewer edges, more nodes, or a larger degree_exponent"
        )
    surplus = keys.size - wanted
    if surplus:
        keys = np.delete(keys, rng.choice(keys.size, surplus, replace=False))
    return keys


def _features(
    y: IntArray, num_features: int, num_classes: int, separation: float, rng: np.random.Generator
) -> NDArray[np.float32]:
    means = rng.standard_normal((num_classes, num_features), dtype=np.float32)
    means *= np.float32(separation / num_features**0.5)
    x = rng.standard_normal((y.size, num_features), dtype=np.float32)
    for start in range(0, y.size, 65_536):
        x[start : start + 65_536] += means[y[start : start + 65_536]]
    return x


def _check(
    num_nodes: int,
    num_edges: int,
    num_features: int,
    num_classes: int,
    homophily: float,
    separation: float,
    degree_exponent: float,
) -> None:
    pairs = num_nodes * (num_nodes - 1)
    rules = [
        (num_classes >= 1, "num_classes of at least 1", num_classes),
        (num_nodes >= max(2, num_classes), "num_nodes of at least 2 and at least num_classes", num_nodes),
        (num_features >= 1, "num_features of at least 1", num_features),
        (num_edges >= 0 and num_edges % 2 == 0, "num_edges even (both directions count)", num_edges),
        (num_edges <= pairs // 2, f"num_edges of at most half of all {pairs} pairs", num_edges),
        (0 <= homophily <= 1, "homophily between 0 and 1", homophily),
        (0 <= separation < float("inf"), "separation of at least 0", separation),
        (degree_exponent > 2, "degree_exponent above 2", degree_exponent),
    ]
    for holds, expected, got in rules:
        if not holds:
            raise SettingError(f"expected {expected}, got {got}; change that argument")
