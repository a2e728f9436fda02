"""Jurors by several Newton iterations, against the linearised leave-one-out problem solved with dense matrices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from full_cases import NODES, dense_jacobian, graph, jury_of, models
from torch import Tensor
from torch.nn import functional

from jurygcn import GCN, Jury, LeaveOut, Retraining, Votes, train
from jurygcn.errors import SettingError
from jurygcn.leave_one_out import iterated

MANY = LeaveOut("newton", iterations=50)


def iterated_jury(name: str) -> Jury:
    """The jury of this case, with jurors that are iterated to the end."""
    once = jury_of(name, graph())
    decay = dict(zip(once.engine.parameters, (float(d) for d in _by_parameter(once))))
    return Jury(once.source_model, once.data, once.train_nodes, weight_decay=decay, leave_out=MANY).fit()


def _by_parameter(jury: Jury) -> list[Tensor]:
    """The weight decay of every parameter, 1e-3 where there is none."""
    parts = jury.engine.decay.split([p.numel() for p in jury.engine.parameters.values()])
    return [part[0] if float(part[0]) > 0 else torch.tensor(1e-3) for part in parts]


def solved(jury: Jury, i: int) -> Tensor:
    """The step of juror i: Newton's method on all parameters, with halved steps."""
    J, z, y, n = dense_jacobian(jury, NODES), jury.engine.train_outputs, jury.engine.targets, len(NODES)
    decay, rest = jury.curvature.diagonal, torch.arange(n) != i
    e = z.softmax(dim=1) - functional.one_hot(y, z.shape[1])
    pull = torch.einsum("nc,ncp->p", e, J) / n

    def value(step: Tensor) -> Tensor:
        losses = functional.cross_entropy((z + J @ step)[rest], y[rest], reduction="sum") / n
        return losses + 0.5 * (decay * step.square()).sum() - pull @ step

    step = torch.zeros_like(decay)
    for _ in range(200):
        gradient = torch.func.grad(value)(step)
        if float(gradient.norm()) < 1e-12:
            break
        newton, length = torch.linalg.solve(torch.func.hessian(value)(step), gradient), 1.0
        while value(step - length * newton) > value(step) and length > 1e-6:
            length /= 2
        step = step - length * newton
    return step


@pytest.mark.parametrize("name", list(models()))
def test_jurors_solve_the_linearised_problem(name: str):
    jury = iterated_jury(name)
    for i in (0, 7, len(NODES) - 1):
        expected = solved(jury, i)
        assert float((jury.jurors.steps[i] - expected).norm()) < 1e-4 * float(expected.norm())
    assert 1 < jury.jurors.iterations < 50  # all arrived


def test_one_iteration_is_the_newton_juror(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(iterated, "TOLERANCE", 1e-10)
    monkeypatch.setattr(iterated, "HALVINGS", 0)
    once, data = jury_of("gcn", graph()), graph()
    again = Jury(once.source_model, data, NODES, weight_decay=1e-2)
    many = again.factorised
    first = iterated.iterated_jurors(many, many.newton_jurors(), iterations=1, memory=1e9)
    torch.testing.assert_close(first.steps, many.newton_jurors().steps, atol=1e-10, rtol=1e-7)


def test_jurors_in_parts_and_some_of_them():
    jury = iterated_jury("gcn")
    many = jury.factorised
    parts = iterated.iterated_jurors(many, jury.jurors, iterations=50, memory=1.0)
    torch.testing.assert_close(parts.steps, jury.jurors.steps, atol=1e-5, rtol=1e-4)
    some = Jury(
        *(jury.source_model, jury.data, jury.train_nodes),
        weight_decay=jury.engine.weight_decay,
        leave_out=LeaveOut("newton", iterations=50, max_jurors=5),
    ).fit()
    torch.testing.assert_close(some.jurors.steps, jury.jurors.steps[some.positions], atol=1e-5, rtol=1e-4)


def test_nearer_to_retraining_where_the_model_nearly_interpolates():
    data = graph().clone()
    torch.manual_seed(0)
    model = GCN(data.x.shape[1], 8, 3).double()
    train(model, data, NODES, weight_decay=1e-4, epochs=2000, lr=0.01)
    own, again = {}, Retraining(epochs=2000, lr=0.01)
    for name, how in (("once", "newton"), ("iterated", MANY), ("retrained", "retrain")):
        jury = Jury(model, data, NODES, weight_decay=1e-4, leave_out=how, retraining=again).fit()
        left = jury.leave_one_out_predictions(NODES)
        own[name] = left[torch.arange(len(NODES)), torch.arange(len(NODES)), data.y[NODES]]
    off = {name: float((own[name] - own["retrained"]).abs().mean()) for name in ("once", "iterated")}
    assert off["iterated"] < off["once"], off


def test_regressions_need_one_iteration():
    data = graph().clone()
    data.y = torch.randn(90, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = GCN(data.x.shape[1], 8, 1).double()
    once = Jury(model, data, NODES, weight_decay=1e-2, loss="mse").fit()
    more = Jury(model, data, NODES, weight_decay=1e-2, loss="mse", leave_out=MANY).fit()
    torch.testing.assert_close(more.jurors.steps, once.jurors.steps, atol=1e-6, rtol=1e-3)


def test_saved_with_a_jury(tmp_path: Path):
    jury = iterated_jury("gcn")
    jury.save(tmp_path)
    again = Jury.load(tmp_path, jury.source_model, jury.data)
    assert again.leave_out.iterations == 50
    torch.testing.assert_close(again.jurors.steps, jury.jurors.steps)


def test_what_has_no_iterations_is_refused():
    data = graph()
    model = GCN(data.x.shape[1], 4, 3).double()
    with pytest.raises(SettingError, match="iterations out"):
        LeaveOut("influence", iterations=2)
    with pytest.raises(SettingError, match="whole number"):
        LeaveOut("newton", iterations=0)
    with pytest.raises(SettingError, match="iterations=50; use votes='exact'"):
        Jury(model, data, NODES, weight_decay=1e-2, leave_out=MANY, votes=Votes("linearized"))
    drops = GCN(data.x.shape[1], 4, 3, dropout=0.5).double()
    how = LeaveOut("newton", iterations=5, decay="stated", dropout_masks=2)
    with pytest.raises(SettingError, match="draws of dropout"):
        Jury(drops, data, NODES, weight_decay=1e-2, leave_out=how).fit()
