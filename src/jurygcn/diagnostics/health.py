"""Checks of the conditions for accurate jurors, without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from jurygcn.leave_one_out.jurors import CompressedJurors
from jurygcn.linalg import extreme_eigenvalues

if TYPE_CHECKING:
    from jurygcn.jury import Jury

CONVERGED = 0.05  # relative gradient below which a model counts as trained to its objective's minimum
HIGH_LEVERAGE = 0.99  # of a training node on its own prediction; above it, its juror is poorly determined
ILL_CONDITIONED = 1e10  # the condition number above which a solve loses most of float64's 16 digits
MANY_STEPS, FEW_STEPS = 300, 5  # of the search for eigenvalues; few where each takes seconds
MUCH_DISCARDED = 0.05  # of the jurors' steps outside their common directions; above it, votes are inaccurate


@dataclass(frozen=True)
class Health:
    """The assumptions of the jackknife, measured at the trained parameters.

    Attributes:
        gradient: norm of the objective's gradient, weight decay included.
        relative_gradient: that norm over the sum of the norms of its two parts; 0 at the minimum, 1 far from it.
        eigenvalues: smallest and largest eigenvalue of the curvature, estimated.
        weight_decay: the weight decay (one for all parameters) that minimises the gradient.
        damping: the value added to the curvature's diagonal.
        residual: relative residual of the jurors' linear systems.
        leverage: smallest and largest leverage of a training node (newton jurors).
        discarded: share of the jurors' steps outside their common directions (linearised jurors).
        dropout: largest dropout probability in the model; dropout is off here, but may have been on in training.
        frozen: parameters that are held fixed.
        saturated: training nodes with a class of probability 1, in the model's own precision.
        precision: dtype of the votes, "float32" or "float64".
        why_slow: why derivatives were taken row by row; empty if they were not.
        advice: what to do, one sentence or more each; empty if there is no problem.
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
    why_slow: str = ""
    advice: tuple[str, ...] = field(default=())

    @property
    def well(self) -> bool:
        """Whether there is no advice."""
        return not self.advice


def health_of(jury: Jury) -> Health:
    """Measure the conditions for accurate jurors."""
    engine, jurors = jury.engine, jury.jurors
    data_gradient, decay_gradient = _gradient_parts(jury)
    gradient = float((data_gradient + decay_gradient).norm())
    scale = float(data_gradient.norm() + decay_gradient.norm())
    curvature = jury.curvature
    steps = FEW_STEPS if curvature.streamed else MANY_STEPS
    smallest, largest = extreme_eigenvalues(curvature, iterations=steps)
    leverage = None
    if jurors.leverage is not None:
        leverage = (float(jurors.leverage.min()), float(jurors.leverage.max()))
    health = Health(
        gradient=gradient,
        relative_gradient=gradient / scale if scale > 0 else 0.0,
        eigenvalues=(smallest, largest),
        weight_decay=_fitting_decay(data_gradient, engine.theta),
        damping=jury.leave_out.damping,
        solver=jurors.reason,
        residual=jurors.residual,
        leverage=leverage,
        discarded=jurors.discarded if isinstance(jurors, CompressedJurors) else 0.0,
        dropout=largest_dropout(engine.model),
        frozen=sum(p.numel() for p in engine.model.parameters() if not p.requires_grad),
        saturated=_saturated(jury),
        precision=str(engine.source_dtype).removeprefix("torch."),
        why_slow=jurors.why_slow,
    )
    return Health(**{**health.__dict__, "advice": tuple(_advice(health, jury))})


def _gradient_parts(jury: Jury) -> tuple[Tensor, Tensor]:
    """Gradient of the mean loss and of the weight decay, (P,), (P,)."""
    return jury.engine.gradient(), jury.engine.decay * jury.engine.theta


def _fitting_decay(gradient: Tensor, theta: Tensor) -> float:
    r"""The :math:`\lambda \ge 0` with the smallest :math:`|g + \lambda \theta|`; at a minimum, the weight decay."""
    return max(0.0, -float(gradient @ theta) / max(float(theta @ theta), torch.finfo(theta.dtype).tiny))


def _saturated(jury: Jury) -> int:
    """The number of training nodes with a class of probability 1 in the precision of the votes."""
    engine = jury.engine
    if engine.loss.name != "cross_entropy" or engine.num_outputs < 2:
        return 0
    largest = engine.loss.predict(engine.train_outputs.to(engine.source_dtype)).amax(dim=1)
    return int((largest == 1.0).sum())


def largest_dropout(model: nn.Module) -> float:
    """The largest dropout probability of the model's modules."""
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
            f"weight_decay was not given, so {jury.engine.weight_decay:g} was assumed: pass the value that the model "
            "was trained with (0 for none)."
        )
    if health.relative_gradient > CONVERGED:
        data, _ = _gradient_parts(jury)
        rest = float((data + health.weight_decay * jury.engine.theta).norm())
        hint = ""
        if health.weight_decay > 0 and rest < CONVERGED * 2 * float(data.norm()):
            hint = f" The parameters look like a minimum with weight decay {health.weight_decay:.1e}."
        yield (
            f"Not converged: the relative gradient is {health.relative_gradient:.0%} (0% at the minimum). Train "
            f"longer, or pass the weight decay you trained with; jury.fidelity() measures the effect.{hint}"
        )
    if health.dropout > 0 and not jury.dropout_masks:
        yield (
            f"The model has dropout ({health.dropout:g}), so training minimised another objective than the one "
            "quantified here; jury.fidelity() measures the effect."
        )
    if health.frozen:
        yield f"{health.frozen:,} parameters are frozen, so the jurors differ in the others only."


def _advice_on_numbers(health: Health, jury: Jury) -> Iterator[str]:
    low, high = health.eigenvalues
    if float(jury.engine.decay.max()) == 0 and jury.leave_out.damping == 0:
        yield "There is no weight decay, so the curvature may be singular: pass weight_decay or damping."
    if low < 0:
        yield (
            f"The curvature has negative eigenvalues ({low:.1e}), so the parameters are not a minimum: "
            "use curvature='ggn'."
        )
    elif high > ILL_CONDITIONED * low:
        yield (
            f"The curvature is ill-conditioned (eigenvalues {low:.1e} to {high:.1e}), so the jurors have few exact "
            "digits: use more weight decay or damping, or scale the features down."
        )
    if health.leverage is not None and health.leverage[1] > HIGH_LEVERAGE:
        yield (
            f"A training node has leverage {health.leverage[1]:.3f}, so its juror is poorly determined: use more "
            "weight decay or more labels."
        )
    if health.saturated:
        yield (
            f"{health.saturated:,} of {jury.engine.num_train:,} training nodes have a class of probability 1 in "
            f"{health.precision}, so votes there do not differ: use more weight decay, fewer epochs, or model.double()."
        )
    if health.why_slow:
        yield f"Derivatives were taken row by row, which is slow, because {health.why_slow}."
    if health.discarded > MUCH_DISCARDED and jury.votes.rank != "auto":  # there p-values were checked instead
        held, rank = 1 - health.discarded, jury.votes.rank
        yield f"{rank} directions contain only {held:.0%} of the jurors' steps: raise rank in votes=Votes(rank=...)."
