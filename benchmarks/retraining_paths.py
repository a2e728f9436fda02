"""Whether retraining after an edit can be estimated by any linear method: a part of `what_if.py`.

The objective of an edit moves from the old to the new one: R_s = (1 - s) R + s R'. A model is trained from scratch on
R_1 and on R_0.1. If retraining were a smooth function of the objective, ten times the change at a tenth of the edit
would be the change of the whole edit. The same is done with a GCN without its ReLU, whose objective has no kinks, and
with a GAT. Training also starts once more from initial parameters that differ by one part in a million.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from explaining import DECAY
from jurygcn import GCN, Jury, LeaveOut, load_dataset
from jurygcn.edits.base import base_of, predictions
from jurygcn.edits.edit import Edit
from jurygcn.edits.influences import steps_of
from jurygcn.models.training import descend, outputs_at, reset

TENTH, TINY = 0.1, 1e-6


class GAT(nn.Module):
    """Two layers of attention, two heads."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = GATConv(features, 8, heads=2), GATConv(16, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes."""
        return self.last(torch.nn.functional.elu(self.first(x, edge_index)), edge_index)


def fit(
    model: nn.Module, parts: list[tuple[Data, Tensor, float]], n: int, *, epochs: int, jitter: float = 0.0
) -> Tensor:
    """Train a model from seed 0 on the weighted sum of the losses on several graphs; its parameters, (P,)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reset(model)
    model.double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p *= 1 + jitter * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    terms = [(outputs_at(model, data, nodes), data.y[nodes], share / n) for data, nodes, share in parts]

    def objective(_: int) -> Tensor:
        losses = [share * torch.nn.functional.cross_entropy(z(), y, reduction="sum") for z, y, share in terms]
        return torch.stack(losses).sum()

    descend(model, objective, epochs=epochs, lr=0.01, weight_decay=DECAY, warm_start=True)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def paths(cell: dict[str, Any], edits_of: Any) -> dict[str, Any]:
    """Correlations over edits, validation nodes and classes of the change of the predicted probabilities."""
    data = load_dataset(cell["graph"]).clone()
    data.x = data.x.double()
    nodes, asked = data.train_mask.nonzero()[:, 0], data.val_mask.nonzero()[:, 0]
    n = len(nodes)

    def untrained() -> nn.Module:
        F, C = data.x.shape[1], int(data.num_classes)
        return GAT(F, C) if cell["model"] == "GAT" else GCN(F, 16, C, activation=cell["activation"])

    def trained(edit: Edit | None = None, share: float = 1.0, **more: Any) -> tuple[Tensor, nn.Module]:
        model = untrained()
        parts = [(data, nodes, 1.0 if edit is None else 1.0 - share)]
        if edit is not None:
            parts.append((edit.applied(data), edit.labelled(nodes), share))
        return fit(model, [p for p in parts if p[2] > 0], n, epochs=cell["epochs"], **more), model

    start, model = trained()
    jury = Jury(model, data, nodes, weight_decay=DECAY, leave_out=LeaveOut(decay="stated"))
    base = base_of(jury)
    edits = edits_of(jury, cell["kind"], cell["edits"])

    def moved(thetas: list[Tensor], since: Tensor) -> Tensor:
        found = predictions(base.engine, torch.stack([since, *thetas]), asked)
        return (found[:, :, 1:] - found[:, :, :1]).flatten()

    full = moved([trained(edit)[0] for edit in edits], start)
    tenth = moved([trained(edit, TENTH)[0] for edit in edits], start) / TENTH
    again = moved([trained(edit, jitter=TINY)[0] for edit in edits], trained(jitter=TINY)[0])
    newton = moved([start + step for step in steps_of(base, edits)], start)

    def correlation(a: Tensor, b: Tensor) -> float:
        return float(np.corrcoef(a.numpy(), b.numpy())[0, 1])

    return {
        "gradient": base.gradient,
        "newton": correlation(newton, full),
        "tenth": correlation(tenth, full),
        "again": correlation(again, full),
        "size": float(full.abs().mean()),
        "newton_size": float(newton.abs().mean()),
        "tenth_size": float(tenth.abs().mean()),
    }
