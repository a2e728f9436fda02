"""Small graphs, models and references of the tests of full conformal prediction."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv

from jurygcn import GCN, Jury, train
from jurygcn.data import synthetic
from jurygcn.graph.similarity import Similarities
from jurygcn.settings import LeaveOut

NODES, CLASSES = torch.arange(0, 60, 3), 3
ASKED = torch.tensor([1, 2, 40, 88])


def graph(seed: int = 1, *, regression: bool = False) -> Data:
    data = synthetic(num_nodes=90, num_edges=240, num_features=8, num_classes=CLASSES, seed=seed)
    data.x = data.x.double()
    if regression:
        data.y, data.num_classes = data.x.sum(dim=1) + data.y, 0
    return data


class Biased(nn.Module):
    """Two layers of PyG with biases, which usually have no weight decay."""

    def __init__(self, layer: type[nn.Module] = GCNConv, outputs: int = CLASSES) -> None:
        super().__init__()
        self.one, self.two = layer(8, 5), layer(5, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x, edge_index)), edge_index)


def models() -> dict[str, tuple[nn.Module, object]]:
    torch.manual_seed(0)
    biased, sage = Biased().double(), Biased(SAGEConv).double()
    kipf = {n: 1e-2 for n, _ in biased.named_parameters() if n.startswith("one") and "bias" not in n}
    return {
        "gcn": (GCN(8, 6, CLASSES).double(), 1e-2),
        "three layers": (GCN(8, 6, CLASSES, num_layers=3).double(), 1e-2),
        "biases": (biased, kipf),
        "sage": (sage, 1e-2),
    }


def jury_of(name: str, data: Data) -> Jury:
    model, decay = models()[name]
    train(model, data, NODES, epochs=60, weight_decay=decay if isinstance(decay, float) else 1e-2)
    return Jury(model, data, NODES, weight_decay=decay, leave_out=LeaveOut(decay="stated")).fit()


def dense_jacobian(jury: Jury, nodes: Tensor) -> Tensor:
    """Rows of derivatives by plain backward passes, (m, C, P)."""
    engine = jury.engine
    theta = engine.theta.clone().requires_grad_(True)
    with torch.enable_grad():
        z = engine.outputs(theta)[nodes]
        rows = [torch.autograd.grad(entry, theta, retain_graph=True)[0] for entry in z.flatten()]
    return torch.stack(rows).view(*z.shape, -1)


def softmax_curvature(z: Tensor) -> Tensor:
    p = z.softmax(dim=-1)
    return torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)


def full_rows(data: Data) -> list[Tensor]:
    """Every view's rows of all nodes, with the constant feature, (N, D)."""
    similarities = Similarities.of(data)
    located = similarities.at(torch.arange(int(data.num_nodes)))
    return [
        torch.cat([located.rows[view].T, torch.ones(int(data.num_nodes), 1, dtype=torch.float64)], dim=1)
        for view in similarities.views
    ]


def refit(rows: Tensor, targets: Tensor, ridge: float) -> Tensor:
    gram = rows @ rows.T + ridge * torch.eye(len(rows), dtype=torch.float64)
    return rows.T @ torch.linalg.solve(gram, targets)
