r"""The panel's jurors that learn one more label: exact, because a ridge regression changes by rank one.

With the leverages of the regression on all labels, :math:`h_{ui}` and :math:`\kappa_u = \phi_u^T (\Phi^T \Phi + \lambda
I)^{-1} \phi_u`, the regression without label i and with the label y of u predicts for i

.. math::
    f_{-i}(i) + g_{ui} \big(y - f_{-i}(u)\big), \qquad
    g_{ui} = \frac{h_{ui} / (1 - h_{ii})}{1 + \kappa_u + h_{ui}^2 / (1 - h_{ii})}
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jurygcn.leave_one_out.panel import Member, Panel


@dataclass(frozen=True, eq=False)
class _Added:
    """One regression, from which what it says of some of the queried nodes follows.

    Shapes: nodes (m,), similar (N, l) similarities with the landmarks, coefficients (l, k) and offset (k,) for all k
    labels, targets (k, C), positions (n,), rest (n,) 1 - h_ii, lengths (m,) kappa_u, errors (n, C), own (n, C).
    """

    nodes: Tensor
    similar: Tensor
    coefficients: Tensor
    offset: Tensor
    targets: Tensor
    positions: Tensor
    rest: Tensor
    lengths: Tensor
    errors: Tensor
    own: Tensor

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """f_{-i}(i) - g_ui f_{-i}(u), (r, n, C), and g_ui, (r, n), for some of the nodes."""
        everyone = torch.addmm(self.offset, self.similar[self.nodes[rows]].double(), self.coefficients)  # h_u
        hat = everyone[:, self.positions]
        gain = hat / self.rest / (1.0 + self.lengths[rows, None] + hat.square() / self.rest)
        without = (everyone @ self.targets).unsqueeze(1) - hat.unsqueeze(2) * self.errors  # f_{-i}(u)
        return self.own - gain.unsqueeze(2) * without, gain


class AddedToPanel:
    """The weighted sum of some regressions' answers at the jurors' own nodes, after the label of a node was added.

    Args:
        panel: the regressions.
        members: those with a weight.
        weights: the weight of each with each juror, (k, jurors).
        positions: the training nodes of the jurors, (jurors,).
        nodes: the nodes whose labels are added, (m,).
    """

    def __init__(self, panel: Panel, members: list[Member], weights: Tensor, positions: Tensor, nodes: Tensor) -> None:
        self.weights = weights.double()
        self._added = [_added(panel, member, positions, nodes) for member in members]

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The sum is the first tensor, (r, n, C), plus the second, (r, n), times the added target; float64."""
        fixed: Tensor | float = 0.0
        gains: Tensor | float = 0.0
        for weight, added in zip(self.weights, self._added):
            part, gain = added.at(rows)
            fixed, gains = fixed + weight[:, None] * part, gains + weight * gain
        assert isinstance(fixed, Tensor)
        assert isinstance(gains, Tensor)
        return fixed, gains


def _added(panel: Panel, member: Member, positions: Tensor, nodes: Tensor) -> _Added:
    design, ridge = member.design, member.ridge
    features, (coefficients, offset) = panel.features(design), design.coefficients(ridge)
    return _Added(
        *(nodes.cpu(), panel.columns(design), coefficients, offset, panel.targets, positions),
        rest=1.0 - design.among(ridge, positions).diagonal(),
        lengths=design.leverages(features[nodes.cpu()], ridge) + panel.unseen(design, features)[nodes.cpu()] / ridge,
        errors=member.errors[positions],
        own=member.own[positions],
    )
