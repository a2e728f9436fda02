r"""First-order votes of many jurors with small steps, without forward passes.

Juror i changes a label's probability by :math:`a_{uy} \cdot c_i`, where :math:`c_i` are its coefficients in a few
common directions and :math:`a_{uy}` the probability's derivatives along them. Every count compares such products with
a threshold. The Cauchy-Schwarz bound :math:`|a_{uy} \cdot c_i| \le \|a_{uy}\| \|c_i\|` decides nearly all
comparisons; products are computed only for jurors close to a threshold. The counts are exact for first-order votes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from jurygcn.conformal.advice import Advice
from jurygcn.conformal.asked import Asked, errors_of
from jurygcn.conformal.counts import Counts, Interval, Own
from jurygcn.conformal.intervals import LowerTail
from jurygcn.conformal.predictions import NUMBERS, predictions_at
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.jurors import CompressedJurors

# Jurors per block, and nodes whose intervals are computed at once. They affect speed and memory, not the result.
BLOCK, NODES = 64, 512

# Bounds are widened by this much, relative and absolute, so that rounding never decides a comparison.
SLACK = 1e-5


@dataclass(frozen=True, eq=False)
class Block:
    """Jurors with steps of similar size and similar thresholds, so that one bound holds for all of them.

    Shapes: jurors (b,) positions; coefficients (b, k); own (b,) thresholds.
    """

    jurors: Tensor
    coefficients: Tensor
    own: Tensor
    reach: float

    @staticmethod
    def alike(coefficients: Tensor, own: Tensor) -> list[Block]:
        """Blocks of jurors by the size of their steps, in powers of four; sorted by threshold in each block."""
        length = coefficients.norm(dim=1)
        power = (length.clamp_min(torch.finfo(length.dtype).tiny).log2() / 2).floor()
        blocks = []
        for size in power.unique().tolist():
            jurors = (power == size).nonzero().squeeze(1)
            jurors = jurors[own[jurors].argsort(stable=True)]
            blocks.append(Block(jurors, coefficients[jurors], own[jurors], float(length[jurors].max())))
        return blocks

    def cut(self) -> list[Block]:
        """The same jurors in smaller blocks with similar thresholds."""
        parts = zip(self.jurors.split(BLOCK), self.coefficients.split(BLOCK), self.own.split(BLOCK))
        return [Block(*part, self.reach) for part in parts]


class FirstOrderCounter:
    """Counts the votes of compressed jurors on the queried nodes, node by node.

    Attributes:
        outputs: the trained model's predictions at the queried nodes, (m, C).
    """

    def __init__(self, asked: Asked, jurors: CompressedJurors) -> None:
        check_linearized(asked)
        engine = asked.engine
        self.asked, self.dtype = asked, engine.source_dtype
        self.advice: Advice | None = None  # their votes cannot be counted by bounds
        self.outputs = predictions_at(engine, asked.nodes)[:, :, 0]
        self.coefficients = jurors.coefficients.to(self.dtype)
        self.own_predictions = engine.loss.predict(jurors.own_outputs).to(self.dtype)
        self.errors = errors_of(self.own_predictions, asked.own_targets)
        self.tangents = engine.tangents(asked.nodes, jurors.directions.to(self.dtype))

    def averaged_outputs(self, steps: int) -> Tensor | None:
        """The predictions for 0 steps, else None, because linearised votes are not averaged."""
        return self.outputs if steps == 0 else None

    def advised_outputs(self) -> Tensor | None:
        """None: these votes are counted without advice."""
        return None

    def count_all(
        self,
        *,
        parallel: int | str | None = None,
        resume: str | Path | None = None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Counts:
        """Count for all queried nodes, some at a time; ``parallel`` and ``resume`` are not supported."""
        check_in_one_go(parallel, resume)
        counts = self.asked.empty_counts(self.outputs, (0,))
        counts.bounds.errors.append(self.errors)
        n, m, C = self.asked.num_jurors, len(self.asked.nodes), self.outputs.shape[1]
        everyone, stages = self.asked.own(torch.arange(n)), []
        advance(0)
        done = 0
        for rows in torch.arange(m).split(max(1, NUMBERS // (C * self.coefficients.shape[1]))):
            first, last = int(rows[0]), int(rows[-1]) + 1
            mine = (everyone.node >= first) & (everyone.node < last)
            own = Own(everyone.juror[mine], everyone.node[mine] - first)
            stages.append(self._count_nodes(slice(first, last), own, counts))
            reached = n * last // m
            advance(reached - done)
            done = reached
        for labels in counts.labels.values():
            labels.counts = torch.cat([stage.labels for stage in stages])
            labels.add_own(self.own_predictions, self.asked.own_targets)
        for tail, side in ((counts.bounds.low, 0), (counts.bounds.high, 1)):
            tail.smallest = torch.cat([stage.tails[side] for stage in stages]) if stages[0].tails else None
        return counts

    def _count_nodes(self, rows: slice, own: Own, counts: Counts) -> _Stage:
        """All counts of some of the nodes."""
        p, a = self.outputs[rows], self.slopes(rows)
        labels = self._label_counts(p, a, own) if self.asked.classify else torch.empty(0)
        self._spread(p, a, own, rows, counts)
        quantity, slope = p, a
        if self.asked.classify:
            quantity = self.asked.quantity(p.unsqueeze(2)).squeeze(2)  # (r, 1)
            slope = (p.unsqueeze(1) @ a) / quantity.unsqueeze(2)
        return _Stage(labels, self._tails(quantity, slope, own, counts.bounds))

    def slopes(self, rows: slice) -> Tensor:
        """Derivatives of the predictions at some of the nodes along the directions, (r, C, k)."""
        a = self.tangents.at(rows)
        if not self.asked.classify:
            return a
        p = self.outputs[rows]  # from logits to probabilities
        return p.unsqueeze(2) * (a - (p.unsqueeze(1) @ a))

    # --- label sets ---------------------------------------------------------------------------------------

    def _label_counts(self, p: Tensor, a: Tensor, own: Own) -> Tensor:
        r"""How many jurors give label y at least the probability of their own left-out label, (r, C).

        .. math:: k(u, y) = \#\{i \ne u : p_{uy} + a_{uy} \cdot c_i \ge o_i\}
        """
        value, slope = p.flatten(), a.flatten(0, 1)
        counts = count_at_least(value, slope, self._blocks[1])
        mine = p[own.node] + (a[own.node] @ self.coefficients[own.juror].unsqueeze(2)).squeeze(2)
        counts = counts.view(p.shape)
        counts.index_add_(0, own.node, -(mine >= self._own_probability[own.juror, None]).to(counts.dtype))
        return counts.clamp_min_(0)

    @property
    def _own_probability(self) -> Tensor:
        return self.own_predictions.gather(1, self.asked.own_targets[:, None]).squeeze(1)

    @cached_property
    def _blocks(self) -> tuple[list[Block], list[Block]]:
        """The blocks of jurors by the size of their steps, and these blocks divided by thresholds."""
        own = self._own_probability if self.asked.classify else torch.zeros(self.asked.num_jurors)
        alike = Block.alike(self.coefficients, own)
        return alike, [part for block in alike for part in block.cut()]

    # --- intervals ----------------------------------------------------------------------------------------

    def _tails(self, quantity: Tensor, slope: Tensor, own: Own, bounds: Interval) -> tuple[Tensor, ...]:
        """The smallest values of each quantity minus, and of minus it minus, the jurors' errors; (r K, kept) each."""
        if bounds.method == "jackknife":
            return ()
        r, K = quantity.shape
        errors = self.errors if bounds.method == "jackknife+" else torch.zeros_like(self.errors)
        sides = []
        for tail, sign in ((bounds.low, 1.0), (bounds.high, -1.0)):
            kept = min(tail.keep, self.asked.num_jurors)
            smallest = torch.empty(r, K, kept, dtype=quantity.dtype, device=quantity.device)
            for output in range(K):
                smallest[:, output] = self._smallest(
                    sign * quantity[:, output], sign * slope[:, output], errors[:, output], own, tail
                )
            sides.append(smallest.flatten(0, 1))
        return tuple(sides)

    def _smallest(self, q: Tensor, b: Tensor, errors: Tensor, own: Own, tail: LowerTail) -> Tensor:
        """The smallest q_u + b_u c_i - err_i of every node, over the jurors that can be among the smallest, (r,
        kept)."""
        kept = min(tail.keep, self.asked.num_jurors)
        length, reach = b.norm(dim=1), self.coefficients.norm(dim=1)
        juror_of = torch.full((len(q),), -1).index_put_((own.node,), own.juror)
        out = torch.empty(len(q), kept, dtype=q.dtype, device=q.device)
        for nodes in length.argsort().split(NODES):
            slack = reach * float(length[nodes[-1]]) * (1 + SLACK) + SLACK
            enough = min(kept + 1, self.asked.num_jurors)  # one more, because the node's own juror does not vote
            bar = torch.kthvalue(slack - errors, enough).values
            able = (-slack - errors <= bar).nonzero().squeeze(1)
            values = q[nodes, None] + b[nodes] @ self.coefficients[able].T - errors[able]
            values[able[None, :] == juror_of[nodes, None]] = torch.inf
            out[nodes] = torch.topk(values, kept, dim=1, largest=False, sorted=False).values
        return out

    # --- spread -------------------------------------------------------------------------------------------

    def _spread(self, p: Tensor, a: Tensor, own: Own, rows: slice, counts: Counts) -> None:
        """Sums of deviations and of their squares over jurors, and changed labels, at some of the nodes."""
        c = self.coefficients
        mine = (a[own.node] @ c[own.juror].unsqueeze(2)).squeeze(2)  # (own, C)
        total = (a @ c.sum(dim=0)).double().index_add_(0, own.node, -mine.double())
        square = ((a @ (c.T @ c)) * a).sum(dim=(1, 2)).double()
        square.index_add_(0, own.node, -mine.double().square().sum(dim=1))
        counts.spread.total[rows] = total
        counts.spread.square[rows] = square.clamp_min_(0.0)
        if self.asked.classify:
            counts.spread.flips[rows] = self._flips(p, a, own)

    def _flips(self, p: Tensor, a: Tensor, own: Own) -> Tensor:
        """How many jurors predict another label than the model, (r,)."""
        label = p.argmax(dim=1, keepdim=True)
        gap = p.gather(1, label) - p  # (r, C)
        lead = a - a.gather(1, label.unsqueeze(2).expand(-1, -1, a.shape[2]))
        length = lead.norm(dim=2)
        rival = torch.arange(p.shape[1], device=p.device) != label
        juror_of = torch.full((len(p),), -1).index_put_((own.node,), own.juror)
        flips = torch.zeros(len(p), dtype=torch.int64, device=p.device)
        for block in self._blocks[0]:
            node, other = (rival & (length * block.reach * (1 + SLACK) + SLACK > gap)).nonzero(as_tuple=True)
            if not len(node):
                continue
            ahead = (lead[node, other] @ block.coefficients.T > gap[node, other, None]).to(torch.int32)  # (pairs, b)
            ahead[block.jurors[None, :] == juror_of[node, None]] = 0
            where, among = node.unique_consecutive(return_inverse=True)
            any_ahead = torch.zeros(len(where), len(block.jurors), dtype=torch.int32).index_add_(0, among, ahead) > 0
            flips.index_add_(0, where, any_ahead.sum(dim=1))
        return flips


