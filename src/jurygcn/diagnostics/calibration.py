r"""Calibration without a validation set: a temperature that is fitted to left-out labels.

.. math:: \pi_u = softmax(\beta z_u + b), \qquad
    \min_{\beta, b} - \sum_i \log softmax(\beta z_{-i}(i) + b)_{y_i}

:math:`\beta` is one over the temperature. The bias b of the classes is 0 unless it pays: its improvement of left-out
log-probabilities is measured on labels that did not fit it, and must exceed its standard error.

A few jurors that are surely wrong decide the log loss, and jurors of models with dropout have more of them than
retrained ones. What is known better is the expected accuracy (:mod:`jurygcn.diagnostics.accuracy`). So the temperature
is the one at which the mean confidence of the calibrated model at nodes without a label is the expected accuracy. This
needs labels that were drawn at random; otherwise the temperature of smallest log loss stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from jurygcn.conformal.counts import FLOOR
from jurygcn.diagnostics.left_out import LeftOut, logits_of_others
from jurygcn.errors import ModelError

if TYPE_CHECKING:
    from jurygcn.jury import Jury

COLDEST, HOTTEST = 0.02, 50.0  # bounds of the temperature
CLOSE = 1.001  # a factor within which a temperature is at its bound, and a confidence is the expected accuracy
FOLDS = 5  # for the decision about the bias
PRIOR = 1.0  # the penalty of the bias, for its logits


@dataclass(frozen=True, eq=False)
class Calibration:
    """A temperature and a bias of the classes, and how well they predict left-out labels.

    Attributes:
        temperature: logits are divided by it.
        bias: added to the scaled logits, (C,); zeros if it does not pay.
        log_loss: mean negative log-probability of left-out labels, before and after.
        gain, error: what the bias improves on labels that did not fit it, in nats per label, and its standard error.
        n: the number of left-out labels.
        agrees: whether the temperature makes the mean confidence the expected accuracy. If not, it is the one of
            smallest log loss, or at its bound because no temperature within the bounds does.
    """

    temperature: float
    bias: Tensor
    log_loss: tuple[float, float]
    gain: float
    error: float
    n: int
    agrees: bool = False

    @property
    def words(self) -> str:
        """The calibration in sentences."""
        which = "overconfident" if self.temperature > 1 else "underconfident"
        before, after = self.log_loss
        said = (
            f"The model is {which}: its logits are divided by {self.temperature:.2f}, which changes the log loss of "
            f"{self.n:,} left-out labels from {before:.3f} to {after:.3f}."
        )
        if self.agrees:
            said += " With this temperature the model's mean confidence is its expected accuracy."
            if after > before:
                said += " It is not chosen for the log loss, which rises at these labels."
        if not COLDEST * CLOSE < self.temperature < HOTTEST / CLOSE:
            said += f" Temperatures from {COLDEST:g} to {HOTTEST:g} are allowed; this one is at the bound."
        used = "" if not bool(self.bias.any()) else " Classes also get a bias, because it helps by more than its error."
        return said + used


class CalibratedModel(nn.Module):
    """A model with calibrated logits; its arguments are those of the model.

    The temperature and the bias are buffers, so a state dict has them. They are in the precision of the model's
    outputs when they are used.

    Attributes:
        calibration: how they were found; None for a module that was filled from a state dict.
    """

    temperature: Tensor
    bias: Tensor

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        bias: Tensor,
        *,
        node_type: str | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__()
        self.model, self.node_type, self.calibration = model, node_type, calibration
        self.register_buffer("temperature", torch.tensor(float(temperature), dtype=torch.float64))
        self.register_buffer("bias", bias.detach().double().clone())
        self.training = model.training

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Calibrated logits; of several node types, those of the jury's."""
        return self.calibrated(self.model(*arguments, **named))

    def calibrated(self, outputs: Any) -> Any:
        """The model's outputs with the temperature and the bias."""
        if isinstance(outputs, Mapping):
            return {key: self.calibrated(z) if key == self.node_type else z for key, z in outputs.items()}
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"expected a tensor of logits from the model, got {type(outputs).__name__}; call "
                "calibrated.calibrated(logits)"
            )
        return outputs / self.temperature.to(outputs) + self.bias.to(outputs)


