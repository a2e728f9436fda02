r"""Weights of several learners, chosen by their own leave-one-out predictions.

Classes: :math:`p \propto \exp(\sum_k \beta_k z_k)`, a log-linear pool. The weights are at least 0 and minimise

.. math:: -\sum_i \log p_{-i}(i, y_i) + \tau \sum_k \beta_k d_k

where :math:`d_k` is the spread of the learner's predictions, so the price of a weight is the same for learners of every
scale. The problem is convex. The size of the weights is the temperature. Regression: :math:`f = \sum_k \beta_k f_k`
with weights that add to 1, by least squares.

Each label is also left out of the choice of weights: juror i votes with the weights that the other labels choose.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize, nnls
from torch import Tensor
from torch.nn import functional

PRICE = 3.0  # tau: the loss of log-probability, in nats, that a unit of weight times spread has to save
NEGLIGIBLE = 1e-6  # weights times spread below this are 0
SUM_TO_ONE = 1e4  # the weight of the equation "the weights add to 1", relative to the errors
SWEEPS, CLOSE = 20, 1e-6  # most Newton steps for the weights without one label, and a step that ends them


@dataclass(frozen=True, eq=False)
class Stack:
    """Weights of K learners, (K,), and the weights that juror i votes with, chosen without label i, (K, n).

    Attributes:
        shares: how much of the pooled prediction each learner makes up, (K,): weight times spread, adding to 1.
    """

    weights: Tensor = field(repr=False)
    left_out: Tensor = field(repr=False)
    shares: Tensor = field(repr=False)


def stack_classes(own: Tensor, labels: Tensor) -> Stack:
    """Weights for classes.

    Shapes: own (K, n, C) log-probabilities, or other scores, of each left-out node; labels (n,).
    """
    z = (own - own.mean(dim=2, keepdim=True)).double()
    spread = z.square().mean(dim=(1, 2)).sqrt().clamp_min(1e-12)
    z = z / spread[:, None, None]
    weights = _minimise(z, labels)
    chosen = weights > 0
    left_out = torch.zeros(len(z), len(labels), dtype=torch.float64)
    if bool(chosen.any()):
        left_out[chosen] = _without_each(z[chosen], labels, weights[chosen])
    return Stack(weights / spread, left_out / spread[:, None], weights / weights.sum().clamp_min(1e-300))


def _minimise(z: Tensor, labels: Tensor) -> Tensor:
    """The weights of all labels, (K, n, C) -> (K,), by L-BFGS-B."""
    count, n, classes = z.shape
    flat, rows, right = z.reshape(count, -1).numpy(), np.arange(n), labels.numpy()

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = (weights @ flat).reshape(n, classes)
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(axis=1)
        value = np.log(total).sum() - logits[rows, right].sum() + PRICE * weights.sum()
        p /= total[:, None]
        p[rows, right] -= 1.0
        return value, flat @ p.ravel() + PRICE

    found = minimize(
        *(loss, np.full(count, 0.1)),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * count,
        options={"maxiter": 500, "ftol": 1e-11, "gtol": 1e-6},
    )
    weights = torch.from_numpy(found.x)
    return torch.where(weights > NEGLIGIBLE, weights, 0.0)


def _without_each(z: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The weights without each label, among learners with positive weights: damped Newton steps for all labels at once.

    Shapes: z (k, n, C), weights (k,) -> (k, n).
    """
    k, n, classes = z.shape
    others = 1.0 - torch.eye(n, dtype=z.dtype)
    truth = functional.one_hot(labels, classes).to(z.dtype)
    pairs = (z.unsqueeze(0) * z.unsqueeze(1)).flatten(0, 1)  # (k k, n, C)
    beta = weights.repeat(n, 1)  # (n, k)
    damping = torch.full((n,), 1e-3, dtype=z.dtype)

    def loss(beta: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.einsum("ik,kjc->ijc", beta, z)
        log_p = torch.log_softmax(logits, dim=2)
        own = log_p.gather(2, labels.expand(n, n).unsqueeze(2)).squeeze(2)
        return PRICE * beta.sum(dim=1) - (others * own).sum(dim=1), log_p.exp() * others.unsqueeze(2)

    value, p = loss(beta)
    for _ in range(SWEEPS):
        slope = torch.einsum("ijc,kjc->ik", p - truth * others.unsqueeze(2), z) + PRICE
        mean = torch.einsum("ijc,kjc->ikj", p, z)
        H = torch.einsum("ijc,kjc->ik", p, pairs).view(n, k, k) - mean @ mean.transpose(1, 2)
        held = (beta <= 0) & (slope > 0)  # stays at 0
        H = H.masked_fill(held.unsqueeze(1) | held.unsqueeze(2), 0.0)
        scale = H.diagonal(dim1=1, dim2=2)
        ridge = damping[:, None] * scale.amax(dim=1, keepdim=True) + 1e-12 + held.to(z.dtype)
        step = torch.linalg.solve(H + torch.diag_embed(ridge), slope.masked_fill(held, 0.0))
        tried = (beta - step).clamp_min(0.0)
        new, q = loss(tried)
        better = new < value
        settled = (tried - beta).abs().amax() < CLOSE
        beta = torch.where(better[:, None], tried, beta)
        value, p = torch.where(better, new, value), torch.where(better[:, None, None], q, p)
        damping = torch.where(better, damping / 10, damping * 10).clamp(1e-9, 1e9)
        if settled:
            break
    return beta.T


def stack_values(own: Tensor, targets: Tensor) -> Stack:
    """Weights for a regression: least squares of the left-out errors.

    Shapes: own (K, n, C) predictions of each left-out node; targets (n, C).
    """
    errors = (own - targets).double()
    errors = errors / errors.square().mean().sqrt().clamp_min(1e-300)
    count, n, _ = errors.shape
    one = np.full((1, count), SUM_TO_ONE * n)
    by_label = errors.permute(1, 2, 0).numpy()  # (n, C, K)

    def solve(rows: np.ndarray) -> np.ndarray:
        left = np.concatenate([rows.reshape(-1, count), one])
        right = np.zeros(len(left))
        right[-1] = one[0, 0]
        found = nnls(left, right, maxiter=50 * count)[0]
        return np.asarray(found / found.sum())

    weights = solve(by_label)
    chosen = np.flatnonzero(weights)
    left_out = np.zeros((count, n))
    count, one = len(chosen), one[:, chosen]
    for i in range(n):
        left_out[chosen, i] = solve(np.delete(by_label, i, axis=0)[:, :, chosen])
    found = torch.from_numpy(weights)
    return Stack(found, torch.from_numpy(left_out), found)
