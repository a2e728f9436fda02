"""Unlearning: a model that has forgotten nodes, with its distance to retraining in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from jurygcn.data import check_nodes
from jurygcn.edits.certificate import Certificate
from jurygcn.edits.edit import edit_of
from jurygcn.edits.what_if import EditHealth, WhatIf, what_if
from jurygcn.leave_one_out.retraining import Retraining

if TYPE_CHECKING:
    from jurygcn.jury import Jury


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
    how = certify if isinstance(certify, Retraining) else None
    certificate = result.certify(how, sample=sample) if certify else None
    return Forgotten(gone, result.state_dict(), result, result.health, certificate)
