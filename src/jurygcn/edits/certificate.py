"""An edit's estimate beside a model that is trained again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data import check_nodes
from jurygcn.diagnostics.fidelity import correlate
from jurygcn.edits.base import predictions
from jurygcn.leave_one_out.retraining import Retraining, trained_again
from jurygcn.models.copies import independent_copy

if TYPE_CHECKING:
    from jurygcn.edits.what_if import WhatIf
    from jurygcn.jury import Jury


@dataclass(frozen=True)
class Certificate:
    """The distance to a model that was trained again without the nodes.

    Attributes:
        parameters: length of the difference of the parameters, over that between the retrained and the old model.
        predictions: mean absolute difference of predictions on the sample, to the retrained model.
        untouched: the same for the old model on the edited graph: what doing nothing would leave.
        correlation: of the changes by the step with those by training again, over the sample and the classes; 0 where
            one of them is constant.
        same_class: share of the sample with the same predicted class as the retrained model; None for a regression.
        sample: the number of nodes in the sample.
    """

    parameters: float
    predictions: float
    untouched: float
    correlation: float
    same_class: float | None
    sample: int

    @property
    def words(self) -> str:
        """The certificate as a sentence."""
        return (
            f"Predictions differ from those of a retrained model by {self.predictions:.1e} on average over "
            f"{self.sample:,} nodes; those of the old model by {self.untouched:.1e}. The changes by the step and by "
            f"training again correlate with {self.correlation:.2f}."
            + ("" if self.helps else " The step is no nearer to retraining than the old model: do not use it.")
        )

    @property
    def helps(self) -> bool:
        """Whether predictions after the step are nearer to those of the retrained model than those of the old one."""
        return self.predictions < self.untouched or self.untouched == 0.0


def certificate_of(
    jury: Jury, result: WhatIf, retraining: Retraining, sample: Tensor | Sequence[int] | None
) -> Certificate:
    """Train again on the edited graph and compare, on a sample of the nodes that stay (all by default)."""
    engine, theta = jury.engine, retrained_after(jury, result.data, result.train_nodes, retraining)
    there = engine.elsewhere(result.data, result.train_nodes, engine.loss.targets(result.data.y[result.train_nodes]))
    stays = result.nodes[~result.after.isnan().any(dim=1)]
    asked = stays if sample is None else check_nodes(sample, jury.data, what="sample")
    found = predictions(there, torch.stack([theta, result.theta, engine.theta]), asked)
    again, estimated, old = found.unbind(dim=2)
    same = float((again.argmax(dim=1) == estimated.argmax(dim=1)).double().mean()) if result.classify else None
    moved = float((theta - engine.theta).norm())
    return Certificate(
        parameters=float((theta - result.theta).norm()) / moved if moved > 0 else 0.0,
        predictions=float((again - estimated).abs().mean()),
        untouched=float((again - old).abs().mean()),
        correlation=correlate((estimated - old).flatten(), (again - old).flatten()),
        same_class=same,
        sample=len(asked),
    )


def retrained_after(jury: Jury, data: Data, train_nodes: Tensor, retraining: Retraining) -> Tensor:
    """The parameters of the model trained again on an edited graph, with 1/n of the original objective, (P,)."""
    engine = jury.engine
    source = independent_copy(engine.model).to(engine.source_dtype)
    nodes = torch.cat([engine.train_nodes, train_nodes]).unique()
    weights = torch.isin(nodes, train_nodes).float() * (len(nodes) / engine.num_train)
    return trained_again(engine, source, retraining, data, nodes, weights).to(engine.dtype)
