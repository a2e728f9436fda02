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
from jurygcn.errors import SolverError
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.graph.reach import reached_by

TOLERANCE, ITERATIONS = 1e-4, 200  # of conjugate gradients, relative in the norm of H^-1
INEXACT = 0.05  # relative residual of a solution in the usual norm; above it the recurrences have failed
MOST_FEATURES = 40_000_000  # numbers in the features of all copies of neighbourhoods in one batch


class TooManyEdits(Exception):
    """The copies of all neighbourhoods are too large; take fewer edits at once."""


@dataclass(frozen=True, eq=False)
class Terms:
    """The losses of some nodes, each in one of several objectives, with their derivatives.

    Shapes: p terms, C outputs.

    Attributes:
        edit: the objective that each term belongs to, (p,).
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
        wide = cotangents.new_zeros(*cotangents.shape, count)
        wide[torch.arange(len(self.edit)), :, self.edit] = cotangents
        return self.jacobian.pull(wide)


class Objectives:
    """The changed objectives of several edits of one base."""

    def __init__(self, base: Base, edits: Sequence[Edit]) -> None:
        self.base, self.edits, self.count = base, edits, len(edits)
        engine = base.engine
        affected = reached_by(engine.data, [e.touched for e in edits], num_hops(engine.model))
        position = torch.full((int(engine.data.num_nodes),), -1)
        position[engine.train_nodes] = torch.arange(engine.num_train)
        self.old_pairs: list[tuple[int, int]] = []
        self.new_pairs: list[tuple[int, int]] = []
        for k, (edit, reached) in enumerate(zip(edits, affected, strict=True)):
            if edit.empty:
                continue
            after = edit.labelled(engine.train_nodes)
            if not engine.separable:
                reached = torch.arange(int(engine.data.num_nodes))
            involved = torch.cat([reached, edit.relabelled, edit.unlabelled]).unique()
            self.old_pairs += [(k, int(i)) for i in position[involved].tolist() if i >= 0]
            self.new_pairs += [(k, int(n)) for n in after[torch.isin(after, involved)].tolist()]

    @cached_property
    def old(self) -> Terms | None:
        """The terms that change, before the edit."""
        if not self.old_pairs:
            return None
        engine, factor = self.base.engine, self.base.curvature.factor
        edit, at = torch.tensor(self.old_pairs).T
        z, y, loss = engine.train_outputs[at], engine.targets[at], engine.loss
        J = factor.jacobian.subset(at)
        return Terms(edit, J, loss.residual(z, y), loss.whitened(z, y), factor.root[at])

    @cached_property
    def new(self) -> Terms | None:
        """The same terms after the edit, at the old parameters."""
        if not self.new_pairs:
            return None
        engine = self.base.engine
        edit, nodes = torch.tensor(self.new_pairs).T
        labels = torch.stack([self._label(k, n) for k, n in self.new_pairs])
        targets = engine.loss.targets(labels)
        graph, centres = edited_parts(self.base, self.edits, edit, nodes)
        there = engine.elsewhere(graph, centres, targets)
        found = there.expected()
        z, loss = found.outputs, there.loss
        return Terms(edit, found.jacobian, loss.residual(z, targets), loss.whitened(z, targets), loss.root(z))

    @cached_property
    def replaced(self) -> Replaced | None:
        """The changed curvatures in the space of the rows that change; None if that is no shorter."""
        at = torch.tensor([i for _, i in self.old_pairs], dtype=torch.long)
        return Replaced.of(self.base.curvature, self.base.prepared, self.count, self.old, self.new, at)

    def _label(self, k: int, node: int) -> Tensor:
        edit = self.edits[k]
        hit = (edit.relabelled == node).nonzero()
        value: Tensor = edit.labels[int(hit[0])] if len(hit) else self.base.engine.data.y[node]
        return value

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
            f"{float((rz / wanted.clamp_min(tiny)).max().sqrt() * tolerance):.1e}; retrain the model, or add damping"
        )

    def _checked(self, x: Tensor, block: Tensor) -> Tensor:
        """The solution, if the residual agrees with what the recurrences say."""
        defect = self.base.curvature.matmul(x) + self.correction(x) - block
        worst = float((defect.norm(dim=0) / block.norm(dim=0).clamp_min(torch.finfo(block.dtype).tiny)).max())
        if not worst < INEXACT:
            raise SolverError(
                f"expected the curvature after the edit to be solved, got a relative residual of {worst:.1e}; retrain "
                "the model, or add damping"
            )
        return x

    def steps(self, *, tolerance: float = TOLERANCE) -> Tensor:
        """The change of the parameters for every edit, (b, P); zero where no loss changes."""
        if not self.old_pairs and not self.new_pairs and not bool(self.base.carried.any()):
            return torch.zeros(self.count, len(self.base.engine.theta), dtype=self.base.engine.dtype)
        if self.replaced is None or bool(self.base.carried.any()):
            return -self.solve(self.gradient(), tolerance=tolerance).T
        length, K = self.base.count**0.5, self.base.curvature.factor.block
        nothing = self.base.carried.new_zeros(0, K)
        old = nothing if self.old is None else -self.old.whitened / length
        new = nothing if self.new is None else self.new.whitened / length
        return -self.replaced.steps(old, new).T


def edited_parts(base: Base, edits: Sequence[Edit], of: Tensor, nodes: Tensor) -> tuple[Data, Tensor]:
    """A graph in which the neighbourhoods of ``nodes`` are as edits ``of`` leave them, and the nodes' places in it.

    Copies of the neighbourhoods, or the whole graph with the only edit.
    """
    engine = base.engine
    rows = MOST_FEATURES // engine.data.x.shape[1]
    found = engine.copies(nodes, changes_of(edits, of), most_rows=rows)
    if found is not None:
        return found.graph, found.centres
    if len(edits) > 1:
        raise TooManyEdits
    return edits[0].applied(engine.data), nodes
