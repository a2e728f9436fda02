"""Models and graphs that work elsewhere must work here: the same verdict as of a plain model that says the same."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from model_kinds import KINDS, Layers, Propagated, SparseProduct, Tempered
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from cases import graph
from jurygcn import GCN, Jury, Retraining, Verdict, train
from jurygcn.errors import ModelError
from jurygcn.settings import LeaveOut

NODES = [0, 1, 2, 3]


def small(size: int = 12) -> Data:
    data = graph("two_block")
    assert int(data.num_nodes) == size
    return data


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().double()


def judged(model: nn.Module, data: Data, *, nodes: list[int] | None = None, **settings: object) -> Verdict:
    return Jury(model, data, nodes or NODES, weight_decay=1e-2, **settings).fit().verdict(advice=None)


def assert_same(ours: Verdict, theirs: Verdict) -> None:
    assert torch.equal(ours.p_values, theirs.p_values)
    for name in ("outputs", "lower", "upper", "loo_errors", "loo_variance"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))


MODES = pytest.mark.parametrize("mode", ["exact", "linearized"])


# --- what a model remembers -----------------------------------------------------------------------------------


def caching(name: str, *, cached: bool) -> nn.Module:
    return {
        "gcn": lambda: Layers(gnn.GCNConv(4, 5, cached=cached), gnn.GCNConv(5, 3, cached=cached)),
        "sgc": lambda: gnn.SGConv(4, 3, K=2, cached=cached),
        "appnp": lambda: Propagated(4, 3, gnn.APPNP(K=2, alpha=0.2, cached=cached)),
    }[name]()


@MODES
@pytest.mark.parametrize("name", ["gcn", "sgc", "appnp"])
@pytest.mark.parametrize("called_on", ["nothing", "this graph", "another graph"])
def test_cached_convolutions(name: str, called_on: str, mode: str):
    """The graph that counts is the one that was given; the caller's model keeps its own cache."""
    data = small()
    model, plain = (seeded(lambda c=cached: caching(name, cached=c)) for cached in (True, False))
    if called_on != "nothing":
        model(data.x, data.edge_index[:, : 6 if called_on == "another graph" else None])
    before = model.eval()(data.x, data.edge_index).detach() if called_on == "another graph" else None
    assert_same(judged(model, data, votes=mode), judged(plain, data, votes=mode))
    if before is not None:
        assert torch.equal(model(data.x, data.edge_index), before)


class Keeps(nn.Module):
    """Keeps its hidden layer for whoever wants to look at it."""

    def __init__(self, *, in_list: bool) -> None:
        super().__init__()
        self.first, self.second = gnn.GCNConv(4, 5), gnn.GCNConv(5, 3)
        self.hidden: Tensor | None = None
        self.all: list[Tensor] | None = [] if in_list else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        self.hidden = torch.tanh(self.first(x, edge_index))
        if self.all is not None:
            self.all.append(self.hidden + 0.0)
        return self.second(self.hidden, edge_index)


@MODES
def test_a_model_that_keeps_results(mode: str):
    data = small()
    model, plain = seeded(lambda: Keeps(in_list=False)), seeded(lambda: Layers(gnn.GCNConv(4, 5), gnn.GCNConv(5, 3)))
    model(data.x, data.edge_index)
    assert_same(judged(model, data, votes=mode), judged(plain, data, votes=mode))


def test_a_model_that_cannot_be_copied_is_refused():
    data, model = small(), seeded(lambda: Keeps(in_list=True))
    model(data.x, data.edge_index)
    with pytest.raises(ModelError, match="that can be copied"):
        judged(model, data)


# --- how parameters are held ------------------------------------------------------------------------------------


@MODES
def test_a_parameter_without_dimensions(mode: str):
    """A learned temperature: the same as one with one dimension."""
    data = small()
    model, plain = seeded(lambda: Tempered(4, 3)), seeded(lambda: Tempered(4, 3))
    plain.temperature = nn.Parameter(plain.temperature.detach()[None])
    assert_same(judged(model, data, votes=mode), judged(plain, data, votes=mode))


