r"""A hearing to first order: for many jurors, whose steps are small, without computing a single ballot.

Juror i changes a label's probability by :math:`a_{uy} \cdot c_i`, where :math:`c_i` are its coefficients in a few
common directions and :math:`a_{uy}` the probability's derivatives along them. Everything a verdict counts is then a
comparison of such products with a threshold, and by Cauchy and Schwarz :math:`|a_{uy} \cdot c_i| \le \|a_{uy}\|
\|c_i\|` settles nearly all of them: only the jurors close to a threshold are asked. Counts are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from jurygcn.derivatives.autodiff import outputs_along
from jurygcn.errors import SettingError
from jurygcn.jackknife.ballots import predictions_at
from jurygcn.jackknife.diffusion import take
from jurygcn.jackknife.hearing import Hearing, Question, Tally, errors_of
from jurygcn.jackknife.intervals import LowerTail
from jurygcn.jackknife.jurors import CompressedJurors
from jurygcn.jackknife.tally import FLOOR, Interval, Own
from jurygcn.models.receptive_field import ReceptiveField, Tangents, is_everything
from jurygcn.objective import Objective

# Jurors that are asked together, numbers in one array of derivatives, nodes whose intervals share their candidates.
BLOCK, NUMBERS, NEIGHBOURS = 64, 20_000_000, 512

# Bounds are widened by this much, relative and absolute, so that rounding never settles a comparison.
SLACK = 1e-5


@dataclass(frozen=True, eq=False)
class Block:
    """Jurors with steps of similar size and own probabilities close to each other: bounds hold for all of them.

    Shapes: jurors (b,) positions; coefficients (b, k); own (b,) thresholds.
    """

    jurors: Tensor
    coefficients: Tensor
    own: Tensor
    reach: float

    @staticmethod
    def alike(coefficients: Tensor, own: Tensor) -> list[Block]:
        """Jurors by the size of their steps, in powers of four; in each block by rising thresholds."""
        length = coefficients.norm(dim=1)
        power = (length.clamp_min(torch.finfo(length.dtype).tiny).log2() / 2).floor()
        blocks = []
        for size in power.unique().tolist():
            jurors = (power == size).nonzero().squeeze(1)
            jurors = jurors[own[jurors].argsort(stable=True)]
            blocks.append(Block(jurors, coefficients[jurors], own[jurors], float(length[jurors].max())))
        return blocks

    def cut(self) -> list[Block]:
        """The same jurors in smaller blocks, whose thresholds are close to each other."""
        parts = zip(self.jurors.split(BLOCK), self.coefficients.split(BLOCK), self.own.split(BLOCK))
        return [Block(*part, self.reach) for part in parts]


class FirstOrderHearing(Hearing):
    """The asked nodes before compressed jurors; counts like any hearing, node by node instead of juror by juror."""

    def __init__(
        self,
        objective: Objective,
        jurors: CompressedJurors,
        seats: Tensor,
        asked: Tensor,
        question: Question,
        *,
        memory: str,
    ) -> None:
        self._open(objective, seats, asked, question, memory)
        if self.classify and question.score != "lac":
            raise SettingError(
                f"score={question.score!r} needs the ballots themselves: use score='lac', or Jury(..., mode='exact')."
            )
        if self.classify and question.diffusion not in ("auto", 0):
            raise SettingError(
                f"diffusion={question.diffusion!r} needs the ballots themselves: use diffusion=0 or 'auto' (which is 0 "
                "for linearised jurors), or Jury(..., mode='exact')."
            )
        self.dtype = objective.source_dtype
        self.prediction = predictions_at(objective, asked)[:, :, 0]
        self.model_says = {0: self.prediction.unsqueeze(2)}
        self.at_asked, self.candidates = None, (0,)
        self.coefficients = jurors.coefficients.to(self.dtype)
        self.own_predictions = objective.loss.predict(jurors.own_outputs).to(self.dtype)
        self.errors = errors_of(self.own_predictions, self.own_targets)
        self.tangents = tangents_at(objective, asked, jurors.directions.to(self.dtype))

    def hear(
        self,
        *,
        parallel: int | str | None = None,  # noqa: ARG002
        resume: str | Path | None = None,  # noqa: ARG002
        advance: Callable[[int], None] = lambda _: None,
    ) -> Tally:
        """Count for all asked nodes, some at a time; quick enough to be done here and to need no record."""
        tally = self.new_tally()
        tally.bounds.errors.append(self.errors)
        m, C, k = len(self.asked), self.prediction.shape[1], self.coefficients.shape[1]
        everyone, stages = self.own(torch.arange(self.num_jurors)), []
        advance(0)
        done = 0
        for rows in torch.arange(m).split(max(1, NUMBERS // (C * k))):
            first, last = int(rows[0]), int(rows[-1]) + 1
            mine = (everyone.node >= first) & (everyone.node < last)
            own = Own(everyone.juror[mine], everyone.node[mine] - first)
            stages.append(self._count_nodes(slice(first, last), own, tally))
            heard = self.num_jurors * last // m
            advance(heard - done)
            done = heard
        if self.classify:
            probability = self.own_predictions.gather(1, self.own_targets[:, None]).squeeze(1)
            for counts in tally.labels.values():
                counts.counts = torch.cat([stage.labels for stage in stages])
                counts.log_scores.append(probability.clamp_min(FLOOR).log())
        for tail, side in ((tally.bounds.low, 0), (tally.bounds.high, 1)):
            tail.smallest = torch.cat([stage.tails[side] for stage in stages]) if stages[0].tails else None
        return tally

    def _count_nodes(self, rows: slice, own: Own, tally: Tally) -> _Stage:
        """Everything about some of the nodes."""
        p = self.prediction[rows]
        a = self.tangents.at(rows)
        if self.classify:  # from logits to probabilities
            a = p.unsqueeze(2) * (a - (p.unsqueeze(1) @ a))
        labels = self._label_counts(p, a, own) if self.classify else torch.empty(0)
        self._spread(p, a, own, rows, tally)
        quantity, slope = p, a
        if self.classify:
            quantity = self.quantity(p.unsqueeze(2)).squeeze(2)  # (r, 1)
            slope = (p.unsqueeze(1) @ a) / quantity.unsqueeze(2)
        return _Stage(labels, self._tails(quantity, slope, own, tally.bounds))

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
        return self.own_predictions.gather(1, self.own_targets[:, None]).squeeze(1)

    @cached_property
    def _blocks(self) -> tuple[list[Block], list[Block]]:
        """The jurors by the size of their steps, and those blocks cut by thresholds."""
        own = self._own_probability if self.classify else torch.zeros(self.num_jurors)
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
            kept = min(tail.keep, self.num_jurors)
            smallest = torch.empty(r, K, kept, dtype=quantity.dtype, device=quantity.device)
            for output in range(K):
                smallest[:, output] = self._smallest(
                    sign * quantity[:, output], sign * slope[:, output], errors[:, output], own, tail
                )
            sides.append(smallest.flatten(0, 1))
        return tuple(sides)

    def _smallest(self, q: Tensor, b: Tensor, errors: Tensor, own: Own, tail: LowerTail) -> Tensor:
        """The smallest q_u + b_u c_i - err_i of every node, over the jurors that can be among them, (r, kept)."""
        kept = min(tail.keep, self.num_jurors)
        length, reach = b.norm(dim=1), self.coefficients.norm(dim=1)
        juror_of = torch.full((len(q),), -1).index_put_((own.node,), own.juror)
        out = torch.empty(len(q), kept, dtype=q.dtype, device=q.device)
        for nodes in length.argsort().split(NEIGHBOURS):
            slack = reach * float(length[nodes[-1]]) * (1 + SLACK) + SLACK
            enough = min(kept + 1, self.num_jurors)  # one more, for the node's own juror says nothing
            bar = torch.kthvalue(slack - errors, enough).values
            able = (-slack - errors <= bar).nonzero().squeeze(1)
            values = q[nodes, None] + b[nodes] @ self.coefficients[able].T - errors[able]
            values[able[None, :] == juror_of[nodes, None]] = torch.inf
            out[nodes] = torch.topk(values, kept, dim=1, largest=False, sorted=False).values
        return out

    # --- spread -------------------------------------------------------------------------------------------

    def _spread(self, p: Tensor, a: Tensor, own: Own, rows: slice, tally: Tally) -> None:
        """Sums of deviations and of their squares over jurors, and changed labels, at some of the nodes."""
        c = self.coefficients
        mine = (a[own.node] @ c[own.juror].unsqueeze(2)).squeeze(2)  # (own, C)
        total = (a @ c.sum(dim=0)).double().index_add_(0, own.node, -mine.double())
        square = ((a @ (c.T @ c)) * a).sum(dim=(1, 2)).double()
        square.index_add_(0, own.node, -mine.double().square().sum(dim=1))
        tally.spread.total[rows] = total
        tally.spread.square[rows] = square.clamp_min_(0.0)
        if self.classify:
            tally.spread.flips[rows] = self._flips(p, a, own)

    def _flips(self, p: Tensor, a: Tensor, own: Own) -> Tensor:
        """How many jurors prefer another label than the model's, (r,)."""
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


