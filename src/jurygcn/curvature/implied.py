"""The weight decay that the parameters of a model imply that was trained without any."""

from __future__ import annotations

from jurygcn.engine import Engine, Expected

# The damping is this many times the weight decay that the parameters fit best. benchmarks/stopped_early.py compares
# several multiples with retrained jurors.
MULTIPLE = 2.0

# Where the mean gradient is smaller than this share of the mean norm of the nodes' gradients, the parameters are a
# minimum without weight decay, and nothing is implied.
AT_MINIMUM = 1e-3


def implied_decay(engine: Engine, found: Expected) -> float:
    r"""Damping for a model without weight decay: twice the :math:`\lambda` that minimises :math:`|g + \lambda\theta|`.

    Labels that a model can fit exactly have no minimum without weight decay: training is stopped on the way to ever
    larger parameters. Where it stopped, the parameters are close to a minimum with this weight decay. 0 at a minimum.
    """
    n, theta = engine.num_train, engine.theta
    residual = engine.loss.residual(found.outputs, engine.targets)
    gradient = found.jacobian.pull(residual.unsqueeze(-1)).squeeze(-1) / n
    typical = float(found.jacobian.pull_each(residual).norm(dim=1).mean())
    size = float(theta @ theta)
    if size == 0 or float(gradient.norm()) <= AT_MINIMUM * typical:
        return 0.0
    return MULTIPLE * max(0.0, -float(gradient @ theta) / size)
