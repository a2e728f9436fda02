"""Juries of heterogeneous models against dense matrices, plain loops and retraining to convergence."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from dense_jury import DenseJury
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data, HeteroData

from hetero_models import MODELS, PAPERS, converge, logits, made
from jurygcn import Jury, LeaveOut, Retraining, Verdict
from jurygcn.diagnostics.fidelity import FAITHFUL, correlate

DECAY = 0.03
NODES = torch.arange(0, PAPERS, 2)
CLOSE = 1e-6  # rounding of votes; p-values may differ where scores are that close


def papers(data: HeteroData) -> Data:
    """The papers alone, with what the reference needs of them."""
    cites = ("paper", "cites", "paper")
    edges = data[cites].edge_index if cites in data.edge_types else torch.empty(2, 0, dtype=torch.long)
    return Data(x=data["paper"].x, y=data["paper"].y, edge_index=edges, num_nodes=PAPERS)


def reference(model: nn.Module, data: HeteroData, *, leave_out: str = "newton", linear: bool = False) -> DenseJury:
    return DenseJury(
        *(model, lambda: logits(model, data), papers(data), NODES.tolist()),
        decay={name: DECAY for name, _ in model.named_parameters()},
        damping=0.0,
        leave_out=leave_out,
        linear=linear,
        seats=list(range(len(NODES))),
    )


def assert_same(verdict: Verdict, dense: DenseJury, *, slack: float = CLOSE) -> None:
    """Everything that a verdict says of all papers."""
    np.testing.assert_allclose(verdict.outputs.numpy(), dense.outputs, rtol=1e-6, atol=1e-8)
    low, high = (dense.counts(verdict.diffusion, "lac", slack=s) for s in (-slack, slack))
    counts = verdict.label_counts.numpy()
    assert (low <= counts).all()
    assert (counts <= high).all()
    ends = np.stack([dense.interval(u, "jackknife+", verdict.alpha, exact=False)[:, 0] for u in range(PAPERS)])
    np.testing.assert_allclose(torch.stack([verdict.lower, verdict.upper], dim=1).numpy(), ends, rtol=1e-5, atol=1e-7)
    variance = [dense.variance(u) for u in range(PAPERS)]
    np.testing.assert_allclose(verdict.loo_variance.numpy(), variance, rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose(verdict.loo_errors.numpy(), dense.errors()[:, 0], rtol=1e-6)


@pytest.mark.parametrize("cites", [True, False], ids=["papers cite papers", "no relation among papers"])
@pytest.mark.parametrize("leave_out", ["newton", "influence"])
@pytest.mark.parametrize("kind", MODELS)
def test_verdicts_equal_dense_matrices_and_loops(kind: str, leave_out: str, cites: bool):
    model, data = made(kind, cites=cites)
    dense = reference(model, data, leave_out=leave_out)
    settings = LeaveOut(leave_out, decay="stated")
    jury = Jury(model, data, NODES, node_type="paper", weight_decay=DECAY, leave_out=settings).fit()
    np.testing.assert_allclose(jury.jurors.steps.numpy(), dense.steps.numpy(), rtol=1e-6, atol=1e-9)
    verdict = jury.verdict(alpha=0.2, advice=None)
    if cites:
        best = max((0, 1, 2), key=dense.log_score)
        assert verdict.diffusion == best
        predicted = dense.outputs.argmax(axis=1)
        doubt = 1 - dense.neighbour_share()[np.arange(PAPERS), predicted]
        np.testing.assert_allclose(verdict.neighbour_doubt.numpy(), doubt, rtol=1e-6)
    else:
        assert verdict.diffusion == 0
        assert len(verdict.neighbour_doubt) == 0
    assert_same(verdict, dense)
    some = jury.verdict([7, 3], alpha=0.2, diffusion=0, advice=None)
    assert torch.equal(some.label_counts, jury.verdict(alpha=0.2, diffusion=0, advice=None).label_counts[[7, 3]])


CONVOLUTIONS: dict[str, Callable[[int], nn.Module]] = {
    "mean": lambda width: gnn.SAGEConv((-1, -1), width),
    "max": lambda width: gnn.SAGEConv((-1, -1), width, aggr="max"),
    "sum": lambda width: gnn.GraphConv((-1, -1), width),
    "attention": lambda width: gnn.GATv2Conv((-1, -1), width, add_self_loops=False),
    "transformer": lambda width: gnn.TransformerConv((-1, -1), width),
}


class RandomLayers(nn.Module):
    """Layers of convolutions drawn at random, batch normalisation of each type, and a head for papers."""

    def __init__(self, data: HeteroData, rng: np.random.Generator) -> None:
        super().__init__()
        widths = [int(w) for w in rng.integers(2, 5, size=rng.integers(1, 3))]
        self.layers = nn.ModuleList(
            gnn.HeteroConv({r: CONVOLUTIONS[str(rng.choice(list(CONVOLUTIONS)))](w) for r in data.edge_types})
            for w in widths
        )
        types = sorted({relation[2] for relation in data.edge_types})
        self.norms = nn.ModuleDict({kind: nn.BatchNorm1d(widths[-1]) for kind in types})
        self.head = nn.Linear(widths[-1], 3)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        for layer in self.layers:
            x_dict = {kind: torch.tanh(x) for kind, x in layer(x_dict, edge_index_dict).items()}
        return self.head(self.norms["paper"](x_dict["paper"]))


def random_library(rng: np.random.Generator) -> HeteroData:
    """Any relations, also empty ones, with repeated edges, loops and nodes that nothing reaches."""
    data, sizes = HeteroData(), {"author": int(rng.integers(1, 8)), "paper": PAPERS, "venue": int(rng.integers(1, 5))}
    for kind, count in sizes.items():
        width = int(rng.choice([3, 24]))  # few features, or enough to be lifted out
        data[kind].x = torch.from_numpy(rng.normal(size=(count, width)))
    data["paper"].y = torch.from_numpy(rng.integers(0, 3, size=PAPERS))
    joined = [("author", "paper"), ("paper", "author"), ("paper", "paper"), ("venue", "paper"), ("paper", "venue")]
    joined += [("author", "venue"), ("venue", "author"), ("venue", "venue"), ("paper", "paper")]
    joined = [joined[k] for k in range(len(joined)) if k < 5 or rng.random() < 0.5]
    for number, (source, target) in enumerate(joined):
        count = int(rng.choice([0, 3, 15, 40]))
        ends = [torch.from_numpy(rng.integers(0, sizes[kind], size=count)) for kind in (source, target)]
        data[source, f"relation_{number}", target].edge_index = torch.stack(ends)
    return data


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 16))])
def test_random_graphs_and_models(seed: int):
    rng = np.random.default_rng(seed)
    data = random_library(rng)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = RandomLayers(data, rng).double()
        with torch.no_grad():
            for _ in range(3):  # running statistics
                model(data.x_dict, data.edge_index_dict)
    model.eval()
    own = [edges for (a, _, b), edges in data.edge_index_dict.items() if a == b == "paper"]
    alone = Data(x=data["paper"].x, y=data["paper"].y, edge_index=torch.cat(own, dim=1), num_nodes=PAPERS)
    dense = DenseJury(
        *(model, lambda: model(data.x_dict, data.edge_index_dict), alone, NODES.tolist()),
        decay={name: DECAY for name, _ in model.named_parameters()},
        damping=0.0,
        leave_out="newton",
        linear=False,
        seats=list(range(len(NODES))),
    )
    jury = Jury(model, data, NODES, weight_decay=DECAY, leave_out=LeaveOut(decay="stated")).fit()
    np.testing.assert_allclose(jury.jurors.steps.numpy(), dense.steps.numpy(), rtol=1e-5, atol=1e-8)
    assert_same(jury.verdict(alpha=0.2, diffusion=seed % 3, advice=None), dense)


@pytest.mark.parametrize("kind", MODELS)
def test_jurors_retrained_to_convergence(kind: str):
    """``leave_out="retrain"`` equals training every juror by hand; at the minimum, Newton jurors are close to them."""
    model, data = made(kind)
    converge(model, data, NODES, torch.ones(len(NODES)), decay=DECAY)
    by_hand: dict[tuple[float, ...], dict[str, Tensor]] = {}
    steps = []
    for k in range(len(NODES)):
        juror = copy.deepcopy(model)
        weights = torch.ones(len(NODES))
        weights[k] = 0.0
        converge(juror, data, NODES, weights, decay=DECAY)
        by_hand[tuple(weights.tolist())] = juror.state_dict()
        pairs = zip(juror.parameters(), model.parameters())
        steps.append(torch.cat([(p - q).detach().reshape(-1) for p, q in pairs]))
    seen: list[type] = []

    def fit(juror: nn.Module, graph: HeteroData, train_nodes: Tensor, weights: Tensor) -> None:
        """From the parameters found by hand, which are the minimum here only if graph, nodes and weights are right."""
        seen.append(type(graph))
        juror.load_state_dict(by_hand[tuple(weights.tolist())])
        converge(juror, graph, train_nodes, weights, decay=DECAY)

    dense = reference(model, data)
    dense.steps = torch.stack(steps)
    dense._exact_votes()
    recipe = Retraining(fit=fit, processes=1)
    settings = {"node_type": "paper", "weight_decay": DECAY, "retraining": recipe}
    retrained = Jury(model, data, NODES, leave_out="retrain", **settings).fit()
    assert seen == [HeteroData] * len(NODES)
    assert_same(retrained.verdict(alpha=0.2, diffusion=1, advice=None), dense, slack=1e-5)
    newton = Jury(model, data, NODES, **settings).fit()
    assert newton.health().relative_gradient < 1e-6
    votes = [jury.leave_one_out_predictions(NODES) for jury in (newton, retrained)]
    own = [v[range(len(NODES)), range(len(NODES)), data["paper"].y[NODES]] for v in votes]
    assert correlate(*own) > FAITHFUL
    assert float((own[0] - own[1]).abs().mean()) < 0.1
    found = newton.fidelity(len(NODES))
    assert found.correlation == pytest.approx(correlate(*own), abs=1e-6)


@pytest.mark.parametrize("kind", MODELS)
def test_linearised_votes(kind: str):
    model, data = made(kind)
    jury = Jury(model, data, NODES, weight_decay=DECAY, leave_out=LeaveOut(decay="stated"), votes="linearized").fit()
    assert_same(jury.verdict(alpha=0.2, advice=None), reference(model, data, linear=True), slack=1e-5)


@pytest.mark.parametrize("kind", MODELS)
def test_labels_that_matter(kind: str):
    """``influence_on`` against one forward pass per juror."""
    model, data = made(kind)
    dense = reference(model, data)
    frame = Jury(model, data, NODES, weight_decay=DECAY, leave_out=LeaveOut(decay="stated")).fit().influence_on(5)
    c = int(dense.outputs[5].argmax())
    support = {int(u): dense.outputs[5, c] - dense.votes[k, 5, c] for k, u in enumerate(NODES)}
    for row in frame.itertuples():
        assert row.support == pytest.approx(support[row.train_node], abs=1e-7)
        assert row.label == int(data["paper"].y[row.train_node])
    assert frame["support"].abs().is_monotonic_decreasing
