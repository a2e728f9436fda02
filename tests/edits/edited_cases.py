"""Small graphs, models and edits that tests share, and a naive reference: dense, by automatic differentiation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from cases import graph
from jurygcn.models import GCN

DECAY = 0.05


class GAT(nn.Module):
    """One layer of attention, then one more: weights that depend on the features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GATConv(4, 3, heads=2), GATConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x, edge_index)), edge_index)


def models(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = {
            "linear": lambda: GCN(4, 3, 3, num_layers=1),
            "gcn": lambda: GCN(4, 3, 3),
            "deep": lambda: GCN(4, 3, 3, num_layers=3),
            "gat": GAT,
        }[name]()
    return made.double()


def small(*, regression: bool = False) -> tuple[Data, Tensor]:
    """Twelve nodes in two blocks with edges within and between, and six training nodes."""
    return graph("two_block", regression=regression), torch.arange(0, 12, 2)


def leaf(data: Data) -> tuple[int, list[int]]:
    """A training node and its neighbours: removing those edges isolates it."""
    node = 4
    return node, data.edge_index[1, data.edge_index[0] == node].tolist()


def edits(data: Data) -> dict[str, dict[str, Any]]:
    a, b = next((a, b) for a, b in data.edge_index.T.tolist() if a % 2 == 0 and b % 2 == 1)  # one end is trained on
    there = {tuple(e) for e in data.edge_index.T.tolist()}
    new = next((u, v) for u in range(12) for v in range(u + 1, 12) if (u, v) not in there)
    node, near = leaf(data)
    label: Any = 2 if not data.y.is_floating_point() else torch.tensor([0.5, -1.0, 2.0])
    return {
        "remove_edge": {"remove_edges": [(a, b)]},
        "one_direction": {"remove_edges": [(a, b)], "undirected": False},
        "add_edge": {"add_edges": [new]},
        "remove_training_node": {"remove_nodes": [2]},
        "remove_other_node": {"remove_nodes": [3]},
        "features": {"change_features": {1: torch.zeros(4), 4: torch.ones(4)}},
        "label": {"change_labels": {0: label}},
        "new_label": {"change_labels": {5: label}},
        "label_away": {"change_labels": {0: None}},
        "isolate": {"remove_edges": [(node, other) for other in near]},
        "together": {"remove_edges": [(a, b)], "add_edges": [new], "remove_nodes": [7], "change_labels": {2: label}},
    }


EDITS = tuple(edits(small()[0]))


def edited_by_hand(data: Data, train_nodes: Tensor, edit: dict[str, Any]) -> tuple[Data, list[int]]:
    """The edited graph and its training nodes, with plain loops over edges."""
    both = edit.get("undirected", True)
    pairs = [tuple(e) for e in data.edge_index.T.tolist()]
    cut = {tuple(e) for e in edit.get("remove_edges", [])}
    cut |= {(b, a) for a, b in cut} if both else set()
    gone = set(edit.get("remove_nodes", []))
    pairs = [e for e in pairs if e not in cut and not gone & set(e)]
    for a, b in edit.get("add_edges", []):
        pairs += [(a, b), (b, a)]
    x, y = data.x.clone(), data.y.clone()
    nodes = [n for n in train_nodes.tolist() if n not in gone]
    for n, row in edit.get("change_features", {}).items():
        x[n] = row
    for n, value in edit.get("change_labels", {}).items():
        if value is None:
            nodes.remove(n)
            continue
        y[n] = value
        if n not in nodes:
            nodes.append(n)
    return Data(x=x, edge_index=torch.tensor(pairs).T, y=y, num_nodes=data.num_nodes), nodes


class Naive:
    """The objective of a model on a graph, with everything by automatic differentiation over the whole graph."""

    def __init__(self, model: nn.Module, data: Data, nodes: list[int], *, loss: str, count: int) -> None:
        self.model, self.data, self.nodes, self.loss, self.count = model, data, nodes, loss, count
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        self.theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def outputs(self, theta: Tensor) -> Tensor:
        parts = theta.split([shape.numel() for shape in self.shapes.values()])
        named = {name: part.view(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}
        return functional_call(self.model, named, (self.data.x, self.data.edge_index))

    def losses(self, z: Tensor) -> Tensor:
        y = self.data.y[self.nodes]
        if self.loss == "mse":
            return ((z - y) ** 2).mean(dim=1)
        return nn.functional.cross_entropy(z, y, reduction="none")

    def risk(self, theta: Tensor) -> Tensor:
        return self.losses(self.outputs(theta)[self.nodes]).sum() / self.count + DECAY / 2 * (theta**2).sum()

    def gradient(self, theta: Tensor) -> Tensor:
        return jacrev(self.risk)(theta)

    def gauss_newton(self, theta: Tensor) -> Tensor:
        J = jacrev(lambda t: self.outputs(t)[self.nodes])(theta)  # (n, C, P)
        z = self.outputs(theta)[self.nodes].detach()
        total = DECAY * torch.eye(len(theta), dtype=theta.dtype)
        for i in range(len(self.nodes)):
            own = Naive(self.model, self.data, self.nodes[i : i + 1], loss=self.loss, count=1)
            S = hessian(lambda row, own=own: own.losses(row[None])[0])(z[i])
            total += J[i].T @ S @ J[i] / self.count
        return total

    def minimum(self, theta: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
        """The root of a gradient, by exact Newton steps; for convex objectives."""
        for _ in range(50):
            theta = theta - torch.linalg.solve(hessian(self.risk)(theta), gradient(theta))
        return theta


def predicted(z: Tensor, loss: str) -> Tensor:
    return z if loss == "mse" else z.softmax(dim=1)
