r"""The change of the parameters after an edit: one Newton step of the changed objective.

.. math:: \delta = -H'^{-1} (F' + F), \qquad F' = \frac1n \sum_{i \in a} \left(J_i'^T e_i' - J_i^T e_i\right)

where a are the training nodes whose neighbourhood or label changes, e the residuals, and F what earlier edits left
(zero for the first one). The curvature H' has the new blocks of these nodes in place of the old ones:

.. math:: H' = H + \frac1n \sum_{i \in a} \left(J_i'^T S_i' J_i' - J_i^T S_i J_i\right)

H' differs from H in few rows. Where products of rows are cheap it is inverted in the space of these rows (see
``replaced``). Otherwise conjugate gradients with the factorised H as preconditioner need few iterations. Many edits are
solved together, one column each.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.derivatives import Jacobian
from jurygcn.edits.base import Base
from jurygcn.edits.edit import Edit, changes_of
from jurygcn.edits.replaced import Replaced
from jurygcn.errors import JuryWarning, SolverError
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.graph.reach import reached_by

TOLERANCE, ITERATIONS = 1e-4, 200  # of conjugate gradients, relative in the norm of H^-1
INEXACT = 0.05  # relative residual of a solution in the usual norm; above it the recurrences have failed
MOST_FEATURES = 40_000_000  # numbers in the features of all rows that one batch of edits needs
MOST_NUMBERS = 20_000_000  # numbers in the derivatives of the terms that a batch changes, and in their products


class TooManyEdits(Exception):
    """The neighbourhoods or the derivatives are too large together; take fewer edits at once."""


@dataclass(frozen=True, eq=False)
class Terms:
    """The losses of some nodes, each in one of several objectives, with their derivatives.

    Shapes: p terms, C outputs.

    Attributes:
        edit: the objective that each term belongs to, ascending, (p,).
        jacobian: their Jacobian.
        residual: e, (p, C).
        whitened: w with e = L w, (p, K).
        root: L with S = L L^T, (p, C, K).
    """

    edit: Tensor
    jacobian: Jacobian
    residual: Tensor
    whitened: Tensor
    root: Tensor

    def gradients(self, count: int) -> Tensor:
        """The sum of the terms' gradients for each of ``count`` objectives, (P, count)."""
        return self.pulled(self.residual, count)

    def along(self, block: Tensor) -> Tensor:
        """J v of each term, with the v of its objective: (P, b) -> (p, C)."""
        return self.jacobian.push(block)[torch.arange(len(self.edit)), :, self.edit]

    def products(self, block: Tensor) -> Tensor:
        """The sum of J^T S J v over the terms of each objective, which has its own v: (P, b) -> (P, b)."""
        curved = self.root @ (self.root.mT @ self.along(block).unsqueeze(-1))
        return self.pulled(curved.squeeze(-1), block.shape[1])

    def pulled(self, cotangents: Tensor, count: int) -> Tensor:
        """The sum of J^T a over the terms of each of ``count`` objectives: (p, C) -> (P, count)."""
        return self.jacobian.pull_groups(cotangents, self.edit, count)

    def parts(self, count: int) -> list[slice]:
        """The places of the terms of each of ``count`` objectives."""
        ends = torch.bincount(self.edit, minlength=count).cumsum(0).tolist()
        return [slice(a, b) for a, b in zip([0, *ends], ends)]


