"""The effective weight decay: against dense projections, at a minimum, and by what it does to jurors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as gnn

from gnn_zoo import ZOO
from jurygcn import GCN, Jury, LeaveOut, Retraining
from jurygcn.curvature import curvature_of
from jurygcn.curvature.effective_decay import SEEN
from jurygcn.data import synthetic
from jurygcn.diagnostics.fidelity import compare_jurors
from jurygcn.engine import engine_of
from jurygcn.errors import SettingError, SolverError
from jurygcn.leave_one_out.retraining import retrained_parameters

DATA = synthetic(num_nodes=80, num_edges=320, num_features=40, num_classes=3, seed=0)
NODES = torch.arange(0, 80, 8)


def few_steps(model: nn.Module, epochs: int = 30, decay: float = 5e-4) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=decay)
    for _ in range(epochs):
        optimizer.zero_grad()
        functional.cross_entropy(model(DATA.x, DATA.edge_index)[NODES], DATA.y[NODES]).backward()
        optimizer.step()
    return model.eval()


def dense_effective_decay(model: nn.Module, stated: float) -> dict[str, float]:
    """By autograd, a singular value decomposition of all rows, and the definition."""
    model = model.double()
    x = DATA.x.double()
    z = model(x, DATA.edge_index)[NODES]
    loss = functional.cross_entropy(z, DATA.y[NODES])
    named = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
    pi = z.detach().softmax(dim=1)
    found = {}
    for (name, p), g in zip(named.items(), gradients, strict=True):
        found[name] = stated
        if p.squeeze().dim() < 2 or g is None:
            continue
        J = torch.stack(
            [torch.autograd.grad(z[i, c], p, retain_graph=True)[0].reshape(-1) for i in range(len(z)) for c in range(3)]
        ).view(len(z), 3, -1)
        S = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None, :]
        values, vectors = torch.linalg.eigh(S)  # S = L L^T with two columns; the null direction is dropped
        L = vectors[:, :, 1:] * values[:, None, 1:].clamp_min(0).sqrt()
        U = torch.bmm(L.mT, J).reshape(-1, p.numel()) / len(z) ** 0.5
        W = p.detach().reshape(-1)
        size = float(W @ W)
        if p.numel() > len(U):
            _, lengths, right = torch.linalg.svd(U, full_matrices=False)
            cut = SEEN * float(U.square().sum(dim=1).mean())
            size = min(size, float(((right @ W) ** 2 * lengths**2 / (lengths**2 + cut)).sum()))
        value, other = float(-(g.reshape(-1) @ W)) / size, float(g.square().sum()) / float(-(g.reshape(-1) @ W))
        if value > 0:
            ratio = min(max(other / value, 1.0), 4.0)
            found[name] = stated + (value - stated) * ratio if value > stated else value
    return found


@pytest.mark.parametrize("name", ["gat", "sage", "gin", "appnp", "gcn_with_bias"])
def test_effective_decay_fits_gradient_and_seen_part_of_each_matrix(name):
    torch.manual_seed(1)
    model = few_steps(ZOO[name](40, 3))
    engine = engine_of(model, DATA, NODES, weight_decay=5e-4)
    diagonal = engine.unflatten(curvature_of(engine, "ggn", effective=True).diagonal)
    wanted = dense_effective_decay(model, 5e-4)
    changed = 0
    for key, values in diagonal.items():
        assert bool((values == values.flatten()[0]).all())
        assert float(values.flatten()[0]) == pytest.approx(wanted[key], rel=1e-6), key
        changed += wanted[key] != 5e-4
    assert changed >= 2  # the test is about decays that are not the stated one


def test_at_a_minimum_the_effective_decay_is_the_stated_one():
    torch.manual_seed(0)
    model = ZOO["appnp"](40, 3).double()
    data = DATA.clone()
    data.x = data.x.double()
    decay = 0.01
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=5000, tolerance_grad=1e-12, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def risk() -> Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(model(data.x, data.edge_index)[NODES], data.y[NODES])
        value = value + 0.5 * decay * sum(p.square().sum() for p in model.parameters())
        value.backward()
        return value

    optimizer.step(risk)
    model.eval()
    engine = engine_of(model, data, NODES, weight_decay={"first.bias": decay, "second.bias": decay})
    found = curvature_of(engine, "ggn", effective=True).diagonal
    torch.testing.assert_close(found, torch.full_like(found, decay), rtol=1e-3, atol=0.0)


class Example(nn.Module):
    """PyG's GCN example: biases, dropout, weight decay on the first layer only."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.first, self.second = gnn.GCNConv(F, 16), gnn.GCNConv(16, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = functional.dropout(x, 0.5, self.training)
        x = torch.relu(self.first(x, edge_index))
        return self.second(functional.dropout(x, 0.5, self.training), edge_index)


