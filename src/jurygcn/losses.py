r"""Node losses :math:`r(i, y_i, \Theta)` and the derivatives that the jackknife needs.

A loss gives its value, its residual :math:`e = \partial r / \partial z` at the logits z, a square root L of its
output Hessian (:math:`S = L L^T = \partial^2 r / \partial z^2`), and the whitened residual w with L w = e.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from jurygcn.checks import all_finite
from jurygcn.errors import DataError, SettingError

# The lower bound of the square root of a probability. The whitened residual divides by it, and must not overflow in
# float32. The gradient stays exact; the curvature grows by at most 1e-24 times |J|².
FLOOR = 1e-12


class Loss(Protocol):
    """The protocol of a node loss. Shapes: z (m, C) logits, y targets as made by ``targets``."""

    name: str

    def targets(self, y: Tensor) -> Tensor:
        """Labels in the form of the other methods; raises DataError for labels that this loss cannot use."""

    def node_losses(self, z: Tensor, y: Tensor) -> Tensor:
        """Loss of each node, (m,)."""

    def predict(self, z: Tensor, dim: int = -1) -> Tensor:
        """Predictions from logits; the outputs are along ``dim``."""

    def outputs(self, predictions: Tensor) -> Tensor:
        """Logits that give these predictions, (m, C)."""

    def residual(self, z: Tensor, y: Tensor) -> Tensor:
        """First derivative of the node loss with respect to the logits, (m, C)."""

    def root(self, z: Tensor) -> Tensor:
        """A root L of the second derivative S = L L^T with respect to the logits, (m, C, K), K its rank."""

    def whitened(self, z: Tensor, y: Tensor) -> Tensor:
        """The vector w with L w = residual, (m, K)."""

    def change(self, z: Tensor, m: Tensor) -> Tensor:
        """A change v of the logits with L^T v = m, (m, K) -> (m, C); all such v change the prediction equally."""


class CrossEntropy:
    r"""Softmax cross-entropy: :math:`e = \pi - y`, :math:`S = diag(\pi) - \pi\pi^T` of rank K = C - 1.

    With :math:`s = \sqrt\pi` a square root is :math:`diag(s) (I - s s^T)`, which maps s to 0. A reflection Q takes s
    to the axis of the most probable class a, and without that column :math:`L = diag(s) Q_{-a}`,
    :math:`w = Q_{-a}^T (e / s)`. As :math:`s_a \ge C^{-1/2}`, no entry of Q is a difference of nearly equal numbers, so
    that L w = e holds to working precision even where the softmax is saturated.
    """

    name = "cross_entropy"

    def targets(self, y: Tensor) -> Tensor:
        """Integer class labels, none missing."""
        if y.dim() == 2 and y.shape[1] > 1 and bool(((y == 0) | (y == 1)).all()):
            one = bool((y.sum(dim=1) == 1).all())
            raise DataError(
                f"expected one class number per node, got rows of {y.shape[1]} zeros and ones; "
                + (
                    "give y.argmax(dim=1)"
                    if one
                    else "several labels per node are not supported: use one jury per label"
                )
            )
        if y.is_floating_point():
            raise DataError(
                "expected integer class labels for loss='cross_entropy', got "
                f"{str(y.dtype).removeprefix('torch.')} targets; use loss='mse' for regression"
            )
        if y.numel() != len(y):
            raise DataError(f"expected one class number per node, got rows of {y[0].numel()}; give y.argmax(dim=1)")
        y = y.long().reshape(len(y))
        if len(y) and int(y.min()) < 0:
            raise DataError(
                f"expected labels on all given nodes, got {int((y < 0).sum())} without one (-1); leave them out"
            )
        return y

    def node_losses(self, z: Tensor, y: Tensor) -> Tensor:
        """Minus the log probability of the label."""
        return functional.cross_entropy(z, y, reduction="none")

    def predict(self, z: Tensor, dim: int = -1) -> Tensor:
        """Class probabilities."""
        return torch.softmax(z, dim=dim)

    def outputs(self, predictions: Tensor) -> Tensor:
        """The logarithms of the probabilities, none of them below the floor."""
        return predictions.clamp_min(FLOOR**2).log()

    def residual(self, z: Tensor, y: Tensor) -> Tensor:
        """Probabilities minus the one-hot label."""
        return self.predict(z) - functional.one_hot(y, z.shape[-1]).to(z.dtype)

    def root(self, z: Tensor) -> Tensor:
        """Root of the softmax covariance without its null direction."""
        s = self._root_probability(z)
        return s.unsqueeze(-1) * self._complement(s) if z.shape[-1] > 1 else torch.zeros_like(s).unsqueeze(-1)

    def whitened(self, z: Tensor, y: Tensor) -> Tensor:
        """Residual over the square root of the probabilities, in the root's coordinates."""
        s = self._root_probability(z)
        w = self.residual(z, y) / s
        return (self._complement(s).transpose(1, 2) @ w.unsqueeze(-1)).squeeze(-1) if z.shape[-1] > 1 else w

    def change(self, z: Tensor, m: Tensor) -> Tensor:
        """Q_{-a} m over the square root of the probabilities, because L = diag(s) Q_{-a}; unique up to a constant."""
        s = self._root_probability(z)
        return (self._complement(s) @ m.unsqueeze(-1)).squeeze(-1) / s if z.shape[-1] > 1 else torch.zeros_like(z)

    def _root_probability(self, z: Tensor) -> Tensor:
        """The square roots of the probabilities, not below ``FLOOR``, (m, C)."""
        return self.predict(z).sqrt().clamp_min(FLOOR)

    def _complement(self, s: Tensor) -> Tensor:
        """An orthonormal basis of everything orthogonal to s, by Householder's reflection, (m, C, C - 1)."""
        C = s.shape[-1]
        largest = functional.one_hot(s.argmax(dim=-1), C)
        v = s / s.norm(dim=-1, keepdim=True) + largest  # s >= 0, so nothing cancels
        v = v / v.norm(dim=-1, keepdim=True)
        reflection = torch.eye(C, dtype=s.dtype, device=s.device) - 2 * v.unsqueeze(-1) * v.unsqueeze(-2)
        rest = largest.argsort(dim=-1, stable=True)[..., :-1]  # all classes but the most probable one, in order
        basis: Tensor = reflection.gather(-1, rest.unsqueeze(-2).expand(*s.shape, C - 1))
        return basis


