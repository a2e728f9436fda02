"""Forward passes with dropout."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.baselines.classifier import all_nodes
from jurygcn.models.training import outputs_at


@torch.no_grad()
def dropout_samples(model: nn.Module, data: Data, *, samples: int, seed: int) -> Tensor:
    """Logits of all nodes under ``samples`` draws of dropout, (T, N, C). ``seed`` determines the draws."""
    outputs = outputs_at(model, data, all_nodes(data))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.train()
        drawn = torch.stack([outputs() for _ in range(samples)])
    model.eval()
    return drawn
