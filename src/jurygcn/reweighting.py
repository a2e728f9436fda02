"""The paper's uncertainty-aware training: uncertain training nodes count for more."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.baselines.classifier import Fitted, check_labels, classes_of, logits_of, softmax_scores
from jurygcn.checks import all_finite
from jurygcn.errors import SettingError
from jurygcn.jury import Jury
from jurygcn.models.gcn import GCN
from jurygcn.models.training import descend, outputs_at
from jurygcn.verdict import RANKINGS


@dataclass(frozen=True, eq=False)
class Reweighted:
    """A model trained with weighted losses.

    Attributes:
        model: the trained GCN.
        weights: of the training nodes in the last epochs, (n,).
        history: of every verdict, the epoch and the smallest, largest and mean weight that followed from it.
    """

    model: GCN
    weights: Tensor = field(repr=False)
    history: list[dict[str, float]] = field(repr=False)


def loss_weights(uncertainty: Tensor, *, tau: float = 2.0, as_printed: bool = False) -> Tensor:
    r"""Weights of the training nodes' losses from their uncertainty U.

    .. math:: \beta_u^\tau, \quad \beta_u = \frac{|U(u)|}{\sqrt{\sum_{i \in V_{train}} |U(i)|^2}}

    scaled to mean 1. ``as_printed`` leaves out the scaling, which shrinks the whole loss by about
    :math:`n^{-\tau/2}` against the weight decay (erratum E7).

    Implements: Application 2.

    Shapes: (n,) -> (n,).
    """
    if not 0 <= tau < float("inf"):
        raise SettingError(f"expected tau to be a number of at least 0, got {tau}; change it")
    size = uncertainty.abs()
    if not all_finite(size):
        raise SettingError(
            "expected finite uncertainties of the training nodes, got some that are not; use interpolated intervals"
        )
    if not bool((size > 0).any()):
        return torch.ones_like(size)  # nobody is uncertain: nobody counts for more
    weights: Tensor = (size / size.norm()) ** tau
    return weights if as_printed else weights / weights.mean()


def reweight(
    data: Data,
    train_nodes: Tensor,
    *,
    seed: int = 0,
    tau: float = 2.0,
    refresh: int = 10,
    score: str = "width",
    as_printed: bool = False,
    hidden: int = 16,
    dropout: float = 0.5,
    epochs: int = 100,
    lr: float = 0.01,
    weight_decay: float = 5e-4,
    alpha: float = 0.025,
) -> Reweighted:
    r"""Train a GCN with losses weighted by the jury's uncertainty of each training node.

    Minimises :math:`\frac1n \sum_u w_u\, r(u, y_u, \Theta)` with the weights of :func:`loss_weights`, found anew by a
    jury of the present model every ``refresh`` epochs; the first ``refresh`` epochs are unweighted. Scores that may be
    negative (``credibility``, ``confidence``) are shifted to start at zero.

    Implements: Application 2.

    Args:
        data: the graph.
        train_nodes: the labelled nodes to learn from.
        seed: of weights and dropout.
        tau: how much more uncertain nodes count; 0 is ordinary training.
        refresh: epochs between verdicts.
        score: any score of the verdict; "width" is the paper's.
        as_printed: weights as printed, without scaling to mean 1 (erratum E7).
        hidden, dropout, epochs, lr, weight_decay: of the GCN.
        alpha: the level of the paper's interval.
    """
    nodes = check_labels(data, train_nodes)
    if score not in RANKINGS:
        raise SettingError(f"expected a score of the verdict ({', '.join(RANKINGS)}), got {score!r}; choose one")
    if refresh < 1 or epochs < 1:
        raise SettingError(f"expected epochs and refresh of at least 1, got {epochs} and {refresh}; raise them")
    model = GCN(data.x.shape[1], hidden, classes_of(data), dropout=dropout)
    outputs, labels = outputs_at(model, data, nodes), data.y[nodes]
    weights = torch.ones(len(nodes))
    history: list[dict[str, float]] = []

    def objective(epoch: int) -> Tensor:
        nonlocal weights
        if epoch > 1 and (epoch - 1) % refresh == 0:
            jury = Jury(model, data, nodes, weight_decay=weight_decay).fit()
            doubt = jury.verdict(nodes, alpha=alpha, with_panel=score == "panel_doubt").uncertainty(score)
            doubt = doubt - doubt.min() if bool((doubt < 0).any()) else doubt
            weights = loss_weights(doubt, tau=tau, as_printed=as_printed).float()
            extremes = {"smallest_weight": float(weights.min()), "largest_weight": float(weights.max())}
            history.append({"epoch": float(epoch), **extremes, "mean_weight": float(weights.mean())})
        return (functional.cross_entropy(outputs(), labels, reduction="none") * weights).mean()

    descend(model, objective, epochs=epochs, lr=lr, weight_decay=weight_decay, seed=seed)
    return Reweighted(model, weights, history)


@dataclass(frozen=True)
class Reweighting:
    """The paper's JuryGCN as a method; validation nodes are not used."""

    tau: float = 2.0
    refresh: int = 10
    score: str = "width"
    as_printed: bool = False
    hidden: int = 16
    dropout: float = 0.5
    epochs: int = 100
    lr: float = 0.01
    weight_decay: float = 5e-4

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train with refreshed weights."""
        found = reweight(data, train_nodes, seed=seed, **asdict(self))
        probabilities = torch.softmax(logits_of(found.model, data), dim=1)
        details = {"largest_weight": float(found.weights.max()), "weight_sd": float(found.weights.std(correction=0))}
        return Fitted(probabilities, softmax_scores(probabilities), found.model, details)
