"""The paper's uncertainty-aware training: uncertain training nodes have larger weights in the loss."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.baselines.classifier import Fitted, check_labels, classes_of, logits_of, softmax_scores
from jurygcn.checks import all_finite
from jurygcn.choices import Recipe
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
        weights: weights of the training nodes' losses in the last epochs, (n,).
        history: for every verdict the epoch, and the smallest, largest and mean weight computed from it.
    """

    model: GCN
    weights: Tensor = field(repr=False)
    history: list[dict[str, float]] = field(repr=False)


def loss_weights(uncertainty: Tensor, *, tau: float = 2.0, as_printed: bool = False) -> Tensor:
    r"""Weights of the training nodes' losses from their uncertainty U.

    .. math:: \beta_u^\tau, \quad \beta_u = \frac{|U(u)|}{\sqrt{\sum_{i \in V_{train}} |U(i)|^2}}

    The weights are then scaled to mean 1. ``as_printed`` leaves out the scaling. Without it the whole loss shrinks by
    about :math:`n^{-\tau/2}`, and the weight decay does not (erratum E7).

    Implements: Application 2.

    Shapes: (n,) -> (n,).
    """
    if not 0 <= tau < float("inf"):
        raise SettingError(f"expected tau to be a number of at least 0, got {tau}; change it")
    size = uncertainty.abs()
    if not all_finite(size):
        raise SettingError(
            "expected finite uncertainties of the training nodes, got infinity or NaN; use interpolated intervals"
        )
    if not bool((size > 0).any()):
        return torch.ones_like(size)  # no node is uncertain, so all weights are equal
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
    hidden: int = Recipe.hidden,
    dropout: float = Recipe.dropout,
    epochs: int = Recipe.epochs,
    lr: float = Recipe.lr,
    weight_decay: float = Recipe.weight_decay,
    alpha: float = 0.025,
) -> Reweighted:
    r"""Train a GCN whose loss at each training node is weighted by the jury's uncertainty about that node.

    Training minimises :math:`\frac1n \sum_u w_u\, r(u, y_u, \Theta)` with the weights of :func:`loss_weights`. Every
    ``refresh`` epochs a jury of the current model gives new weights. The first ``refresh`` epochs have equal weights.
    If a score is negative at some node (``credibility``, ``confidence``), all are shifted so that the smallest is 0.

    Implements: Application 2.

    Args:
        data: the graph.
        train_nodes: the labelled nodes.
        seed: of the initial weights and of dropout.
        tau: exponent of the uncertainty in the weights; 0 gives equal weights, which is ordinary training.
        refresh: epochs between verdicts.
        score: the name of a score of the verdict; "width" is the paper's.
        as_printed: use the weights as printed, without scaling to mean 1 (erratum E7).
        hidden, dropout, epochs, lr, weight_decay: of the GCN.
        alpha: the level of the interval behind the width.
    """
    nodes = check_labels(data, train_nodes)
    if score not in RANKINGS:
        raise SettingError(f"expected score to be one of {', '.join(RANKINGS)}, got {score!r}; choose one")
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
            advice = "auto" if score == "doubt" else None
            uncertainty = jury.verdict(nodes, alpha=alpha, advice=advice).uncertainty(score)
            uncertainty = uncertainty - uncertainty.min() if bool((uncertainty < 0).any()) else uncertainty
            weights = loss_weights(uncertainty, tau=tau, as_printed=as_printed).float()
            extremes = {"smallest_weight": float(weights.min()), "largest_weight": float(weights.max())}
            history.append({"epoch": float(epoch), **extremes, "mean_weight": float(weights.mean())})
        return (functional.cross_entropy(outputs(), labels, reduction="none") * weights).mean()

    descend(model, objective, epochs=epochs, lr=lr, weight_decay=weight_decay, seed=seed)
    return Reweighted(model, weights, history)


@dataclass(frozen=True)
class Reweighting:
    """The paper's JuryGCN as a method. It does not use validation nodes."""

    tau: float = 2.0
    refresh: int = 10
    score: str = "width"
    as_printed: bool = False
    hidden: int = Recipe.hidden
    dropout: float = Recipe.dropout
    epochs: int = Recipe.epochs
    lr: float = Recipe.lr
    weight_decay: float = Recipe.weight_decay

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:  # noqa: ARG002
        """Train with :func:`reweight`."""
        found = reweight(data, train_nodes, seed=seed, **asdict(self))
        probabilities = torch.softmax(logits_of(found.model, data), dim=1)
        details = {"largest_weight": float(found.weights.max()), "weight_sd": float(found.weights.std(correction=0))}
        return Fitted(probabilities, softmax_scores(probabilities), found.model, details)
