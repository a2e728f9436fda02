r"""The effective weight decay: the one at which the trained parameters are a minimum.

Jurors are estimated around a minimum of mean loss + weight decay. Models as people train them stop before it, were
trained with dropout, or have no weight decay at all. What kept their weights small is then not the stated weight decay
alone. For a weight matrix W with the gradient G of the mean loss, the effective weight decay is

.. math::
    \lambda = \lambda_W + \max(0, \lambda_W - \lambda_s) \Big(\frac{\lambda_G}{\lambda_W} - 1\Big), \qquad
    \lambda_W = -\frac{\langle G, W\rangle}{\|W_\parallel\|^2}, \quad
    \lambda_G = -\frac{\|G\|^2}{\langle G, W\rangle}

with the stated weight decay :math:`\lambda_s`. :math:`W_\parallel` is the part of W that the training nodes see: its
projection on the row space of their Jacobian. The rest of W is what is left of its random initial values, and G is zero
there. At a minimum all three are equal.

Why two estimates. :math:`\lambda_W` is the least-squares fit of G by -W, :math:`\lambda_G` the inverse of that of W by
-G. Gradient descent for a time t has finished where the curvature :math:`\kappa` is large: it leaves
:math:`G / W = -\kappa / (e^{\kappa t} - 1)`, and a change of the labels moves directions of small curvature by up to t.
:math:`\lambda_W` averages this ratio with the weights :math:`W^2`, so the finished directions count most, the result is
far below 1 / t, and jurors move too far. :math:`\lambda_G` weights by :math:`-GW`, so that the unfinished directions
count. It applies only to the pull beyond the stated weight decay: near the minimum the rest of G is noise.
"""

from __future__ import annotations

from collections.abc import Iterator
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

# The gradient points against a matrix if the cosine between the two is below minus this. It is zero up to rounding for
# a matrix whose length does not matter, as under weight normalisation.
ALIGNED = 1e-6

# The largest ratio of the two estimates. If the gradient is at more than 60 degrees to the matrix, most of it is about
# other things than the matrix's size.
MOST_STRETCH = 4.0

# The effective decay is at least this share of the stated one. A saturated model has hardly any gradient, and without
# any decay its curvature would be singular.
LEAST = 1e-3

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
    spans = _matrices(engine)
    parts = torch.zeros(len(engine.theta), len(spans), dtype=engine.theta.dtype, device=engine.theta.device)
    for k, span in enumerate(spans):
        parts[span, k] = engine.theta[span]
    gradient = factor.transpose_matmul(residual.reshape(-1, 1)).squeeze(1) / len(residual) ** 0.5
    slopes = parts.T @ gradient  # <G, W>
    wide = [span.stop - span.start > factor.rows and factor.rows <= MOST_ROWS for span in spans]
    # U W: the projections of the matrices on the rows
    rows: Iterator[Tensor] = iter(factor.matmul(parts[:, wide]).T if any(wide) else ())
    decay, unknown, known, grams = engine.decay.clone(), [], [], []
    for span, slope, projected in zip(spans, slopes.tolist(), wide, strict=True):
        against = -slope > ALIGNED * float(gradient[span].norm() * engine.theta[span].norm())
        size = float(engine.theta[span].square().sum())
        if projected:
            gram = _gram_of(factor, span)
            grams.append((span, gram))
            size = min(size, _squared_projection(gram, next(rows)))
        if size > 0 and against:
            found = _fitted(-slope, float(gradient[span].norm()), size**0.5, stated=float(decay[span.start]))
            decay[span] = found
            known.append(found)
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


def _fitted(pull: float, gradient: float, weights: float, *, stated: float) -> float:
    """The effective decay from -<G, W>, the lengths of G and of the seen part of W, and the stated decay."""
    plain = pull / weights / weights
    cosine = pull / gradient / weights if gradient > 0 else 1.0  # lengths of tiny gradients underflow
    stretch = 1.0 / max(cosine * cosine, 1.0 / MOST_STRETCH)
    return max(LEAST * stated, plain + max(0.0, plain - stated) * max(0.0, stretch - 1.0))


def _at_minimum(factor: GGNFactor, residual: Tensor) -> bool:
    """Whether the mean gradient is far below those of single nodes, so that the labels alone determine the model."""
    n = len(residual)
    mean = float(factor.transpose_matmul(residual.reshape(-1, 1)).norm()) / n**0.5
    some = torch.arange(n)[:: max(1, n // SAMPLED)]
    single = GGNFactor(factor.jacobian.subset(some), factor.root[some]).each(residual[some]) * len(some) ** 0.5
    return bool(mean <= AT_MINIMUM * float(single.norm(dim=1).mean()))


def _matrices(engine: Engine) -> list[slice]:
    """The places of the weight matrices in theta; vectors are left out."""
    spans, start = [], 0
    for p in engine.parameters.values():
        if p.squeeze().dim() >= 2:
            spans.append(slice(start, start + p.numel()))
        start += p.numel()
    return spans


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