def calibrated_model(jury: Jury) -> CalibratedModel:
    """The jury's model with the calibration that its left-out labels choose."""
    found, wanted, outputs = jury.left_out(), None, None
    if jury.chosen == "random":  # else the expected accuracy is not that of nodes without a label
        expected, outputs = jury.expected_accuracy(), logits_of_others(jury)
        wanted = expected.accuracy
    calibration = calibration_of(found, outputs, wanted)
    return CalibratedModel(
        *(jury.source_model, calibration.temperature, calibration.bias),
        node_type=jury.node_type,
        calibration=calibration,
    )


def calibration_of(found: LeftOut, outputs: Tensor | None = None, wanted: float | None = None) -> Calibration:
    """Fit the temperature, and the bias if it pays.

    Args:
        found: predictions of left-out labels.
        outputs: logits at nodes without a label, (m, C); None if there are none.
        wanted: the expected accuracy there.
    """
    z, y = found.probabilities.clamp_min(FLOOR).log(), found.labels
    zero = torch.zeros(z.shape[1], dtype=z.dtype)
    beta, _ = fit_scale(z, y, with_bias=False)
    gain, error = _gain_of_bias(z, y)
    bias = zero
    if gain > error:
        beta, bias = fit_scale(z, y, with_bias=True)
    agrees = False
    if outputs is not None and wanted is not None:
        # n labels cannot show that a share below 1 / (n + 2) is wrong; this also bounds the confidence.
        wanted = min(wanted, 1.0 - 1.0 / (len(y) + 2))
        beta = agreeing_scale(bias, outputs, wanted)
        agrees = wanted / CLOSE <= mean_confidence(beta, bias, outputs) <= wanted * CLOSE
    losses = tuple(float(functional.cross_entropy(logits, y)) for logits in (z, beta * z + bias))
    return Calibration(1.0 / beta, bias, (losses[0], losses[1]), gain, error, len(y), agrees)


def agreeing_scale(bias: Tensor, outputs: Tensor, accuracy: float) -> float:
    """The scale at which the mean confidence is the accuracy, within the bounds of the temperature."""
    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(60):  # confidence grows with the scale
        middle = (low * high) ** 0.5
        low, high = (low, middle) if mean_confidence(middle, bias, outputs) > accuracy else (middle, high)
    return float((low * high) ** 0.5)


def mean_confidence(scale: float, bias: Tensor, outputs: Tensor) -> float:
    """The mean of the largest probability. Shapes: bias (C,), outputs (m, C)."""
    return float(torch.softmax(scale * outputs + bias, dim=1).max(dim=1).values.mean())


def fit_scale(z: Tensor, y: Tensor, *, with_bias: bool) -> tuple[float, Tensor]:
    """One over the temperature, and the bias, that minimise the cross-entropy; convex. Shapes: z (n, C), y (n,)."""
    beta = torch.ones((), dtype=z.dtype, requires_grad=True)
    bias = torch.zeros(z.shape[1], dtype=z.dtype, requires_grad=with_bias)
    optimizer = torch.optim.LBFGS([beta, *([bias] if with_bias else [])], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(beta * z + bias, y) + PRIOR / (2 * len(y)) * bias.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    scale = min(max(float(beta.detach()), 1 / HOTTEST), 1 / COLDEST)
    return scale, (bias.detach() - bias.detach().mean())


def _gain_of_bias(z: Tensor, y: Tensor) -> tuple[float, float]:
    """What a bias improves on labels that did not fit it, per label, and the standard error of that."""
    n = len(y)
    if n < 2 * FOLDS:
        return 0.0, 0.0
    fold = torch.arange(n) % FOLDS
    gains = torch.empty(n, dtype=z.dtype)
    for k in range(FOLDS):
        rest, own = fold != k, fold == k
        losses = []
        for with_bias in (False, True):
            beta, bias = fit_scale(z[rest], y[rest], with_bias=with_bias)
            losses.append(functional.cross_entropy(beta * z[own] + bias, y[own], reduction="none"))
        gains[own] = losses[0] - losses[1]
    return float(gains.mean()), float(gains.std()) / n**0.5
