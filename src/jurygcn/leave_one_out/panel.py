r"""A panel of learners in closed form, whose leave-one-out predictions are exact at every node.

Each member is a ridge regression of the labels on one view of the graph (:mod:`jurygcn.graph.similarity`):

.. math::
    f(u) = h_u^T Y, \quad h_u = \phi_u^T (\Phi^T \Phi + \lambda I)^{-1} \Phi^T, \qquad
    f_{-i}(u) = f(u) - h_{ui} e_i, \quad e_i = \frac{y_i - f(i)}{1 - h_{ii}}

The members see neither the model nor its predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data.heterogeneous import one_graph
from jurygcn.graph.similarity import Located, Similarities, View
from jurygcn.leave_one_out.stacking import Pairs

RIDGES = (0.03, 0.3)  # penalties, for rows of a mean length of 1
INTERCEPT = 1.0  # the value of the constant feature that every view gets
# Above this many labels a view is spanned by the similarities with so many labelled nodes, drawn at random.
MOST_LANDMARKS = 512
# Directions with eigenvalues below this share of the largest are left out: rounding would decide them.
RANK = {torch.float32: 1e-6, torch.float64: 1e-8}
EMPTY = 1e-12  # squared singular values below this share of the largest are 0 but for rounding


@dataclass(frozen=True, eq=False)
class Design:
    """One view as features of a regression, with the labelled rows decomposed as U s V^T.

    Shapes: U (n, r), s (r,), V (D, r), basis (landmarks, D - 1).
    """

    view: View
    basis: Tensor = field(repr=False)
    U: Tensor = field(repr=False)
    s: Tensor = field(repr=False)
    V: Tensor = field(repr=False)

    @classmethod
    def of(cls, view: View, among: Tensor, rows: Tensor | None) -> Design:
        """From the similarities among landmarks, (l, l), and of labelled nodes with them, (n, l) (None: the same)."""
        values, vectors = torch.linalg.eigh(among.double())
        kept = values > RANK[among.dtype] * values[-1].clamp_min(1e-300)
        basis = vectors[:, kept] / values[kept].sqrt()
        labelled = with_constant((among if rows is None else rows).double() @ basis)
        return cls(view, basis, *decomposed(labelled))

    def left_out(self, targets: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
        """Errors e_i of predictions without label i, and those predictions, (n, C) each."""
        kept = self.s.square() / (self.s.square() + ridge)
        residual = targets - self.U @ (kept[:, None] * (self.U.T @ targets))
        errors = residual / (1.0 - self.U.square() @ kept)[:, None]
        return errors, targets - errors

    def among(self, ridge: float, positions: Tensor) -> Tensor:
        """The h of some labels in each other's predictions, (n', n')."""
        kept = self.s.square() / (self.s.square() + ridge)
        return (self.U[positions] * kept) @ self.U[positions].T

    def coefficients(self, ridge: float) -> tuple[Tensor, Tensor]:
        """What turns a node's similarities with the landmarks into its h_u: a matrix, (l, n), and an offset, (n,)."""
        hat = self.V @ ((self.s / (self.s.square() + ridge))[:, None] * self.U.T)  # (D, n)
        return self.basis @ hat[:-1], INTERCEPT**0.5 * hat[-1]

    def leverages(self, features: Tensor, ridge: float) -> Tensor:
        r""":math:`\phi^T (\Phi^T \Phi + \lambda I)^{-1} \phi` of rows of features, (m, D) -> (m,)."""
        along = (features @ self.V).square()
        rest = (features.square().sum(dim=1) - along.sum(dim=1)).clamp_min(0.0)
        return along @ (1.0 / (self.s.square() + ridge)) + rest / ridge


@dataclass(frozen=True, eq=False)
class Member:
    """One regression of the panel.

    Shapes: errors (n, C), own (n, C) the predictions of each label without it.
    """

    design: Design
    ridge: float
    errors: Tensor = field(repr=False)
    own: Tensor = field(repr=False)

    @property
    def words(self) -> str:
        """The member in words."""
        return f"ridge regression on {self.design.view.words}, penalty {self.ridge:g}"


