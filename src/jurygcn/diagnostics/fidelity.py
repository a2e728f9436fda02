"""Compare estimated jurors with retrained ones, by retraining a few."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from jurygcn.conformal.asked import errors_of
from jurygcn.conformal.claims import Agreement
from jurygcn.conformal.predictions import LeaveOneOutPredictions
from jurygcn.leave_one_out.jurors import CompressedJurors
from jurygcn.leave_one_out.retraining import Retraining, retrained_parameters

if TYPE_CHECKING:
    from jurygcn.jury import Jury

FAITHFUL = 0.9  # the smallest correlation with retrained jurors at which estimated ones are trusted
SIMILAR = 0.1  # the largest difference of their mean leave-one-out errors, relative to the retrained jurors'


@dataclass(frozen=True, eq=False)
class Fidelity:
    """The comparison of estimated jurors with retrained ones.

    Attributes:
        correlation: of the probability (or output) that a juror predicts for its own left-out label.
        loo_error: mean leave-one-out error, estimated and retrained.
        bias: their difference.
        frame: a row per retrained juror.
        advice: the result and what to do, as sentences.
    """

    correlation: float
    loo_error: tuple[float, float]
    bias: float
    frame: pd.DataFrame = field(repr=False)
    advice: str = ""

    @property
    def trusted(self) -> bool:
        """Whether estimated jurors are close enough to retrained ones to claim a target coverage."""
        return self.correlation >= FAITHFUL and abs(self.bias) <= SIMILAR * max(self.loo_error[1], 1e-12)

    @property
    def agreement(self) -> Agreement:
        """The comparison in the form that claims use."""
        return Agreement(self.correlation, *self.loo_error, self.trusted)


def fidelity_of(jury: Jury, k: int, retraining: Retraining, seed: int) -> Fidelity:
    """Retrain ``k`` jurors drawn at random and compare."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(jury.jurors.count, generator=generator)[:k].sort().values
    positions = jury.positions[chosen].tolist()
    return compare_jurors(jury, chosen, retrained_parameters(jury.engine, retraining, positions))


def compare_jurors(jury: Jury, chosen: Tensor, retrained: Tensor) -> Fidelity:
    """Compare the ``chosen`` estimated jurors with retrained parameters (k, P) of the same jurors."""
    engine, jurors, positions = jury.engine, jury.jurors, jury.positions[chosen]
    if isinstance(jurors, CompressedJurors):
        estimated = engine.loss.predict(jurors.own_outputs[chosen])
    else:
        estimated = _own_predictions(jury, engine.theta + jurors.steps[chosen], positions)
    at_own = [estimated, _own_predictions(jury, retrained, positions)]
    errors = [errors_of(predictions, engine.targets[positions]).mean(dim=1) for predictions in at_own]
    values = [_value_of_label(jury, predictions, positions) for predictions in at_own]
    frame = pd.DataFrame(
        {
            "node": engine.train_nodes[positions].tolist(),
            "estimated": values[0].tolist(),
            "retrained": values[1].tolist(),
            "estimated_error": errors[0].tolist(),
            "retrained_error": errors[1].tolist(),
        }
    )
    correlation = correlate(*values)
    means = (float(errors[0].mean()), float(errors[1].mean()))
    found = Fidelity(correlation, means, means[0] - means[1], frame)
    return replace(found, advice=_advice_on_fidelity(found, jurors.leave_out))


def _own_predictions(jury: Jury, thetas: Tensor, positions: Tensor) -> Tensor:
    """Each model's prediction at the node it left out, (k, P) -> (k, C)."""
    nodes = jury.train_nodes[positions]
    votes = LeaveOneOutPredictions(jury.engine, thetas, nodes, memory=jury.run.ballots)
    rows = [
        votes.of_parameters(thetas[part])[part, :, torch.arange(len(part))]
        for part in torch.arange(len(positions)).split(votes.batch_size)
    ]
    return torch.cat(rows).double()


def _value_of_label(jury: Jury, predictions: Tensor, positions: Tensor) -> Tensor:
    if jury.engine.loss.name == "mse":
        return predictions.mean(dim=1)
    return predictions.gather(1, jury.engine.targets[positions][:, None]).squeeze(1)


def correlate(a: Tensor, b: Tensor) -> float:
    """Pearson correlation; 1 if both are constant and equal, 0 if only one varies."""
    a, b = a.double() - a.double().mean(), b.double() - b.double().mean()
    scale = float(a.norm() * b.norm())
    if scale < 1e-12:
        return 1.0 if torch.allclose(a, b, atol=1e-6) else 0.0
    return float(a @ b) / scale


def _advice_on_fidelity(found: Fidelity, leave_out: str) -> str:
    if found.trusted:
        return f"{found.agreement.words} They can be trusted."
    remedy = (
        "use leave_out='newton'"
        if leave_out == "influence"
        else ("use LeaveOut(corrected_by=8), leave_out='retrain', or train longer")
    )
    return (
        f"{found.agreement.words} No coverage can be claimed, because that needs a correlation of {FAITHFUL:g} and "
        f"errors that agree within {SIMILAR:.0%}: {remedy}."
    )
