"""Jurors against retraining, against independent libraries, and the errata of the paper."""

from __future__ import annotations

import copy

import pytest
import scipy.sparse.linalg as spla
import torch
from torch.utils.data import TensorDataset

from cases import CASES, Case, graph
from jurygcn.curvature import curvature_of
from jurygcn.derivatives import autodiff
from jurygcn.engine import Engine, engine_of
from jurygcn.errors import SettingError, SolverError
from jurygcn.jury import Jury
from jurygcn.leave_one_out.estimated import LeaveOneOut
from jurygcn.linalg import Neumann
from jurygcn.models import GCN, train

EXACT = {"rtol": 1e-7, "atol": 1e-9}


def minimiser(engine: Engine, weights: torch.Tensor) -> torch.Tensor:
    """The exact minimiser of the weighted engine, by Newton's method with the exact Hessian (convex cases)."""
    theta = engine.theta.clone()

    def risk(t: torch.Tensor) -> torch.Tensor:
        return (weights * engine.node_losses(t)).sum() / len(weights) + 0.5 * (engine.decay * t**2).sum()

    for _ in range(50):
        step = torch.linalg.solve(torch.func.hessian(risk)(theta), torch.func.grad(risk)(theta))
        theta = theta - step
        if step.norm() < 1e-13:
            return theta
    raise AssertionError("Newton's method did not converge")


def converged(layers: int = 1, *, name: str = "two_block", decay: float = 0.05, loss: str = "cross_entropy") -> Engine:
    data = graph(name, regression=loss == "mse")
    model = GCN(4, 3, 3, num_layers=layers).double()
    nodes = torch.arange(0, data.num_nodes, 1)[:8]
    train(model, data, nodes, epochs=1500, lr=0.02, weight_decay=decay, loss=loss)
    engine = engine_of(model, data, nodes, weight_decay=decay, loss=loss)
    if layers == 1:
        theta = minimiser(engine, torch.ones(len(nodes), dtype=torch.float64))
        model.load_state_dict(engine.unflatten(theta))
        engine = engine_of(model, data, nodes, weight_decay=decay, loss=loss)
    return engine


def true_steps(engine: Engine) -> torch.Tensor:
    """theta_{-i} - theta by solving every leave-one-out problem (Eq. 3 with eps = -1/n)."""
    n = engine.num_train
    rows = [minimiser(engine, 1.0 - torch.eye(n, dtype=torch.float64)[i]) for i in range(n)]
    return torch.stack(rows) - engine.theta


