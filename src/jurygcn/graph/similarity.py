r"""Similarities of nodes: by averaged features, by what averaging removes, and by random walks on the graph alone.

A view gives every node a row: its features averaged over k hops, the difference of two such averages, or where a random
walk of k steps ends. Rows are scaled to nearly equal lengths. The similarity of two nodes is the product of their rows.
Labels enter nowhere, so a learner that uses these similarities has exact leave-one-out predictions.

With P the mean over closed neighbourhoods, :math:`\hat A` its symmetric form and X the features, the rows are those of
:math:`S \hat A^k X`, :math:`S P^k (I - P) X` and :math:`S P^k`. Differences tell neighbours apart, which helps where
neighbours have other classes. Only products of as many columns as there are labelled nodes are formed, never the N x F
rows. Products are in the precision that is asked for. Views whose rows differ little are in float64 always, because
rounding would be a large part of the differences.
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
DIFFERENCES = (0, 1)  # averages of features whose difference to the next average is a view
STEPS = (1, 2, 4, 8)  # of random walks
# Random directions of the features in which the lengths of averaged rows are measured, within about 9 percent.
DIRECTIONS = 64
COLUMNS = 512  # of all rows at a time, where the rows themselves are needed
MOST_WALKERS = 50_000  # nodes up to which the exact lengths of walks are computed: N x N numbers in turn
CONSTANT = 1e-9  # rows of length 1 that differ by less are equal: float64 rounds by 1e-16, times hops and features
DELICATE = 0.02  # rows of length 1 that differ by less are multiplied in float64: float32 rounds by 1e-7


AVERAGES, CHANGES, WALKS = "averages", "changes", "walks"


@dataclass(frozen=True, eq=False)
class View:
    """One kind of rows of all nodes: ``scale`` times averages or differences of the features, minus ``centre``.

    Attributes:
        kind: averages of the features, what one more average changes, or random walks.
        delicate: whether the rows differ so little that products need float64.

    Shapes: scale (N,); centre (F,), or None for walks, whose rows are not centred.
    """

    kind: str
    hops: int
    scale: Tensor = field(repr=False)
    centre: Tensor | None = field(repr=False, default=None)
    delicate: bool = False

    @property
    def of_features(self) -> bool:
        """Whether the rows are made of features, not of walks."""
        return self.kind != WALKS

    @property
    def words(self) -> str:
        """The view in words."""
        if self.kind == WALKS:
            return f"random walks of {self.hops} step" + "s" * (self.hops > 1)
        often = "once" if self.hops == 1 else f"{self.hops} times"
        features = f"features averaged {often}" if self.hops else "the nodes' own features"
        return features if self.kind == AVERAGES else f"{features} minus their mean over neighbourhoods"


@dataclass(frozen=True, eq=False)
class Factors:
    """The matrices of all products, in one precision.

    Shapes: mean P and symmetric Â over closed neighbourhoods, (N, N); features with rows of length 1, (N, F).
    """

    mean: SparseMatrix
    symmetric: SparseMatrix
    features: Tensor | SparseMatrix

    @classmethod
    def of(cls, closed: sp.csr_matrix, features: Tensor | SparseMatrix) -> Factors:
        """From closed neighbourhoods, whose entries do not matter; in float64."""
        degree = np.diff(closed.indptr)
        means = np.repeat(1.0 / degree, degree)
        roots = np.sqrt(np.repeat(1.0 / degree, degree) / degree[closed.indices])
        mean, symmetric = (
            _matrix(sp.csr_matrix((entries, closed.indices, closed.indptr), shape=closed.shape))
            for entries in (means, roots)
        )
        return cls(mean, symmetric, features)

    def cast(self, dtype: torch.dtype) -> Factors:
        """The same factors in another precision."""
        features = self.features.to(dtype) if isinstance(self.features, Tensor) else self.features.cast(dtype)
        return Factors(self.mean.cast(dtype), self.symmetric.cast(dtype), features)

    def step(self, kind: str) -> SparseMatrix:
        """What one hop of a view of this kind multiplies by."""
        return self.symmetric if kind == AVERAGES else self.mean


class Similarities:
    """The views of one graph; they depend on features and edges only, and are cached with the graph.

    Views whose rows are all equal are left out.
    """

    def __init__(self, propagation: Propagation, x: Tensor) -> None:
        features = _unit_rows(x if propagation.features is None else propagation.features)
        self._exact = Factors.of(propagation.averaging, features)
        self._factors = {torch.float64: self._exact}
        self._degree = np.diff(propagation.averaging.indptr)
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

    def _in(self, dtype: torch.dtype) -> Factors:
        """The factors of all products, in one precision; made once."""
        if dtype not in self._factors:
            self._factors[dtype] = self._exact.cast(dtype)
        return self._factors[dtype]

    @cached_property
    def views(self) -> tuple[View, ...]:
        """All views that distinguish nodes."""
        return (*self._feature_views(), *self._walk_views())

    def _feature_views(self) -> list[View]:
        made = []
        for kind, wanted in ((AVERAGES, HOPS), (CHANGES, DIFFERENCES)):
            rows, step = self._few_directions(), self._exact.step(kind)
            for hops in range(max(wanted) + 1):
                rows = step @ rows if hops else rows
                if hops in wanted:
                    made.append(self._feature_view(kind, hops, rows if kind == AVERAGES else rows - step @ rows))
        return [view for view in made if view is not None]

    def _feature_view(self, kind: str, hops: int, rows: Tensor) -> View | None:
        """The view with these rows, in a few directions; None if they are all equal."""
        length, step = rows.norm(dim=1), self._exact.step(kind).T
        scale = torch.where(length > CONSTANT, 1.0 / length, 0.0)
        scaled = scale[:, None] * rows
        spread = float((scaled - scaled.mean(dim=0)).square().sum(dim=1).mean().sqrt())
        if spread <= CONSTANT:
            return None
        scale /= spread
        means = scale[:, None] / self.num_nodes
        for _ in range(hops):
            means = step @ means
        means = means if kind == AVERAGES else means - step @ means
        return View(kind, hops, scale, (self._exact.features.T @ means).squeeze(1), spread < DELICATE)

    def _few_directions(self) -> Tensor:
        """The features, or where there are many their projections on a few random directions, (N, at most 64)."""
        width = self._exact.features.shape[1]
        if width <= DIRECTIONS:
            return self._exact.features @ torch.eye(width, dtype=torch.float64)
        signs = torch.randint(0, 2, (width, DIRECTIONS), generator=torch.Generator().manual_seed(0))
        directions: Tensor = (2.0 * signs.double() - 1.0) / DIRECTIONS**0.5
        return self._exact.features @ directions

    def _walk_views(self) -> list[View]:
        if self._degree.max(initial=0) <= 1:  # without edges nothing is similar
            return []
        # After one step a row has 1 / degree at every neighbour, so its squared length is 1 / degree. After more steps
        # the mean of these over where the walk is bounds the squared length from above, by Jensen's inequality.
        square, made = torch.from_numpy(1.0 / self._degree)[:, None], []
        for hops in range(1, max(STEPS) + 1):
            square = self._exact.mean @ square if hops > 1 else square
            if hops in STEPS:
                made.append(View(WALKS, hops, square.squeeze(1).rsqrt()))
        return made

    def at(self, nodes: Tensor, dtype: torch.dtype = torch.float64) -> Located:
        """The rows of some nodes, for products with those of all nodes, in this precision."""
        rows: dict[View, Tensor] = {}
        for kind in {dtype, torch.float64}:
            some = [view for view in self.views if (torch.float64 if view.delicate else dtype) == kind]
            factors = self._in(kind) if some else self._exact
            for kinds in ((AVERAGES,), (CHANGES, WALKS)):  # of one step each
                rows |= self._rows([view for view in some if view.kind in kinds], nodes.cpu(), factors)
        return Located(self, {view: rows[view] for view in self.views})

    def _rows(self, views: list[View], nodes: Tensor, factors: Factors) -> dict[View, Tensor]:
        """The rows of some nodes in views of the same step, as columns."""
        if not views:
            return {}
        count, dtype, step = len(nodes), factors.mean.dtype, factors.step(views[0].kind).T
        ends = torch.zeros(self.num_nodes, count, dtype=dtype)
        ends[nodes, torch.arange(count)] = 1.0
        rows: dict[View, Tensor] = {}
        for hops in range(max(view.hops for view in views) + 1):
            ends = step @ ends if hops else ends
            for view in (view for view in views if view.hops == hops):
                ended = ends - step @ ends if view.kind == CHANGES else ends
                scaled = (factors.features.T @ ended if view.of_features else ended) * view.scale[nodes].to(dtype)
                rows[view] = scaled if view.centre is None else scaled - view.centre[:, None].to(dtype)
        return rows

    def product(self, view: View, rows: Tensor) -> Tensor:
        """Products of all nodes' rows with these rows, (F, n) or (N, n) -> (N, n), in the precision of the rows."""
        factors = self._in(rows.dtype)
        values, step = factors.features @ rows if view.of_features else rows, factors.step(view.kind)
        for _ in range(view.hops):
            values = step @ values
        values = values - step @ values if view.kind == CHANGES else values
        values.mul_(view.scale[:, None].to(rows.dtype))
        return values if view.centre is None else values.sub_(view.centre.to(rows.dtype) @ rows)

    def pulled(self, view: View, values: Tensor) -> Tensor:
        """Sums of all nodes' rows with these weights, (N, n) -> (F, n) or (N, n), in the precision of the weights."""
        factors = self._in(values.dtype)
        ends, step = view.scale[:, None].to(values.dtype) * values, factors.step(view.kind).T
        for _ in range(view.hops):
            ends = step @ ends
        ends = ends - step @ ends if view.kind == CHANGES else ends
        sums = factors.features.T @ ends if view.of_features else ends
        return sums if view.centre is None else sums - torch.outer(view.centre.to(values.dtype), values.sum(dim=0))

    def squared_lengths(self, view: View) -> Tensor:
        """The squared length of every node's row, (N,), kept with the graph; some columns of all rows at a time."""
        if view not in self._squares:
            self._squares[view] = self._squared_lengths(view)
        return self._squares[view]

    def _squared_lengths(self, view: View) -> Tensor:
        features, step = self._exact.features, self._exact.step(view.kind)
        width = features.shape[1] if view.of_features else self.num_nodes
        if not view.of_features and self.num_nodes > MOST_WALKERS:
            raise SettingError(
                f"expected at most {MOST_WALKERS:,} nodes for full conformal sets with advice from random walks, got "
                f"{self.num_nodes:,}; use advice=None or method='jackknife+'"
            )
        total = torch.zeros(self.num_nodes, dtype=torch.float64)
        for some in torch.arange(width).split(COLUMNS):
            unit = torch.zeros(width, len(some), dtype=torch.float64)
            unit[some, torch.arange(len(some))] = 1.0
            values = features @ unit if view.of_features else unit
            for _ in range(view.hops):
                values = step @ values
            values = view.scale[:, None] * (values - step @ values if view.kind == CHANGES else values)
            values = values if view.centre is None else values - view.centre[some]
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
