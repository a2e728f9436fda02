r"""What an added label changes at the jurors' own nodes: to first order with a bound, and exactly where that matters.

Juror i of the bag of (u, y) minimises its quadratic model of the other labels plus the loss of (u, y). That loss is far
from quadratic for a label that the model excludes: one Newton step from the trained model overshoots by orders of
magnitude. So the residual q of (u, y) after the trained model learned it is found first, by the proximal problem

.. math:: q = \pi(z_u - K_{uu} q) - e_y

and the joint Newton step (leave out i, add u) is taken around it. With :math:`A = \bar A_{ui}`, the whitened residual
:math:`j_i` of juror i and :math:`Q = (I + S K_{uu})^{-1} S` at the fitted logits, the residual of u and what of it
reaches i are

.. math::
    a = q + Q A v, \qquad A^T a = j_i - v, \qquad (I + A^T Q A)\, v = j_i - A^T q

To first order they are q and :math:`A^T q`, off by at most :math:`\|Q\| \|A\| \|v\|` and :math:`\|A\|` times that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.leave_one_out.added import Kernels
from jurygcn.linalg import multiply_small, solve_small

# Newton steps for the residual of an added label; halvings of a step; a change that ends them; steps for the start.
STEPS, HALVINGS, CLOSE, START = 60, 30, 1e-7, 6

# Numbers in the systems of the labels that are fitted at a time: larger arrays leave the processor's cache.
FITTED_NUMBERS = 200_000


@dataclass(frozen=True, eq=False)
class Learned:
    """Labels of r nodes after the trained model learned them.

    Shapes: residuals q (r, y, C); stiffness Q (r, y, C, C).
    """

    residuals: Tensor
    stiffness: Tensor

    def at(self, rows: Tensor | slice) -> Learned:
        """Those of some of the nodes."""
        return Learned(self.residuals[rows], self.stiffness[rows])


class Changes:
    """What labels of some nodes change at the jurors' own nodes, relative to the juror's own label.

    Logits are relative to that of the own label, because probabilities depend on nothing else.

    Shapes: reading (r, C, C, n) what a residual at u changes of the logits at i.
    """

    def __init__(
        self, kernels: Kernels, rows: Tensor | slice, learned: Learned, jumps: Tensor, targets: Tensor
    ) -> None:
        self.learned, self.jumps, self.cross = learned, jumps, kernels.cross[:, rows]
        everyone = torch.arange(len(targets))
        self._through = kernels.through - kernels.through[everyone, targets].unsqueeze(1)  # (n, C, K)
        n, r, C, _ = self.cross.shape
        change = torch.bmm(self.cross.flatten(1, 2), self._through.mT)
        self.reading = -change.view(n, r, C, C).permute(1, 2, 3, 0)
        self._read: Tensor | None = None
        if kernels.read is not None:
            read = kernels.read[rows]  # (r, C, n, C)
            self._read = read - read[:, :, everyone, targets].unsqueeze(3)
            self.reading = self.reading - self._read.transpose(2, 3)

    def first_order(self) -> Tensor:
        """(r, y, C, n)."""
        q, reading = self.learned.residuals, self.reading
        return torch.bmm(q, reading.reshape(*reading.shape[:2], -1)).view(*q.shape, -1)

    def bound(self) -> Tensor:
        """What first order changes of the logarithm of the own label's probability are off by at most, (r, y, n)."""
        far = self.cross.flatten(2).norm(dim=2).T.unsqueeze(1)  # at least |A|, (r, 1, n)
        stiff = self.learned.stiffness.square().sum(dim=(2, 3)).sqrt().unsqueeze(2)  # at least |Q|, (r, y, 1)
        jump = self.jumps.norm(dim=1) + far * self.learned.residuals.norm(dim=2).unsqueeze(2)  # at least |v|
        through = self._through.norm(dim=2).amax(dim=1)
        tight = stiff * far.square()
        bound: Tensor = through * (tight / (1.0 + tight)) * jump
        if self._read is not None:
            bound = bound + self._read.square().sum(dim=1).amax(dim=2).sqrt().unsqueeze(1) * stiff * far * jump
        return bound

    def exact(self, u: Tensor, y: Tensor, i: Tensor) -> Tensor:
        """Changes for some nodes (by their rows), labels and jurors, (t,) each -> (C, t)."""
        A, Q = self.cross[i, u].permute(1, 2, 0).contiguous(), self.learned.stiffness[u, y].permute(1, 2, 0)
        q, jump = self.learned.residuals[u, y].T.contiguous(), self.jumps[i].T.contiguous()
        QA = multiply_small(Q.contiguous(), A)
        system = multiply_small(A.transpose(0, 1), QA)
        system.diagonal(dim1=0, dim2=1).add_(1.0)
        first = multiply_small(A.transpose(0, 1), q.unsqueeze(1))  # A^T q
        v = solve_small(system, jump.unsqueeze(1) - first)
        reached = jump.unsqueeze(1) - v  # A^T a
        change = -multiply_small(self._through[i].permute(1, 2, 0).contiguous(), reached).squeeze(1)
        if self._read is None:
            return change
        residual = q.unsqueeze(1) + multiply_small(QA, v)
        return change - multiply_small(self._read[u, :, i].permute(2, 1, 0).contiguous(), residual).squeeze(1)


