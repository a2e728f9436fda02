"""What jurors predict for their own left-out labels, as exactly as is possible without retraining.

These predictions estimate what the model does at nodes that it has not learned. The jurors of a verdict may err on the
safe side: where training stopped early, Newton steps with the stated weight decay are too long, and label sets get
larger. An estimate of the accuracy needs jurors without this bias, so their curvature has the effective weight decay
(:mod:`jurygcn.curvature.effective_decay`). Retrained and corrected jurors are taken as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurygcn.checks import check_choice
from jurygcn.conformal.advice import Advice, own_of, own_predictions, take_advice
from jurygcn.conformal.averaging import NeighbourAverages
from jurygcn.conformal.counts import FLOOR
from jurygcn.conformal.predictions import MOST_VOTES, predictions_at
from jurygcn.curvature import curvature_of
from jurygcn.errors import SettingError
from jurygcn.finding import leave_one_out_of
from jurygcn.leave_one_out.jurors import CompressedJurors

if TYPE_CHECKING:
    from jurygcn.jury import Jury

OF = ("model", "jury")


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Predictions of jurors at their own nodes.

    Shapes: nodes (n,), labels (n,), probabilities (n, C) float64.
    """

    nodes: Tensor
    labels: Tensor
    probabilities: Tensor

    @property
    def own(self) -> Tensor:
        """The probability of each label by the juror that did not see it, (n,)."""
        return self.probabilities.gather(1, self.labels[:, None]).squeeze(1)


def left_out_of(jury: Jury, of: str) -> LeftOut:
    """The predictions of the jurors of the model, or of the stacked jury, at their own nodes."""
    check_choice(of, "of", OF)
    engine, positions = jury.engine, jury.positions
    if engine.loss.name != "cross_entropy":
        raise SettingError(
            "expected a classification for predictions of left-out labels, got a regression; "
            "its leave-one-out errors are jury.verdict().loo_errors"
        )
    nodes, labels = engine.train_nodes[positions].cpu(), engine.targets[positions].cpu()
    if of == "jury":
        return LeftOut(nodes, labels, _stacked(jury).double().cpu())
    if isinstance(jury.jurors, CompressedJurors):
        return LeftOut(nodes, labels, engine.loss.predict(jury.jurors.own_outputs).double().cpu())
    steps, memory = _unbiased_steps(jury), jury.run.ballots
    own = own_predictions(engine, steps, engine.train_nodes[positions], diffusion=0, memory=memory)[0]
    return LeftOut(nodes, labels, own.double().cpu())


def has_stacked_jury(jury: Jury) -> bool:
    """Whether the jury takes advice: linearised jurors take none where their votes are too many to be computed."""
    votes = int(jury.data.num_nodes) * jury.engine.num_outputs * jury.jurors.count
    return not isinstance(jury.jurors, CompressedJurors) or votes <= MOST_VOTES


def voting(jury: Jury) -> Tensor | CompressedJurors:
    """The steps of the jurors that vote, (n, P), or the compressed jurors."""
    return jury.jurors if isinstance(jury.jurors, CompressedJurors) else jury.jurors.steps


def _stacked(jury: Jury) -> Tensor:
    """Stacked predictions of the left-out nodes, with the weights that the other labels choose, (n, C)."""
    if not has_stacked_jury(jury):
        raise SettingError(
            f"expected at most {MOST_VOTES:.0e} votes of linearised jurors for advice, got more; use of='model'"
        )
    advice, nodes = jury.advice(), jury.engine.train_nodes[jury.positions]
    k = advice.diffusion
    own = own_of(jury.engine, voting(jury), nodes, diffusion=k, memory=jury.run.ballots)[k]
    return _pooled(jury, advice, own)


def _pooled(jury: Jury, advice: Advice, own: Tensor) -> Tensor:
    """Predictions of left-out nodes with this advice, from those of the model's jurors, (n, C) -> (n, C)."""
    weights = advice.left_out.double()
    total = weights[0][:, None] * own.double().cpu().clamp_min(FLOOR).log()
    targets = jury.panel.targets[jury.positions]
    for weight, adviser in zip(weights[1:], advice.advisers):
        total = total + weight[:, None] * (targets - adviser.errors.double())  # y_i - e_i = f_{-i}(i)
    return torch.softmax(total, dim=1)


@torch.no_grad()
def panel_probabilities(jury: Jury) -> tuple[Tensor, Tensor] | None:
    """What the panel predicts without the model, for left-out labels, (n, C), and for nodes without a label, (m, C).

    It is the same for all models of a graph and its labels. None where no view of the graph distinguishes nodes, or no
    node is without a label.
    """
    nodes, C = unlabelled(jury), jury.engine.num_outputs
    if not len(nodes) or not jury.panel.members:
        return None
    nothing = torch.full((int(jury.data.num_nodes), C), 1.0 / C, dtype=torch.float64)
    own = nothing[: len(jury.positions)]
    advice = take_advice(jury.engine, jury.panel, jury.positions, {0: own}, heard=False)
    stacked = advice.at(nodes).outputs(nothing[nodes].to(advice.weights.dtype))
    return _pooled(jury, advice, own), stacked.double()


@dataclass(frozen=True, eq=False)
class Others:
    """The model's logits, and the stacked jury's probabilities, at nodes without a label, (m, C) float64 each."""

    logits: Tensor
    stacked: Tensor


def others_of(jury: Jury) -> Others | None:
    """Predictions at all nodes without a label; None where the stacked jury is the model alone, or nothing."""
    nodes = unlabelled(jury)
    if not len(nodes) or not has_stacked_jury(jury) or not jury.panel.members:
        return None
    engine, advice = jury.engine, jury.advice()
    smoothing = NeighbourAverages(engine.data, nodes, advice.diffusion)
    model = smoothing(predictions_at(engine, smoothing.reach))[advice.diffusion].squeeze(2).cpu()
    logits = engine.outputs_at(nodes.to(engine.train_nodes.device))
    return Others(logits.double().cpu(), advice.at(nodes).outputs(model).double())


def logits_of_others(jury: Jury) -> Tensor | None:
    """The model's logits at all nodes without a label, (m, C) float64; None if there are no such nodes."""
    nodes = unlabelled(jury).to(jury.engine.train_nodes.device)
    return jury.engine.outputs_at(nodes).double().cpu() if len(nodes) else None


def unlabelled(jury: Jury) -> Tensor:
    """All nodes without a label."""
    without = torch.ones(int(jury.data.num_nodes), dtype=torch.bool)
    without[jury.engine.train_nodes.cpu()] = False
    return without.nonzero().squeeze(1)


def class_names_of(jury: Jury) -> list[str]:
    """The names of the classes, or their numbers."""
    names, C = getattr(jury.data, "class_names", None), jury.engine.num_outputs
    return [str(name) for name in names] if names is not None and len(names) == C else [str(c) for c in range(C)]


def _unbiased_steps(jury: Jury) -> Tensor:
    """Newton steps with the effective decay; retrained and corrected ones as they are, (n, P)."""
    how = jury.leave_out
    if how.how == "retrain" or how.corrected_by or (how.how == "newton" and how.decay == "effective"):
        return jury.jurors.steps
    with torch.enable_grad():
        curvature = curvature_of(jury.engine, "ggn", damping=how.damping, effective=True)
        return leave_one_out_of(jury, curvature).newton_jurors().steps
