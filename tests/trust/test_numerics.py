"""Where floating point ends: each case has a stated behaviour, and health() reports it."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from slow_jury import SlowJury
from torch_geometric.data import Data

from cases import graph
from jurygcn import GCN, Jury, Retraining, train
from jurygcn.errors import DataError, ModelError, SolverError
from jurygcn.losses import FLOOR, loss_named
from jurygcn.settings import LeaveOut


def blocks(size: int = 40, *, features: int = 6, seed: int = 0, dtype: torch.dtype = torch.float32) -> Data:
    """Two blocks with noisy features and two classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(size) % 2
    chance = torch.where(y[:, None] == y[None, :], 0.2, 0.03)
    upper = (torch.rand(size, size, generator=g) < chance).triu(1)
    x = torch.randn(size, features, generator=g) + y[:, None]
    return Data(x=x.to(dtype), edge_index=(upper | upper.T).nonzero().T.contiguous(), y=y, num_classes=2)


def fitted(data: Data, nodes: torch.Tensor, *, epochs: int = 300, weight_decay: float = 5e-3, **settings) -> GCN:
    model = GCN(data.x.shape[1], 4, 2, **settings).to(data.x.dtype)
    train(model, data, nodes, epochs=epochs, weight_decay=weight_decay)
    return model


NODES = torch.arange(0, 24)


def minimum(data: Data, weight_decay: float) -> GCN:
    """A model at the minimum of its objective; linear, because at a kink of the ReLU a gradient may remain."""
    model = fitted(data, NODES, epochs=100, weight_decay=weight_decay, activation="linear")
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=300, line_search_fn="strong_wolfe", tolerance_grad=1e-9)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        fit = torch.nn.functional.cross_entropy(model(data.x, data.edge_index)[NODES], data.y[NODES])
        value = fit + 0.5 * weight_decay * sum(W.square().sum() for W in model.weights)
        value.backward()
        return value

    optimizer.step(loss)
    return model


def advice_of(jury: Jury) -> str:
    return " ".join(jury.health().advice)


# --- no weight decay --------------------------------------------------------------------------------------------


def test_no_weight_decay_is_solved_where_labels_determine_the_model():
    data = graph("two_block", classes=1, regression=True)
    model = GCN(4, 1, 1, num_layers=1).double()
    train(model, data, torch.arange(10), epochs=2000, lr=0.05, loss="mse", weight_decay=0.0)
    jury = Jury(model, data, torch.arange(10), loss="mse", weight_decay=0.0).fit()
    # least squares: a Newton juror is the solution without its node
    A_hat = SlowJury(model, Data(**{**data.to_dict(), "y": torch.zeros(12).long()}), [0], 1.0, "newton").A_hat
    X = (A_hat @ data.x)[:10]
    for i in range(10):
        kept = [k for k in range(10) if k != i]
        solution = torch.linalg.lstsq(X[kept], data.y[kept]).solution.reshape(-1)
        theta = jury.engine.theta + jury.jurors.steps[i]
        torch.testing.assert_close(theta, solution, rtol=1e-4, atol=1e-5)
    assert bool((jury.curvature.diagonal == 0).all())


@pytest.mark.parametrize("solver", ["auto", "direct", "cg", "minres", "dual"])
def test_no_weight_decay_takes_the_effective_one_where_they_do_not(solver: str):
    data = blocks(features=30, dtype=torch.float64)  # more parameters than labels
    model = fitted(data, NODES[:5], weight_decay=0.0, epochs=20)
    jury = Jury(model, data, NODES[:5], weight_decay=0.0, leave_out=LeaveOut(solver=solver)).fit()
    assert bool((jury.curvature.diagonal > 0).all())
    found = {
        name: float(values.flatten()[0]) for name, values in jury.engine.unflatten(jury.curvature.diagonal).items()
    }
    settings = LeaveOut(solver=solver, decay="stated")
    same = Jury(model, data, NODES[:5], weight_decay=found, leave_out=settings).fit()
    torch.testing.assert_close(jury.jurors.steps, same.jurors.steps)


def test_nothing_is_claimed_without_weight_decay_until_jurors_were_compared():
    data = blocks(features=30)
    model = fitted(data, NODES, weight_decay=0.0, epochs=60)
    jury = Jury(model, data, NODES, weight_decay=0.0, retraining=Retraining(epochs=60)).fit()
    claim = jury.verdict(advice=None).claim(0.2)
    assert claim.kind == "none"
    assert "no weight decay" in claim.words
    found = jury.fidelity(8)
    assert jury.verdict(advice=None).claim(0.2).kind == ("target" if found.trusted else "none")
    assert "no weight decay" not in jury.verdict(advice=None).claim(0.2).words