def cosines(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cosine_similarity(a, b, dim=1)


def test_correct_sign_and_scale():
    """Errata E1 and E3: corrected influence jurors point to the retrained ones; the printed sign points away."""
    engine = converged()
    truth = true_steps(engine)
    solve = LeaveOneOut(engine, curvature_of(engine, "ggn"), "direct")
    corrected = solve.influence_jurors().steps
    assert cosines(corrected, truth).min() > 0.99
    slightly = 1.0 - 1e-4 * torch.eye(engine.num_train, dtype=torch.float64)[2]  # Eq. (3), a small eps
    torch.testing.assert_close(corrected[2], (minimiser(engine, slightly) - engine.theta) / 1e-4, rtol=1e-3, atol=1e-6)
    printed = solve.influence_jurors(as_printed=True).steps
    assert cosines(printed, truth).max() < 0
    torch.testing.assert_close(printed, -engine.num_train * corrected)


def test_newton_jurors_are_closer_to_retraining():
    engine = converged()
    truth = true_steps(engine)
    solve = LeaveOneOut(engine, curvature_of(engine, "ggn"), "dual")
    influence, newton = solve.influence_jurors().steps, solve.newton_jurors().steps
    assert cosines(newton, truth).min() > 0.99
    assert (newton - truth).norm() < 0.5 * (influence - truth).norm()


def test_newton_jurors_are_exact_for_least_squares():
    """A quadratic engine: one Newton step without node i is the leave-one-out minimiser itself."""
    engine = converged(loss="mse")
    solve = LeaveOneOut(engine, curvature_of(engine, "ggn"), "dual")
    torch.testing.assert_close(solve.newton_jurors().steps, true_steps(engine), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", [c for c in CASES if c.activation == "relu"], ids=str)
def test_newton_downdate_by_hand(case: Case):
    """(H - U_i^T U_i)^-1 g_i / n, formed densely, for every solver."""
    engine = case.engine(weight_decay=0.03)
    H = curvature_of(engine, "ggn").to_dense()
    U = curvature_of(engine, "ggn").factor.matmul(torch.eye(len(H), dtype=H.dtype))
    g = autodiff.node_gradients(engine, engine.theta)
    n = engine.num_train
    U = U.view(n, len(U) // n, -1)
    expected = torch.stack([torch.linalg.solve(H - U[i].T @ U[i], g[i]) / n for i in range(n)])
    for solver in ("dual", "direct", "cg"):
        jurors = LeaveOneOut(engine, curvature_of(engine, "ggn"), solver).newton_jurors()
        torch.testing.assert_close(jurors.steps, expected, rtol=1e-5, atol=1e-7)
        M = torch.einsum("icp,pr,idr->icd", U, torch.linalg.inv(H), U)
        torch.testing.assert_close(jurors.leverage, torch.linalg.eigvalsh(M)[:, -1], **EXACT)


@pytest.mark.parametrize("kind", ["ggn", "hessian"])
def test_influences_equal_a_dense_solve(kind: str):
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=0.05, trained=True)
    operator = curvature_of(engine, kind)
    g = engine.theorem_1().node_gradients()
    expected = torch.linalg.solve(operator.to_dense(), g.T).T
    for solver in ("auto", "direct", "minres", *(["dual", "cg"] if kind == "ggn" else [])):
        got = LeaveOneOut(engine, operator, solver).influences()
        torch.testing.assert_close(got.value.T, expected, rtol=1e-4, atol=1e-6)
        assert got.residual < 1e-5


def test_weight_decay_per_parameter():
    engine = Case("two_block", 2, "cross_entropy").engine()
    decay = {"weights.0": 0.02, "weights.1": 0.3}
    model = engine.model
    jury = Jury(model, engine.data, engine.train_nodes, weight_decay=decay, leave_out="influence")
    diagonal = torch.cat([torch.full((W.numel(),), decay[name], dtype=W.dtype) for name, W in model.named_parameters()])
    expected = curvature_of(engine, "ggn").to_dense() + torch.diag(diagonal)
    torch.testing.assert_close(jury.curvature.to_dense(), expected)
    g = engine.theorem_1().node_gradients()
    torch.testing.assert_close(jury.fit().influences, torch.linalg.solve(expected, g.T).T, **EXACT)


def test_algorithm_1_converges_on_a_damped_ggn():
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=5e-3, trained=True)
    operator = curvature_of(engine, "ggn", damping=0.05)
    exact = LeaveOneOut(engine, operator, "direct").influences().value
    full = LeaveOneOut(engine, operator, Neumann(iterations=2000)).influences()
    assert (full.value - exact).norm() < 0.01 * exact.norm()


def test_algorithm_1_refuses_the_exact_hessian():
    """Erratum E6: the recursion needs positive eigenvalues; a trained GCN's exact Hessian has negative ones."""
    engine = Case("two_block", 2, "cross_entropy").engine(trained=True)
    for kind in ("hessian", "printed"):
        with pytest.raises(SolverError, match="damping"):
            LeaveOneOut(engine, curvature_of(engine, kind), Neumann(scale=1.0, iterations=50)).influences()


def test_newton_needs_the_gauss_newton_matrix():
    engine = Case("path", 2, "cross_entropy").engine(weight_decay=0.1)
    solve = LeaveOneOut(engine, curvature_of(engine, "hessian", damping=10.0), "auto")
    with pytest.raises(SettingError, match="newton"):
        solve.newton_jurors()


# --- independent libraries ----------------------------------------------------------------------------


class AtNodes(torch.nn.Module):
    """A GCN as a function of node indices, which is how other libraries want their data."""

    def __init__(self, model: GCN, data) -> None:
        super().__init__()
        self.model, self.x, self.edge_index = model, data.x, data.edge_index

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        return self.model(self.x, self.edge_index)[nodes]


def trained_gcn() -> Engine:
    return Case("two_block", 2, "cross_entropy").engine(weight_decay=0.02, trained=True)


def test_influences_equal_curvlinops():
    curvlinops = pytest.importorskip("curvlinops")
    engine = trained_gcn()
    wrapped = AtNodes(copy.deepcopy(engine.model), engine.data)
    parameters = list(wrapped.parameters())
    batches = [(engine.train_nodes, engine.targets)]
    ggn = curvlinops.GGNLinearOperator(wrapped, torch.nn.CrossEntropyLoss(), parameters, batches)
    ggn = ggn.to_scipy()
    P = engine.num_parameters
    damped = spla.LinearOperator((P, P), matvec=lambda v: ggn @ v + 0.02 * v, dtype=float)
    theirs = []
    for node, label in zip(engine.train_nodes, engine.targets):
        loss = torch.nn.functional.cross_entropy(wrapped(node[None]), label[None])
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, parameters)]).numpy()
        solution, info = spla.cg(damped, g, rtol=1e-10)
        assert info == 0
        theirs.append(torch.from_numpy(solution))
    ours = Jury(engine.model, engine.data, engine.train_nodes, weight_decay=0.02, leave_out="influence").fit()
    torch.testing.assert_close(ours.influences, torch.stack(theirs), rtol=1e-4, atol=1e-8)


def test_influences_equal_captum():
    """A second opinion: captum's dense inverse of the exact Hessian (its loss is a sum, ours a mean)."""
    influence = pytest.importorskip("captum.influence._core.influence_function")
    engine = converged(2, decay=0.02)
    n = engine.num_train
    wrapped = AtNodes(copy.deepcopy(engine.model), engine.data)
    theirs = influence.NaiveInfluenceFunction(
        wrapped,
        TensorDataset(engine.train_nodes, engine.targets),
        checkpoint="",
        checkpoints_load_func=lambda *_: 1.0,
        loss_fn=torch.nn.CrossEntropyLoss(reduction="none"),
        batch_size=n,
        projection_dim=engine.num_parameters,
        hessian_reg=n * (0.02 + 0.1),
        hessian_inverse_tol=1e-9,
    )
    operator = curvature_of(engine, "hessian", damping=0.1)
    assert torch.linalg.eigvalsh(operator.to_dense())[0] > 1e-3  # captum keeps positive eigenvalues only
    g = engine.theorem_1().node_gradients()
    expected = n * (theirs.R @ (theirs.R.T @ g.T)).T
    ours = LeaveOneOut(engine, operator, "direct").influences().value.T
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-8)
