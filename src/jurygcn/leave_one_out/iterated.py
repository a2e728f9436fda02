r"""Jurors by several Newton iterations: the leave-one-out problem of the network that is linear in its parameters.

One Newton step keeps the curvature of the trained model. Where that nearly interpolates, probabilities are close to 0
or 1 and their curvature is close to 0, so the step is too long. With logits :math:`z_j + J_j \delta` the juror's step
minimises

.. math::
    \frac1n \sum_{j \ne i} \ell(z_j + J_j \delta, y_j) + \frac12 \delta^T \Lambda \delta
    - \frac1n \sum_j e_j^T J_j \delta

The last term makes the trained parameters a minimum while no label is left out, as one Newton step assumes. With
:math:`\delta = -\frac1n \Lambda^{-1} J^T \alpha` and :math:`G = \frac1n J \Lambda^{-1} J^T` the step solves

.. math:: \alpha = r_{-i}(z - G \alpha) - e, \qquad r_{-i,j} = \nabla \ell_j \text{ for } j \ne i, \text{ else } 0

A Newton iteration solves :math:`(I + S_{-i} G) d = r_{-i} - e - \alpha` by conjugate gradients. All jurors share G, so
that a step of theirs is one product of matrices. The first iteration, from 0, is the one Newton step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from jurygcn.curvature.factor import GGNFactor
from jurygcn.errors import SolverError
from jurygcn.leave_one_out.estimated import LeaveOneOut
from jurygcn.leave_one_out.jurors import Jurors
from jurygcn.losses import Loss

# A juror is found when no entry of its equation is off by more than CLOSE; conjugate gradients end at TOLERANCE of
# where they started, or after MOST steps; a step that does not lower the objective is halved HALVINGS times at most.
CLOSE, TOLERANCE, MOST, HALVINGS = 1e-6, 1e-3, 500, 20

# Parameters without weight decay get this share of the smallest one: G needs its reciprocal.
NEARLY_FREE = 1e-3

# Arrays of one number for each juror, label and output that are held at a time, beside L with K of them.
ARRAYS = 12


def iterated_jurors(many: LeaveOneOut, jurors: Jurors, *, iterations: int, memory: float) -> Jurors:
    """The jurors of up to so many Newton iterations, from those of one; their arrays stay within ``memory`` bytes."""
    engine, factor = many.engine, many.prepared.factor
    assert isinstance(factor, GGNFactor)  # newton jurors have no other
    decay = many.operator.diagonal
    if not bool((decay > 0).any()):
        raise SolverError("expected weight decay with iterations, got none; pass it, add damping, or use iterations=1")
    decay = torch.where(decay > 0, decay, NEARLY_FREE * decay[decay > 0].min())
    n, C = many.outputs.shape
    gram = factor.jacobian.gram(1.0 / decay).reshape(n * C, n * C) / n
    steps, taken = [], 0
    for some in many.positions.split(jurors_at_once(n, C, memory)):
        problem = LeaveOutProblem(engine.loss, gram, many.outputs, engine.targets, some)
        alphas, done = iterate(problem, iterations=iterations)
        step = factor.jacobian.pull(alphas.permute(1, 2, 0).contiguous()) / (-n * decay[:, None])
        steps.append(step.T.to(jurors.steps))
        taken = max(taken, done)
    return replace(jurors, steps=torch.cat(steps), iterations=taken)


def jurors_at_once(n: int, C: int, memory: float) -> int:
    """How many jurors' arrays fit into so many bytes."""
    return max(1, int(memory / (8.0 * n * C * (ARRAYS + C))))


class LeaveOutProblem:
    """The problems of some jurors. Shapes: gram (n C, n C), logits z (n, C), positions (b,); vectors (b, n C)."""

    def __init__(self, loss: Loss, gram: Tensor, z: Tensor, targets: Tensor, positions: Tensor) -> None:
        self.loss, self.gram, self.z = loss, gram, z
        self.n, self.C = z.shape
        self.targets = targets.repeat(len(positions), *[1] * (targets.dim() - 1))
        self.given = torch.ones(len(positions), self.n, dtype=z.dtype, device=z.device)
        self.given[torch.arange(len(positions)), positions] = 0.0
        self.trained = loss.residual(z, targets).flatten()

    def logits(self, pulled: Tensor) -> Tensor:
        """z - G alpha, (b n, C)."""
        return (self.z.flatten() - pulled).view(-1, self.C)

    def errors(self, alphas: Tensor, pulled: Tensor) -> Tensor:
        """r - e - alpha."""
        residual = self.loss.residual(self.logits(pulled), self.targets).view(len(alphas), self.n, self.C)
        return (residual * self.given.unsqueeze(2)).flatten(1) - self.trained - alphas

    def objective(self, alphas: Tensor, pulled: Tensor) -> Tensor:
        """n times the objective, (b,)."""
        losses = self.loss.node_losses(self.logits(pulled), self.targets).view_as(self.given)
        return (losses * self.given).sum(dim=1) + ((0.5 * alphas + self.trained) * pulled).sum(dim=1)

    def direction(self, pulled: Tensor, errors: Tensor) -> Tensor:
        """Newton's: (I + S G) d = errors, by conjugate gradients on (I + L^T G L) x = L^T G errors, with S = L L^T."""
        b = len(errors)
        root = self.loss.root(self.logits(pulled)) * self.given.view(-1, 1, 1)

        def lower(vectors: Tensor) -> Tensor:
            return torch.bmm(vectors.view(b * self.n, 1, self.C), root).view(b, -1)

        def lift(vectors: Tensor) -> Tensor:
            return torch.bmm(vectors.view(b * self.n, 1, -1), root.mT).view(b, -1)

        x = conjugate_gradients(lambda v: v + lower(lift(v) @ self.gram), lower(errors @ self.gram))
        return errors - lift(x)


def iterate(problem: LeaveOutProblem, *, iterations: int) -> tuple[Tensor, int]:
    """Newton's method from the trained parameters, with halved steps: alpha, (b, n, C), and the iterations taken."""
    alphas = problem.trained.new_zeros(len(problem.given), problem.n * problem.C)
    pulled, errors = alphas.clone(), problem.errors(alphas, alphas)
    done = 0
    while done < iterations and float(errors.abs().max()) > CLOSE:
        step = problem.direction(pulled, errors)
        change, length = step @ problem.gram, step.new_ones(len(step), 1)
        enough = problem.objective(alphas, pulled)
        enough = enough + 1e-10 * (1.0 + enough.abs())
        for _ in range(HALVINGS):
            worse = problem.objective(alphas + length * step, pulled + length * change) > enough
            if not bool(worse.any()):
                break
            length[worse] /= 2
        alphas, pulled, done = alphas + length * step, pulled + length * change, done + 1
        errors = problem.errors(alphas, pulled)
    return alphas.view(-1, problem.n, problem.C), done


def conjugate_gradients(product: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """X with A X = B for the rows of B and a positive definite A, to a relative residual of TOLERANCE."""
    x, r, p = torch.zeros_like(right), right, right
    square = right.square().sum(dim=1, keepdim=True)
    enough, tiny = TOLERANCE**2 * square, torch.finfo(right.dtype).tiny
    for _ in range(MOST):
        if bool((square <= enough).all()):
            break
        Ap = product(p)
        length = square / (p * Ap).sum(dim=1, keepdim=True).clamp_min(tiny)
        x, r = x + length * p, r - length * Ap
        before, square = square, r.square().sum(dim=1, keepdim=True)
        p = r + square / before.clamp_min(tiny) * p
    return x
