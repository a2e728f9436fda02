"""Derivatives of many nodes, batch by batch and in factors: the same as those of all rows at once."""

from __future__ import annotations

from functools import cache
from itertools import product, starmap

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.data import Data
from torch_geometric.nn import GraphNorm, GraphSAGE

from gnn_zoo import ZOO, TwoLayers
from jurygcn.curvature import curvature_of
from jurygcn.data import synthetic
from jurygcn.derivatives import DenseJacobian, autodiff, lifted
from jurygcn.derivatives.factored import Factored
from jurygcn.derivatives.lifted import LiftedJacobian
from jurygcn.engine import expected, streamed
from jurygcn.engine.expected import EgoDerivatives, NotSeparable
from jurygcn.engine.generic import GenericEngine
from jurygcn.engine.streamed import EgoStream, RowStream, streamed_derivatives
from jurygcn.engine.whole_graph import whole_graph_derivatives
from jurygcn.leave_one_out.estimated import LeaveOneOut
from jurygcn.models import train

EXACT = {"rtol": 1e-8, "atol": 1e-9}
F, C, N, LABELS = 30, 6, 60, 17
STREAMED = [name for name in ZOO if name != "weight_norm"]


def graph(seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, N, (2, 90), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    x = torch.randn(N, F, generator=generator)
    y = torch.randint(0, C, (N,), generator=generator)
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1).unique(dim=1), y=y)


def engine_of(name: str, **settings) -> GenericEngine:
    torch.manual_seed(0)
    model = ZOO[name](F, C).eval()
    nodes = torch.randperm(N, generator=torch.Generator().manual_seed(0))[:LABELS]
    return GenericEngine(model, graph(), nodes, **{"weight_decay": 1e-2, **settings})


@cache
def rows_of(name: str) -> Tensor:
    """The rows of the Jacobian of `engine_of(name)`, by automatic differentiation."""
    engine = engine_of(name)
    return autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes)


def compare(found, rows: Tensor) -> None:
    """All products of a Jacobian, against those of its rows."""
    dense = DenseJacobian(rows)
    n, _, P = rows.shape
    generator = torch.Generator().manual_seed(1)
    V, A, root, scale = (
        torch.rand(*s, generator=generator, dtype=torch.float64) - 0.3 for s in ((P, 4), (n, C, 4), (n, C, C - 1), (P,))
    )
    M = V @ V.T
    assert found.shape == dense.shape
    assert_close(found.push(V), dense.push(V), **EXACT)
    assert_close(found.pull(A), dense.pull(A), **EXACT)
    assert_close(found.pull_each(A[:, :, 0]), dense.pull_each(A[:, :, 0]), **EXACT)
    assert_close(found.gram(scale), dense.gram(scale), **EXACT)
    assert_close(found.curvature(root), dense.curvature(root), **EXACT)
    assert_close(found.quadratic(M), dense.quadratic(M), **EXACT)


@pytest.mark.parametrize("name", STREAMED)
def test_factors_give_the_matrices_of_the_rows(name):
    engine = engine_of(name)
    found = engine.expected().jacobian
    assert isinstance(found, LiftedJacobian)
    compare(found, rows_of(name))


@pytest.mark.parametrize(("name", "rows", "weights"), [("gcn_with_bias", 1, 1), ("sage", 2, 2), ("appnp", 1, 1)])
def test_slopes_have_as_many_common_rows_as_the_next_layer_has_weights(name, rows, weights):
    found = engine_of(name).expected().jacobian
    (group,) = Factored(found, torch.float64).groups
    assert group.B.shape == (8, rows, C)
    assert len(group.weights) == weights  # both weights of GraphSAGE act on the same hidden units


def batch(name: str, size: int):
    """Batches of one node take seconds, so `make test` makes them of two models."""
    return pytest.param(name, size, marks=[pytest.mark.slow] if size == 1 and name not in ("sage", "gat") else [])


@pytest.mark.parametrize(("name", "size"), [*starmap(batch, product(STREAMED, [1, 5, 1000]))])
def test_batches_give_the_derivatives_of_autograd_whatever_their_size(monkeypatch, name, size):
    monkeypatch.setattr(streamed, "MOST_NODES", size)
    engine = engine_of(name)
    found, rows = streamed_derivatives(engine, EgoStream(engine)), rows_of(name)
    assert len(found.jacobian.batches.sizes) == -(-LABELS // size)
    assert_close(found.outputs, engine.train_outputs, **EXACT)
    compare(found.jacobian, rows)
    some = torch.tensor([16, 3, 4, 0])
    part = found.jacobian.subset(some)
    assert sum(part.batches.sizes) == 4  # nothing is made for the others
    compare(part, rows[some])
    compare(part.subset(torch.tensor([2, 0])), rows[[4, 16]])
    assert_close(found.jacobian.cast(torch.float32).dense.rows.double(), rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "hops"), [("sage", 1), ("gin", 1), ("gcn_with_bias", 2), ("sgc", 0)])
