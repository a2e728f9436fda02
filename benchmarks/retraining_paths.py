"""Whether retraining after an edit can be estimated by any linear method: a part of `what_if.py`.

The objective of an edit moves from the old to the new one: R_s = (1 - s) R + s R'. A model is trained from scratch on
R_1 and on R_0.1. If retraining were a smooth function of the objective, ten times the change at a tenth of the edit
would be the change of the whole edit. The same is done with a GCN without its ReLU, whose objective has no kinks.
Training also starts once more from initial parameters that differ by one part in a million.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from explaining import DECAY
from jurygcn import GCN, Jury, LeaveOut, load_dataset
from jurygcn.edits.base import base_of
from jurygcn.edits.edit import Edit
from jurygcn.edits.steps import Objectives
from jurygcn.edits.what_if import predictions
from jurygcn.models.training import descend, outputs_at, reset

TENTH, TINY = 0.1, 1e-6


def fit(model: GCN, parts: list[tuple[Data, Tensor, float]], n: int, *, epochs: int, jitter: float = 0.0) -> Tensor:
    """Train a GCN from seed 0 on the weighted sum of the losses on several graphs; its parameters, (P,)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        reset(model)
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

    def trained(edit: Edit | None = None, share: float = 1.0, jitter: float = 0.0) -> tuple[Tensor, GCN]:
        model = GCN(data.x.shape[1], 16, int(data.num_classes), activation=cell["activation"]).double()
        parts = [(data, nodes, 1.0 if edit is None else 1.0 - share)]
        if edit is not None:
            parts.append((edit.applied(data), edit.labelled(nodes), share))
        return fit(model, [p for p in parts if p[2] > 0], n, epochs=cell["epochs"], jitter=jitter), model

    start, model = trained()
    jury = Jury(model, data, nodes, weight_decay=DECAY, leave_out=LeaveOut(decay="stated"))
    base = base_of(jury)
    gradient = base.engine.gradient()
    edits = edits_of(jury, cell["kind"], cell["edits"])

    def moved(thetas: list[Tensor], since: Tensor) -> Tensor:
        found = predictions(base.engine, torch.stack([since, *thetas]), asked)
        return (found[:, :, 1:] - found[:, :, :1]).flatten()

    full = moved([trained(edit)[0] for edit in edits], start)
    tenth = moved([trained(edit, TENTH)[0] for edit in edits], start) / TENTH
    again = moved([trained(edit, jitter=TINY)[0] for edit in edits], trained(jitter=TINY)[0])
    steps = [Objectives(base, [edit]).steps()[0] for edit in edits]
    newton = moved([start + step for step in steps], start)

    def correlation(a: Tensor, b: Tensor) -> float:
        return float(np.corrcoef(a.numpy(), b.numpy())[0, 1])

    return {
        "gradient": float((gradient + base.engine.decay * start).norm() / gradient.norm()),
        "newton": correlation(newton, full),
        "tenth": correlation(tenth, full),
        "again": correlation(again, full),
    }