class Objectives:
    """The changed objectives of several edits of one base."""

    def __init__(self, base: Base, edits: Sequence[Edit]) -> None:
        self.base, self.edits, self.count = base, edits, len(edits)
        old, new = zip(*(self._changed(*pair) for pair in zip(edits, self._reached(), strict=True)), strict=True)
        # the edit of each term that changes, and its place among the training nodes or its node
        self.old_pairs, self.new_pairs = _numbered(old), _numbered(new)
        rows = base.curvature.factor.rows + len(base.engine.theta)
        if len(edits) > 1 and rows * self.new_pairs.shape[1] > MOST_NUMBERS:
            raise TooManyEdits

    def _reached(self) -> list[Tensor]:
        """The nodes whose outputs change, for each edit."""
        engine = self.base.engine
        if not engine.separable:
            return [torch.arange(int(engine.data.num_nodes))] * self.count
        return reached_by(engine.data, [e.touched for e in self.edits], num_hops(engine.model))

    def _changed(self, edit: Edit, reached: Tensor) -> tuple[Tensor, Tensor]:
        """The places of the training nodes whose losses change, and the labelled nodes whose losses replace them."""
        train_nodes = self.base.engine.train_nodes
        if edit.empty:
            return train_nodes[:0], train_nodes[:0]
        relabels = len(edit.relabelled) + len(edit.unlabelled) > 0
        involved = torch.cat([reached, edit.relabelled, edit.unlabelled]).unique() if relabels else reached
        at = self._place[involved]
        at = at[at >= 0]
        after = edit.labelled(train_nodes) if relabels else train_nodes[at]
        return at, after[torch.isin(after, involved)] if relabels else after

    @cached_property
    def _place(self) -> Tensor:
        """The place of each node among the training nodes, or -1, (N,)."""
        engine = self.base.engine
        place = torch.full((int(engine.data.num_nodes),), -1)
        place[engine.train_nodes] = torch.arange(engine.num_train)
        return place

    @property
    def affected(self) -> int:
        """The number of terms that change."""
        return max(self.old_pairs.shape[1], self.new_pairs.shape[1])

    @cached_property
    def old(self) -> Terms | None:
        """The terms that change, before the edit."""
        edit, at = self.old_pairs
        if not len(at):
            return None
        engine, factor = self.base.engine, self.base.curvature.factor
        z, y, loss = engine.train_outputs[at], engine.targets[at], engine.loss
        J = factor.jacobian.subset(at)
        return Terms(edit, J, loss.residual(z, y), loss.whitened(z, y), factor.root[at])

    @cached_property
    def new(self) -> Terms | None:
        """The same terms after the edit, at the old parameters."""
        edit, nodes = self.new_pairs
        if not len(nodes):
            return None
        engine = self.base.engine
        targets = engine.loss.targets(self._labels(edit, nodes))
        graph, centres = edited_parts(self.base, self.edits, edit, nodes)
        there = engine.elsewhere(graph, centres, targets)
        found = there.expected()
        z, loss = found.outputs, there.loss
        return Terms(edit, found.jacobian, loss.residual(z, targets), loss.whitened(z, targets), loss.root(z))

    def _labels(self, edit: Tensor, nodes: Tensor) -> Tensor:
        """The labels of nodes, each after its edit."""
        labels: Tensor = self.base.engine.data.y[nodes]
        for k, changed in enumerate(self.edits):
            for node, label in zip(changed.relabelled, changed.labels, strict=True):
                labels[(edit == k) & (nodes == node)] = label.to(labels)
        return labels

    @cached_property
    def replaced(self) -> Replaced | None:
        """The changed curvatures in the space of the rows that change; None if that is no shorter."""
        base = self.base
        return Replaced.of(base.curvature, base.prepared, self.count, self.old, self.new, self.old_pairs[1])

    def gradient(self) -> Tensor:
        """F' + F for every edit, (P, b)."""
        total = self.base.carried[:, None].repeat(1, self.count)
        for sign, terms in ((1.0, self.new), (-1.0, self.old)):
            if terms is not None:
                total += sign * terms.gradients(self.count) / self.base.count
        return total

    def correction(self, block: Tensor) -> Tensor:
        """(H' - H) V, each column with its own H': (P, b) -> (P, b)."""
        total = torch.zeros_like(block)
        for sign, terms in ((1.0, self.new), (-1.0, self.old)):
            if terms is not None:
                total += sign * terms.products(block) / self.base.count
        return total

    def solve(self, block: Tensor, *, tolerance: float = TOLERANCE) -> Tensor:
        """H'^-1 B, each column with its own H': (P, b) -> (P, b)."""
        return self._iterated(block, tolerance) if self.replaced is None else self.replaced.solve(block)

    def _iterated(self, block: Tensor, tolerance: float) -> Tensor:
        """The same by preconditioned conjugate gradients."""
        tiny = torch.finfo(block.dtype).tiny
        x, r = torch.zeros_like(block), block.clone()
        z = self.base.prepared.precondition(r)
        p, Hp = z.clone(), r.clone()  # H z = r, so products with H come for free
        rz = (r * z).sum(dim=0)
        wanted = tolerance**2 * rz
        for _ in range(ITERATIONS):
            if not bool((rz > wanted).any()):
                return self._checked(x, block)
            q = Hp + self.correction(p)
            step = torch.where(rz > 0, rz / (p * q).sum(dim=0).clamp_min(tiny), 0.0)
            x += step * p
            r -= step * q
            z = self.base.prepared.precondition(r)
            new = (r * z).sum(dim=0)
            ratio = torch.where(rz > 0, new / rz.clamp_min(tiny), 0.0)
            p, Hp, rz = z + ratio * p, r + ratio * Hp, new
        raise SolverError(
            f"expected the curvature after the edit to be solved in {ITERATIONS} iterations, got a residual of "
            f"{float((rz / wanted.clamp_min(tiny)).max().sqrt() * tolerance):.1e}; retrain the model, or add "
            "damping by leave_out=LeaveOut(damping=0.01)"
        )

    def _checked(self, x: Tensor, block: Tensor) -> Tensor:
        """The solution, if the residual agrees with what the recurrences say.

        Without weight decay some directions of the parameters may be determined by no label of the graph before the
        edit. The preconditioner is zero there, so the solution does not move there, like a juror, and a residual stays.
        """
        defect = self.base.curvature.matmul(x) + self.correction(x) - block
        inside = self.base.curvature.matmul(self.base.prepared.precondition(defect))
        length = block.norm(dim=0).clamp_min(torch.finfo(block.dtype).tiny)
        worst, outside = (float((part.norm(dim=0) / length).max()) for part in (inside, defect - inside))
        if not worst < INEXACT:
            raise SolverError(
                f"expected the curvature after the edit to be solved, got a relative residual of {worst:.1e}; retrain "
                "the model, or add damping by leave_out=LeaveOut(damping=0.01)"
            )
        if not outside < INEXACT:
            warnings.warn(
                "An edit pulls the parameters in directions that no label determined before; parameters without weight "
                "decay have such directions. They are not moved there: compare with training again, by certify() or "
                "influence_on(..., check=3).",
                JuryWarning,
                stacklevel=2,
            )
        return x

    def steps(self, *, tolerance: float = TOLERANCE) -> Tensor:
        """The change of the parameters for every edit, (b, P); zero where no loss changes."""
        if not self.affected and not bool(self.base.carried.any()):
            return torch.zeros(self.count, len(self.base.engine.theta), dtype=self.base.engine.dtype)
        if self.replaced is None or bool(self.base.carried.any()):
            return -self.solve(self.gradient(), tolerance=tolerance).T
        length, K = self.base.count**0.5, self.base.curvature.factor.block
        nothing = self.base.carried.new_zeros(0, K)
        old = nothing if self.old is None else -self.old.whitened / length
        new = nothing if self.new is None else self.new.whitened / length
        return -self.replaced.steps(old, new).T


def _numbered(parts: Sequence[Tensor]) -> Tensor:
    """The entries of each part behind its number, (2, p)."""
    sizes = torch.tensor([len(part) for part in parts])
    return torch.stack([torch.repeat_interleave(torch.arange(len(parts)), sizes), torch.cat(list(parts))])


def edited_parts(base: Base, edits: Sequence[Edit], of: Tensor, nodes: Tensor) -> tuple[Data, Tensor]:
    """A graph in which the neighbourhoods of ``nodes`` are as edits ``of`` leave them, and the nodes' places in it.

    What the edits change of the neighbourhoods, or the whole graph with the only edit.
    """
    engine = base.engine
    rows = MOST_FEATURES // engine.data.x.shape[1]
    found = engine.edited(nodes, changes_of(edits, of), most_rows=rows)
    if found is not None:
        return found
    if len(edits) > 1:
        raise TooManyEdits
    return edits[0].applied(engine.data), nodes