def learn(z: Tensor, kernel: Tensor) -> Learned:
    r"""The residuals of all labels of some nodes: :math:`q = \pi(z - K q) - e_y`, and Q there.

    They minimise the convex :math:`\frac12 a^T K a - \log \pi_y(z - K a)`; Newton's method with halved steps.

    Shapes: z (r, C), kernel (r, C, C); float64 inside.
    """
    size = max(1, FITTED_NUMBERS // z.shape[1] ** 3)
    parts = [_learn(some, K) for some, K in zip(*(given.double().split(size) for given in (z, kernel)))]
    return Learned(*(torch.cat(found).to(z) for found in zip(*parts)))


def _learn(z: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    r, C = z.shape
    eye = torch.eye(C, dtype=z.dtype, device=z.device)
    # problems last: (C, r y) and (C, C, r y)
    z = z.T.unsqueeze(2).expand(C, r, C).reshape(C, -1)
    whole = kernel.permute(1, 2, 0).unsqueeze(3).expand(C, C, r, C).reshape(C, C, -1)
    truth = eye.repeat(1, r)
    found = _two_class_residuals(z, whole, truth)  # a
    pulled = _times(whole, found)  # K a
    height = _objective(z, truth, found, pulled)
    open_, K = torch.arange(r * C), whole
    for _ in range(STEPS):
        a, Ka, at, label = found[:, open_], pulled[:, open_], z[:, open_], truth[:, open_]
        p = torch.softmax(at - Ka, dim=0)
        root, system = _curvature(p, K)
        missing = p - label - a
        right = root * _times(K, missing)
        right = right - root * (root * right).sum(dim=0)
        x = solve_small(system, right.unsqueeze(1)).squeeze(1)
        step = missing - root * (x - root * (root * x).sum(dim=0))
        Kstep = _times(K, step)
        a, Ka, before = a + step, Ka + Kstep, height[open_]
        now = _objective(at, label, a, Ka)
        for halving in range(1, HALVINGS):
            worse = (now > before + 1e-12 * (1.0 + before.abs())).nonzero().squeeze(1)
            if not len(worse):
                break
            a[:, worse] -= step[:, worse] / 2**halving
            Ka[:, worse] -= Kstep[:, worse] / 2**halving
            now[worse] = _objective(at[:, worse], label[:, worse], a[:, worse], Ka[:, worse])
        left = ((a - found[:, open_]).abs().amax(dim=0) > CLOSE).nonzero().squeeze(1)
        found[:, open_], pulled[:, open_], height[open_] = a, Ka, now
        if not len(left):
            break
        if len(left) < len(open_):
            open_, K = open_[left], K[:, :, left]
    root, system = _curvature(torch.softmax(z - pulled, dim=0), whole)
    projected = root * eye.unsqueeze(2) - root * root.unsqueeze(1) * root  # (I - s s^T) diag(s), with s^2 = pi
    stiffness = multiply_small(projected.transpose(0, 1), solve_small(system, projected.clone()))
    return found.view(C, r, C).permute(1, 2, 0), stiffness.view(C, C, r, C).permute(2, 3, 0, 1)


def _curvature(p: Tensor, K: Tensor) -> tuple[Tensor, Tensor]:
    """s with s^2 = p, and I + P diag(s) K diag(s) P with P = I - s s^T: its eigenvalues are 1 or more."""
    root = p.sqrt()
    system = K * root * root.unsqueeze(1)
    along = _times(system, root)
    half = along - 0.5 * root * (root * along).sum(dim=0)
    system.addcmul_(root.unsqueeze(1), half.unsqueeze(0), value=-1.0)
    system.addcmul_(half.unsqueeze(1), root.unsqueeze(0), value=-1.0)
    system.diagonal(dim1=0, dim2=1).add_(1.0)
    return root, system


def _objective(z: Tensor, truth: Tensor, a: Tensor, Ka: Tensor) -> Tensor:
    """(C, b) each -> (b,)."""
    moved = z - Ka
    return 0.5 * (a * Ka).sum(dim=0) + moved.logsumexp(dim=0) - (moved * truth).sum(dim=0)


def _two_class_residuals(z: Tensor, K: Tensor, truth: Tensor) -> Tensor:
    """Where Newton's method starts: the residuals if the other classes keep their shares among each other.

    Then only the log-odds w of the label are unknown, w = w_0 + k pi(-w). Newton's method from w = 0 cannot overshoot.
    """
    others = z.masked_fill(truth > 0, -torch.inf)
    toward = truth - torch.softmax(others, dim=0)
    odds = (z * truth).sum(dim=0) - others.logsumexp(dim=0)
    stiff, w = (toward * _times(K, toward)).sum(dim=0), torch.zeros_like(odds)
    for _ in range(START):
        p = torch.sigmoid(-w)
        w = w - (w - odds - stiff * p) / (1.0 + stiff * p * (1.0 - p))
    return -torch.sigmoid(-w) * toward


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Matrices times vectors, problems last: (k, l, b), (l, b) -> (k, b)."""
    return multiply_small(matrices, vectors.unsqueeze(1)).squeeze(1)
