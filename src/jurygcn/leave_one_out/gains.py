r"""What one more label would do to the panel's predictions of all nodes, without fitting anything again.

A regression with the similarity k and the penalty :math:`\lambda`, fitted to labels L, becomes by the label y of node v

.. math::
    f^{+v}(u) = f(u) + \frac{c(u, v)}{\lambda + c(v, v)} \big(y - f(v)\big), \qquad
    c(u, v) = k(u, v) - h_u^\top k_L(v)

with the h of :mod:`jurygcn.leave_one_out.panel`. This is exact. The pooled prediction
:math:`p(u) \propto \exp \sum_k \beta_k f_k(u)` keeps its weights. The gain of a node is the fall of the error that the
pooled prediction expects of itself at all nodes, on average over the node's own label:

.. math:: \sum_y p(v, y) \sum_u \Big[\max_c p^{+(v, y)}(u, c) - \max_c p(u, c)\Big]

All candidates together cost one product with the labelled rows for each regression. The panel must be spanned by its
labels, which it is up to 512 of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.graph.similarity import Similarities
from jurygcn.leave_one_out.panel import INTERCEPT, Member, Panel

NUMBERS = 20_000_000  # of predictions in memory at a time


@dataclass(frozen=True, eq=False)
class PanelGains:
    """The panel of some labels with its weights.

    Attributes:
        weights: of the members of the panel, (k,).
        scores: the pooled scores of all nodes, (N, C); their softmax is the prediction.
    """

    data: Data
    panel: Panel
    weights: Tensor
    scores: Tensor = field(repr=False)

    @classmethod
    def of(cls, data: Data, panel: Panel, weights: Tensor) -> PanelGains:
        """The gains with these weights of the panel's members."""
        scores = torch.zeros(int(data.num_nodes), panel.targets.shape[1], dtype=torch.float64)
        for member, weight in zip(panel.members, weights.tolist()):
            if weight:
                scores += weight * panel.answers(member)
        return cls(data, panel, weights, scores)

    def expected(self, candidates: Tensor) -> Tensor:
        """The gain of each candidate, in nodes that are predicted right, (m,)."""
        classes, rows = self.scores.shape[1], len(self.scores)
        blocks = candidates.cpu().split(max(1, NUMBERS // (rows * classes)))
        return torch.cat([self._expected(some) for some in blocks]) if blocks else torch.empty(0).double()

    def _expected(self, some: Tensor) -> Tensor:
        moved, pull = self.moved(some)
        chance, before = torch.softmax(self.scores[some], dim=1), torch.softmax(self.scores, dim=1).amax(dim=1).sum()
        total = torch.zeros(len(some), dtype=torch.float64)
        for label in range(self.scores.shape[1]):
            after = moved.clone()
            after[:, :, label] += pull
            total += chance[:, label] * (torch.softmax(after, dim=2).amax(dim=2).sum(dim=0) - before)
        return total

    def moved(self, some: Tensor) -> tuple[Tensor, Tensor]:
        r"""The scores of all nodes with one more label at v: ``moved``, plus ``pull`` in the class of the label.

        Shapes: some (m,) -> moved (N, m, C), pull (N, m).
        """
        panel, count = self.panel, self.scores.shape[1]
        located = Similarities.of(self.data).at(some)
        moved = self.scores[:, None].repeat(1, len(some), 1)
        pull = torch.zeros(moved.shape[:2], dtype=torch.float64)
        own = torch.arange(len(some))
        for member, weight in zip(panel.members, self.weights.tolist()):
            if not weight:
                continue
            between = located.columns(member.design.view) + INTERCEPT  # (N, m)
            left = between - self._explained(member, between)
            step = weight * left / (member.ridge + left[some, own])
            pull += step
            moved -= step[:, :, None] * (panel.answers(member)[some] + 1.0 / count)
        return moved, pull

    def _explained(self, member: Member, between: Tensor) -> Tensor:
        coefficients, offset = member.design.coefficients(member.ridge)
        hat = self.panel.columns(member.design) @ coefficients + offset  # (N, n)
        return hat @ between[self.panel.nodes]
