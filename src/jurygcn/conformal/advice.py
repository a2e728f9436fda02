r"""Advice: the model's jurors vote together with the panel's.

Juror i of the stacked jury is the model's juror i and every regression of the panel without label i, with the weights
that the other labels choose from predictions without i (of the model's jurors: from theirs, which know i). Its
probabilities are

.. math::
    \tilde\pi_{-i}(u) \propto \exp\Big(\beta^0_{-i} \log \pi_{-i}(u)
    + \sum_k \beta^k_{-i} \big(f_k(u) - h^k_{ui} e^k_i\big)\Big)

for classes, and the weighted mean of the predictions for a regression. All labels are treated alike. The correction has
rank one for each regression, so only one batch of votes is in memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from jurygcn.conformal.averaging import NeighbourAverages
from jurygcn.conformal.counts import FLOOR
from jurygcn.conformal.predictions import LeaveOneOutPredictions
from jurygcn.engine import Engine
from jurygcn.engine.portable import as_arrays, as_tensors
from jurygcn.leave_one_out.jurors import CompressedJurors
from jurygcn.leave_one_out.panel import Panel
from jurygcn.leave_one_out.stacking import MOST_PAIRS, stack_classes, stack_values

MODEL = "the model's jurors"
SHARPNESS = 5.0  # the total weight of the panel alone: an answer of 1 against 0 is a factor of e^5
BLOCK = 200_000  # numbers of a block of stacked votes: the passes over it stay in the processor's cache


@dataclass(frozen=True, eq=False)
class Adviser:
    """A regression with a positive weight, at all nodes: h_u = offset + columns_u coefficients.

    Shapes: columns (N, l), shared by the regressions on one view; coefficients (l, n), offset (n,), answers (N, C),
    errors (n, C).
    """

    columns: Tensor
    coefficients: Tensor
    offset: Tensor
    answers: Tensor
    errors: Tensor

    def add_to(self, total: Tensor, jurors: Tensor, weight: Tensor, rows: slice) -> None:
        """Add the weighted predictions of some jurors at some nodes to ``total``, (r, C, b)."""
        voting = weight.nonzero().squeeze(1)
        if 2 * len(voting) < len(weight):  # few jurors ask this adviser
            some = total.new_zeros(*total.shape[:2], len(voting))
            if len(voting):
                self.add_to(some, jurors[voting], weight[voting], rows)
                total.index_add_(2, voting, some)
            return
        hat = torch.addmm(self.offset[jurors], self.columns[rows], self.coefficients[:, jurors])
        total.addcmul_(self.answers[rows].unsqueeze(2), weight)
        total.addcmul_(hat.unsqueeze(1), (self.errors[jurors] * weight[:, None]).T, value=-1.0)


@dataclass(frozen=True, eq=False)
class Advice:
    """The stacked jury: weights of the model's jurors and of the panel.

    Attributes:
        diffusion: how many times the model's probabilities are averaged over neighbourhoods before they are pooled.
        members: the model's jurors and the advisers, in words, in the order of the weights.
        table: the members by share: words, share of the pooled prediction, weight.
        model_share: the share of the model's jurors, between 0 and 1.

    Shapes: weights (1 + k,) and left_out (1 + k, n); the model comes first, then the advisers.
    """

    classify: bool
    diffusion: int
    weights: Tensor
    left_out: Tensor
    advisers: list[Adviser]
    members: list[str]
    table: pd.DataFrame = field(repr=False)

    @property
    def model_share(self) -> float:
        """How much of the pooled prediction the model's jurors make up."""
        return float(self.table.loc[self.table["member"] == MODEL, "share"].sum())

    @property
    def words(self) -> str:
        """How much the model counts, and the other members with a share of at least 5 percent."""
        others = self.table[(self.table["member"] != MODEL) & (self.table["share"] >= 0.05)]
        said = ", ".join(f"{member} {share:.0%}" for member, share in zip(others["member"], others["share"]))
        mine = f"The model's own jurors make up {self.model_share:.0%} of the stacked jury"
        return f"{mine}; {said}." if said else f"{mine}."

    def at(self, nodes: Tensor) -> Advice:
        """The advice at these nodes only, for votes on them."""
        shared = {id(adviser.columns): adviser.columns for adviser in self.advisers}
        rows = {key: columns[nodes] for key, columns in shared.items()}
        kept = [replace(a, columns=rows[id(a.columns)], answers=a.answers[nodes]) for a in self.advisers]
        return replace(self, advisers=kept)

    def outputs(self, model: Tensor) -> Tensor:
        """The stacked prediction with all labels, from the model's own, (m, C) -> (m, C)."""
        total = self.weights[0] * self._scale(model)
        for weight, adviser in zip(self.weights[1:], self.advisers):
            total = total + weight * adviser.answers
        return torch.softmax(total, dim=1) if self.classify else total

    def votes(self, model: Tensor, jurors: Tensor) -> Tensor:
        """The stacked votes of some jurors, from those of the model's jurors, (m, C, b) -> (m, C, b)."""
        weights, stacked = self.left_out[:, jurors], torch.empty_like(model)
        rows = max(1, BLOCK // max(1, model.shape[1] * len(jurors)))
        for start in range(0, len(model), rows):
            here = slice(start, start + rows)
            total = self._scale(model[here]) * weights[0]
            for weight, adviser in zip(weights[1:], self.advisers):
                adviser.add_to(total, jurors, weight, here)
            stacked[here] = torch.softmax(total, dim=1) if self.classify else total
        return stacked

    @property
    def decisive(self) -> dict[str, Any]:
        """What determines the stacked votes beside the model, the graph and the labels."""
        given = {"weights": self.weights, "left_out": self.left_out}
        return {**given, "diffusion": self.diffusion, "members": self.members}

    def portable(self) -> PortableAdvice:
        """A picklable copy, for another process."""
        return PortableAdvice(self)

    def _scale(self, predictions: Tensor) -> Tensor:
        return predictions.clamp_min(FLOOR).log() if self.classify else predictions


class PortableAdvice:
    """Picklable advice with its tensors as NumPy arrays, as those of an engine; calling it returns the advice."""

    def __init__(self, advice: Advice) -> None:
        self.rest = replace(advice, weights=torch.empty(0), left_out=torch.empty(0), advisers=[])
        self.arrays = as_arrays({"weights": advice.weights, "left_out": advice.left_out})
        self.advisers = [as_arrays(vars(adviser)) for adviser in advice.advisers]

    def __call__(self) -> Advice:
        """The advice, in the receiving process."""
        advisers = [Adviser(**dict(as_tensors(arrays))) for arrays in self.advisers]
        given = dict(as_tensors(self.arrays))
        return replace(self.rest, weights=given["weights"], left_out=given["left_out"], advisers=advisers)


def own_predictions(
    engine: Engine,
    steps: Tensor,
    nodes: Tensor,
    *,
    diffusion: int | str,
    memory: str,
    everywhere: LeaveOneOutPredictions | None = None,
) -> dict[int, Tensor]:
    """Predictions of the model's jurors at their own nodes, (n, C), by number of averages over neighbourhoods.

    ``everywhere`` are the jurors' predictions at all nodes, where they are computed anyway.
    """
    base, where = nodes.unique(return_inverse=True)
    smoothing = NeighbourAverages(engine.data, base, diffusion)
    found: dict[int, list[Tensor]] = {k: [] for k in smoothing.candidates}
    votes_there = everywhere or LeaveOneOutPredictions(engine, steps, smoothing.reach, memory=memory)
    for jurors, votes in votes_there:
        for k, smooth in smoothing(votes if everywhere is None else votes[smoothing.reach]).items():
            if k in found:
                found[k].append(smooth[where[jurors], :, torch.arange(len(jurors))])
    return {k: torch.cat(parts) for k, parts in found.items()}


def own_of(
    engine: Engine,
    jurors: Tensor | CompressedJurors,
    nodes: Tensor,
    *,
    diffusion: int | str,
    memory: str,
    everywhere: LeaveOneOutPredictions | None = None,
) -> dict[int, Tensor]:
    """As `own_predictions`, of jurors with these steps or of compressed ones, whose votes are not averaged."""
    if isinstance(jurors, CompressedJurors):
        return {0: engine.loss.predict(jurors.own_outputs).to(engine.source_dtype)}
    return own_predictions(engine, jurors, nodes, diffusion=diffusion, memory=memory, everywhere=everywhere)


def panel_of(engine: Engine) -> Panel:
    """The panel for the labels of a jury's model."""
    targets = engine.targets.cpu()
    if not targets.is_floating_point():
        targets = functional.one_hot(targets, engine.num_outputs).double() - 1.0 / engine.num_outputs
    dtype = torch.float64 if engine.source_dtype == torch.float64 else torch.float32
    return Panel(engine.data, engine.train_nodes, targets, dtype=dtype)


def chosen_advice(
    engine: Engine,
    jurors: Tensor | CompressedJurors,
    panel: Panel,
    positions: Tensor,
    *,
    diffusion: int | str,
    memory: str,
    known: dict[int | str, Advice],
    heard: bool,
    everywhere: LeaveOneOutPredictions | None = None,
) -> Advice:
    """The advice that these jurors take, chosen once for each number of averages and kept in ``known``."""
    if diffusion not in known:
        nodes = engine.train_nodes[positions]
        own = own_of(engine, jurors, nodes, diffusion=diffusion, memory=memory, everywhere=everywhere)
        known[diffusion] = take_advice(engine, panel, positions, own, heard=heard)
    return known[diffusion]


def take_advice(
    engine: Engine, panel: Panel, positions: Tensor, own: dict[int, Tensor], *, heard: bool = True
) -> Advice:
    """Choose the weights by what jurors predict for their own left-out labels.

    Args:
        engine: the model.
        panel: the regressions.
        positions: the training nodes of the jurors, (n,).
        own: predictions of the model's jurors at their own nodes, (n, C), by number of averages; the best is taken.
        heard: whether the model's jurors get a weight. Jurors that differ from retrained ones are overconfident about
            left-out labels, so they would get too much; the regressions, whose jurors are exact, then vote alone on
            classes.
    """
    targets = engine.targets[positions].cpu()
    classify = not targets.is_floating_point()
    best, answers = 0, [member.own[positions] for member in panel.members]  # none if no view distinguishes nodes
    mine = {k: votes.double().cpu() for k, votes in own.items()}
    if classify:
        mine = {k: votes.clamp_min(FLOOR).log() for k, votes in mine.items()}
        best = max(mine, key=lambda k: float(mine[k].gather(1, targets[:, None]).mean()))
    unheard = classify and not heard and bool(answers)
    predictions = torch.stack([torch.zeros_like(mine[best]) if unheard else mine[best], *answers])
    # The model has no jurors without two labels.
    pairs = panel.pairs(positions, predictions[:1]) if len(positions) <= MOST_PAIRS else None
    found = (
        stack_classes(predictions, targets, pairs) if classify else stack_values(predictions, targets.double(), pairs)
    )
    if unheard:
        found.weights[0] = found.left_out[0] = 0.0
    chosen = [k for k in range(len(panel.members)) if float(found.left_out[k + 1].amax()) > 0]
    kept = [0, *(k + 1 for k in chosen)]
    dtype = engine.source_dtype
    said = [MODEL, *(panel.members[k].words for k in chosen)]
    table = pd.DataFrame({"member": said, "share": found.shares[kept].numpy(), "weight": found.weights[kept].numpy()})
    return Advice(
        classify=classify,
        diffusion=best,
        weights=found.weights[kept].to(dtype),
        left_out=found.left_out[kept].to(dtype),
        advisers=_advisers(panel, chosen, positions, dtype),
        members=said,
        table=table.sort_values("share", ascending=False, ignore_index=True, kind="stable"),
    )


def panel_alone(engine: Engine, panel: Panel, positions: Tensor) -> Advice:
    """The panel without the model, all regressions with the same weight: labels choose nothing.

    Classes are pooled with the fixed total weight `SHARPNESS`.
    """
    classify, count, dtype = not engine.targets.is_floating_point(), len(panel.members), engine.source_dtype
    weights = torch.full((1 + count,), (SHARPNESS if classify else 1.0) / count, dtype=dtype)
    weights[0] = 0.0
    said = [MODEL, *(member.words for member in panel.members)]
    table = pd.DataFrame({"member": said, "share": [0.0, *[1.0 / count] * count], "weight": weights.numpy()})
    return Advice(
        classify=classify,
        diffusion=0,
        weights=weights,
        left_out=weights[:, None].expand(-1, len(positions)).contiguous(),
        advisers=_advisers(panel, list(range(count)), positions, dtype),
        members=said,
        table=table,
    )


def _advisers(panel: Panel, chosen: list[int], positions: Tensor, dtype: torch.dtype) -> list[Adviser]:
    columns: dict[int, Tensor] = {}
    made = []
    for member in (panel.members[k] for k in chosen):
        design = member.design
        if id(design) not in columns:
            columns[id(design)] = panel.columns(design).to(dtype)
        here = columns[id(design)]
        coefficients, offset = design.coefficients(member.ridge)
        answers = torch.addmm((offset @ panel.targets).to(dtype), here, (coefficients @ panel.targets).to(dtype))
        mine = coefficients[:, positions].to(dtype), offset[positions].to(dtype)
        made.append(Adviser(here, *mine, answers, member.errors[positions].to(dtype)))
    return made
