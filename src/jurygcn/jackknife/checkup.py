"""Can these jurors be trusted? Health (cheap, no training) and fidelity (retrains a few jurors)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor, nn

from jurygcn.curvature import GGN
from jurygcn.derivatives import autodiff
from jurygcn.jackknife.ballots import Ballots
from jurygcn.jackknife.claims import Agreement
from jurygcn.jackknife.hearing import errors_of
from jurygcn.jackknife.jurors import CompressedJurors
from jurygcn.jackknife.retrain import Retraining, retrained_parameters
from jurygcn.linalg import extreme_eigenvalues

if TYPE_CHECKING:
    from jurygcn.jackknife.jury import Jury

CONVERGED = 0.05  # relative gradient below which a model counts as trained to its objective's minimum
HIGH_LEVERAGE = 0.99
ILL_CONDITIONED = 1e10  # half of float64's digits are left
MUCH_DISCARDED = 0.05
FAITHFUL = 0.9  # correlation with retrained jurors
SIMILAR = 0.1  # mean leave-one-out error, relative to the retrained jurors'


@dataclass(frozen=True)
class Health:
    """What the jackknife assumes, measured at the trained parameters.

    Attributes:
        gradient: norm of the objective's gradient, weight decay included.
        relative_gradient: that norm over the sum of the norms of its two parts; 0 at the minimum, 1 far from it.
        eigenvalues: smallest and largest eigenvalue of the curvature, estimated.
        weight_decay: the weight decay (one for all parameters) with which the gradient would be smallest.
        damping: what was added to the curvature's diagonal.
        residual: relative residual of the jurors' linear systems.
        leverage: smallest and largest leverage of a training node (newton jurors).
        discarded: share of the jurors' steps that their common directions do not hold (linearised jurors).
        dropout: largest dropout probability in the model; it is off here, but was it on in training?
        frozen: parameters that are held fixed.
        saturated: training nodes to which the model gives one class with probability 1, in its own precision.
        precision: number type in which the jurors vote, "float32" or "float64".
        advice: what to do, in words; empty if all is well.
    """

    gradient: float
    relative_gradient: float
    eigenvalues: tuple[float, float]
    weight_decay: float
    damping: float
    solver: str
    residual: float
    leverage: tuple[float, float] | None
    discarded: float
    dropout: float
    frozen: int
    saturated: int
    precision: str
    advice: tuple[str, ...] = field(default=())

    @property
    def well(self) -> bool:
        """Whether there is nothing to advise."""
        return not self.advice


def health_of(jury: Jury) -> Health:
    """Measure what the jurors' accuracy rests on."""
    objective, jurors = jury.objective, jury.jurors
    data_gradient, decay_gradient = _gradient_parts(jury)
    gradient = float((data_gradient + decay_gradient).norm())
    scale = float(data_gradient.norm() + decay_gradient.norm())
    smallest, largest = extreme_eigenvalues(jury.curvature)
    leverage = None
    if jurors.leverage is not None:
        leverage = (float(jurors.leverage.min()), float(jurors.leverage.max()))
    health = Health(
        gradient=gradient,
        relative_gradient=gradient / scale if scale > 0 else 0.0,
        eigenvalues=(smallest, largest),
        weight_decay=_fitting_decay(data_gradient, objective.theta),
        damping=jury.damping,
        solver=jurors.reason,
        residual=jurors.residual,
        leverage=leverage,
        discarded=jurors.discarded if isinstance(jurors, CompressedJurors) else 0.0,
        dropout=largest_dropout(objective.model),
        frozen=sum(p.numel() for p in objective.model.parameters() if not p.requires_grad),
        saturated=_saturated(jury),
        precision=str(objective.source_dtype).removeprefix("torch."),
    )
    return Health(**{**health.__dict__, "advice": tuple(_advice(health, jury))})