def test_an_impossible_label_without_weight_decay_is_refused():
    """The model excludes the label and nothing pulls it back: no number would mean anything."""
    data = graph("two_block")
    model = GCN(4, 3, 3, num_layers=1).double()
    with torch.no_grad():
        model.weights[0] *= 1e4
    for solver in ("cg", "direct", "auto"):
        with pytest.raises(SolverError, match=r"probability 0|singular"):
            Jury(
                *(model, data, torch.arange(12)),
                weight_decay=0.0,
                leave_out=LeaveOut("influence", solver=solver, decay="stated"),
            ).fit()
    assert torch.isfinite(Jury(model, data, torch.arange(12), weight_decay=0.01).fit().verdict(advice=None).width).all()


# --- a saturated softmax -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [0.0, 30.0, 100.0, 800.0, 1e6])
@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("top", [0, 1, 2])
def test_whitening_holds_where_the_softmax_is_saturated(gap: float, label: int, top: int):
    """L w is the residual and L L^T the covariance, whichever class is certain and whichever is the label."""
    loss = loss_named("cross_entropy")
    z = torch.tensor([[0.0, -0.3, 0.1]], dtype=torch.float64)
    z[0, top] += gap
    y = torch.tensor([label])
    L, w = loss.root(z), loss.whitened(z, y)
    pi = z.softmax(dim=1)[0]
    torch.testing.assert_close((L[0] @ w[0]), loss.residual(z, y)[0], rtol=1e-12, atol=1e-15)
    S = torch.diag(pi) - torch.outer(pi, pi)
    torch.testing.assert_close(L[0] @ L[0].T, S, rtol=1e-9, atol=1e-15)
    assert float(w.abs().max()) <= 2 / FLOOR  # far inside the range of float32
    v = loss.change(z, w)
    torch.testing.assert_close(L[0].T @ v[0], w[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("leave_out", ["newton", "influence"])
def test_saturated_models_are_judged_right(dtype: torch.dtype, leave_out: str):
    """Probabilities of exactly 0 and 1, some of them wrong: the jurors are those of dense algebra."""
    data = blocks(dtype=dtype)
    model = fitted(data, NODES)
    with torch.no_grad():
        model.weights[1] *= 150
    data.y[::5] = 1 - data.y[::5]
    jury = Jury(model, data, NODES, weight_decay=0.01, leave_out=leave_out).fit()
    slow = SlowJury(model, data, NODES.tolist(), 0.01, leave_out)
    pi = torch.from_numpy(slow.outputs[:24])
    assert bool((pi.gather(1, data.y[:24, None]).float() == 0).any())  # some labels are impossible
    scale = slow.steps.norm(dim=1)
    assert float((jury.jurors.steps - slow.steps).norm(dim=1).max() / scale.max()) < 1e-4
    verdict = jury.verdict(diffusion=0, advice=None)
    assert torch.isfinite(verdict.loo_errors).all()
    health = jury.health()
    assert health.saturated > 0
    assert "probability 1" in " ".join(health.advice)
    assert fitted_health(data).saturated == 0


def fitted_health(data: Data):
    return Jury(fitted(data, NODES, epochs=50), data, NODES, weight_decay=5e-3).fit().health()


# --- leverage near 1 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("solver", ["dual", "direct"])
def test_leverage_near_one(weight_decay: float, solver: str):
    """An isolated node with a feature of its own: only weight decay holds its direction once it is left out."""
    data = blocks(dtype=torch.float64)
    data.x = torch.cat([data.x, torch.zeros(40, 1, dtype=torch.float64)], dim=1)
    data.x[0] = 0.0
    data.x[0, -1] = 3.0
    data.edge_index = data.edge_index[:, (data.edge_index != 0).all(dim=0)]
    model = fitted(data, NODES, weight_decay=1e-3)
    jury = Jury(model, data, NODES, weight_decay=weight_decay, leave_out=LeaveOut(decay="stated", solver=solver)).fit()
    slow = SlowJury(model, data, NODES.tolist(), weight_decay, "newton")
    scale = slow.steps.norm(dim=1)
    # direct takes I - M_ii as a difference, and loses as many digits as M_ii has nines
    assert float(((jury.jurors.steps - slow.steps).norm(dim=1) / scale).max()) < (1e-6 if solver == "dual" else 1e-4)
    health = jury.health()
    assert health.leverage[1] <= 1.0
    assert (health.leverage[1] > 0.99) == ("leverage" in " ".join(health.advice))
    if weight_decay <= 1e-6:
        assert health.leverage[1] > 0.99


def test_leverage_of_one_is_refused():
    """One label, no weight decay: without it nothing is left."""
    data = Data(x=torch.ones(3, 1).double(), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([0, 1, 0]))
    model = GCN(1, 1, 2, num_layers=1).double()
    with torch.no_grad():  # the model is wrong about the label, so that its parameters imply no weight decay
        model.weights[0].copy_(torch.tensor([[1.0, -1.0]]))
    with pytest.raises(SolverError, match="node 1"):
        Jury(model, data, [1], weight_decay=0.0, leave_out=LeaveOut(solver="cg")).fit()


# --- ill-conditioned curvature -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e5, 1e6])
def test_ill_conditioning_is_reported_then_refused(scale: float):
    data = blocks(dtype=torch.float64)
    data.x = data.x * scale
    torch.manual_seed(0)
    model = GCN(6, 4, 2).double()
    with torch.no_grad():
        model.weights[0] /= scale
    jury = Jury(model, data, NODES, weight_decay=1e-3)
    if scale == 1e6:
        with pytest.raises(SolverError, match="condition number"):
            jury.fit()
        return
    health = jury.fit().health()
    low, high = health.eigenvalues
    assert ("ill-conditioned" in " ".join(health.advice)) == (high > 1e10 * low)
    assert (high > 1e10 * low) == (scale == 1e5)


def test_repeated_labels_lose_no_digits_in_float32():
    """Ten nodes that look the same: the dual system is nearly singular, and float32 alone would be off by percents."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 3, generator=generator).repeat_interleave(12, dim=0)
    data = Data(x=x, edge_index=torch.zeros(2, 0).long(), y=torch.arange(24) % 3, num_classes=3)
    torch.manual_seed(0)
    model = GCN(3, 4, 3)
    nodes = list(range(20))
    jury = Jury(model, data, nodes, weight_decay=1e-6, leave_out=LeaveOut("influence", solver="dual")).fit()
    slow = SlowJury(model, data, nodes, 1e-6, "influence")
    error = (jury.jurors.steps - slow.steps).norm(dim=1) / slow.steps.norm(dim=1)
    assert float(error.max()) < 1e-4


# --- precision -----------------------------------------------------------------------------------------------------


def test_float32_and_float64_agree():
    """The same model in both precisions: votes to 1e-5, p-values but for near-ties, and health says which it was."""
    data = blocks(60)
    nodes = torch.arange(0, 36)
    model = fitted(data, nodes)
    single = Jury(model, data, nodes, weight_decay=5e-3).fit()
    double = Jury(copy.deepcopy(model).double(), data, nodes, weight_decay=5e-3).fit()
    assert (single.health().precision, double.health().precision) == ("float32", "float64")
    assert single.verdict(advice=None).outputs.dtype == torch.float32
    np.testing.assert_allclose(single.leave_one_out_predictions(), double.leave_one_out_predictions(), atol=1e-5)
    ours, theirs = single.verdict(diffusion=0, advice=None), double.verdict(diffusion=0, advice=None)
    assert float((ours.p_values - theirs.p_values).abs().max()) <= 1 / 36
    assert float((ours.p_values != theirs.p_values).double().mean()) < 0.02


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_votes_in_float32(kind: torch.dtype):
    data = blocks()
    model = fitted(data, NODES).to(kind)
    jury = Jury(model, data, NODES, weight_decay=5e-3).fit()
    reference = Jury(copy.deepcopy(model).float(), data, NODES, weight_decay=5e-3).fit()
    assert jury.health().precision == "float32"
    assert torch.equal(jury.verdict(advice=None).p_values, reference.verdict(advice=None).p_values)


def test_parameters_of_mixed_precision():
    """One layer in float64 is enough to vote in float64."""
    data = blocks()
    model = fitted(data, NODES)
    reference = Jury(copy.deepcopy(model).double(), data, NODES, weight_decay=5e-3).fit()
    model.weights[1].data = model.weights[1].data.double()
    mixed = Jury(model, data, NODES, weight_decay=5e-3).fit()
    assert torch.equal(mixed.verdict(advice=None).p_values, reference.verdict(advice=None).p_values)


@pytest.mark.parametrize("what", ["model", "layer", "graph"])
def test_devices_that_differ_are_refused(what: str):
    data = blocks()
    model = fitted(data, NODES, epochs=2)
    if what == "model":
        model = model.to("meta")
    elif what == "layer":
        model.weights[1] = torch.nn.Parameter(model.weights[1].to("meta"))
    else:
        data.edge_index = data.edge_index.to("meta")
    with pytest.raises((DataError, ModelError), match=r"one device"):
        Jury(model, data, NODES)


def test_votes_beyond_float32_are_refused():
    """Steps that are numbers can still lead to outputs that are not."""
    data = blocks()
    data.x = data.x * 1e18
    torch.manual_seed(0)
    model = GCN(6, 4, 2)
    with pytest.raises((ModelError, SolverError), match="weight decay"):
        Jury(model, data, NODES, weight_decay=1e-4).fit().verdict(advice=None)


# --- frozen, dropped out, not converged -----------------------------------------------------------------------


def test_frozen_parameters_are_constants_and_reported():
    data = blocks()
    model = fitted(data, NODES)
    model.weights[0].requires_grad_(False)
    jury = Jury(model, data, NODES, weight_decay=5e-3).fit()
    health = jury.health()
    assert health.frozen == model.weights[0].numel()
    assert "frozen" in " ".join(health.advice)
    assert jury.jurors.steps.shape[1] == model.weights[1].numel()
    model.weights[1].requires_grad_(False)
    with pytest.raises(ModelError, match="expected trainable"):
        Jury(model, data, NODES)


def test_convergence_is_measured():
    """The relative gradient falls as training goes on, and the advice goes away."""
    data = blocks(dtype=torch.float64)
    gradients = []
    early = [fitted(data, NODES, epochs=epochs, activation="linear") for epochs in (5, 60)]
    for model in (*early, minimum(data, 5e-3)):
        jury = Jury(model, data, NODES, weight_decay=5e-3, leave_out=LeaveOut(decay="stated")).fit()
        gradients.append(jury.health().relative_gradient)
        assert ("stopped before the minimum" in advice_of(jury)) == (gradients[-1] > 0.25)
    assert gradients[0] > 0.3
    assert gradients[0] > gradients[1] > gradients[2]
    assert gradients[2] < 1e-3


def test_weight_decay_that_was_not_given():
    """With the stated decay 5e-4 is assumed and said; the health report finds the one that fits the parameters."""
    data = blocks(dtype=torch.float64)
    model = minimum(data, 2e-2)
    found = Jury(model, data, NODES).fit()
    assert "weight_decay was not given" not in advice_of(found)
    assert float(found.curvature.diagonal[0]) == pytest.approx(2e-2, rel=0.05)
    assumed = Jury(model, data, NODES, leave_out=LeaveOut(decay="stated")).fit()
    assert assumed.engine.weight_decay == 5e-4
    words = advice_of(assumed)
    assert "weight_decay was not given, so 0.0005 was assumed" in words
    assert "look like a minimum with weight decay 2.0e-02" in words
    assert assumed.health().weight_decay == pytest.approx(2e-2, rel=0.02)
    told = Jury(model, data, NODES, weight_decay=2e-2).fit()
    assert "weight_decay was not given" not in advice_of(told)
    assert "does not fit" not in advice_of(told)


def test_an_assumed_weight_decay_is_remembered(tmp_path):
    data = blocks()
    model = fitted(data, NODES, epochs=20)
    Jury(model, data, NODES, leave_out=LeaveOut(decay="stated")).fit().save(tmp_path / "assumed")
    Jury(model, data, NODES, weight_decay=5e-4).fit().save(tmp_path / "given")
    assert "not given" in advice_of(Jury.load(tmp_path / "assumed", model, data))
    assert "not given" not in advice_of(Jury.load(tmp_path / "given", model, data))


def test_dropout_is_reported_whatever_the_mode():
    """A model left in training mode is judged in eval mode, and its dropout is named."""
    data = blocks()
    model = fitted(data, NODES, dropout=0.5)
    quiet = Jury(model, data, NODES, weight_decay=5e-3).fit().verdict(advice=None)
    model.train()
    jury = Jury(model, data, NODES, weight_decay=5e-3).fit()
    assert torch.equal(jury.verdict(advice=None).p_values, quiet.p_values)
    assert model.training
    assert jury.health().dropout == 0.5
    assert jury.dropout_masks == 0
    off = Jury(model, data, NODES, weight_decay=5e-3, leave_out=LeaveOut(decay="stated", dropout_masks=0)).fit()
    assert "dropout (0.5)" in advice_of(off)


def test_no_number_in_health_is_nan():
    for scale in (1.0, 300.0):
        data = blocks()
        model = fitted(data, NODES)
        with torch.no_grad():
            model.weights[1] *= scale
        health = Jury(model, data, NODES, weight_decay=5e-3).fit().health()
        numbers = [v for v in vars(health).values() if isinstance(v, float)] + [*health.eigenvalues, *health.leverage]
        assert all(math.isfinite(v) for v in numbers)