def test_copies_leave_out_what_constants_were_averaged_from(name, hops):
    assert EgoStream(engine_of(name)).hops == hops


def test_rows_one_by_one_in_batches_are_those_of_autograd(monkeypatch):
    monkeypatch.setattr(streamed, "MOST_NODES", 4)
    engine = engine_of("sage", forward=lambda model, data: model(data.x, data.edge_index))
    with pytest.raises(NotSeparable, match="forward="):
        EgoStream(engine)
    found = streamed_derivatives(engine, RowStream(engine), "it is for the test")
    assert found.why_slow == "it is for the test"
    compare(found.jacobian, autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes))


def test_a_model_that_looks_at_the_whole_graph_is_not_cut_into_batches():
    inner = ZOO["sage"](F, C)
    engine = GenericEngine(TwoLayers(inner.first, inner.second, GraphNorm(8)).eval(), graph(), torch.arange(6))
    with pytest.raises(NotSeparable, match="more than its neighbourhood"):
        EgoStream(engine)


def test_too_large_neighbourhoods_go_in_batches(monkeypatch):
    monkeypatch.setattr(expected, "MOST_SLOPES", 100)
    engine = engine_of("sage")
    with pytest.raises(NotSeparable, match="too much of the graph"):
        EgoDerivatives(engine)
    assert engine.way().kind == "batches"
    found = engine.expected()
    assert found.why_slow == ""
    compare(found.jacobian, autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes))


# --- jurors -------------------------------------------------------------------------------------------------


def reference_steps(engine: GenericEngine, decay: Tensor) -> Tensor:
    """Newton jurors by a dense pseudo-inverse of the curvature without each node, one after the other."""
    J = autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes)
    z, n = engine.train_outputs, engine.num_train
    p = torch.softmax(z, dim=1)
    S = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    parts = J.mT @ S @ J / n
    residual = p - torch.nn.functional.one_hot(engine.targets, C)
    steps = []
    for i in range(n):
        H = torch.diag(decay) + parts.sum(dim=0) - parts[i]
        steps.append(torch.linalg.pinv(H, rtol=1e-11, hermitian=True) @ (J[i].T @ residual[i]) / n)
    return torch.stack(steps)


@cache
def decayed_steps(name: str) -> Tensor:
    """The reference for `engine_of(name)`, which every route has."""
    engine = engine_of(name)
    return reference_steps(engine, engine.decay)


def route(name: str, solver: str, way: str):
    """Iterations make the derivatives again for every product: seconds, so `make test` does it with one model."""
    slow = solver == "cg" and way != "whole" and name != "sage"
    return pytest.param(name, solver, way, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(
    ("name", "solver", "way"),
    [
        *starmap(
            route, product(["sage", "gat", "gcn_with_bias"], ["dual", "direct", "cg"], ["whole", "batches", "rows"])
        )
    ],
)
def test_every_route_gives_the_jurors_of_the_dense_formula(monkeypatch, name, solver, way):
    monkeypatch.setattr(streamed, "MOST_NODES", 5)
    engine = engine_of(name)
    engine.source_dtype = torch.float64
    if way != "whole":
        stream = EgoStream(engine) if way == "batches" else RowStream(engine)
        made = streamed_derivatives(engine, stream, "" if way == "batches" else "for the test")
        engine.expected = lambda: made
    operator = curvature_of(engine, "ggn")
    wanted = decayed_steps(name)
    tolerance = {"rtol": 0.0, "atol": 1e-6 * float(wanted.abs().max())}
    assert_close(LeaveOneOut(engine, operator, solver).newton_jurors().steps, wanted, **tolerance)
    some = torch.tensor([2, 9, 11])
    few = LeaveOneOut(engine, operator, solver, some)
    assert_close(few.newton_jurors().steps, wanted[some], **tolerance)
    compressed = few.compressed_jurors("newton", rank=3)
    assert_close(compressed.steps, wanted[some], **tolerance)
    assert compressed.leverage.shape == (3,)


@pytest.mark.parametrize("solver", ["dual", "direct"])
@pytest.mark.parametrize("way", ["whole", "batches"])
def test_undecayed_biases_go_every_route(solver, way):
    names = ("first.lin_l.weight", "first.lin_r.weight", "second.lin_l.weight", "second.lin_r.weight")
    engine = engine_of("sage", weight_decay={name: 1e-2 * k for k, name in enumerate(names, start=1)})
    engine.source_dtype = torch.float64
    assert bool((engine.decay == 0).any())
    if way == "batches":
        made = streamed_derivatives(engine, EgoStream(engine))
        engine.expected = lambda: made
    wanted = reference_steps(engine, engine.decay)
    found = LeaveOneOut(engine, curvature_of(engine, "ggn"), solver).newton_jurors().steps
    assert_close(found, wanted, rtol=0.0, atol=1e-5 * float(wanted.abs().max()))


# --- dropout ------------------------------------------------------------------------------------------------


def dropped(masks: int, *, labels: int = LABELS) -> GenericEngine:
    torch.manual_seed(0)
    model = GraphSAGE(F, 8, 2, C, dropout=0.5).double()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2.0)
    return GenericEngine(model, graph(), torch.arange(labels), weight_decay=1e-3, masks=masks)


