"""Where the class enters through single units, one backward pass per node gives the whole Jacobian."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from jurygcn.derivatives import DenseJacobian, autodiff
from jurygcn.derivatives.units import UnitJacobian
from jurygcn.engine.generic import GenericEngine
from jurygcn.engine.whole_graph import unit_jacobian, whole_graph_derivatives

EXACT = {"rtol": 1e-8, "atol": 1e-10}
F, C = 12, 4


class Propagated(nn.Module):
    """Linear layers with an activation between them, then APPNP."""

    def __init__(self, *widths: int, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=bias) for a, b in pairwise(widths))
        self.propagate = gnn.APPNP(K=6, alpha=0.2)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.propagate(self.layers[-1](x), edge_index)


def engine(model: nn.Module) -> GenericEngine:
    generator = torch.Generator().manual_seed(3)
    edges = torch.randint(0, 30, (2, 60), generator=generator)
    data = Data(
        x=torch.randn(30, F, generator=generator),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
        y=torch.randint(0, C, (30,), generator=generator),
    )
    return GenericEngine(model, data, torch.arange(0, 30, 3), weight_decay=1e-3)


MODELS = {
    "two layers": lambda: Propagated(F, 5, C),
    "without biases": lambda: Propagated(F, 5, C, bias=False),
    "one layer": lambda: Propagated(F, C),
    "one unit never active": lambda: silenced(Propagated(F, 5, C)),
    "parameters that nothing depends on": lambda: with_unused(Propagated(F, 5, C)),
}


def silenced(model: Propagated) -> Propagated:
    with torch.no_grad():
        model.layers[0].bias[2] = -1e6
    return model


def with_unused(model: Propagated) -> Propagated:
    model.unused, model.empty = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(0, 3))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_products_are_those_of_autograd(name):
    torch.manual_seed(0)
    found = engine(MODELS[name]())
    jacobian = unit_jacobian(found, found._inputs, found.train_nodes)
    assert isinstance(jacobian, UnitJacobian)
    dense = DenseJacobian(autodiff.jacobian_rows(found, found.theta, found.train_nodes))
    n, _, P = dense.shape
    generator = torch.Generator().manual_seed(1)
    V, A, scale, M, L = (
        torch.rand(*shape, generator=generator, dtype=torch.float64)
        for shape in ((P, 4), (n, C, 4), (P,), (P, P), (n, C, 3))
    )
    M, some = M + M.T, torch.tensor([4, 1, 7])
    assert jacobian.shape == dense.shape
    torch.testing.assert_close(jacobian.push(V), dense.push(V), **EXACT)
    torch.testing.assert_close(jacobian.pull(A), dense.pull(A), **EXACT)
    torch.testing.assert_close(jacobian.pull_each(A[:, :, 0]), dense.pull_each(A[:, :, 0]), **EXACT)
    torch.testing.assert_close(jacobian.gram(scale), dense.gram(scale), **EXACT)
    torch.testing.assert_close(jacobian.gram(0 * scale), dense.gram(0 * scale), **EXACT)
    torch.testing.assert_close(jacobian.curvature(L), dense.curvature(L), **EXACT)
    torch.testing.assert_close(jacobian.quadratic(M), dense.quadratic(M), **EXACT)
    torch.testing.assert_close(jacobian.subset(some).gram(scale), dense.subset(some).gram(scale), **EXACT)
    single = jacobian.cast(torch.float32).push(V.float())
    torch.testing.assert_close(single.double(), dense.push(V), rtol=1e-4, atol=1e-4)


class Attending(Propagated):
    """Classes enter differently at each node, through a gate."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x, edge_index)
        return logits * torch.sigmoid(logits)


@pytest.mark.parametrize("model", [lambda: Propagated(F, 5, 6, C), lambda: Attending(F, 5, C)])
def test_classes_that_enter_in_another_way_are_noticed(model):
    torch.manual_seed(0)
    found = engine(model())
    assert unit_jacobian(found, found._inputs, found.train_nodes) is None
    rows = whole_graph_derivatives(found, "").jacobian
    expected = autodiff.jacobian_rows(found, found.theta, found.train_nodes)
    torch.testing.assert_close(rows.rows, expected, **EXACT)
