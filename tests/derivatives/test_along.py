"""Derivatives of any model's outputs along directions: constants lifted out and messages summed by sparse products."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch_geometric.nn import GAT, GCN, GIN, GCNConv, GraphSAGE

from jurygcn.data import synthetic
from jurygcn.derivatives import autodiff
from jurygcn.engine import engine_of, votes
from jurygcn.graph.fused import apply_product, with_sparse_adjacency


class Branching(nn.Module):
    """A model that ``vmap`` cannot run: it branches on its parameters."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(6, 4)

    def forward(self, x, edge_index):
        z = self.conv(x, edge_index)
        return z if float(z.sum()) > 1e9 else 2 * z


MODELS = {
    "mean": lambda: GraphSAGE(6, 8, 2, 4),
    "sum": lambda: GraphSAGE(6, 8, 2, 4, aggr="sum"),
    "max": lambda: GraphSAGE(6, 8, 2, 4, aggr="max"),
    "deep": lambda: GraphSAGE(6, 8, 3, 4),
    "gcn": lambda: GCN(6, 8, 2, 4),
    "gat": lambda: GAT(6, 8, 2, 4, heads=2),
    "gin": lambda: GIN(6, 8, 2, 4),
    "branching": Branching,
}


@pytest.fixture(scope="module")
def data():
    return synthetic(num_nodes=60, num_edges=240, num_features=6, num_classes=4, seed=3)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("some", [False, True], ids=["all nodes", "some"])
def test_derivatives_along_directions(data, name, some, monkeypatch):
    """They equal the plain model's own forward-mode derivatives, whatever is lifted out and however they are split."""
    torch.manual_seed(0)
    engine = engine_of(MODELS[name]().double().eval(), data, torch.arange(20))
    nodes = torch.tensor([3, 40, 7]) if some else torch.arange(60)
    directions = torch.randn(5, engine.num_parameters, dtype=torch.float64)
    wanted = torch.stack(
        [autodiff.outputs_along(partial(engine.outputs, nodes=nodes), engine.theta, d[None])[0] for d in directions]
    )
    for most in (votes.MOST_ALONG, 1):
        monkeypatch.setattr(votes, "MOST_ALONG", most)
        found = engine.tangents(nodes, directions).inner.transpose(0, 1)
        assert found.shape == (5, len(nodes), 4)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def test_the_sparse_product_is_used(data):
    """GraphSAGE takes the sparse adjacency under ``jvp``, so that no message is formed."""
    engine = engine_of(GraphSAGE(6, 8, 2, 4).double().eval(), data, torch.arange(20))
    predictor = votes.LiftedPredictor(engine, torch.arange(60), torch.float64)
    assert predictor.fused is not None
    predictor.graph = None  # the fallback would fail
    assert predictor.along(torch.ones(2, engine.num_parameters, dtype=torch.float64)).shape == (2, 60, 4)


@pytest.mark.parametrize("mean", [False, True])
def test_the_sparse_product_has_all_derivatives(data, mean):
    matrix = with_sparse_adjacency(data).edge_index.double()
    dense = torch.randn(60, 3, dtype=torch.float64, requires_grad=True)
    product = partial(apply_product, matrix, mean=mean)
    whole = matrix.to_dense()
    plain = whole / whole.count_nonzero(dim=1).clamp_min(1)[:, None] if mean else whole
    torch.testing.assert_close(product(dense), plain @ dense)
    weight = torch.randn(60, 3, dtype=torch.float64)
    (grad,) = torch.autograd.grad((product(dense) * weight).sum(), dense)
    torch.testing.assert_close(grad, plain.T @ weight)
    _, tangent = torch.func.jvp(product, (dense.detach(),), (weight,))
    torch.testing.assert_close(tangent, plain @ weight)
    many = torch.randn(4, 60, 3, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(product)(many), plain @ many)
