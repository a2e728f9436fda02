r"""Full conformal intervals of a regression with leave-one-out residuals.

With squared loss the prediction of a juror that learned (u, y) is linear in y: :math:`f_i(y) = c_i + d_i y`. So label y
is in the set if enough labelled nodes have :math:`|y_i - c_i - d_i y| \ge |y - f(u)|`. For :math:`|d_i| < 1` this
holds on an interval around f(u), whose ends are where both sides are equal; the set of all is then an interval between
order statistics of these ends. For :math:`|d_i| \ge 1` it holds far away too, and the whole line is taken: the result
contains the conformal set, which may then have several parts.

The idea is that of the ridge regression confidence machine (Nouretdinov, Melluish and Vovk, 2001).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from jurygcn.conformal.full import Bags, in_turn
from jurygcn.conformal.intervals import LowerTail
from jurygcn.leave_one_out.added import Kernels


def full_intervals(
    bags: Bags, nodes: Tensor, outputs: Tensor, *, memory: float, advance: Callable[[int], None]
) -> tuple[Tensor, Tensor]:
    """Lower and upper ends for nodes without a label, (m,) each; infinite with fewer than 1/alpha - 1 jurors.

    Shapes: nodes (m,), outputs (m, 1) the predictions that score them.
    """
    asked = bags.asked
    targets, n = asked.own_targets.double().squeeze(1), asked.num_jurors
    lower, upper = torch.empty(len(nodes), dtype=torch.float64), torch.empty(len(nodes), dtype=torch.float64)
    for places, kernels in in_turn(bags, nodes, memory):
        constant, slope = linear_predictions(bags, kernels, places)
        low, high = ends(targets - constant, slope, outputs[places].double())
        voters = torch.full((len(places),), n)
        for out, values, sign in ((lower, low, 1.0), (upper, -high, -1.0)):
            tail = LowerTail(asked.question.alpha, n, exact=True)
            tail.add(values)
            out[places] = sign * tail.quantile(voters)
        advance(len(places))
    return lower, upper


def linear_predictions(bags: Bags, kernels: Kernels | None, rows: Tensor) -> tuple[Tensor, Tensor]:
    """c and d of the jurors' predictions c + d y at their own nodes, (r, n) each, if y is added at some nodes."""
    constant: Tensor | float = 0.0
    slope: Tensor | float = 0.0
    if kernels is not None:
        assert bags.added is not None
        cross, reading = kernels.cross[:, :, 0, 0].T.double(), kernels.reading[:, :, 0, 0].double()
        before = kernels.outputs + cross * bags.added.jumps[:, 0]  # z_{-i}(u)
        kernel = kernels.own[:, :, 0] + cross.square()
        moved = 2.0 * reading / (1.0 + 2.0 * kernel)  # the residual is 2 (z - y)
        constant, slope = bags.share * (bags.own.squeeze(1) + moved * before), -bags.share * moved
    if bags.panel is not None:
        fixed, gain = bags.panel.at(rows)
        constant, slope = constant + fixed.squeeze(2), slope + gain
    assert isinstance(constant, Tensor)
    assert isinstance(slope, Tensor)
    return constant, slope


def ends(offset: Tensor, slope: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    """The ends of the interval around f where |a - d y| >= |y - f|; infinite unless |d| < 1.

    Shapes: offset a and slope d (r, n), centre f (r, 1) -> (r, n), (r, n).
    """
    first, second = (offset + centre) / (1.0 + slope), (centre - offset) / (1.0 - slope)
    bounded = slope.abs() < 1.0
    low = torch.where(bounded, torch.minimum(first, second), -torch.inf)
    high = torch.where(bounded, torch.maximum(first, second), torch.inf)
    return low, high