def fit_example(model: nn.Module, data, nodes: Tensor, weights: Tensor) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    model.first.reset_parameters()
    model.second.reset_parameters()
    groups = [{"params": model.first.parameters(), "weight_decay": 5e-4}, {"params": model.second.parameters()}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    for _ in range(60):
        model.train()
        optimizer.zero_grad()
        losses = functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes], reduction="none")
        (losses * weights).mean().backward()
        optimizer.step()
    model.eval()
    return optimizer


def test_jurors_of_an_early_stopped_model_with_dropout_are_nearer_to_retrained_ones():
    data = synthetic(num_nodes=400, num_edges=1600, num_features=60, num_classes=4, seed=3)
    nodes = torch.randperm(400, generator=torch.Generator().manual_seed(0))[:40].sort().values
    model = Example(60, 4)
    optimizer = fit_example(model, data, nodes, torch.ones(40))
    chosen = torch.arange(0, 40, 2)
    recipe, errors, retrained = Retraining(fit=fit_example, processes=1), {}, None
    for decay in ("stated", "effective"):
        jury = Jury(model, data, nodes, weight_decay=optimizer, leave_out=LeaveOut(decay=decay)).fit()
        if retrained is None:
            retrained = retrained_parameters(jury.engine, recipe, chosen.tolist())
        frame = compare_jurors(jury, chosen, retrained).frame
        errors[decay] = float(np.sqrt(((frame["estimated"] - frame["retrained"]) ** 2).mean()))
    assert errors["effective"] < 0.6 * errors["stated"]


@pytest.mark.parametrize("weight_decay", [None, 0.0, {"first": 5e-4}])
def test_no_weight_decay_needs_to_be_stated(weight_decay):
    model = Example(40, 3)
    optimizer = fit_example(model, DATA, NODES, torch.ones(len(NODES)))
    jury = Jury(model, DATA, NODES, weight_decay=weight_decay).fit()
    given = Jury(model, DATA, NODES, weight_decay=optimizer).fit()
    assert jury.leave_out.decay == "effective"
    assert jury.leave_out.dropout_masks == 0
    own, others = (jury.engine.unflatten(j.curvature.diagonal) for j in (jury, given))
    exact = weight_decay == {"first": 5e-4}  # the optimizer says the same
    for name in ("first.lin.weight", "second.lin.weight"):
        torch.testing.assert_close(own[name], others[name], rtol=1e-6 if exact else 0.2, atol=0.0)


def test_near_the_minimum_the_rest_of_the_gradient_is_noise():
    """A gradient that the stated decay explains along W, and noise across it, gives the stated decay."""
    torch.manual_seed(0)
    model = few_steps(ZOO["gcn_with_bias"](40, 3), epochs=400, decay=5e-3)
    engine = engine_of(model, DATA, NODES, weight_decay=5e-3)
    found = engine.unflatten(curvature_of(engine, "ggn", effective=True).diagonal)
    matrices = [values.flatten()[0] for name, values in found.items() if engine.parameters[name].dim() == 2]
    torch.testing.assert_close(torch.stack(matrices), torch.full((len(matrices),), 5e-3).double(), rtol=0.05, atol=0.0)


def test_a_plain_gcn_keeps_the_stated_decay_and_one_with_dropout_does_not():
    for dropout, decay in ((0.0, "stated"), (0.5, "effective")):
        jury = Jury(GCN(40, 4, 3, dropout=dropout), DATA, NODES, weight_decay=5e-4)
        assert jury.leave_out.decay == decay
    assert Jury(GCN(40, 4, 3), DATA, NODES, leave_out="influence", weight_decay=5e-4).leave_out.decay == "stated"
    assert Jury(GCN(40, 4, 3), DATA, NODES, leave_out="printed").decay_assumed


def test_settings_and_models_that_have_no_effective_decay_are_refused():
    with pytest.raises(SettingError, match="decay='effective', got leave_out='retrain'"):
        LeaveOut("retrain", decay="effective")
    with pytest.raises(SettingError, match="decay"):
        LeaveOut(decay="unknown")
    model = ZOO["sage"](40, 3)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    with pytest.raises(SolverError, match="expected a trained model"):
        Jury(model, DATA, NODES, weight_decay=0.0).fit()