class Twice(nn.Module):
    """One square layer, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.both, self.last = (nn.Linear(a, b, bias=False) for a, b in ((4, 5), (5, 5), (5, 3)))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in (self.first, self.both, self.both):
            x = torch.relu(dense_average(edge_index, layer(x)))
        return dense_average(edge_index, self.last(x))


def dense_average(edge_index: Tensor, x: Tensor) -> Tensor:
    """The renormalised adjacency times x."""
    A = torch.eye(len(x), dtype=x.dtype).index_put((edge_index[1], edge_index[0]), torch.ones((), dtype=x.dtype))
    scale = A.sum(dim=1).rsqrt()
    return (scale[:, None] * A * scale) @ x


@MODES
def test_two_layers_share_a_parameter(mode: str):
    data = small()
    shared, plain = seeded(lambda: GCN(4, 5, 3, num_layers=4)), seeded(Twice)
    shared.weights[2] = shared.weights[1]
    with torch.no_grad():
        for W, layer in zip(shared.parameters(), (plain.first, plain.both, plain.last)):
            layer.weight.copy_(W.T)
    assert_same(judged(shared, data, votes=mode), judged(plain, data, votes=mode))


@MODES
def test_a_pruned_model(mode: str):
    """Masked weights are zero and stay so: the same as a model without them, whose weight decay knows only the rest."""
    data = small()
    pruned, plain = (seeded(lambda: Layers(gnn.GCNConv(4, 5), gnn.GCNConv(5, 3))) for _ in range(2))
    prune.custom_from_mask(pruned.layers[0].lin, "weight", torch.ones(5, 4).index_fill_(1, torch.tensor([1]), 0.0))
    pruned(data.x, data.edge_index)  # leaves a computed weight behind
    with torch.no_grad():
        plain.layers[0].lin.weight[:, 1] = 0.0
    cut = copy.copy(data)
    cut.x = data.x.clone()
    cut.x[:, 1] = 0.0
    assert_same(judged(pruned, data, votes=mode), judged(plain, cut, votes=mode))


@MODES
def test_a_parametrised_model(mode: str):
    """Weight norm of the model's own, against the same formula written out."""

    class Normed(nn.Module):
        def __init__(self, source: nn.Module) -> None:
            super().__init__()
            self.last = copy.deepcopy(source.layers[1])
            lin = source.layers[0].lin.parametrizations.weight
            self.g, self.v, self.bias = map(nn.Parameter, (lin.original0, lin.original1, source.layers[0].bias))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            W = self.g * self.v / self.v.norm(dim=1, keepdim=True)
            return self.last(torch.tanh(dense_average(edge_index, x @ W.T) + self.bias), edge_index)

    data = small()
    model = seeded(lambda: Layers(gnn.GCNConv(4, 5), gnn.GCNConv(5, 3)))
    parametrizations.weight_norm(model.layers[0].lin)
    assert_same(judged(model, data, votes=mode), judged(Normed(model).double(), data, votes=mode))


# --- what cannot be batched -------------------------------------------------------------------------------------


class DenseProduct(SparseProduct):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        A = torch.zeros(len(x), len(x), dtype=x.dtype)
        A = A.index_put((edge_index[1], edge_index[0]), torch.ones((), dtype=x.dtype), accumulate=True)
        a = torch.tanh(self.first(x))
        return self.second(a + 0.3 * A @ a)


@pytest.mark.parametrize(
    "settings",
    [{"votes": "exact"}, {"votes": "linearized"}, {"leave_out": LeaveOut("influence", curvature="hessian")}],
    ids=["exact", "linearized", "hessian"],
)
def test_a_model_that_calls_torch_sparse_mm(settings: dict[str, object]):
    data = small()
    sparse, dense = seeded(lambda: SparseProduct(4, 3)), seeded(lambda: DenseProduct(4, 3))
    assert_same(judged(sparse, data, **settings), judged(dense, data, **settings))


