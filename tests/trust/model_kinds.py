"""The kinds of model that random juries are made of: layers, norms, and every odd way to hold a parameter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, prune
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from jurygcn.models import GCN

H = 4  # hidden width

Call = Callable[[nn.Module, Data], Tensor]


class Layers(nn.Module):
    """Convolutions one after the other; the activation, and a norm if there is one, between them."""

    def __init__(self, *layers: nn.Module, act: Callable[[Tensor], Tensor] = torch.tanh, norm: nn.Module | None = None):
        super().__init__()
        self.layers, self.act, self.norm = nn.ModuleList(layers), act, norm or nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.act(self.norm(layer(x, edge_index)))
        return self.layers[-1](x, edge_index)


class Weighted(Layers):
    """The same with edge weights."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        for layer in self.layers[:-1]:
            x = self.act(self.norm(layer(x, edge_index, edge_weight)))
        return self.layers[-1](x, edge_index, edge_weight)


class NoEdges(nn.Module):
    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(F, H), nn.GELU(), nn.Linear(H, C))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.net(x)


class Propagated(nn.Module):
    """Predict, then propagate."""

    def __init__(self, F: int, C: int, last: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(F, H), nn.Linear(H, C), last

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return self.last(self.second(torch.tanh(self.first(x))), edge_index, edge_weight)


class Jumping(nn.Module):
    def __init__(self, F: int, C: int, mode: str) -> None:
        super().__init__()
        self.first, self.second = gnn.GCNConv(F, H), gnn.GCNConv(H, H)
        self.jump = gnn.JumpingKnowledge(mode, channels=H, num_layers=2)
        self.last = nn.Linear(2 * H if mode == "cat" else H, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        a = torch.tanh(self.first(x, edge_index))
        return self.last(self.jump([a, torch.tanh(self.second(a, edge_index))]))


class Residual(nn.Module):
    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.enter, self.conv, self.leave = nn.Linear(F, H), gnn.GCNConv(H, H), nn.Linear(H, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        a = self.enter(x)
        return self.leave(a + functional.elu(self.conv(a, edge_index)))


class Tempered(nn.Module):
    """A learned temperature: a parameter without dimensions."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.conv, self.temperature = gnn.GCNConv(F, C), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index) * self.temperature


class SparseProduct(nn.Module):
    """Averages over neighbours by torch.sparse.mm, which vmap does not know."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(F, H), nn.Linear(H, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        ones = torch.ones(edge_index.shape[1], dtype=x.dtype)
        A = torch.sparse_coo_tensor(edge_index.flip(0), ones, (len(x), len(x)), check_invariants=False)
        a = torch.tanh(self.first(x))
        return self.second(a + 0.3 * torch.sparse.mm(A, a))


class Branching(nn.Module):
    """Decides by a number that depends on its parameters, which no function transform can follow."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(F, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index)
        return z / 2 if float(z.detach().abs().max()) > 1e6 else z


class Gated(nn.Module):
    """A branch that looks at the whole graph, behind a gate that training has left at ``gate``."""

    def __init__(self, F: int, C: int, gate: float) -> None:
        super().__init__()
        self.conv, self.whole, self.gate = gnn.GCNConv(F, C), nn.Linear(F, C), nn.Parameter(torch.tensor([gate]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index) + self.gate * self.whole(x.mean(dim=0))


class Scaled(nn.Module):
    """Parameters of one dimension and of one number at the end."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.conv, self.scale, self.bias = gnn.GCNConv(F, C), nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv(x, edge_index) * self.scale + self.bias


class TakesData(nn.Module):
    """Called with the graph itself."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.conv = gnn.SAGEConv(F, C)

    def forward(self, graph: Data) -> Tensor:
        return self.conv(graph.x, graph.edge_index)


def mlp(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, H), nn.Tanh(), nn.Linear(H, b))


def tied(F: int, C: int) -> nn.Module:
    model = Layers(gnn.GCNConv(F, H), gnn.GCNConv(H, H), gnn.GCNConv(H, H), gnn.GCNConv(H, C))
    model.layers[2].lin.weight = model.layers[1].lin.weight
    return model


def tied_gcn(F: int, C: int) -> nn.Module:
    model = GCN(F, H, C, num_layers=4)
    model.weights[2] = model.weights[1]
    return model


def frozen(model: nn.Module, part: str) -> nn.Module:
    for name, p in model.named_parameters():
        p.requires_grad_(part not in name)
    return model


def unused(F: int, C: int) -> nn.Module:
    model = Layers(gnn.GCNConv(F, H), gnn.GCNConv(H, C))
    model.spare, model.empty = nn.Linear(3, 2), nn.Parameter(torch.empty(0))
    return model


def normed(norm: nn.Module) -> Callable[[int, int], nn.Module]:
    def build(F: int, C: int) -> nn.Module:
        for buffer in norm.buffers():  # statistics as training leaves them
            if buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape) + 0.5)
        return Layers(gnn.GCNConv(F, H), gnn.GCNConv(H, C), norm=norm)

    return build


def weight_normed(F: int, C: int) -> nn.Module:
    model = Layers(gnn.GCNConv(F, H), gnn.GCNConv(H, C))
    parametrizations.weight_norm(model.layers[0].lin)
    return model


def pruned(F: int, C: int) -> nn.Module:
    model = Layers(gnn.GCNConv(F, H), gnn.GCNConv(H, C))
    prune.random_unstructured(model.layers[0].lin, "weight", amount=0.4)
    return model


def linear_gcn(F: int, C: int) -> nn.Module:
    return GCN(F, H, C, activation="linear")


@dataclass(frozen=True)
class Kind:
    """How to make a model, and how to call it if not as model(x, edge_index)."""

    build: Callable[[int, int], nn.Module]
    forward: Call | None = None
    cached: bool = False  # called once on another graph before it is judged: what it remembers must not count


def two(conv: Callable[..., nn.Module], **settings: object) -> Kind:
    act = settings.pop("act", torch.tanh)
    return Kind(lambda F, C: Layers(conv(F, H, **settings), conv(H, C, **settings), act=act))


KINDS: dict[str, Kind] = {
    "gcn_1": Kind(lambda F, C: GCN(F, H, C, num_layers=1)),
    "gcn_2": Kind(lambda F, C: GCN(F, H, C)),
    "gcn_3": Kind(lambda F, C: GCN(F, H, C, num_layers=3)),
    "gcn_linear": Kind(linear_gcn),
    "gcn_frozen": Kind(lambda F, C: frozen(GCN(F, H, C), "weights.0")),
    "gcn_tied": Kind(tied_gcn),
    "gcn_called": Kind(lambda F, C: GCN(F, H, C), lambda m, d: m(d.x, d.edge_index, d.edge_weight) / 2),
    "gcnconv": two(gnn.GCNConv),
    "gcnconv_no_bias": two(gnn.GCNConv, bias=False, act=torch.relu),
    "gcnconv_weighted": Kind(lambda F, C: Weighted(gnn.GCNConv(F, H), gnn.GCNConv(H, C), act=functional.gelu)),
    "gcnconv_improved": two(gnn.GCNConv, improved=True, act=functional.elu),
    "gat": Kind(lambda F, C: Layers(gnn.GATConv(F, 2, heads=2), gnn.GATConv(4, C))),
    "gatv2": Kind(lambda F, C: Layers(gnn.GATv2Conv(F, 2, heads=2), gnn.GATv2Conv(4, C))),
    "sage": two(gnn.SAGEConv),
    "sage_max": two(gnn.SAGEConv, aggr="max"),
    "gin": Kind(lambda F, C: Layers(gnn.GINConv(mlp(F, H), train_eps=True), gnn.GINConv(mlp(H, C)))),
    "sgc": Kind(lambda F, C: gnn.SGConv(F, C, K=2)),
    "appnp": Kind(lambda F, C: Propagated(F, C, gnn.APPNP(K=3, alpha=0.2))),
    "tag": two(gnn.TAGConv, K=2),
    "cheb": two(gnn.ChebConv, K=2),
    "graphconv": two(gnn.GraphConv),
    "transformer": two(gnn.TransformerConv),
    "arma": two(gnn.ARMAConv, num_stacks=2),
    "leconv": two(gnn.LEConv),
    "cluster_gcn": two(gnn.ClusterGCNConv),
    "no_edges": Kind(NoEdges),
    "jumping_cat": Kind(lambda F, C: Jumping(F, C, "cat")),
    "jumping_max": Kind(lambda F, C: Jumping(F, C, "max")),
    "residual": Kind(Residual),
    "layer_norm": Kind(lambda F, C: normed(nn.LayerNorm(H))(F, C)),
    "batch_norm": Kind(lambda F, C: normed(nn.BatchNorm1d(H))(F, C)),
    "graph_norm": Kind(lambda F, C: normed(gnn.GraphNorm(H))(F, C)),
    "pair_norm": Kind(lambda F, C: normed(gnn.PairNorm())(F, C)),
    "tied": Kind(tied),
    "frozen": Kind(lambda F, C: frozen(Layers(gnn.GCNConv(F, H), gnn.GCNConv(H, C)), "layers.1.lin")),
    "unused": Kind(unused),
    "temperature": Kind(Tempered),
    "gcnconv_cached": Kind(
        lambda F, C: Layers(gnn.GCNConv(F, H, cached=True), gnn.GCNConv(H, C, cached=True)), cached=True
    ),
    "sgc_cached": Kind(lambda F, C: gnn.SGConv(F, C, K=2, cached=True), cached=True),
    "appnp_cached": Kind(lambda F, C: Propagated(F, C, gnn.APPNP(K=2, alpha=0.1, cached=True)), cached=True),
    "weight_norm": Kind(weight_normed),
    "pruned": Kind(pruned),
    "sparse_mm": Kind(SparseProduct),
    "branching": Kind(Branching),
    "gate": Kind(lambda F, C: Gated(F, C, 0.5)),
    "zero_gate": Kind(lambda F, C: Gated(F, C, 0.0)),
    "scaled": Kind(Scaled),
    "takes_data": Kind(TakesData, lambda m, d: m(d)),
}
