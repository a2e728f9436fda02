"""Derivatives and votes of heterogeneous models on copies of neighbourhoods, against autograd on the whole graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import HeteroData

from hetero_models import CLASSES, MODELS, PAPERS, library, made
from jurygcn.data.heterogeneous import all_edges, as_given, view_of
from jurygcn.derivatives import DenseJacobian, autodiff
from jurygcn.engine.expected import EgoDerivatives, NotSeparable
from jurygcn.engine.generic import GenericEngine
from jurygcn.engine.whole_graph import whole_graph_derivatives
from jurygcn.graph.typed import local_view, typed_ego_graphs

EXACT = {"rtol": 1e-7, "atol": 1e-9}
TYPES, TIMES = ("paper", "author", "venue"), 10  # features enough for weights to be lifted out
SEPARABLE = ("to_hetero sage", "hetero_conv")


def engine_of(kind: str, nodes: Tensor | None = None, *, times: int = TIMES, **settings: Any) -> GenericEngine:
    model, data = made(kind, times=times)
    chosen = torch.tensor([3, 0, 8, 11, 5]) if nodes is None else nodes
    return GenericEngine(model, view_of(data, "paper"), chosen, weight_decay=1e-2, **settings)


@pytest.mark.parametrize("times", [1, TIMES])
@pytest.mark.parametrize("kind", MODELS)
def test_derivatives_are_those_of_autograd(kind: str, times: int):
    engine = engine_of(kind, times=times)
    found = engine.expected()
    assert (found.why_slow == "") == (kind in SEPARABLE)
    dense = DenseJacobian(autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes))
    n, _, P = dense.shape
    generator = torch.Generator().manual_seed(1)
    V, A, scale = (torch.rand(*s, generator=generator, dtype=torch.float64) for s in ((P, 4), (n, CLASSES, 4), (P,)))
    torch.testing.assert_close(found.outputs, engine.train_outputs, **EXACT)
    torch.testing.assert_close(found.jacobian.push(V), dense.push(V), **EXACT)
    torch.testing.assert_close(found.jacobian.pull(A), dense.pull(A), **EXACT)
    torch.testing.assert_close(found.jacobian.gram(scale), dense.gram(scale), **EXACT)
    some = torch.tensor([4, 1])
    torch.testing.assert_close(found.jacobian.subset(some).push(V), dense.push(V)[some], **EXACT)


@pytest.mark.parametrize("kind", SEPARABLE)
def test_weights_that_see_constants_are_lifted_out(kind: str):
    engine = engine_of(kind)
    lifted = EgoDerivatives(engine).lifted
    first = [name for name, p in engine.parameters.items() if p.dim() == 2 and p.shape[1] >= 24]
    assert set(lifted) == set(first)
    assert len(first) >= 4
    counts = {len(use.inputs) for use in lifted.values()}
    assert counts <= {PAPERS, 9, 3}
    assert len(counts) > 1, "weights on several types"


@pytest.mark.parametrize("nodes", [torch.arange(PAPERS), torch.tensor([12, 4])], ids=["all papers", "two papers"])
@pytest.mark.parametrize("kind", MODELS)
def test_votes_are_the_models_own_outputs(kind: str, nodes: Tensor):
    engine = engine_of(kind)
    predictor = engine.predictor(nodes, torch.float64)
    generator = torch.Generator().manual_seed(2)
    thetas = engine.theta + 0.1 * torch.randn(5, engine.num_parameters, generator=generator, dtype=torch.float64)
    wanted = torch.stack([engine.outputs(theta, nodes) for theta in thetas], dim=-1)
    torch.testing.assert_close(predictor.outputs(thetas), wanted, **EXACT)
    if kind in SEPARABLE:
        assert len(predictor.constant) >= 4


def within(data: HeteroData, centre: int, hops: int) -> dict[str, set[int]]:
    """From which nodes messages reach a paper, by a search."""
    reached: dict[str, set[int]] = {kind: set() for kind in TYPES}
    reached["paper"].add(centre)
    for _ in range(hops):
        before = {kind: set(nodes) for kind, nodes in reached.items()}
        for (source, _, target), edge_index in data.edge_index_dict.items():
            reached[source] |= {a for a, b in edge_index.T.tolist() if b in before[target]}
    return reached


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_copies_are_neighbourhoods(hops: int):
    """Rows, features, edges and degrees of every copy and type."""
    data = library()
    for relation in data.edge_types:
        data[relation].edge_attr = torch.arange(data[relation].edge_index.shape[1])
    centres = torch.tensor([5, 0, 11])
    egos = typed_ego_graphs(view_of(data, "paper"), centres, hops, most_rows=10_000)
    assert egos is not None
    copies, rows_of = as_given(egos.graph), dict(zip(TYPES, egos.rows))
    assert len({len(rows.nodes) for rows in egos.rows}) == 3
    for kind, rows in rows_of.items():
        x = torch.cat([data[kind].x, torch.zeros(1, data[kind].x.shape[1])])
        assert torch.equal(copies[kind].x, x[rows.nodes])
        assert rows.count == len(data[kind].x)
        assert bool((rows.owner.diff() >= 0).all())
    assert rows_of["paper"].nodes[egos.centres].tolist() == centres.tolist()
    for i, centre in enumerate(centres.tolist()):
        for kind, nodes in within(data, centre, hops).items():
            rows = rows_of[kind]
            assert sorted(int(v) for v in rows.nodes[rows.owner == i] if v < rows.count) == sorted(nodes)
    for relation in data.edge_types:
        source, target = rows_of[relation[0]], rows_of[relation[2]]
        edges, whole = copies[relation].edge_index, data[relation].edge_index
        assert torch.equal(source.owner[edges[0]], target.owner[edges[1]])
        for (a, b), number in zip(edges.T.tolist(), copies[relation].edge_attr.tolist()):
            assert int(target.nodes[b]) == int(whole[1, number])
            assert int(source.nodes[a]) in (int(whole[0, number]), source.count)
        degree = torch.bincount(edges[1], minlength=len(target.nodes))
        wanted = torch.bincount(whole[1], minlength=target.count + 1)[target.nodes]
        assert torch.equal(degree, wanted)
    assert typed_ego_graphs(view_of(data, "paper"), centres, 3, most_rows=2) is None


@pytest.mark.parametrize("hops", [0, 1])
def test_a_local_part_has_the_neighbourhood(hops: int):
    data = library()
    nodes = torch.tensor([11, 2])
    part, positions = local_view(view_of(data, "paper"), nodes, hops)
    local = as_given(part)
    assert torch.equal(part.x[positions], data["paper"].x[nodes])
    near = [within(data, int(node), hops + 1) for node in nodes]
    for kind in TYPES:
        kept = sorted(set.union(*(found[kind] for found in near)))
        assert torch.equal(local[kind].x, data[kind].x[kept])
    for relation, edge_index in data.edge_index_dict.items():
        kept = [sorted(set.union(*(found[kind] for found in near))) for kind in relation[::2]]
        wanted = {
            (kept[0].index(a), kept[1].index(b)) for a, b in edge_index.T.tolist() if a in kept[0] and b in kept[1]
        }
        assert set(map(tuple, local[relation].edge_index.T.tolist())) == wanted


class OfAll(nn.Module):
    """Looks at the mean of all authors, wherever they are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mean = gnn.SAGEConv((40, 50), CLASSES), nn.Linear(40, CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        own = self.conv((x_dict["author"], x_dict["paper"]), edge_index_dict["author", "writes", "paper"])
        return own + self.mean(x_dict["author"].mean(dim=0))


class OfEach(nn.Module):
    """Has a parameter for every author, so that it runs on all of them only."""

    def __init__(self) -> None:
        super().__init__()
        self.authors, self.conv = nn.Parameter(torch.ones(9, 40).double()), gnn.SAGEConv((40, 50), CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        authors = x_dict["author"] * self.authors
        return self.conv((authors, x_dict["paper"]), edge_index_dict["author", "writes", "paper"])


@pytest.mark.parametrize("build", [OfAll, OfEach])
def test_models_that_need_the_whole_graph_go_the_slow_way(build: type[nn.Module]):
    data = library(times=TIMES)
    torch.manual_seed(0)
    engine = GenericEngine(build().double(), view_of(data, "paper"), torch.tensor([3, 0]), weight_decay=1e-2)
    found = engine.expected()
    assert found.why_slow == "the output at a node depends on more than its neighbourhood"
    assert engine.local(torch.tensor([1]))[0] is engine._inputs
    rows = torch.stack(
        [
            torch.stack(torch.autograd.grad(z, theta, retain_graph=True))[0]
            for theta in [engine.theta.requires_grad_()]
            for z in engine.outputs(theta, engine.train_nodes).reshape(-1)
        ]
    )
    torch.testing.assert_close(found.jacobian.push(torch.eye(rows.shape[1]).double()).flatten(0, 1), rows, **EXACT)


def test_expectations_over_dropout():
    """Both ways converge to the same averages; the draws differ, so many are taken."""
    data = library(times=TIMES)
    torch.manual_seed(0)
    sage = gnn.GraphSAGE((-1, -1), 4, num_layers=2, out_channels=CLASSES, act="tanh", dropout=0.5)
    model = gnn.to_hetero(sage, data.metadata()).double()
    model(data.x_dict, data.edge_index_dict)
    engine = GenericEngine(model, view_of(data, "paper"), torch.arange(5), weight_decay=1e-2, masks=250)
    quick, slow = engine.expected(), whole_graph_derivatives(engine, "for the test")
    assert quick.why_slow == ""
    assert quick.masks == slow.masks == 250
    predicted = [engine.loss.predict(found.outputs) for found in (quick, slow)]
    torch.testing.assert_close(*predicted, rtol=0.0, atol=0.05)
    J = slow.jacobian.rows
    rows = quick.jacobian.push(torch.eye(J.shape[2], dtype=torch.float64))
    torch.testing.assert_close(rows, J, rtol=0.0, atol=0.25 * float(J.abs().max()))


class Mixed(nn.Module):
    """One linear layer on the rows of authors and venues together."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(30, 6)
        self.of_authors, self.of_venues = (gnn.SAGEConv((6, 30), CLASSES) for _ in range(2))

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        sizes = [len(x_dict["author"]), len(x_dict["venue"])]
        together = torch.tanh(self.both(torch.cat([x_dict["author"], x_dict["venue"]])))
        authors, venues = together.split(sizes)
        papers = x_dict["paper"]
        written = self.of_authors((authors, papers), edge_index_dict["author", "writes", "paper"])
        return written + self.of_venues((venues, papers), edge_index_dict["venue", "shows", "paper"])


def test_rows_that_happen_to_be_as_many_as_those_of_another_type():
    """Authors and venues together are as many as papers in the copies, but they are not the papers."""
    data = library(one_width=True, times=6)
    view = view_of(data, "paper")
    torch.manual_seed(0)
    model, confused = Mixed().double(), 0
    for seed in range(200):
        nodes = torch.randperm(PAPERS, generator=torch.Generator().manual_seed(seed))[: 2 + seed % 6]
        papers, authors, venues = (len(r.nodes) for r in typed_ego_graphs(view, nodes, 2, most_rows=10_000).rows)
        if papers != authors + venues:
            continue
        confused += 1
        engine = GenericEngine(model, view, nodes, weight_decay=1e-2)
        found = engine.expected()
        assert found.why_slow == "the rows of several types of nodes cannot be told apart"
        V = torch.eye(engine.num_parameters, dtype=torch.float64)[:, ::17]
        wanted = DenseJacobian(autodiff.jacobian_rows(engine, engine.theta, nodes)).push(V)
        torch.testing.assert_close(found.jacobian.push(V), wanted, **EXACT)
    assert confused >= 1, "the case must come up"


@pytest.mark.parametrize("kind", ["hgt", "rgcn"])
def test_the_slow_way_takes_the_smaller_graph(kind: str):
    """Copies of neighbourhoods, where they have fewer edges than the part of the graph around all training nodes."""
    engine = engine_of(kind, torch.tensor([3, 0]))
    with pytest.raises(NotSeparable) as refused:
        EgoDerivatives(engine)
    assert refused.value.part is not None
    _ = engine.train_outputs  # computed on the whole graph
    seen = []
    outputs = engine.outputs
    engine.outputs = lambda theta, nodes=None, data=None: (seen.append(data), outputs(theta, nodes, data))[1]
    found = whole_graph_derivatives(engine, "for the test", refused.value.part)
    edges = [all_edges(graph)[0].shape[1] for graph, _ in (engine._train_graph, refused.value.part)]
    smaller = (engine._train_graph, refused.value.part)[edges.index(min(edges))][0]
    assert all(graph is smaller for graph in seen)
    torch.testing.assert_close(
        found.jacobian.rows, autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes), **EXACT
    )
    other = whole_graph_derivatives(engine, "for the test", None)
    torch.testing.assert_close(found.jacobian.rows, other.jacobian.rows, **EXACT)
