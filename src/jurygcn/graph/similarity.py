r"""Similarities of nodes: by averaged features, and by random walks on the graph alone.

A view gives every node a row: its features averaged over k hops, or where a random walk of k steps ends. Rows are
scaled to nearly equal lengths. The similarity of two nodes is the product of their rows. Labels enter nowhere, so a
learner that uses these similarities has exact leave-one-out predictions.

With P the mean over closed neighbourhoods and X the features (or the identity), the rows are those of :math:`S P^k X`.
Only products with P and X of as many columns as there are labelled nodes are formed, never the N x F rows. All is in
float64, because rows of many averages differ little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.errors import SettingError
from jurygcn.graph.propagation import Propagation, graph_cache
from jurygcn.graph.sparse import SparseMatrix

HOPS = (0, 1, 2, 4, 8, 16)  # of averaged features
STEPS = (1, 2, 4, 8)  # of random walks
# Random directions of the features in which the lengths of averaged rows are measured, within about 9 percent.
DIRECTIONS = 64
COLUMNS = 512  # of all rows at a time, where the rows themselves are needed
MOST_WALKERS = 50_000  # nodes up to which the exact lengths of walks are computed: N x N numbers in turn
CONSTANT = 1e-9  # rows of length 1 that differ by less are equal: float64 rounds by 1e-16, times hops and features


@dataclass(frozen=True, eq=False)
class View:
    """One kind of rows of all nodes: ``scale`` times the averages of the features, minus ``centre``.

    Shapes: scale (N,); centre (F,), or None for walks, whose rows are not centred.
    """

    hops: int
    scale: Tensor = field(repr=False)
    centre: Tensor | None = field(repr=False, default=None)

    @property
    def of_features(self) -> bool:
        """Whether the rows are averaged features, not walks."""
        return self.centre is not None

    @property
    def words(self) -> str:
        """The view in words."""
        if self.of_features:
            often = "once" if self.hops == 1 else f"{self.hops} times"
            return f"features averaged {often}" if self.hops else "the nodes' own features"
        return f"random walks of {self.hops} step" + "s" * (self.hops > 1)


class Similarities:
    """The views of one graph; they depend on features and edges only, and are cached with the graph.

    Views whose rows are all equal are left out.
    """

    def __init__(self, propagation: Propagation, x: Tensor) -> None:
        average = propagation.averaging
        self._degree = np.diff(average.indptr)
        means = np.repeat(1.0 / self._degree, self._degree)
        self._average = _matrix(sp.csr_matrix((means, average.indices, average.indptr), shape=average.shape))
        self._features = _unit_rows(x if propagation.features is None else propagation.features)
        self.num_nodes = len(self._degree)
        self._squares: dict[View, Tensor] = {}

    @staticmethod
    def of(data: Data) -> Similarities:
        """The similarities of ``data``, from the cache."""
        cache = graph_cache(data)
        if "similarities" not in cache.whole:
            cache.whole["similarities"] = Similarities(cache.propagation, data.x.detach().cpu())
        found: Similarities = cache.whole["similarities"]
        return found

    @cached_property
    def views(self) -> tuple[View, ...]:
        """All views that distinguish nodes."""
        return (*self._feature_views(), *self._walk_views())

    def _feature_views(self) -> list[View]:
        rows, made = self._few_directions(), []
        for hops in range(max(HOPS) + 1):
            rows = self._average @ rows if hops else rows
            if hops not in HOPS:
                continue
            length = rows.norm(dim=1)
            scale = torch.where(length > CONSTANT, 1.0 / length, 0.0)
            scaled = scale[:, None] * rows
            spread = float((scaled - scaled.mean(dim=0)).square().sum(dim=1).mean().sqrt())
            if spread > CONSTANT:
                scale /= spread
                means = scale[:, None] / self.num_nodes
                for _ in range(hops):
                    means = self._average.T @ means
                made.append(View(hops, scale, (self._features.T @ means).squeeze(1)))
        return made

    def _few_directions(self) -> Tensor:
        """The features, or where there are many their projections on a few random directions, (N, at most 64)."""
        width = self._features.shape[1]
        if width <= DIRECTIONS:
            return self._features @ torch.eye(width, dtype=torch.float64)
        signs = torch.randint(0, 2, (width, DIRECTIONS), generator=torch.Generator().manual_seed(0))
        directions: Tensor = (2.0 * signs.double() - 1.0) / DIRECTIONS**0.5
        return self._features @ directions

    def _walk_views(self) -> list[View]:
        if self._degree.max(initial=0) <= 1:  # without edges nothing is similar
            return []
        # After one step a row has 1 / degree at every neighbour, so its squared length is 1 / degree. After more steps
        # the mean of these over where the walk is bounds the squared length from above, by Jensen's inequality.
        square, made = torch.from_numpy(1.0 / self._degree)[:, None], []
        for hops in range(1, max(STEPS) + 1):
            square = self._average @ square if hops > 1 else square
            if hops in STEPS:
                made.append(View(hops, square.squeeze(1).rsqrt()))
        return made

    def at(self, nodes: Tensor) -> Located:
        """The rows of some nodes, for products with those of all nodes."""
        picked, count = nodes.cpu(), len(nodes)
        ends = torch.zeros(self.num_nodes, count, dtype=torch.float64)
        ends[picked, torch.arange(count)] = 1.0
        rows: dict[View, Tensor] = {}
        for hops in range(max((view.hops for view in self.views), default=0) + 1):
            ends = self._average.T @ ends if hops else ends
            for view in (view for view in self.views if view.hops == hops):
                averaged = self._features.T @ ends if view.of_features else ends
                scaled = averaged * view.scale[picked]
                rows[view] = scaled if view.centre is None else scaled - view.centre[:, None]
        return Located(self, rows)

    def product(self, view: View, rows: Tensor) -> Tensor:
        """Products of all nodes' rows with these rows, (F, n) or (N, n) -> (N, n)."""
        values = self._features @ rows if view.of_features else rows
        for _ in range(view.hops):
            values = self._average @ values
        values = view.scale[:, None] * values
        return values if view.centre is None else values - view.centre @ rows

    def squared_lengths(self, view: View) -> Tensor:
        """The squared length of every node's row, (N,), kept with the graph; some columns of all rows at a time."""
        if view not in self._squares:
            self._squares[view] = self._squared_lengths(view)
        return self._squares[view]

    def _squared_lengths(self, view: View) -> Tensor:
        width = self._features.shape[1] if view.of_features else self.num_nodes
        if not view.of_features and self.num_nodes > MOST_WALKERS:
            raise SettingError(
                f"expected at most {MOST_WALKERS:,} nodes for full conformal sets with advice from random walks, got "
                f"{self.num_nodes:,}; use advice=None or method='jackknife+'"
            )
        total = torch.zeros(self.num_nodes, dtype=torch.float64)
        for start in range(0, width, COLUMNS):
            stop = min(start + COLUMNS, width)
            unit = torch.zeros(width, stop - start, dtype=torch.float64)
            unit[torch.arange(start, stop), torch.arange(stop - start)] = 1.0
            values = self._features @ unit if view.of_features else unit
            for _ in range(view.hops):
                values = self._average @ values
            values = view.scale[:, None] * values
            if view.centre is not None:
                values = values - view.centre[start:stop]
            total += values.square().sum(dim=1)
        return total


@dataclass(frozen=True, eq=False)
class Located:
    """The rows of n nodes in every view, as columns: (F, n) for features, (N, n) for walks."""

    everywhere: Similarities
    rows: dict[View, Tensor]

    def gram(self, view: View) -> Tensor:
        """Similarities among the nodes, (n, n)."""
        return self.rows[view].T @ self.rows[view]

    def columns(self, view: View) -> Tensor:
        """Similarities of all nodes with these, (N, n)."""
        return self.everywhere.product(view, self.rows[view])


def _matrix(matrix: sp.csr_matrix) -> SparseMatrix:
    return SparseMatrix(matrix, dtype=torch.float64, device=torch.device("cpu"))


def _unit_rows(x: Tensor | sp.csr_matrix) -> Tensor | SparseMatrix:
    """Features with rows of length 1, sparse or dense; rows of zeros stay zero."""
    if isinstance(x, Tensor):
        return functional.normalize(x.double(), dim=1)
    rows = x.astype(np.float64)
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 0)
    return _matrix(sp.csr_matrix(sp.diags(scale) @ rows))
