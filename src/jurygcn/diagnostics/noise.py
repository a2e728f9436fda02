r"""The model of wrong labels, and learning in spite of them.

A label is wrong with probability :math:`\epsilon`, and is then any other class. With :math:`p_i`, the distribution of
the true label by predictions that do not know label i,

.. math::
    P(y_i) = (1 - \epsilon)\, p_i(y_i) + \epsilon\, \frac{1 - p_i(y_i)}{C - 1}, \qquad
    w_i = \frac{\epsilon}{C - 1} \cdot \frac{1 - p_i(y_i)}{P(y_i)}

:math:`w_i` is the probability that label i is wrong. Wrong labels also mislead the predictions of other nodes. So the
regressions of the panel learn the probable true classes instead,

.. math::
    t_i = (1 - w_i)\, y_i + w_i\, \frac{p_i - p_i(y_i)\, y_i}{1 - p_i(y_i)}

their weights, and that of the model's jurors, are chosen by :math:`-\sum_i t_i^T \log p_i`, and w follows from the
new predictions: the steps of an EM algorithm. A regression is linear in its targets, so this takes no training, and
:math:`f_{-i}(i)` does not depend on :math:`t_i`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from jurygcn.conformal.counts import FLOOR
from jurygcn.leave_one_out.panel import Panel
from jurygcn.leave_one_out.stacking import uncertain_weights

# Values of epsilon and of beta that are averaged over. The prior of epsilon is Beta(1, STRICT), so that it is small
# without evidence; that of log beta is normal, with a standard deviation of WIDE.
RATES = torch.linspace(0.0, 0.5, 101, dtype=torch.float64)
SCALES = torch.logspace(-1.0, 1.0, 41, dtype=torch.float64)
STRICT, WIDE = 4.0, 1.0
# How often the panel learns the probable classes. On synthetic graphs, digits and amazon_photo the ranking after eight
# times is about that after four.
ROUNDS = 4


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """The posterior of the share of wrong labels, and what it says about each label.

    Attributes:
        rate: the posterior mean of the share of wrong labels.

    Shapes: wrong (n,) the probability that each label is wrong; truth (n, C) the distribution of the true label, if the
    jury is right; logs (n, C) the log-probabilities that they come from.
    """

    rate: float
    wrong: Tensor
    truth: Tensor
    logs: Tensor

    def classes(self, labels: Tensor) -> Tensor:
        """The distribution of the true class of each label, given the label, (n, C)."""
        given = functional.one_hot(labels, self.truth.shape[1]).to(self.truth)
        other = self.truth * (1.0 - given)
        other = other / other.sum(dim=1, keepdim=True).clamp_min(FLOOR)
        return given + self.wrong[:, None] * (other - given)


def fit_noise(logs: Tensor, labels: Tensor) -> NoiseModel:
    """Average over the posterior of rate and scale, on a grid. Shapes: logs (n, C), labels (n,)."""
    others = max(logs.shape[1] - 1, 1)
    rates = RATES[:, None]
    likelihoods, by_scale = [], []
    for scale in SCALES:
        p = torch.softmax(scale * logs, dim=1)
        own = p.gather(1, labels[:, None]).squeeze(1)
        by_error = rates * (1 - own) / others  # (rates, n)
        given = ((1 - rates) * own + by_error).clamp_min(1e-300)
        likelihoods.append(given.log().sum(dim=1) - scale.log().square() / (2 * WIDE**2))
        by_scale.append((p, by_error / given))
    posterior = torch.stack(likelihoods) + (STRICT - 1) * torch.log1p(-RATES)  # (scales, rates)
    posterior = torch.softmax(posterior.flatten(), dim=0).view_as(posterior)
    wrong = sum(weights @ w for weights, (_, w) in zip(posterior, by_scale))
    truth = sum(weights.sum() * p for weights, (p, _) in zip(posterior, by_scale))
    assert isinstance(wrong, Tensor)
    assert isinstance(truth, Tensor)
    return NoiseModel(float((posterior @ RATES).sum()), wrong, truth, logs)


def learned_noise(panel: Panel, positions: Tensor, labels: Tensor, model: Tensor | None) -> NoiseModel:
    """The noise model of the stacked jury, whose panel learns the probable classes of these labels.

    Args:
        panel: the regressions; at least one.
        positions: the training nodes that the labels belong to. Other training nodes keep their labels.
        labels: the labels.
        model: probabilities of the model's jurors at their own nodes; None if they do not count.

    Shapes: positions (n,), labels (n,), model (n, C).
    """
    targets, uniform = panel.targets.clone(), 1.0 / panel.targets.shape[1]
    mine = [] if model is None else [model.clamp_min(FLOOR).log()]
    classes = functional.one_hot(labels, targets.shape[1]).double()
    for round_ in range(ROUNDS + 1):
        targets[positions] = classes - uniform
        panels = [member.design.left_out(targets, member.ridge)[1][positions] for member in panel.members]
        own = torch.stack([*mine, *panels])
        logs = torch.log_softmax(torch.einsum("kn,knc->nc", uncertain_weights(own, classes), own), dim=1)
        noise = fit_noise(logs, labels)
        classes = noise.classes(labels) if round_ < ROUNDS else classes
    return noise
