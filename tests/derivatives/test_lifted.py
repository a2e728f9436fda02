"""Layers that see constants are lifted out: the same derivatives and the same votes as the model itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GraphNorm

from gnn_zoo import ZOO, TwoLayers
from jurygcn.derivatives import DenseJacobian, autodiff
from jurygcn.engine.expected import EgoDerivatives, NotSeparable
from jurygcn.engine.generic import GenericEngine
from jurygcn.engine.whole_graph import tracked_rows, whole_graph_derivatives
from jurygcn.graph.ego import ego_graphs

EXACT = {"rtol": 1e-8, "atol": 1e-9}
F, C = 30, 3


def graph(seed: int = 0, *, directed: bool = False) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, 40, (2, 60), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    x = torch.rand(40, F, generator=generator) * (torch.rand(40, F, generator=generator) < 0.1)
    y = torch.randint(0, C, (40,), generator=generator)
    return Data(x=x, edge_index=edges if directed else torch.cat([edges, edges.flip(0)], 1).unique(dim=1), y=y)


def engine_of(name: str, seed: int = 0, **settings: object) -> GenericEngine:
    torch.manual_seed(seed)
    model = ZOO[name](F, C).eval()
    nodes = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[:9]
    return GenericEngine(model, graph(seed), nodes, weight_decay=1e-3, **settings)


@pytest.mark.parametrize("name", ZOO)
def test_expected_derivatives_without_dropout_are_those_of_autograd(name):
    engine = engine_of(name)
    found = engine.expected()
    rows = autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes)
    dense = DenseJacobian(rows)
    n, _, P = dense.shape
    generator = torch.Generator().manual_seed(1)
    V, A, scale = (torch.rand(*s, generator=generator, dtype=torch.float64) for s in ((P, 4), (n, C, 4), (P,)))
    torch.testing.assert_close(found.outputs, engine.train_outputs, **EXACT)
    torch.testing.assert_close(found.jacobian.push(V), dense.push(V), **EXACT)
    torch.testing.assert_close(found.jacobian.pull(A), dense.pull(A), **EXACT)
    torch.testing.assert_close(found.jacobian.pull_each(A[:, :, 0]), dense.pull_each(A[:, :, 0]), **EXACT)
    torch.testing.assert_close(found.jacobian.gram(scale), dense.gram(scale), **EXACT)
    flat = torch.full_like(scale, 0.7)
    torch.testing.assert_close(found.jacobian.gram(flat), dense.gram(flat), **EXACT)
    some = torch.tensor([4, 1, 7])
    torch.testing.assert_close(found.jacobian.subset(some).push(V), dense.push(V)[some], **EXACT)
    torch.testing.assert_close(
        found.jacobian.cast(torch.float32).push(V.float()).double(), dense.push(V), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ZOO)
def test_votes_are_the_models_own_outputs(name):
    engine = engine_of(name)
    nodes = torch.arange(40)
    predictor = engine.predictor(nodes, torch.float64)
    generator = torch.Generator().manual_seed(2)
    thetas = engine.theta + 0.1 * torch.randn(5, engine.num_parameters, generator=generator, dtype=torch.float64)
    wanted = torch.stack([engine.outputs(theta) for theta in thetas], dim=-1)
    torch.testing.assert_close(predictor.outputs(thetas), wanted, **EXACT)
    torch.testing.assert_close(predictor.outputs(thetas - engine.theta, engine.theta), wanted, **EXACT)


@pytest.mark.parametrize("name", ZOO)
def test_rows_by_output_are_those_of_autograd(name):
    engine = engine_of(name)
    graph, rows = engine._train_graph
    found = tracked_rows(engine, graph, rows, None)
    assert found is not None or name == "weight_norm"  # its weight is a function of two parameters
    if found is not None:
        torch.testing.assert_close(found, autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes), **EXACT)


class WithDropout(nn.Module):
    """Dropout on the hidden layer alone, so that averages over masks can be taken one by one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = ZOO[name](F, C)
        self.inner.norm = nn.Dropout(0.5)

    def forward(self, x, edge_index):
        return self.inner(x, edge_index)


@pytest.mark.parametrize("name", ["gat", "sage", "gin"])
def test_expectations_over_dropout_are_averages_over_masks(name):
    """Both ways converge to the same averages; the draws differ, so many are taken."""
    torch.manual_seed(0)
    model = WithDropout(name).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
    engine = GenericEngine(model, graph(), torch.arange(6), weight_decay=1e-3, masks=250)
    quick = engine.expected()
    slow = whole_graph_derivatives(engine, "for the test")
    assert quick.masks == slow.masks == 250
    torch.testing.assert_close(
        engine.loss.predict(quick.outputs), engine.loss.predict(slow.outputs), rtol=0.0, atol=0.05
    )
    J = slow.jacobian.rows
    torch.testing.assert_close(quick.jacobian.dense.rows, J, rtol=0.0, atol=0.25 * float(J.abs().max()))
    far = (engine.loss.predict(quick.outputs) - engine.loss.predict(engine.train_outputs)).abs().max()
    assert far > 0.05  # the expected prediction is not the prediction in eval mode


def test_a_model_that_looks_at_the_whole_graph_goes_the_slow_way():
    torch.manual_seed(0)
    inner = ZOO["sage"](F, C)
    model = TwoLayers(inner.first, inner.second, GraphNorm(8)).eval()
    engine = GenericEngine(model, graph(), torch.arange(6), weight_decay=1e-3)
    with pytest.raises(NotSeparable, match="more than its neighbourhood"):
        EgoDerivatives(engine)
    found = engine.expected()
    assert "neighbourhood" in found.why_slow
    rows = autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes)
    torch.testing.assert_close(
        found.jacobian.push(torch.ones(rows.shape[2], 1).double()), rows.sum(2, keepdim=True), **EXACT
    )


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_ego_graphs_are_neighbourhoods(hops, directed):
    """Rows, edges and degrees of every copy, against a search from each centre."""
    data = graph(3, directed=directed)
    centres = torch.tensor([5, 0, 17])
    egos = ego_graphs(data, centres, hops, most_rows=10_000)
    assert egos is not None
    (only,) = egos.rows
    nodes, owner = only.nodes, only.owner
    for i, centre in enumerate(centres.tolist()):
        within = {centre}
        for _ in range(hops):
            within |= {int(s) for s, t in data.edge_index.T.tolist() if t in within}
        rows = (owner == i).nonzero().squeeze(1)
        kept = [int(v) for v in nodes[rows] if v < 40]
        assert sorted(kept) == sorted(within)
        assert int(nodes[egos.centres[i]]) == centre
        degree = torch.bincount(egos.graph.edge_index[1], minlength=len(nodes))
        for row in rows.tolist():
            node = int(nodes[row])
            assert int(degree[row]) == (0 if node == 40 else int((data.edge_index[1] == node).sum()))
    assert ego_graphs(data, centres, 3, most_rows=2) is None
