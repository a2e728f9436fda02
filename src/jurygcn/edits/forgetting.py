"""Unlearning: a model that has forgotten nodes, with its distance to retraining in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurygcn.data import check_nodes
from jurygcn.edits.edit import edit_of
from jurygcn.edits.what_if import EditHealth, WhatIf, predictions, what_if
from jurygcn.leave_one_out.retraining import Retraining, trained_again
from jurygcn.models.copies import independent_copy

if TYPE_CHECKING:
    from jurygcn.jury import Jury


@dataclass(frozen=True)
class Certificate:
    """The distance to a model that was trained again without the nodes.

    Attributes:
        parameters: length of the difference of the parameters, over that between the retrained and the old model.
        predictions: mean absolute difference of predictions on the sample, to the retrained model.
        untouched: the same for the old model on the edited graph: what doing nothing would leave.
        same_class: share of the sample with the same predicted class as the retrained model; None for a regression.
        sample: the number of nodes in the sample.
    """

    parameters: float
    predictions: float
    untouched: float
    same_class: float | None
    sample: int

    @property
    def words(self) -> str:
        """The certificate as a sentence."""
        return (
            f"Predictions differ from those of a retrained model by {self.predictions:.1e} on average over "
            f"{self.sample:,} nodes; those of the old model by {self.untouched:.1e}."
        )


@dataclass(frozen=True, eq=False)
class Forgotten:
    """A model that has unlearned nodes.

    Attributes:
        nodes: the forgotten nodes.
        state_dict: the state of the model, for ``model.load_state_dict``.
        result: the edit behind it, with the edited graph and its predictions.
        health: how far the step can be trusted, without retraining.
        certificate: the distance to a retrained model; None unless it was asked for.
    """

    nodes: Tensor
    state_dict: dict[str, Tensor] = field(repr=False)
    result: WhatIf = field(repr=False)
    health: EditHealth
    certificate: Certificate | None


def forget(
    jury: Jury,
    nodes: Tensor | Sequence[int],
    *,
    steps: int = 1,
    certify: Retraining | bool = False,
    sample: Tensor | Sequence[int] | None = None,
) -> Forgotten:
    """Unlearn nodes: their features, edges and labels.

    Args:
        jury: a jury of the model.
        nodes: the nodes to unlearn.
        steps: the number of Newton steps.
        certify: retrain a model without the nodes, as the jury's ``retraining`` or this one says, and compare.
        sample: the nodes to compare predictions at; all that stay by default.
    """
    gone = check_nodes(nodes, jury.data, what="nodes")
    result = what_if(jury, None, edit_of(jury.engine, remove_nodes=gone), steps=steps)
    certificate = None
    if certify:
        how = certify if isinstance(certify, Retraining) else jury.retraining
        certificate = certificate_of(jury, result, how, sample)
    return Forgotten(gone, result.state_dict(), result, result.health, certificate)


def certificate_of(
    jury: Jury, result: WhatIf, retraining: Retraining, sample: Tensor | Sequence[int] | None
) -> Certificate:
    """Train again on the edited graph and compare, on a sample of the nodes that stay (all by default)."""
    engine, theta = jury.engine, retrained_after(jury, result, retraining)
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
        same_class=same,
        sample=len(asked),
    )


def retrained_after(jury: Jury, result: WhatIf, retraining: Retraining) -> Tensor:
    """The parameters of the model trained again on the edited graph, with 1/n of the original objective, (P,)."""
    engine = jury.engine
    source = independent_copy(engine.model).to(engine.source_dtype)
    nodes = torch.cat([engine.train_nodes, result.train_nodes]).unique()
    weights = torch.isin(nodes, result.train_nodes).float() * (len(nodes) / engine.num_train)
    return trained_again(engine, source, retraining, result.data, nodes, weights).to(engine.dtype)