def test_batches_converge_to_the_averages_over_masks(monkeypatch):
    monkeypatch.setattr(streamed, "MOST_NODES", 5)
    engine = dropped(500, labels=9)
    quick, slow = streamed_derivatives(engine, EgoStream(engine)), whole_graph_derivatives(engine, "for the test")
    held = EgoDerivatives(engine).expected(500)
    assert quick.masks == slow.masks == 500
    predict = engine.loss.predict
    assert_close(predict(quick.outputs), predict(slow.outputs), rtol=0.0, atol=0.05)
    J, rows = slow.jacobian.rows, quick.jacobian.dense.rows  # a pass over all masks
    assert_close(rows, J, rtol=0.0, atol=0.2 * float(J.abs().max()))
    assert float((rows - J).norm() / J.norm()) < 0.15
    assert_close(quick.noise, held.noise, rtol=0.3, atol=0.05 * float(held.noise.max()))
    assert float((predict(quick.outputs) - predict(engine.train_outputs)).abs().max()) > 0.05


def test_every_pass_draws_the_same_masks(monkeypatch):
    monkeypatch.setattr(streamed, "MOST_NODES", 7)
    engine = dropped(3)
    found = streamed_derivatives(engine, EgoStream(engine)).jacobian
    rows = found.dense.rows
    assert torch.equal(found.dense.rows, rows)
    assert torch.equal(found.subset(torch.tensor([9, 2])).dense.rows, rows[[9, 2]])
    batches = rows.split(7)
    assert not torch.equal(batches[0][0], batches[1][0])


def test_dropout_off_means_eval_mode():
    engine = dropped(0)
    found = streamed_derivatives(engine, EgoStream(engine))
    assert found.masks == 0
    assert_close(found.jacobian.dense.rows, autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes), **EXACT)
    assert float(found.noise.abs().max()) == 0.0


def test_input_dropout_is_drawn_on_the_whole_graph():
    class OnInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ZOO["sage"](F, C)

        def forward(self, x, edge_index):
            return self.inner(nn.functional.dropout(x, 0.5, self.training), edge_index)

    torch.manual_seed(0)
    engine = GenericEngine(OnInputs().double(), graph(), torch.arange(LABELS), weight_decay=1e-3, masks=300)
    found = streamed_derivatives(engine, EgoStream(engine))
    slow = whole_graph_derivatives(engine, "for the test")
    assert found.masks == 300
    predict = engine.loss.predict
    assert_close(predict(found.outputs), predict(slow.outputs), rtol=0.0, atol=0.05)


def test_products_in_float32_change_jurors_by_little(monkeypatch):
    """Above LONG operations products are in float32: jurors' own predictions must not notice."""
    data = synthetic(num_nodes=800, num_edges=4000, num_features=F, num_classes=C, seed=0)
    model = GraphSAGE(F, 16, 2, C)
    train(model, data, torch.arange(300), epochs=100, weight_decay=5e-4)
    engine = GenericEngine(model, data, torch.arange(300), weight_decay=5e-4)
    operator = curvature_of(engine, "ggn")
    exact = LeaveOneOut(engine, operator, "direct").compressed_jurors("newton", rank=20)
    monkeypatch.setattr(lifted, "LONG", 0.0)
    quick = LeaveOneOut(engine, operator, "direct").compressed_jurors("newton", rank=20)
    assert not torch.equal(quick.leverage, exact.leverage)  # float32 was used
    assert float((quick.leverage - exact.leverage).abs().max()) < 1e-3
    predict = engine.loss.predict
    assert float((predict(quick.own_outputs) - predict(exact.own_outputs)).abs().max()) < 1e-3
