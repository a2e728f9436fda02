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
from jurygcn.conformal.advice import own_of, own_predictions
from jurygcn.conformal.counts import FLOOR
from jurygcn.conformal.predictions import MOST_VOTES
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
            "expected a classification for predictions of left-out labels, got a regression; use jury.verdict()"
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
    weights = advice.left_out.double()
    total = weights[0][:, None] * own.double().cpu().clamp_min(FLOOR).log()
    targets = jury.panel.targets[jury.positions]
    for weight, adviser in zip(weights[1:], advice.advisers):
        total = total + weight[:, None] * (targets - adviser.errors.double())  # y_i - e_i = f_{-i}(i)
    return torch.softmax(total, dim=1)


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