class MeanSquaredError:
    r"""Squared error averaged over the C outputs: :math:`r = \frac1C\|z - y\|^2`, :math:`S = \frac2C I`."""

    name = "mse"

    def targets(self, y: Tensor) -> Tensor:
        """Real targets, one row per node."""
        if not y.is_floating_point():
            y = y.to(torch.get_default_dtype())
        if not all_finite(y):
            raise DataError(
                f"expected finite targets, got {int((~torch.isfinite(y)).sum())} NaN or infinite; leave those nodes out"
            )
        return y.reshape(len(y), -1)

    def node_losses(self, z: Tensor, y: Tensor) -> Tensor:
        """Mean squared difference over the outputs."""
        return ((z - y.to(z.dtype)) ** 2).mean(dim=-1)

    def predict(self, z: Tensor, dim: int = -1) -> Tensor:  # noqa: ARG002
        """The outputs themselves."""
        return z

    def outputs(self, predictions: Tensor) -> Tensor:
        """The predictions themselves."""
        return predictions

    def residual(self, z: Tensor, y: Tensor) -> Tensor:
        """Twice the difference over C."""
        return 2.0 / z.shape[-1] * (z - y.to(z.dtype))

    def root(self, z: Tensor) -> Tensor:
        """A multiple of the identity."""
        C = z.shape[-1]
        return math.sqrt(2.0 / C) * torch.eye(C, dtype=z.dtype, device=z.device).expand(len(z), C, C)

    def whitened(self, z: Tensor, y: Tensor) -> Tensor:
        """Residual over the root's scale."""
        return self.residual(z, y) / math.sqrt(2.0 / z.shape[-1])

    def change(self, z: Tensor, m: Tensor) -> Tensor:
        """Divided by the root's scale."""
        return m / math.sqrt(2.0 / z.shape[-1])


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (CrossEntropy(), MeanSquaredError())}


def loss_named(name: str) -> Loss:
    """The loss with this name."""
    if name not in LOSSES:
        raise SettingError(f"expected loss to be one of {', '.join(LOSSES)}, got {name!r}; choose one")
    return LOSSES[name]