def _gradient_parts(jury: Jury) -> tuple[Tensor, Tensor]:
    """Gradient of the mean loss and of the weight decay, (P,), (P,)."""
    objective = jury.objective
    if isinstance(jury.curvature, GGN):
        residual = objective.loss.residual(objective.train_outputs, objective.targets)
        data = jury.curvature.factor.jacobian.pull(residual[:, :, None] / objective.num_train)[:, 0]
    else:
        data = autodiff.node_gradients(objective, objective.theta).mean(dim=0)
    return data, objective.decay * objective.theta


def _fitting_decay(gradient: Tensor, theta: Tensor) -> float:
    r"""The :math:`\lambda \ge 0` with the smallest :math:`|g + \lambda \theta|`: at a minimum, the one trained with."""
    return max(0.0, -float(gradient @ theta) / max(float(theta @ theta), torch.finfo(theta.dtype).tiny))


def _saturated(jury: Jury) -> int:
    """How many training nodes have a class of probability 1 in the precision of the votes."""
    objective = jury.objective
    if objective.loss.name != "cross_entropy" or objective.num_outputs < 2:
        return 0
    largest = objective.loss.predict(objective.train_outputs.to(objective.source_dtype)).amax(dim=1)
    return int((largest == 1.0).sum())


def largest_dropout(model: nn.Module) -> float:
    """The largest dropout probability that a module of the model states."""
    rates = [float(p) for m in model.modules() for p in (getattr(m, "p", 0), getattr(m, "dropout", 0)) if _number(p)]
    return max(rates, default=0.0)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _advice(health: Health, jury: Jury) -> Iterator[str]:
    yield from _advice_on_training(health, jury)
    yield from _advice_on_numbers(health, jury)
    _, against, notes = jury.label_origin
    yield from (*against, *notes)


def _advice_on_training(health: Health, jury: Jury) -> Iterator[str]:
    if jury.decay_assumed:
        yield (
            f"weight_decay was not given, so {jury.objective.weight_decay:g} was assumed: pass what the model was "
            "trained with (0 if there was none)."
        )
    if health.relative_gradient > CONVERGED:
        data, _ = _gradient_parts(jury)
        rest = float((data + health.weight_decay * jury.objective.theta).norm())
        hint = ""
        if health.weight_decay > 0 and rest < CONVERGED * 2 * float(data.norm()):
            hint = f" The parameters look like a minimum with weight decay {health.weight_decay:.1e}."
        yield (
            f"Not converged: the gradient is {health.relative_gradient:.0%} of its parts (0% at the minimum). Train "
            f"longer, or pass the weight decay you trained with; jury.fidelity() shows how much it matters.{hint}"
        )
    if health.dropout > 0:
        yield (
            f"The model has dropout ({health.dropout:g}): training minimised another objective than the one "
            "quantified here. jury.fidelity() shows how much it matters."
        )
    if health.frozen:
        yield f"{health.frozen:,} parameters are frozen: the jurors differ in the others only."


def _advice_on_numbers(health: Health, jury: Jury) -> Iterator[str]:
    low, high = health.eigenvalues
    if float(jury.objective.decay.min()) == 0 and jury.damping == 0:
        yield "Some parameters have no weight decay: their curvature may be singular. Pass weight_decay or damping."
    if low < 0:
        yield (
            f"The curvature has negative eigenvalues ({low:.1e}): the trained point is no minimum of it. "
            "Use curvature='ggn'."
        )
    elif high > ILL_CONDITIONED * low:
        yield (
            f"The curvature is ill-conditioned (eigenvalues {low:.1e} to {high:.1e}): the jurors have few exact "
            "digits. More weight decay or damping, or features of a smaller scale, would help."
        )
    if health.leverage is not None and health.leverage[1] > HIGH_LEVERAGE:
        yield (
            f"A training node has leverage {health.leverage[1]:.3f}: without it the model is hardly determined in some "
            "direction. More weight decay, or more labels, would steady its juror."
        )
    if health.saturated:
        yield (
            f"{health.saturated:,} of {jury.objective.num_train:,} training nodes have a class of probability 1 in "
            f"{health.precision}: votes there cannot be told apart. More weight decay, fewer epochs, or model.double() "
            "would help."
        )
    if health.discarded > MUCH_DISCARDED:
        yield f"{jury.rank} directions hold only {1 - health.discarded:.0%} of the jurors' steps: raise rank."


