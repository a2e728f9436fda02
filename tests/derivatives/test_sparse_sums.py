"""Engines that hand a model a sparse adjacency: the outputs and derivatives stay those of its list of edges."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, dropout_edge

from jurygcn import Jury
from jurygcn.data import synthetic
from jurygcn.engine import engine_of

NODES = torch.arange(20)
LAYERS = {
    "gcn": lambda: gnn.GCNConv(6, 4),
    "sage": lambda: gnn.SAGEConv(6, 4),
    "sum": lambda: gnn.SAGEConv(6, 4, aggr="sum"),
    "max": lambda: gnn.SAGEConv(6, 4, aggr="max"),
    "gin": lambda: gnn.GINConv(nn.Linear(6, 4)),
    "sgc": lambda: gnn.SGConv(6, 4, K=2, cached=True),
    "tag": lambda: gnn.TAGConv(6, 4),
    "graph": lambda: gnn.GraphConv(6, 4),
    "gat": lambda: gnn.GATConv(6, 4),
}


def graph(kind: str = "plain") -> Data:
    data = synthetic(num_nodes=60, num_edges=240, num_features=6, num_classes=4, seed=3)
    if kind == "loops":
        some = torch.arange(0, 60, 3)
        data.edge_index = torch.cat([data.edge_index, torch.stack([some, some])], dim=1)
    if kind == "parallel":
        data.edge_index = torch.cat([data.edge_index, data.edge_index[:, 50:90]], dim=1)
    return data


@pytest.mark.parametrize("kind", ["plain", "loops", "parallel"])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_and_derivatives_are_the_models_own(name, kind):
    data = graph(kind)
    torch.manual_seed(0)
    model = LAYERS[name]().double().eval()
    engine = engine_of(model, data, NODES)
    if kind == "plain":
        assert engine.takes_sparse == (name not in ("gat", "max"))
    weights = {n: p.detach() + 0.3 * torch.randn_like(p) for n, p in model.named_parameters()}
    moved = copy.deepcopy(model)
    moved.load_state_dict(weights, strict=False)
    for module in moved.modules():
        module._cached_x = None  # of the first graph
    wanted = moved(data.x.double(), data.edge_index)
    theta = torch.cat([weights[n].reshape(-1) for n, _ in model.named_parameters()]).requires_grad_()
    found = engine.outputs(theta)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    slopes = torch.autograd.grad(wanted[NODES].square().sum(), list(moved.parameters()))
    (slope,) = torch.autograd.grad(found[NODES].square().sum(), theta)
    torch.testing.assert_close(slope, torch.cat([s.reshape(-1) for s in slopes]), rtol=1e-8, atol=1e-8)


class DropsEdges(nn.Module):
    """A model that takes its list of edges apart while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.SAGEConv(6, 4)

    def forward(self, x, edge_index):
        if self.training:
            edge_index, _ = dropout_edge(edge_index, p=0.5)
        return self.conv(x, edge_index)


def test_a_model_that_drops_edges_in_training_has_its_list_of_edges_there():
    data = graph()
    engine = engine_of(DropsEdges().eval(), data, NODES)
    assert engine.takes_sparse
    assert engine.random_in_training
    assert Jury(DropsEdges().eval(), data, NODES, weight_decay=0.01).fit().verdict().label_sets(0.1).shape == (60, 4)


class OnlyTrainedAlike(nn.Module):
    """Reads an adjacency in another way than a list of edges, which shows only at other parameters than the trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.other = gnn.SAGEConv(6, 4), nn.Parameter(torch.zeros(4))

    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        return out if edge_index.layout == torch.strided else out + self.other


def test_a_sparse_adjacency_is_compared_at_other_parameters_too():
    assert not engine_of(OnlyTrainedAlike().eval(), graph(), NODES).takes_sparse


class OtherFarAway(nn.Module):
    """Reads an adjacency in another way than a list of edges, far from the first training nodes only."""

    def __init__(self, far: int) -> None:
        super().__init__()
        self.conv, self.far = gnn.SAGEConv(6, 4), far

    def forward(self, x, edge_index):
        out = self.conv(x, edge_index)
        if edge_index.layout == torch.strided or len(x) <= self.far:
            return out
        return torch.cat([out[: self.far], 2 * out[self.far :]])


def test_a_sparse_adjacency_is_compared_on_the_whole_graph_too():
    data = graph()
    model = OtherFarAway(59).eval()
    engine = engine_of(model, data, NODES)
    assert not engine.takes_sparse
    torch.testing.assert_close(engine.outputs(engine.theta).float(), model(data.x, data.edge_index))


def test_loops_that_an_edit_adds_are_seen():
    """PyG's GCNConv adds a loop to a loop in a sparse adjacency, and not in a list of edges."""
    data = graph()
    model = gnn.GCNConv(6, 4).double().eval()
    engine = engine_of(model, data, NODES)
    assert engine.takes_sparse
    edited = data.clone()
    edited.edge_index, _ = add_self_loops(data.edge_index)
    moved = engine.elsewhere(edited, NODES, engine.targets)
    torch.testing.assert_close(moved.outputs(moved.theta), model(data.x.double(), edited.edge_index))


def test_the_prediction_is_the_models_own_to_the_last_digit():
    """Sums in another order are rounded in another way; what is judged is what the model says."""
    data = graph()
    torch.manual_seed(1)
    model = gnn.SAGEConv(6, 4).eval()
    engine = engine_of(model, data, NODES)
    with torch.no_grad():
        own = model(data.x, data.edge_index)
    assert engine.takes_sparse
    assert torch.equal(engine.outputs_at(torch.arange(60)), own)
