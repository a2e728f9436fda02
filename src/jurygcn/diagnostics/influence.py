"""The influence of each label on a prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from jurygcn.conformal.predictions import LeaveOneOutPredictions
from jurygcn.data import check_nodes

if TYPE_CHECKING:
    from jurygcn.jury import Jury


class Influence(NamedTuple):
    """The labels with most influence on each node, largest influence first.

    Shapes: m nodes, k labels each; positions (m, k) among the training nodes, support (m, k), without (m, k).

    Attributes:
        positions: positions of the training nodes.
        support: how much the model's output for the node drops when that training node is left out. The output is the
            probability of the predicted class, or the prediction of a regression. A positive value supports it.
        without: the juror's prediction: a class, or a number.
    """

    positions: Tensor
    support: Tensor
    without: Tensor


@torch.no_grad()
def influence_of_labels(jury: Jury, nodes: Tensor, *, count: int | None = None) -> Influence:
    r"""The ``count`` labels (all by default) whose absence changes each prediction most.

    .. math:: \text{support}_i(u) = f(u)_c - f_{-i}(u)_c

    with c the predicted class, or the first output of a regression.
    """
    votes = LeaveOneOutPredictions(jury.engine, jury.jurors.steps, nodes, memory=jury.run.ballots)
    whole = votes.of_parameters(jury.engine.theta[None])[:, :, 0]  # (m, C)
    classify = jury.engine.loss.name == "cross_entropy"
    output = whole.argmax(dim=1) if classify else torch.zeros_like(nodes)
    rows = torch.arange(len(nodes))
    support = torch.empty(len(nodes), 0, dtype=whole.dtype)
    positions, without = torch.empty(len(nodes), 0, dtype=torch.long), torch.empty(len(nodes), 0, dtype=whole.dtype)
    for jurors, batch in votes:
        instead = batch.argmax(dim=1).to(whole.dtype) if classify else batch[:, 0]
        support = torch.cat([support, whole[rows, output][:, None] - batch[rows, output]], dim=1)
        without = torch.cat([without, instead], dim=1)
        positions = torch.cat([positions, jurors.expand(len(nodes), -1)], dim=1)
        kept = support.abs().argsort(dim=1, descending=True, stable=True)[:, :count]
        support, without, positions = (part.gather(1, kept) for part in (support, without, positions))
    return Influence(jury.positions[positions], support, without)


def influence_of_all_labels(jury: Jury, node: int) -> pd.DataFrame:
    """All labels by their influence on the prediction of ``node``; see :class:`Influence` for the columns."""
    found = influence_of_labels(jury, check_nodes([node], jury.data, what="node"))
    positions = found.positions[0]
    targets = jury.engine.targets[positions]
    classify = jury.engine.loss.name == "cross_entropy"
    return pd.DataFrame(
        {
            "train_node": jury.train_nodes[positions].tolist(),
            "label": (targets if classify else targets[:, 0]).tolist(),
            "support": found.support[0].tolist(),
            "prediction_without": (found.without[0].long() if classify else found.without[0]).tolist(),
        }
    )