def check_linearized(asked: Asked) -> None:
    """Raise SettingError for questions that linearised votes do not answer."""
    question = asked.question
    if asked.classify and question.nonconformity != "lac":
        raise SettingError(
            f"expected nonconformity='lac' for linearised votes, got {question.nonconformity!r}; use 'lac', or "
            "Jury(..., votes='exact')"
        )
    if asked.classify and question.diffusion not in ("auto", 0):
        raise SettingError(
            f"expected diffusion=0 or 'auto' for linearised votes, got {question.diffusion!r}; use one of them, or "
            "Jury(..., votes='exact')"
        )


def check_in_one_go(parallel: int | str | None, resume: str | Path | None) -> None:
    """Raise SettingError for linearised votes that are to be counted elsewhere or in parts."""
    if parallel not in (None, "serial") or resume is not None:
        what = "resume" if resume is not None else f"parallel={parallel!r}"
        raise SettingError(
            f"expected no parallel and no resume for linearised votes, got {what}; leave it out, or use "
            "Jury(..., votes='exact')"
        )


@dataclass(frozen=True, eq=False)
class _Stage:
    """Counts of some nodes."""

    labels: Tensor
    tails: tuple[Tensor, ...]


def count_at_least(value: Tensor, slope: Tensor, blocks: list[Block]) -> Tensor:
    r"""For every row, how many jurors have :math:`v + a \cdot c_i \ge o_i`; products only where bounds do not decide.

    Shapes: value (R,), slope (R, k) -> (R,) int32.
    """
    counts = torch.zeros(len(value), dtype=torch.int32, device=value.device)
    length = slope.norm(dim=1)
    for block in blocks:
        slack = length * (block.reach * (1 + SLACK)) + SLACK
        possible = value + slack >= block.own[0]
        certain = value - slack >= block.own[-1]
        counts += certain.to(torch.int32) * len(block.own)
        undecided = (possible & ~certain).nonzero().squeeze(1)
        if len(undecided):
            votes = slope[undecided] @ block.coefficients.T
            votes += value[undecided, None]
            counts.index_add_(0, undecided, (votes >= block.own).sum(dim=1, dtype=torch.int32))
    return counts