class Panel:
    """All regressions of the labels of ``nodes``, with their exact leave-one-out predictions.

    Of a graph with several types of nodes they see all types as one graph.

    Similarities are computed in the precision ``dtype``, the regressions in float64.

    Shapes: nodes (n,), targets (n, C).
    """

    def __init__(self, data: Data, nodes: Tensor, targets: Tensor, *, dtype: torch.dtype = torch.float64) -> None:
        self.nodes, self.targets = nodes.cpu(), targets.double().cpu()
        similarities, count = Similarities.of(one_graph(data)), len(nodes)
        self._count = int(data.num_nodes)  # of several types those of the labelled one come first
        self._located: Located = similarities.at(nodes if count <= MOST_LANDMARKS else _landmarks(nodes), dtype)
        self.members = [
            Member(design, ridge, *design.left_out(self.targets, ridge))
            for design in (self._design(view, nodes) for view in similarities.views)
            for ridge in RIDGES
        ]

    def _design(self, view: View, nodes: Tensor) -> Design:
        many = len(nodes) > MOST_LANDMARKS
        rows = self._located.columns(view)[nodes.cpu()] if many else None
        return Design.of(view, self._located.gram(view), rows)

    def pairs(self, positions: Tensor, shared: Tensor) -> Pairs:
        r"""Predictions without two of some labels, after learners ``shared`` that leave out one.

        .. math:: f_{-ij}(j) = y_j - \frac{(1 - h_{ii}) r_j + h_{ij} r_i}{(1 - h_{ii})(1 - h_{jj}) - h_{ij}^2}

        with the residuals r of the regressions on all labels. For i = j they are the predictions without label j.

        Shapes: positions (n',), shared (s, n', C).
        """
        n, targets = len(positions), self.targets[positions]
        h = torch.empty(len(self.members), n, n, dtype=torch.float64)
        for k, member in enumerate(self.members):
            h[k] = member.design.among(member.ridge, positions)
        free = 1.0 - h.diagonal(dim1=1, dim2=2)  # (k, n)
        residuals = free.unsqueeze(2) * (targets - self._own(positions))
        h.diagonal(dim1=1, dim2=2).zero_()
        apart = free.unsqueeze(2) * free.unsqueeze(1) - h.square()
        return Pairs(shared, targets, residuals, free.unsqueeze(2) / apart, h / apart)

    def _own(self, positions: Tensor) -> Tensor:
        """All members' predictions of some labels without them, (k, n', C)."""
        found = [member.own[positions] for member in self.members]
        return torch.stack(found) if found else self.targets.new_empty(0, len(positions), self.targets.shape[1])

    def columns(self, design: Design) -> Tensor:
        """Similarities of all nodes with the landmarks in one view, (N, l), in the precision of the similarities."""
        return self._located.columns(design.view)[: self._count]

    def answers(self, member: Member) -> Tensor:
        """The predictions of one regression at all nodes, (N, C)."""
        coefficients, offset = member.design.coefficients(member.ridge)
        return self.columns(member.design).double() @ (coefficients @ self.targets) + offset @ self.targets

    def unseen(self, design: Design, features: Tensor) -> Tensor:
        """The squared length of what ``features`` of all nodes leave out of their rows, (N,).

        Labelled nodes span the features. Where they are drawn as landmarks, these features are all that there is.
        """
        if len(self.targets) > MOST_LANDMARKS:
            return features.new_zeros(len(features))
        squares = self._located.everywhere.squared_lengths(design.view)[: self._count]
        return (squares - features[:, :-1].square().sum(dim=1)).clamp_min(0.0)

    def features(self, design: Design) -> Tensor:
        """The features of all nodes in the regressions on one view, (N, D)."""
        return with_constant(self.columns(design).double() @ design.basis)


def decomposed(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, s and V with U s V^T equal to some rows of features, without singular values of nearly 0.

    The smaller Gram matrix is decomposed, which is faster. Its rounding errors are far below any
    penalty.
    """
    wide = rows.shape[0] <= rows.shape[1]
    squares, vectors = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    kept = squares > EMPTY * squares[-1]
    s, vectors = squares[kept].sqrt(), vectors[:, kept]
    others = (rows.T if wide else rows) @ (vectors / s)
    return (vectors, s, others) if wide else (others, s, vectors)


def with_constant(features: Tensor) -> Tensor:
    """The features with a constant one, for the intercept."""
    return torch.cat([features, features.new_full((len(features), 1), INTERCEPT**0.5)], dim=1)


def _landmarks(nodes: Tensor) -> Tensor:
    drawn = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))[:MOST_LANDMARKS]
    return nodes[drawn.sort().values]