@MODES
def test_a_model_that_decides_by_its_own_numbers(mode: str):
    data = small()
    branching, plain = seeded(lambda: KINDS["branching"].build(4, 3)), seeded(lambda: gnn.GCNConv(4, 3))
    assert_same(judged(branching, data, votes=mode), judged(plain, data, votes=mode))


# --- types and numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gcn_2", "gcnconv_weighted", "gat", "sage", "takes_data", "sgc_cached"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.int8, torch.uint8])
def test_edges_of_any_integer_type(kind: str, dtype: torch.dtype):
    data, odd = small(), small()
    odd.edge_index = odd.edge_index.to(dtype)
    nodes, forward = torch.tensor(NODES), KINDS[kind].forward
    verdicts, trained = [], []
    for given in (odd, data):
        model = seeded(lambda: KINDS[kind].build(4, 3))
        train(model, given, nodes, epochs=3, forward=forward, warm_start=True)
        trained.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        verdicts.append(judged(model, given, forward=forward))
    torch.testing.assert_close(*trained)
    assert_same(*verdicts)
    assert odd.edge_index.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_training_on_features_of_another_precision(dtype: torch.dtype):
    """As a jury does, training takes real features in the model's precision."""
    data, odd = small(), small()
    odd.x = odd.x.to(dtype)
    data.x = odd.x.double()
    models = [seeded(lambda: Layers(gnn.GCNConv(4, 5), gnn.GCNConv(5, 3))) for _ in range(2)]
    for model, given in zip(models, (odd, data)):
        train(model, given, torch.tensor(NODES), epochs=3)
    for ours, theirs in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["gcn", "conv"])
@pytest.mark.parametrize("why", ["one class", "zero features"])
def test_linearised_jurors_that_do_not_move(name: str, why: str):
    data = small()
    C = 1 if why == "one class" else 3
    if why == "one class":
        data.y, data.num_classes = torch.zeros(12, dtype=torch.long), 1
    else:
        data.x = torch.zeros_like(data.x)
    model = seeded(lambda: GCN(4, 5, C) if name == "gcn" else gnn.SGConv(4, C, bias=False))
    assert_same(judged(model, data, votes="linearized"), judged(model, data, votes="exact"))
    jury = Jury(model, data, NODES, weight_decay=1e-2, votes="linearized").fit()
    assert not jury.jurors.steps.any()
    assert jury.health().discarded == 0.0


@pytest.mark.parametrize("mse", [False, True])
@pytest.mark.parametrize("mode", ["exact", "linearized"])
@pytest.mark.parametrize("interval", ["jackknife", "minmax", "jackknife+"])
def test_a_jury_of_one(interval: str, mode: str, mse: bool):
    """Nobody speaks on the juror's own node: its interval is everything. On others one error says too little."""
    data = small()
    if mse:
        data.y = data.x[:, :1].clone()
    model = seeded(lambda: GCN(4, 5, 1 if mse else 3))
    jury = Jury(model, data, [3], weight_decay=0.1, votes=mode, loss="mse" if mse else "cross_entropy").fit()
    verdict = jury.verdict([5, 3], interval=interval, alpha=0.1, exact_ranks=True)
    assert verdict.lower.tolist() == [-math.inf, -math.inf]
    assert verdict.upper.tolist() == [math.inf, math.inf]
    told = jury.verdict([5, 3], interval=interval, alpha=0.499, exact_ranks=True)
    assert not torch.isnan(told.lower).any()
    assert (told.lower[1], told.upper[1]) == (-math.inf, math.inf)


def test_cached_convolutions_are_retrained():
    """Retrained jurors see the graph without the node as it is, not as the convolution remembers it."""
    data = small()
    how = Retraining(epochs=3, start="warm", remove="node", processes=1)
    model, plain = (seeded(lambda c=cached: caching("gcn", cached=c)) for cached in (True, False))
    model(data.x, data.edge_index)
    ours, theirs = (judged(m, data, nodes=[0, 1], leave_out="retrain", retraining=how) for m in (model, plain))
    assert_same(ours, theirs)