@dataclass(frozen=True, eq=False)
class Fidelity:
    """Estimated jurors beside retrained ones.

    Attributes:
        correlation: of the probability (or output) the juror gives its own left-out label.
        loo_error: mean leave-one-out error, estimated and retrained.
        bias: their difference.
        frame: a row per retrained juror.
        advice: in words.
    """

    correlation: float
    loo_error: tuple[float, float]
    bias: float
    frame: pd.DataFrame = field(repr=False)
    advice: str = ""

    @property
    def trusted(self) -> bool:
        """Whether estimated jurors are close enough to retrained ones for coverage to be targeted."""
        return self.correlation >= FAITHFUL and abs(self.bias) <= SIMILAR * max(self.loo_error[1], 1e-12)

    @property
    def agreement(self) -> Agreement:
        """The same in the form that claims are made from."""
        return Agreement(self.correlation, *self.loo_error, self.trusted)


def fidelity_of(jury: Jury, k: int, retraining: Retraining, seed: int) -> Fidelity:
    """Retrain ``k`` jurors drawn at random and compare."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(jury.jurors.count, generator=generator)[:k].sort().values
    seats = jury.seats[chosen].tolist()
    return compare_jurors(jury, chosen, retrained_parameters(jury.objective, retraining, seats))


def compare_jurors(jury: Jury, chosen: Tensor, retrained: Tensor) -> Fidelity:
    """Estimated jurors (the ``chosen`` ones) against parameters (k, P) retrained for the same ones."""
    objective, jurors, seats = jury.objective, jury.jurors, jury.seats[chosen]
    if isinstance(jurors, CompressedJurors):
        estimated = objective.loss.predict(jurors.own_outputs[chosen])
    else:
        estimated = _own_predictions(jury, objective.theta + jurors.steps[chosen], seats)
    at_own = [estimated, _own_predictions(jury, retrained, seats)]
    errors = [errors_of(predictions, objective.targets[seats]).mean(dim=1) for predictions in at_own]
    values = [_value_of_label(jury, predictions, seats) for predictions in at_own]
    frame = pd.DataFrame(
        {
            "node": objective.train_nodes[seats].tolist(),
            "estimated": values[0].tolist(),
            "retrained": values[1].tolist(),
            "estimated_error": errors[0].tolist(),
            "retrained_error": errors[1].tolist(),
        }
    )
    correlation = correlate(*values)
    means = (float(errors[0].mean()), float(errors[1].mean()))
    found = Fidelity(correlation, means, means[0] - means[1], frame)
    return replace(found, advice=_advice_on_fidelity(found, jury.leave_out))


def _own_predictions(jury: Jury, thetas: Tensor, seats: Tensor) -> Tensor:
    """Each model's prediction at the node it left out, (k, P) -> (k, C)."""
    nodes = jury.train_nodes[seats]
    ballots = Ballots(jury.objective, thetas, nodes, memory=jury.memory)
    rows = [
        ballots.predictions(thetas[part])[part, :, torch.arange(len(part))]
        for part in torch.arange(len(seats)).split(ballots.batch_size)
    ]
    return torch.cat(rows).double()


def _value_of_label(jury: Jury, predictions: Tensor, seats: Tensor) -> Tensor:
    if jury.objective.loss.name == "mse":
        return predictions.mean(dim=1)
    return predictions.gather(1, jury.objective.targets[seats][:, None]).squeeze(1)


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
    remedy = "use leave_out='newton'" if leave_out == "influence" else "train longer, or use leave_out='retrain'"
    return f"{found.agreement.words} No coverage can be claimed: {remedy}."
