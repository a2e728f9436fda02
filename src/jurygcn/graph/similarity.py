r"""Similarities of nodes: by averaged features, and by random walks on the graph alone.

A view gives every node a row: its features averaged over k hops, or where a random walk of k steps ends. Rows are
scaled to nearly equal lengths. The similarity of two nodes is the product of their rows. Labels enter nowhere, so a
learner that uses these similarities has exact leave-one-out predictions.

With P the mean over closed neighbourhoods and X the features (or the identity), the rows are those of :math:`S P^k X`.
Only products with P and X of as many columns as there are labelled nodes are formed, never the N x F rows. Products
are in the precision that is asked for. Views whose rows differ little are in float64 always, because rounding would be
a large part of the differences.
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

from jurygcn.graph.propagation import Propagation, graph_cache
from jurygcn.graph.sparse import SparseMatrix

HOPS = (0, 1, 2, 4, 8, 16)  # of averaged features
STEPS = (1, 2, 4, 8)  # of random walks
# Random directions of the features in which the lengths of averaged rows are measured, within about 9 percent.
DIRECTIONS = 64
CONSTANT = 1e-9  # rows of length 1 that differ by less are equal: float64 rounds by 1e-16, times hops and features
DELICATE = 0.02  # rows of length 1 that differ by less are multiplied in float64: float32 rounds by 1e-7


@dataclass(frozen=True, eq=False)
class View:
    """One kind of rows of all nodes: ``scale`` times the averages of the features, minus ``centre``.

    Attributes:
        delicate: whether the rows differ so little that products need float64.

    Shapes: scale (N,); centre (F,), or None for walks, whose rows are not centred.
    """

    hops: int
    scale: Tensor = field(repr=False)
    centre: Tensor | None = field(repr=False, default=None)
    delicate: bool = False

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


@dataclass(frozen=True, eq=False)
class Factors:
    """The mean over closed neighbourhoods, (N, N), and features with rows of length 1, (N, F), in one precision."""

    average: SparseMatrix
    features: Tensor | SparseMatrix

    def cast(self, dtype: torch.dtype) -> Factors:
        """The same factors in another precision."""
        features = self.features.to(dtype) if isinstance(self.features, Tensor) else self.features.cast(dtype)
        return Factors(self.average.cast(dtype), features)


class Similarities:
    """The views of one graph; they depend on features and edges only, and are cached with the graph.

    Views whose rows are all equal are left out.
    """

    def __init__(self, propagation: Propagation, x: Tensor) -> None:
        average = propagation.averaging
        self._degree = np.diff(average.indptr)
        means = np.repeat(1.0 / self._degree, self._degree)
        mean = _matrix(sp.csr_matrix((means, average.indices, average.indptr), shape=average.shape))
        exact = Factors(mean, _unit_rows(x if propagation.features is None else propagation.features))
        self._average, self._features = exact.average, exact.features
        self._factors = {torch.float64: exact}
        self.num_nodes = len(self._degree)

    def _in(self, dtype: torch.dtype) -> Factors:
        """The factors of all products, in one precision; made once."""
        if dtype not in self._factors:
            self._factors[dtype] = self._factors[torch.float64].cast(dtype)
        return self._factors[dtype]

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
                made.append(View(hops, scale, (self._features.T @ means).squeeze(1), spread < DELICATE))
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

    def at(self, nodes: Tensor, dtype: torch.dtype = torch.float64) -> Located:
        """The rows of some nodes, for products with those of all nodes, in this precision."""
        rows: dict[View, Tensor] = {}
        for kind in {dtype, torch.float64}:
            some = [view for view in self.views if (torch.float64 if view.delicate else dtype) == kind]
            rows |= self._rows(some, nodes.cpu(), self._in(kind)) if some else {}
        return Located(self, {view: rows[view] for view in self.views})

    def _rows(self, views: list[View], nodes: Tensor, factors: Factors) -> dict[View, Tensor]:
        """The rows of some nodes in some views, as columns."""
        count, dtype = len(nodes), factors.average.dtype
        ends = torch.zeros(self.num_nodes, count, dtype=dtype)
        ends[nodes, torch.arange(count)] = 1.0
        rows: dict[View, Tensor] = {}
        for hops in range(max(view.hops for view in views) + 1):
            ends = factors.average.T @ ends if hops else ends
            for view in (view for view in views if view.hops == hops):
                averaged = factors.features.T @ ends if view.of_features else ends
                scaled = averaged * view.scale[nodes].to(dtype)
                rows[view] = scaled if view.centre is None else scaled - view.centre[:, None].to(dtype)
        return rows

    def product(self, view: View, rows: Tensor) -> Tensor:
        """Products of all nodes' rows with these rows, (F, n) or (N, n) -> (N, n), in the precision of the rows."""
        factors = self._in(rows.dtype)
        values = factors.features @ rows if view.of_features else rows
        for _ in range(view.hops):
            values = factors.average @ values
        values = view.scale[:, None].to(rows.dtype) * values
        return values if view.centre is None else values.sub_(view.centre.to(rows.dtype) @ rows)


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
