"""Any PyG model can have a jury: derivatives, jurors and ballots through torch.func alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch_geometric.data import Data

from cases import graph
from gnn_zoo import ZOO
from jurygcn.data import synthetic
from jurygcn.derivatives import autodiff
from jurygcn.engine import engine_of
from jurygcn.jury import Jury
from jurygcn.leave_one_out.retraining import Retraining
from jurygcn.models import GCN, train
from jurygcn.settings import LeaveOut


def small_graph() -> Data:
    data = synthetic(num_nodes=80, num_edges=320, num_features=6, num_classes=3, seed=1)
    data.x, data.edge_weight = data.x.double(), torch.rand(data.num_edges, dtype=torch.float64) + 0.5
    # symmetric weights
    lookup = {tuple(e): w for e, w in zip(data.edge_index.T.tolist(), data.edge_weight.tolist())}
    data.edge_weight = torch.tensor([lookup[tuple(sorted(e))] for e in data.edge_index.T.tolist()], dtype=torch.float64)
    return data


def fitted(name: str, *, epochs: int = 300) -> tuple[nn.Module, Data, torch.Tensor]:
    data = small_graph()
    model = ZOO[name](6, 3).double()
    nodes = torch.arange(0, 80, 4)
    train(model, data, nodes, epochs=epochs, weight_decay=0.01)
    return model, data, nodes


@pytest.mark.parametrize("name", ZOO)
def test_every_model_against_plain_loops(name: str):
    """Jacobian, curvature, jurors and ballots equal what autograd gives one number and one model at a time."""
    model, data, nodes = fitted(name, epochs=60)
    before = copy.deepcopy(model.state_dict())
    jury = Jury(model, data, nodes, weight_decay=0.01, leave_out=LeaveOut(decay="stated")).fit()
    engine = jury.engine
    theta = engine.theta.requires_grad_()
    z = engine.outputs(theta)
    J = torch.stack([torch.autograd.grad(z[i, c], theta, retain_graph=True)[0] for i in nodes for c in range(3)])
    rows = autodiff.jacobian_rows(engine, engine.theta, nodes)
    torch.testing.assert_close(rows.flatten(0, 1), J, rtol=1e-8, atol=1e-10)
    pi = torch.softmax(z[nodes].detach(), dim=1)
    S = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None, :]
    H = torch.einsum("icp,icd,idr->pr", rows, S, rows) / len(nodes) + 0.01 * torch.eye(J.shape[1], dtype=J.dtype)
    g = torch.einsum("icp,ic->ip", rows, pi - torch.nn.functional.one_hot(data.y[nodes], 3))
    without = [H - torch.einsum("cp,cd,dr->pr", rows[i], S[i], rows[i]) / len(nodes) for i in range(len(nodes))]
    steps = torch.stack([torch.linalg.solve(H_i, g_i) / len(nodes) for H_i, g_i in zip(without, g)])
    torch.testing.assert_close(jury.jurors.steps, steps, rtol=1e-6, atol=1e-8)
    few = torch.tensor([3, 50])
    votes = jury.leave_one_out_predictions(few)
    for i in (0, 7):
        juror = copy.deepcopy(model)
        state = dict(juror.state_dict())
        state.update(engine.unflatten(engine.theta.detach() + steps[i]))
        juror.load_state_dict(state)
        arguments = (data.x, data.edge_index) + ((data.edge_weight,) if name in ("edge_weights", "gcn", "sgc") else ())
        expected = torch.softmax(juror.eval()(*arguments), dim=1)[few]
        torch.testing.assert_close(votes[i], expected.detach(), rtol=1e-6, atol=1e-8)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())  # never changed


@pytest.mark.parametrize("decay", ["stated", "effective"])
def test_generic_path_equals_the_fast_path(decay: str):
    """The paper's GCN, once in closed form and once as an unknown module: the same verdict."""
    model, data, nodes = fitted("gcn")
    settings = {"weight_decay": 0.01, "leave_out": LeaveOut(decay=decay)}
    fast = Jury(model, data, nodes, **settings).fit()
    generic = Jury(model, data, nodes, forward=lambda m, d: m(d.x, d.edge_index, d.edge_weight), **settings).fit()
    assert type(generic.engine) is not type(fast.engine)
    torch.testing.assert_close(generic.jurors.steps, fast.jurors.steps, rtol=1e-5, atol=1e-8)
    a, b = generic.verdict(alpha=0.1, advice=None), fast.verdict(alpha=0.1, advice=None)
    for field in ("lower", "upper", "loo_variance", "p_values"):
        torch.testing.assert_close(getattr(a, field), getattr(b, field), rtol=1e-5, atol=1e-8)


def to_the_minimum(model: nn.Module, data: Data, nodes: torch.Tensor, weights: torch.Tensor) -> None:
    """Adam with a falling step: its last steps are small enough for kinks of ReLUs and attention."""
    warm = False
    for lr, epochs in ((0.02, 300), (0.005, 200), (0.001, 200), (0.0002, 100)):
        train(model, data, nodes, epochs=epochs, lr=lr, weight_decay=0.01, node_weights=weights, warm_start=warm)
        warm = True


@pytest.mark.parametrize("name", ["sgc", "sage", "appnp"])  # GAT and GIN: benchmarks/any_gnn.py
def test_jurors_agree_with_retraining(name: str):
    data = small_graph()
    del data.edge_weight
    model, nodes = ZOO[name](6, 3).double(), torch.arange(0, 80, 4)
    to_the_minimum(model, data, nodes, torch.ones(len(nodes)))
    recipe = Retraining(fit=to_the_minimum, processes=1)
    jury = Jury(model, data, nodes, weight_decay=0.01, retraining=recipe).fit()
    assert jury.health().gradient < 1e-3
    fidelity = jury.fidelity(k=6)
    assert fidelity.correlation > 0.9, fidelity
    assert len(fidelity.frame) == 6


def test_local_graph_is_used_only_when_it_suffices():
    class Pooling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = ZOO["sgc"](6, 3)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index) - x.mean()  # every node sees every other

    data = small_graph()
    nodes = torch.tensor([5, 9])
    near = engine_of(ZOO["sgc"](6, 3).double(), data, nodes)
    assert int(near.local(nodes)[0].num_nodes) < 80
    whole = engine_of(Pooling().double(), data, nodes)
    assert int(whole.local(nodes)[0].num_nodes) == 80


def test_frozen_parameters_are_constants():
    model, data, nodes = fitted("gcn_with_bias")
    model.first.requires_grad_(False)
    jury = Jury(model, data, nodes, weight_decay=0.01).fit()
    assert jury.jurors.steps.shape[1] == sum(p.numel() for p in model.second.parameters())
    assert jury.health().frozen == sum(p.numel() for p in model.first.parameters())
    assert torch.isfinite(jury.verdict(advice=None).p_values).all()


def test_train_mode_does_not_leak_in():
    """A model handed over in training mode is quantified in eval mode, and handed back as it was."""
    data = graph("two_block")
    model = GCN(4, 3, 3, dropout=0.9).double()
    train(model, data, torch.arange(6), epochs=5)
    quiet = Jury(model, data, torch.arange(6)).fit().verdict(advice=None)
    model.train()
    loud = Jury(model, data, torch.arange(6)).fit().verdict(advice=None)
    assert torch.equal(quiet.p_values, loud.p_values)
    assert model.training
