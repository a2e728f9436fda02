r"""The effective weight decay: the one at which the trained parameters are a minimum.

Jurors are estimated around a minimum of mean loss + weight decay. Models as people train them stop before it, were
trained with dropout, or have no weight decay at all. What kept their weights small is then not the stated weight decay
alone. For a weight matrix W with the gradient G of the mean loss, the decay that fits is

.. math:: \lambda = \arg\min_\lambda \|G + \lambda W_\parallel\|^2 = -\frac{\langle G, W\rangle}{\|W_\parallel\|^2}

where :math:`W_\parallel` is the part of W that the training nodes see: its projection on the row space of their
Jacobian. The rest of W is what is left of its random initial values, and G is zero there. At a minimum with weight
decay :math:`\lambda` the result is :math:`\lambda`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from jurygcn.curvature.factor import GGNFactor
from jurygcn.engine import Engine
from jurygcn.errors import SolverError

DECAYS = ("effective", "stated")

# A direction counts as seen by the training nodes if it changes their outputs by more than this, squared and relative
# to the mean squared length of a row. It is far above rounding and far below the directions that matter.
SEEN = 1e-6

# Where the mean gradient is smaller than this share of the mean length of single nodes' gradients, the parameters are a
# minimum without weight decay; the mean is over at least this many nodes, if there are as many.
AT_MINIMUM, SAMPLED = 1e-3, 64

# W stands for its seen part where it has fewer entries than there are rows, and where there are more rows than this:
# then the training nodes see nearly all directions.
MOST_ROWS = 6_000


def effective_decay(engine: Engine, factor: GGNFactor, outputs: Tensor) -> tuple[Tensor, GGNFactor]:
    """The effective weight decay of every parameter, (P,), and the factor with the Gram matrices found on the way.

    Vectors (biases, normalisation) keep the stated decay. So does a matrix whose gradient does not point against it; if
    it has none, it gets the smallest effective decay of the others.
    """
    residual = engine.loss.whitened(outputs, engine.targets)
    if not bool((engine.decay > 0).any()) and _at_minimum(factor, residual):
        return engine.decay, factor
    decay, start, unknown, known, grams = engine.decay.clone(), 0, [], [], []
    for p in engine.parameters.values():
        span = slice(start, start + p.numel())
        start = span.stop
        if p.squeeze().dim() < 2:
            continue
        gram = _gram_of(factor, span) if p.numel() > factor.rows and factor.rows <= MOST_ROWS else None
        value = fitting_decay(factor, residual, engine.theta, span, gram)
        if gram is not None:
            grams.append((span, gram))
        if value > 0:
            decay[span] = value
            known.append(value)
        elif float(decay[span.start]) == 0.0:
            unknown.append(span)
    if unknown and not known and not bool((decay > 0).any()):
        raise SolverError(
            "expected a trained model, whose loss would fall further if its weights grew, got one without such "
            "weights and without weight decay; train it, or pass weight_decay"
        )
    for span in unknown:
        decay[span] = min(known) if known else float(decay[decay > 0].min())
    return decay, replace(factor, known=tuple(grams))


def _at_minimum(factor: GGNFactor, residual: Tensor) -> bool:
    """Whether the mean gradient is far below those of single nodes, so that the labels alone determine the model."""
    n = len(residual)
    mean = float(factor.transpose_matmul(residual.reshape(-1, 1)).norm()) / n**0.5
    some = torch.arange(n)[:: max(1, n // SAMPLED)]
    single = GGNFactor(factor.jacobian.subset(some), factor.root[some]).each(residual[some]) * len(some) ** 0.5
    return bool(mean <= AT_MINIMUM * float(single.norm(dim=1).mean()))


def fitting_decay(factor: GGNFactor, residual: Tensor, theta: Tensor, span: slice, gram: Tensor | None) -> float:
    """The decay that fits best for the parameters in ``span``; not positive if none does.

    ``gram`` is U U^T of these parameters, (nK, nK), for the projection on their row space; None takes all of W.
    """
    part = torch.zeros_like(theta)
    part[span] = theta[span]
    rows = factor.matmul(part[:, None]).squeeze(1)  # U W: the projection of W on every row
    slope = float(rows @ residual.flatten()) / len(residual) ** 0.5  # <G, W>, because G = n^-1/2 U^T w
    seen = float(theta[span].square().sum())
    if gram is not None:
        seen = min(seen, _squared_projection(gram, rows))
    return -slope / seen if seen > 0 else 0.0


def _gram_of(factor: GGNFactor, span: slice) -> Tensor:
    only = torch.zeros(factor.jacobian.shape[2], dtype=factor.root.dtype, device=factor.root.device)
    only[span] = 1.0
    return factor.gram(only)


def _squared_projection(gram: Tensor, rows: Tensor) -> float:
    """The squared length of the projection on the row space: b^T (U U^T)^+ b, (nK,) -> number."""
    typical = float(gram.diagonal().mean())
    if not typical > 0:
        return 0.0
    shifted = gram.clone()
    shifted.diagonal().add_(SEEN * typical)
    return float(rows @ torch.cholesky_solve(rows[:, None], torch.linalg.cholesky(shifted)).squeeze(1))
