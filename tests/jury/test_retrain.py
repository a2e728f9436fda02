"""Brute-force jurors, and the reports that compare with them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch_geometric.nn import GCNConv

from cases import graph
from jurygcn.data import synthetic
from jurygcn.diagnostics.fidelity import correlate
from jurygcn.engine import engine_of
from jurygcn.errors import ModelError, SettingError
from jurygcn.jury import Jury
from jurygcn.leave_one_out.retraining import Retraining, retrained_parameters, without_node
from jurygcn.models import GCN, train
from jurygcn.settings import LeaveOut


def trained(epochs: int = 80, seed: int = 3) -> tuple[GCN, object, torch.Tensor]:
    data = synthetic(num_nodes=60, num_edges=240, num_features=5, num_classes=3, seed=2)
    nodes = torch.arange(0, 60, 4)
    model = GCN(5, 6, 3)
    train(model, data, nodes, epochs=epochs, seed=seed, weight_decay=0.01)
    return model, data, nodes


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_stacked_training_equals_training_one_by_one(start: str):
    model, data, nodes = trained()
    engine = engine_of(model, data, nodes, weight_decay=0.01)
    stacked = retrained_parameters(engine, Retraining(epochs=40, seed=3, start=start), [0, 4, 9])
    for row, left_out in zip(stacked, (0, 4, 9)):
        juror = copy.deepcopy(model)
        weights = torch.ones(len(nodes))
        weights[left_out] = 0.0
        warm = start == "warm"
        train(juror, data, nodes, epochs=40, seed=3, weight_decay=0.01, node_weights=weights, warm_start=warm)
        expected = torch.cat([p.detach().reshape(-1) for p in juror.parameters()]).double()
        torch.testing.assert_close(row, expected, rtol=1e-3, atol=1e-4)


def test_own_training_function_and_generic_models_agree_with_the_stack():
    model, data, nodes = trained()
    engine = engine_of(model, data, nodes, weight_decay=0.01)

    def fit(juror, graph, train_nodes, weights):
        train(juror, graph, train_nodes, epochs=40, seed=3, weight_decay=0.01, node_weights=weights)

    stacked = retrained_parameters(engine, Retraining(epochs=40, seed=3), [1, 2])
    own = retrained_parameters(engine, Retraining(fit=fit, processes=1), [1, 2])
    torch.testing.assert_close(own, stacked, rtol=1e-3, atol=1e-4)
    generic = engine_of(model, data, nodes, weight_decay=0.01, forward=lambda m, d: m(d.x, d.edge_index))
    one_by_one = retrained_parameters(generic, Retraining(epochs=40, seed=3, processes=1), [1, 2])
    torch.testing.assert_close(one_by_one, stacked, rtol=1e-3, atol=1e-4)


def test_removing_the_node_too():
    model, data, nodes = trained()
    cut = without_node(data, int(nodes[2]))
    assert not (cut.edge_index == nodes[2]).any()
    assert cut.num_nodes == data.num_nodes
    engine = engine_of(model, data, nodes, weight_decay=0.01)
    settings = {"epochs": 30, "seed": 3, "processes": 1}
    removed = retrained_parameters(engine, Retraining(**settings, remove="node"), [2])[0]
    juror = copy.deepcopy(model)
    weights = torch.ones(len(nodes))
    weights[2] = 0.0
    train(juror, cut, nodes, epochs=30, seed=3, weight_decay=0.01, node_weights=weights)
    torch.testing.assert_close(removed, torch.cat([p.detach().reshape(-1) for p in juror.parameters()]).double())
    kept = retrained_parameters(engine, Retraining(**settings), [2])[0]
    assert (removed - kept).norm() > 1e-3


def test_retrained_jury_behind_the_same_interface():
    model, data, nodes = trained(epochs=400)
    recipe = Retraining(epochs=400, seed=3)
    retrained = Jury(model, data, nodes, weight_decay=0.01, leave_out="retrain", retraining=recipe).fit()
    newton = Jury(model, data, nodes, weight_decay=0.01, retraining=recipe).fit()
    influence = Jury(model, data, nodes, weight_decay=0.01, leave_out="influence").fit()
    truth = retrained.leave_one_out_predictions(nodes)
    error = {
        name: float((jury.leave_one_out_predictions(nodes) - truth).norm())
        for name, jury in (("n", newton), ("i", influence))
    }
    assert error["n"] < 0.5 * error["i"]
    assert retrained.verdict(advice=None).p_values.shape == (60, 3)


def test_fidelity_and_health():
    model, data, nodes = trained(epochs=600)
    jury = Jury(model, data, nodes, weight_decay=0.01, retraining=Retraining(epochs=600, seed=3)).fit()
    fidelity = jury.fidelity(k=10)
    assert fidelity.correlation > 0.95
    assert abs(fidelity.bias) < 0.1
    assert "can be trusted" in fidelity.advice
    health = jury.health()
    assert health.well, health.advice
    # the gradient by autodiff
    expected = torch.func.grad(jury.engine.risk)(jury.engine.theta).norm()
    assert health.gradient == pytest.approx(float(expected), rel=1e-6)
    eigenvalues = torch.linalg.eigvalsh(jury.curvature.to_dense())
    assert health.eigenvalues == pytest.approx((float(eigenvalues[0]), float(eigenvalues[-1])), rel=0.1)


def test_health_speaks_up():
    model, data, nodes = trained(epochs=3)
    stated = LeaveOut(decay="stated")
    stopped = Jury(model, data, nodes, weight_decay=5e-4, leave_out=stated).fit().health()
    assert any("label sets to be too large" in line for line in stopped.advice)
    wrong_decay = Jury(trained(epochs=600)[0], data, nodes, weight_decay=0.5, leave_out=stated).fit().health()
    assert any("weight decay you trained with" in line for line in wrong_decay.advice)
    dropping = GCN(5, 6, 3, dropout=0.5)
    train(dropping, data, nodes, epochs=5)
    off = Jury(dropping, data, nodes, weight_decay=5e-4, leave_out=LeaveOut(decay="stated", dropout_masks=0)).fit()
    assert any("dropout" in line for line in off.health().advice)
    averaged = Jury(dropping, data, nodes).fit().health()  # its gradient does not tell good jurors from bad ones
    assert averaged.relative_gradient > 0.25
    assert not any("stopped before" in line for line in averaged.advice)


def test_influence_on_a_node():
    model, data, nodes = trained(epochs=300)
    jury = Jury(model, data, nodes, weight_decay=0.01).fit()
    frame = jury.influence_on(7)
    votes = jury.leave_one_out_predictions([7])[:, 0]
    with torch.no_grad():
        own = torch.softmax(model(data.x, data.edge_index), dim=1)[7]
    label = int(own.argmax())
    assert set(frame["train_node"]) == set(nodes.tolist())
    assert frame["support"].abs().is_monotonic_decreasing
    top = frame.iloc[0]
    i = nodes.tolist().index(int(top["train_node"]))
    assert top["support"] == pytest.approx(float(own[label] - votes[i, label]), abs=1e-6)
    assert top["prediction_without"] == int(votes[i].argmax())


def test_correlation():
    a = torch.tensor([1.0, 2.0, 4.0])
    assert correlate(a, 3 * a + 1) == pytest.approx(1.0)
    assert correlate(a, -a) == pytest.approx(-1.0)
    assert correlate(torch.ones(3), torch.ones(3)) == 1.0
    assert correlate(a, torch.ones(3)) == 0.0


def test_settings_are_checked():
    with pytest.raises(SettingError, match="start"):
        Retraining(start="lukewarm")
    with pytest.raises(SettingError, match="remove"):
        Retraining(remove="everything")


def test_regression_fidelity():
    data = graph("two_block", classes=1, regression=True)
    model = GCN(4, 3, 1).double()
    nodes = torch.arange(8)
    train(model, data, nodes, loss="mse", epochs=500, weight_decay=0.02)
    jury = Jury(model, data, nodes, loss="mse", weight_decay=0.02, retraining=Retraining(epochs=500)).fit()
    assert jury.fidelity(k=8).correlation > 0.8


class Normalised(torch.nn.Module):
    """A GCN with batch normalisation and dropout."""

    def __init__(self, *, affine: bool = True) -> None:
        super().__init__()
        self.first, self.norm, self.second = GCNConv(5, 6), torch.nn.BatchNorm1d(6, affine=affine), GCNConv(6, 3)

    def reset_parameters(self) -> None:
        for layer in (self.first, self.norm, self.second):
            layer.reset_parameters()

    def forward(self, x, edge_index):
        x = self.norm(self.first(x, edge_index)).relu()
        return self.second(torch.nn.functional.dropout(x, 0.3, self.training), edge_index)


def fit_normalised(model, data, nodes, weights):
    torch.manual_seed(0)
    model.reset_parameters()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=0.01)
    model.train()
    for _ in range(30):
        optimizer.zero_grad()
        losses = torch.nn.functional.cross_entropy(
            model(data.x, data.edge_index)[nodes], data.y[nodes], reduction="none"
        )
        (losses * weights).mean().backward()
        optimizer.step()
    model.eval()


def test_retrained_jurors_keep_their_running_statistics():
    _, data, nodes = trained(epochs=1)
    model = Normalised()
    fit_normalised(model, data, nodes, torch.ones(len(nodes)))
    jury = Jury(model, data, nodes, retraining=Retraining(fit=fit_normalised, processes=1), leave_out="retrain").fit()
    votes = jury.leave_one_out_predictions()
    for left_out in (0, 7):
        juror, weights = Normalised(), torch.ones(len(nodes))
        weights[left_out] = 0.0
        fit_normalised(juror, data, nodes, weights)
        assert float((juror.norm.running_var / model.norm.running_var - 1).abs().max()) > 1e-3  # they do differ
        expected = juror(data.x, data.edge_index).softmax(dim=1).detach()
        torch.testing.assert_close(votes[left_out], expected, rtol=1e-4, atol=1e-5)


def test_retrained_jurors_that_parameters_do_not_determine_are_refused():
    _, data, nodes = trained(epochs=1)
    model = Normalised(affine=False)
    fit_normalised(model, data, nodes, torch.ones(len(nodes)))
    retraining = Retraining(fit=fit_normalised, processes=1)
    with pytest.raises(ModelError, match="affine=True"):
        Jury(model, data, nodes, retraining=retraining, leave_out="retrain").fit()

    def shift(juror, graph, train_nodes, weights):
        fit_normalised(juror, graph, train_nodes, weights)
        juror.second.bias.requires_grad_(False)
        juror.second.bias += 1.0

    model = Normalised()
    model.second.bias.requires_grad_(False)
    with pytest.raises(ModelError, match="frozen parameters changed"):
        Jury(model, data, nodes, retraining=Retraining(fit=shift, processes=1), leave_out="retrain").fit()
