r"""Weights of several learners, chosen by their own leave-one-out predictions.

Classes: :math:`p \propto \exp(\sum_k \beta_k z_k)`, a log-linear pool. The weights are at least 0 and minimise

.. math:: -\sum_i \log p_{-i}(i, y_i) + \tau \sum_k \beta_k d_k

where :math:`d_k` is the spread of the learner's predictions, so the price of a weight is the same for learners of every
scale. The problem is convex. The size of the weights is the temperature. Regression: :math:`f = \sum_k \beta_k f_k`
with weights that add to 1, by least squares.

Each label is also left out of the choice of weights: juror i votes with the weights that the other labels choose, from
predictions of each of them without both. So the weights of juror i do not depend on label i at all.
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
SUM_TO_ONE = 1e4  # the weight of the equation "the weights add to 1", relative to the errors of all labels
SWEEPS, CLOSE = 20, 1e-7  # most Newton steps for the weights without one label, and a gain in nats that ends them
ROUNDS, HELPFUL = 5, 0.1 * PRICE  # most additions of learners, and the slope at which one is added
# Above this many labels one Newton step is taken, from predictions without one label: a single label matters little.
MOST_PAIRS = 256
NUMBERS = 2_000_000  # most predictions of pairs in memory at a time


@dataclass(frozen=True, eq=False)
class Pairs:
    r"""Predictions of label j without labels i and j by k learners, after ``shared`` learners that leave out only j.

    .. math:: f_{-ij}(j) = y_j - a_{ij} r_j - b_{ij} r_i

    Shapes: shared (s, n, C), targets (n, C), residuals r (k, n, C), near a and far b (k, n, n) with rows i.
    """

    shared: Tensor
    targets: Tensor
    residuals: Tensor
    near: Tensor
    far: Tensor

    def predictions(self, learners: list[int], jurors: Tensor) -> Tensor:
        """Predictions of these learners for these i, (b, learners, n, C)."""
        s, made = len(self.shared), []
        for k in learners:
            if k < s:
                made.append(self.shared[k].expand(len(jurors), -1, -1))
                continue
            r, near, far = self.residuals[k - s], self.near[k - s, jurors], self.far[k - s, jurors]
            made.append(self.targets - near.unsqueeze(2) * r - far.unsqueeze(2) * r[jurors].unsqueeze(1))
        return torch.stack(made, dim=1)

    def sums(self, weights: Tensor, jurors: Tensor) -> Tensor:
        """Sums of all learners' predictions with these weights, for these i, (b, n, C) -> (s + k, b)."""
        shared = torch.einsum("bjc,sjc->sb", weights, self.shared)
        known = torch.einsum("bjc,jc->b", weights, self.targets)
        near = torch.einsum("bjc,kjc->kbj", weights, self.residuals)
        far = torch.einsum("bjc,kbc->kbj", weights, self.residuals[:, jurors])
        return torch.cat([shared, known - (self.near[:, jurors] * near + self.far[:, jurors] * far).sum(dim=2)])


@dataclass(frozen=True, eq=False)
class Stack:
    """Weights of K learners, (K,), and the weights that juror i votes with, chosen without label i, (K, n).

    Attributes:
        shares: how much of the pooled prediction each learner makes up, (K,): weight times spread, adding to 1.
    """

    weights: Tensor = field(repr=False)
    left_out: Tensor = field(repr=False)
    shares: Tensor = field(repr=False)


