"""Which labels drive a prediction: the paper's influence, turned into an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
import torch

from jurygcn.data import check_nodes
from jurygcn.jackknife.ballots import Ballots

if TYPE_CHECKING:
    from jurygcn.jackknife.jury import Jury


def influence_on(jury: Jury, node: int) -> pd.DataFrame:
    """The training nodes by how much leaving each out changes the prediction of ``node``, most first.

    ``support`` is signed: how much the model's output for ``node`` (the probability of its predicted class; the
    prediction itself for regression) drops when that training node is left out. Positive: it speaks for the
    prediction; negative: against. ``prediction_without`` is what the juror predicts.
    """
    asked = check_nodes([node], jury.data, what="node")
    ballots = Ballots(jury.objective, jury.jurors.steps, asked, memory=jury.memory)
    whole = ballots.predictions(jury.objective.theta[None])[0, :, 0]
    votes = torch.cat([batch[0].T for _, batch in ballots])  # (n, C)
    targets = jury.objective.targets[jury.seats]
    classify = jury.objective.loss.name == "cross_entropy"
    output = int(whole.argmax()) if classify else 0
    frame = pd.DataFrame(
        {
            "train_node": jury.train_nodes[jury.seats].tolist(),
            "label": (targets if classify else targets[:, 0]).tolist(),
            "support": (whole[output] - votes[:, output]).tolist(),
            "prediction_without": (votes.argmax(dim=1) if classify else votes[:, 0]).tolist(),
        }
    )
    order = frame["support"].abs().sort_values(ascending=False, kind="stable").index
    return frame.loc[order].reset_index(drop=True)
