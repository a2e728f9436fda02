"""Checks of the conditions for accurate jurors, without training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from jurygcn.leave_one_out.jurors import CompressedJurors
from jurygcn.linalg import extreme_eigenvalues

if TYPE_CHECKING:
    from jurygcn.jury import Jury

# The relative gradient up to which jurors agree with retrained ones as well as at the minimum. Above it they tend to
# move too far: benchmarks/stopped_early.py.
CONVERGED = 0.25
FITS = 0.05  # relative gradient below which a weight decay counts as the one that the parameters are a minimum with
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
        dropout: largest dropout probability of the model's modules; 0 if they name none.
        random_in_training: whether passes in training mode differ, because of dropout in any form.
        frozen: parameters that are held fixed.
        saturated: training nodes with a class of probability 1, in the model's own precision.
        precision: dtype of the votes, "float32" or "float64".
        why_slow: why derivatives were taken row by row; empty if they were not.
        doubts: why the jurors may be inaccurate, and what to do; one sentence or more each.
        advice: the doubts, and what is known about the choice of the labels; empty if there is no problem.
        remarks: what else is to be known; no problem.
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
    random_in_training: bool
    frozen: int
    saturated: int
    precision: str
    why_slow: str = ""
    doubts: tuple[str, ...] = field(default=())
    advice: tuple[str, ...] = field(default=())
    remarks: tuple[str, ...] = field(default=())

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
        random_in_training=engine.random_in_training,
        frozen=sum(p.numel() for p in engine.model.parameters() if not p.requires_grad),
        saturated=_saturated(jury),
        precision=str(engine.source_dtype).removeprefix("torch."),
        remarks=jury.remarks,
        why_slow=jurors.why_slow,
    )
    doubts = (*_advice_on_training(health, jury), *_advice_on_numbers(health, jury))
    _, against, notes = jury.label_origin
    return replace(health, doubts=doubts, advice=(*doubts, *against, *notes))


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


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a layer normalises by the statistics of a batch in training."""
    return any(hasattr(module, "running_mean") for module in model.modules())


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _advice_on_training(health: Health, jury: Jury) -> Iterator[str]:
    effective = jury.leave_out.decay == "effective"
    if jury.decay_assumed and not effective:
        yield (
            f"weight_decay was not given, so {jury.engine.weight_decay:g} was assumed: pass the value that the model "
            "was trained with (0 for none)."
        )
    decayed = bool((jury.engine.decay > 0).any())
    if not effective and health.relative_gradient > CONVERGED and not health.random_in_training and decayed:
        data, _ = _gradient_parts(jury)
        rest = float((data + health.weight_decay * jury.engine.theta).norm())
        if health.weight_decay > 0 and rest < FITS * 2 * float(data.norm()):
            yield (
                "The stated weight decay does not fit: the parameters look like a minimum with weight decay "
                f"{health.weight_decay:.1e}. With a wrong weight decay the jurors are wrong: pass the weight decay "
                "you trained with."
            )
        else:
            yield (
                "Training stopped before the minimum of its objective (relative gradient "
                f"{health.relative_gradient:.0%}, 0% at the minimum). Jurors then tend to move too far, and label sets "
                "to be too large: train longer, or measure the effect with jury.fidelity()."
            )
    if health.random_in_training and not jury.dropout_masks and not effective:
        rate = f" ({health.dropout:g})" if health.dropout > 0 else ""
        yield (
            f"The model has dropout{rate}, which is off here. If it was on in training, jurors move too little, and "
            "label sets are too small: use LeaveOut(decay='effective'), or measure it with jury.fidelity()."
        )
    if has_batch_norm(jury.engine.model):
        yield (
            "The model has batch normalisation, whose training couples nodes. Estimated jurors of such models often "
            "differ from retrained ones: compare them with jury.fidelity(), or use "
            "leave_out=LeaveOut('retrain', max_jurors=20)."
        )
    if health.frozen:
        yield f"{health.frozen:,} parameters are frozen, so the jurors differ in the others only."


def _advice_on_numbers(health: Health, jury: Jury) -> Iterator[str]:
    low, high = health.eigenvalues
    # a common shift of a last layer's biases changes nothing: the dual solver leaves such directions out
    undetermined = jury.jurors.solver == "dual" and bool((jury.curvature.diagonal == 0).any())
    if low < -high / ILL_CONDITIONED:
        yield (
            f"The curvature has negative eigenvalues ({low:.1e}), so the parameters are not a minimum: "
            "use curvature='ggn'."
        )
    elif high > ILL_CONDITIONED * low and not undetermined:
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
