r"""GATS (Hsu et al., 2022): a temperature for every node, by attention among the logits of its neighbourhood.

.. math::
    T_v = b + \frac1H \sum_h softplus\Big(\sum_{u \in N(v) \cup v} a_{vu}\, \gamma_u \tau_h^T \tilde z_u
    + c \cdot \frac{1}{d_v} \sum_u (\hat p_v - \hat p_u)\Big), \quad
    a_{vu} = softmax_u LeakyReLU(z_v^T z_u / (\gamma_v \gamma_u))

:math:`\tilde z` are the sorted logits, scaled to 0 to 1, and :math:`\hat p` is the largest probability.
:math:`\gamma` is learnt for training nodes and for their neighbours, and 1 elsewhere.

As in the released code the temperatures are fitted to validation labels and stop on training labels. Logits that are
all equal, which give 0 / 0 there, are scaled to 0 here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn.inits import glorot
from torch_geometric.utils import add_self_loops, remove_self_loops, softmax

from jurygcn.ambient import plain_torch
from jurygcn.baselines.classifier import Fitted, check_labels, check_validation, logits_of, softmax_scores
from jurygcn.baselines.networks import GCNClassifier
from jurygcn.models.training import Stopping, descend


class Temperatures(nn.Module):
    """The temperature of every node. Shapes: logits (N, C) -> (N, 1)."""

    def __init__(self, data: Data, train_nodes: Tensor, classes: int, *, heads: int, start: float) -> None:
        super().__init__()
        N = int(data.num_nodes)
        edges, _ = remove_self_loops(data.edge_index)
        distance = torch.full((N,), 2)
        distance[edges[1, torch.isin(edges[0], train_nodes)]] = 1
        distance[train_nodes] = 0
        self.distance = distance
        self.sender, self.receiver = add_self_loops(edges, num_nodes=N)[0]
        self.degree = torch.bincount(self.receiver, minlength=N)
        self.start = start
        self.tau = nn.Parameter(torch.empty(classes, heads))
        self.near = nn.Parameter(torch.empty(2))
        self.smoothing, self.bias = nn.Parameter(torch.empty(())), nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start from softplus of random temperatures plus the bias."""
        glorot(self.tau)
        nn.init.ones_(self.near)
        nn.init.zeros_(self.smoothing)
        nn.init.constant_(self.bias, self.start)

    def forward(self, logits: Tensor) -> Tensor:
        """The temperatures."""
        low, high = logits.amin(dim=1, keepdim=True), logits.amax(dim=1, keepdim=True)
        scaled = ((logits - low) / (high - low).clamp_min(1e-12)).sort(dim=1).values
        gamma = torch.cat([self.near, self.near.new_ones(1)])[self.distance][:, None]
        of_node, direction = (scaled @ self.tau) * gamma, logits / gamma
        agreement = functional.leaky_relu((direction[self.sender] * direction[self.receiver]).sum(dim=1), 0.2)
        attention = softmax(agreement, self.receiver, num_nodes=len(logits))
        summed = torch.zeros_like(of_node).index_add(0, self.receiver, attention[:, None] * of_node[self.sender])
        confidence = torch.softmax(logits, dim=1).amax(dim=1)
        gap = confidence[self.receiver] - confidence[self.sender]
        gap = torch.zeros_like(confidence).index_add(0, self.receiver, gap) / self.degree
        per_head = functional.softplus(summed + self.smoothing * gap[:, None])
        return per_head.mean(dim=1, keepdim=True) + self.bias


@dataclass(frozen=True)
class GATS:
    """The GCN with calibrated probabilities, by its authors' settings for Cora and Citeseer. It uses validation nodes.

    Their weight decay is 0 for PubMed and Photo.
    """

    network: GCNClassifier = field(default_factory=GCNClassifier)
    heads: int = 8
    bias: float = 1.0
    lr: float = 0.01
    weight_decay: float = 5e-3
    patience: int = 100
    epochs: int = 2000

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Train the GCN, then the temperatures."""
        nodes = check_labels(data, train_nodes)
        known = check_validation(data, val_nodes, nodes, why="the temperatures are fitted on them")
        model, _ = self.network.train(data, nodes, seed=seed)
        logits = logits_of(model, data)
        temperatures = Temperatures(data, nodes, logits.shape[1], heads=self.heads, start=self.bias).to(logits)

        def loss_at(where: Tensor) -> Tensor:
            return functional.cross_entropy((logits / temperatures(logits))[where], data.y[where])

        training = descend(
            temperatures,
            lambda _: loss_at(known),
            epochs=self.epochs,
            lr=self.lr,
            weight_decay=self.weight_decay,
            stopping=Stopping(lambda: (float(loss_at(nodes)),), self.patience),
            seed=seed,
        )
        with torch.no_grad():
            probabilities = torch.softmax(logits / temperatures(logits), dim=1)
        return Fitted(probabilities, softmax_scores(probabilities), model, {"epochs": training.epochs})