def stack_classes(own: Tensor, labels: Tensor, pairs: Pairs | None) -> Stack:
    """Weights for classes.

    Args:
        own: log-probabilities, or other scores, of each left-out node.
        labels: the classes of these nodes.
        pairs: the same predictions without two labels; None if there are too many of them.

    Shapes: own (K, n, C); labels (n,).
    """
    z, spread = _scaled(own)
    truth = functional.one_hot(labels, z.shape[2]).double()
    weights = _minimise(z, truth)
    if pairs is None:
        left_out = _one_step(z, truth, weights)
    else:
        blocks = torch.arange(len(labels)).split(max(1, NUMBERS // z.numel()))  # as if all learners had weights
        left_out = torch.cat([_without_each(pairs, labels, weights, spread, some) for some in blocks], dim=1)
    return Stack(weights / spread, left_out / spread[:, None], weights / weights.sum().clamp_min(1e-300))


def class_weights(own: Tensor, labels: Tensor) -> Tensor:
    """The weights of all labels alone, without those of jurors, (K, n, C) -> (K,)."""
    z, spread = _scaled(own)
    return _minimise(z, functional.one_hot(labels, z.shape[2]).double()) / spread


def uncertain_weights(own: Tensor, truth: Tensor) -> Tensor:
    """The weights without each label where labels are distributions over the classes, to first order.

    Shapes: own (K, n, C); truth (n, C) -> (K, n).
    """
    z, spread = _scaled(own)
    return _one_step(z, truth, _minimise(z, truth)) / spread[:, None]


def _scaled(own: Tensor) -> tuple[Tensor, Tensor]:
    """Scores with a mean of 0 over the classes and a spread of 1, and the spread of each learner, (K,)."""
    z = (own - own.mean(dim=2, keepdim=True)).double()
    spread = z.square().mean(dim=(1, 2)).sqrt().clamp_min(1e-12)
    return z / spread[:, None, None], spread


def _minimise(z: Tensor, truth: Tensor) -> Tensor:
    """The weights of all labels, as distributions over the classes (n, C), by L-BFGS-B: (K, n, C) -> (K,)."""
    count, n, classes = z.shape
    flat, known = z.reshape(count, -1).numpy(), truth.numpy()

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = (weights @ flat).reshape(n, classes)
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        total = p.sum(axis=1)
        value = np.log(total).sum() - (known * logits).sum() + PRICE * weights.sum()
        p /= total[:, None]
        p -= known
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


def _one_step(z: Tensor, truth: Tensor, weights: Tensor) -> Tensor:
    """The weights without each label, to first order, (K, n, C) -> (K, n); learners without weight stay so."""
    chosen = weights > 0
    left_out = weights[:, None].repeat(1, len(truth))
    if bool(chosen.any()):
        z = z[chosen]
        p = torch.softmax(torch.einsum("k,kjc->jc", weights[chosen], z), dim=1)
        slopes = torch.einsum("jc,kjc->jk", p - truth, z)
        mean = torch.einsum("jc,kjc->jk", p, z)
        curvature = torch.einsum("jc,kjc,ljc->jkl", p, z, z) - mean[:, :, None] * mean[:, None]
        total = curvature.sum(dim=0)
        others = total - curvature + 1e-9 * total.diagonal().amax() * torch.eye(len(z), dtype=z.dtype)
        left_out[chosen] = (weights[chosen] + torch.linalg.solve(others, slopes)).clamp_min(0.0).T
    return left_out


def _without_each(pairs: Pairs, labels: Tensor, weights: Tensor, spread: Tensor, jurors: Tensor) -> Tensor:
    """The weights of some jurors among all learners, (K,) with all labels -> (K, b).

    Starts with the learners that have positive weights with all labels. Learners that would help a juror are added.
    """
    truth = functional.one_hot(labels, pairs.targets.shape[1]).double()
    found = weights[:, None].repeat(1, len(jurors))
    chosen: list[int] = (weights > 0).nonzero().squeeze(1).tolist()
    open_ = torch.arange(len(jurors))  # jurors whose weights are not found yet
    for _ in range(ROUNDS):
        some = jurors[open_]
        others = 1.0 - functional.one_hot(some, len(labels)).double()  # (b, n)
        own = truth.T * others.unsqueeze(1)  # (b, C, n)
        gap = others.unsqueeze(1) / truth.shape[1] - own
        if chosen:
            z = pairs.predictions(chosen, some)
            z = z.transpose(2, 3).contiguous()  # sums over a few classes are fast if labels come last
            z = (z - z.mean(dim=2, keepdim=True)) / spread[chosen, None, None]
            beta, gap = _newton(z, others, own, found[chosen][:, open_].T)
            found[torch.tensor(chosen)[:, None], open_] = beta.T
        slopes = pairs.sums(gap.mT, some) / spread[:, None] + PRICE
        slopes[chosen] = 0.0
        helped = (slopes < -HELPFUL).any(dim=0)
        if not bool(helped.any()):
            break
        chosen += (slopes < -HELPFUL).any(dim=1).nonzero().squeeze(1).tolist()
        open_ = open_[helped]
    return found


def _newton(z: Tensor, others: Tensor, own: Tensor, beta: Tensor, sweeps: int = SWEEPS) -> tuple[Tensor, Tensor]:
    """The best weights of each juror, by damped Newton steps for all jurors at once, and its residuals.

    Shapes: z (b, k, C, n), others (b, n) which labels count, own (b, C, n) these labels, beta (b, k) to start from
    -> (b, k), (b, C, n).
    """
    b, _, classes, n = z.shape
    flat, damping = z.flatten(2), torch.full((b,), 1e-3, dtype=z.dtype)

    def loss(beta: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax((beta.unsqueeze(1) @ flat).view(b, classes, n), dim=1)
        return PRICE * beta.sum(dim=1) - (own * log_p).sum(dim=(1, 2)), log_p.exp_().mul_(others.unsqueeze(1))

    value, p = loss(beta)
    for sweep in range(sweeps):
        slope = (flat @ (p - own).view(b, -1, 1)).squeeze(2) + PRICE
        weighted = z * p.unsqueeze(1)
        mean = weighted.sum(dim=2)  # (b, k, n)
        H = weighted.flatten(2) @ flat.transpose(1, 2) - mean @ mean.transpose(1, 2)
        held = (beta <= 0) & (slope > 0)  # stays at 0
        H = H.masked_fill(held.unsqueeze(1) | held.unsqueeze(2), 0.0)
        scale = H.diagonal(dim1=1, dim2=2)
        ridge = damping[:, None] * scale.amax(dim=1, keepdim=True) + 1e-12 + held.to(z.dtype)
        step = torch.linalg.solve(H + torch.diag_embed(ridge), slope.masked_fill(held, 0.0))
        tried = (beta - step).clamp_min(0.0)
        new, q = loss(tried)
        better, left = new < value, (value - new).abs() > CLOSE
        beta = torch.where(better[:, None], tried, beta)
        value, p = torch.where(better, new, value), torch.where(better[:, None, None], q, p)
        damping = torch.where(better, damping / 10, damping * 10).clamp(1e-9, 1e9)
        if not bool(left.any()):
            break
        if 2 * int(left.sum()) <= b:  # go on with the few that are left
            gap = p - own
            beta[left], gap[left] = _newton(z[left], others[left], own[left], beta[left], sweeps - sweep - 1)
            return beta, gap
    return beta, p - own


def stack_values(own: Tensor, targets: Tensor, pairs: Pairs | None) -> Stack:
    """Weights for a regression: least squares of the left-out errors.

    Args:
        own: predictions of each left-out node.
        targets: the values of these nodes.
        pairs: the same predictions without two labels; None if there are too many of them.

    Shapes: own (K, n, C); targets (n, C).
    """
    errors = (own - targets).double()
    scale = errors.square().mean().sqrt().clamp_min(1e-300)
    count, n, _ = errors.shape
    sums = SUM_TO_ONE * n

    def solve(errors: Tensor) -> np.ndarray:
        """The weights of these errors, (K, *, C) -> (K,)."""
        rows = (errors / scale).flatten(1).T.numpy()
        left = np.concatenate([rows, np.full((1, rows.shape[1]), sums)])
        right = np.zeros(len(left))
        right[-1] = sums
        found = nnls(left, right, maxiter=50 * rows.shape[1])[0]
        return np.asarray(found / found.sum())

    weights = solve(errors)
    chosen = list(range(count)) if pairs is not None else np.flatnonzero(weights).tolist()
    left_out = np.zeros((count, n))
    for i in range(n):
        without = errors[chosen] if pairs is None else pairs.predictions(chosen, torch.tensor([i]))[0] - targets
        left_out[chosen, i] = solve(torch.cat([without[:, :i], without[:, i + 1 :]], dim=1).double())
    found = torch.from_numpy(weights)
    return Stack(found, torch.from_numpy(left_out), found)