@dataclass(frozen=True, eq=False)
class _Stage:
    """Counts of some nodes."""

    labels: Tensor
    tails: tuple[Tensor, ...]


def count_at_least(value: Tensor, slope: Tensor, blocks: list[Block]) -> Tensor:
    r"""For every row, how many jurors have :math:`v + a \cdot c_i \ge o_i`, asking only where bounds do not tell.

    Shapes: value (R,), slope (R, k) -> (R,) int32.
    """
    counts = torch.zeros(len(value), dtype=torch.int32, device=value.device)
    length = slope.norm(dim=1)
    for block in blocks:
        slack = length * (block.reach * (1 + SLACK)) + SLACK
        possible = value + slack >= block.own[0]
        certain = value - slack >= block.own[-1]
        counts += certain.to(torch.int32) * len(block.own)
        asked = (possible & ~certain).nonzero().squeeze(1)
        if len(asked):
            votes = slope[asked] @ block.coefficients.T
            votes += value[asked, None]
            counts.index_add_(0, asked, (votes >= block.own).sum(dim=1, dtype=torch.int32))
    return counts


def tangents_at(objective: Objective, nodes: Tensor, directions: Tensor) -> Tangents:
    """Derivatives of the logits at ``nodes`` along directions (k, P), in the directions' precision."""
    if objective.gcn is not None:
        field = ReceptiveField.of(objective.gcn, objective.data, nodes, dtype=directions.dtype)
        weights = [W.detach().to(directions.dtype) for W in objective.gcn.weights]
        return field.tangents(weights, list(objective.unflatten(directions).values()))
    local = objective.cast(directions.dtype)
    everything = is_everything(nodes, int(objective.data.num_nodes))
    graph, rows = local.local(nodes)
    chosen = None if everything else rows
    moved = outputs_along(lambda theta: take(local.outputs(theta, data=graph), chosen), local.theta, directions)
    return Tangents(moved.transpose(0, 1))
