"""Linearised jurors that take advice, against votes computed one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from jurygcn import GCN, Jury, Run, Votes, train
from jurygcn.conformal import predictions
from jurygcn.conformal.asked import Asked, Question
from jurygcn.conformal.first_order import FirstOrderCounter
from jurygcn.data import synthetic
from jurygcn.diagnostics import left_out
from jurygcn.errors import SettingError


def jury_on(*, regression: bool = False, **settings) -> Jury:
    data = synthetic(num_nodes=120, num_edges=600, num_features=8, num_classes=4, seed=1, separation=1.0)
    data.x = data.x.double()
    if regression:
        data.y, data.num_classes = data.x[:, :2].sum(dim=1).double(), 0
    nodes = torch.randperm(120, generator=torch.Generator().manual_seed(0))[:40]
    loss = "mse" if regression else "cross_entropy"
    torch.manual_seed(0)
    model = GCN(8, 6, 1 if regression else 4).double()
    train(model, data, nodes, epochs=100, weight_decay=2e-2, loss=loss)
    votes = Votes("linearized", rank=12)
    return Jury(model, data, nodes, weight_decay=2e-2, loss=loss, votes=votes, **settings).fit()


def slow_votes(jury: Jury) -> torch.Tensor:
    """Each juror's stacked probabilities at each node, by loops, (n, N, C)."""
    engine, jurors, advice = jury.engine, jury.jurors, jury.advice()
    theta = engine.theta.requires_grad_(True)
    J = torch.autograd.functional.jacobian(engine.outputs, theta)  # (N, C, P)
    z = engine.outputs(theta).detach()
    out = []
    for i, node in enumerate(engine.train_nodes.tolist()):
        step = jurors.coefficients[i].double() @ jurors.directions.double()
        mine = z + J @ step
        mine[node] = jurors.own_outputs[i].double()
        total = advice.left_out[0, i] * torch.log_softmax(mine, dim=1)
        for weight, adviser in zip(advice.left_out[1:, i], advice.advisers):
            hat = adviser.offset[i] + adviser.columns @ adviser.coefficients[:, i]
            total = total + weight * (adviser.answers - hat[:, None] * adviser.errors[i])
        out.append(torch.softmax(total, dim=1))
    return torch.stack(out)


@pytest.mark.parametrize("at_once", [40, 7])
def test_label_counts_by_loops(at_once, monkeypatch):
    jury = jury_on()
    batches = predictions.LeaveOneOutPredictions.batches
    monkeypatch.setattr(
        predictions.FirstOrderPredictions,
        "batches",
        lambda self, *, start=0: [part for some in batches(self, start=start) for part in some.split(at_once)],
    )
    assert 0.0 < jury.advice().model_share < 1.0
    verdict = jury.verdict()
    votes, nodes, y = slow_votes(jury), jury.engine.train_nodes.tolist(), jury.data.y
    own = [float(votes[i, v, y[v]]) for i, v in enumerate(nodes)]
    at = {v: i for i, v in enumerate(nodes)}
    for u in range(120):
        for label in range(4):
            count = sum(float(votes[i, u, label]) >= own[i] for i in range(40) if i != at.get(u))
            assert int(verdict.label_counts[u, label]) == count
    some = jury.verdict(torch.tensor([3, 77, nodes[0]]))
    assert_close(some.label_counts, verdict.label_counts[[3, 77, nodes[0]]])
    assert_close(some.calibrated, verdict.calibrated[[3, 77, nodes[0]]])
    assert jury.left_out("jury").probabilities.shape == (40, 4)


def test_left_out_predictions_are_the_votes():
    jury = jury_on()
    votes, nodes = slow_votes(jury), jury.engine.train_nodes
    assert_close(jury.left_out("jury").probabilities, votes[torch.arange(40), nodes], rtol=1e-6, atol=1e-8)


def test_intervals_of_a_regression_are_advised_too():
    jury = jury_on(regression=True)
    alone, advised = jury.verdict(advice=None), jury.verdict()
    assert advised.advice is not None
    assert alone.advice is None
    assert not torch.equal(alone.width, advised.width)


def test_small_steps_change_probabilities_as_the_counter_by_bounds_has_it():
    """Votes are first-order in the outputs, those of the other counter in the probabilities: equal for small steps."""
    jury = jury_on()
    small = replace(jury.jurors, coefficients=1e-4 * jury.jurors.coefficients)
    everyone, own = torch.arange(120), jury.engine.train_nodes
    computed = predictions.FirstOrderPredictions(jury.engine, small, everyone, own, memory="1GB")
    asked = Asked(jury.engine, jury.positions, everyone, Question(0.1, True, "jackknife+", "lac", 0))
    slopes = FirstOrderCounter(asked, small).slopes(slice(None))
    votes = computed.of(torch.arange(40)) - computed.trained()
    votes[own, :, torch.arange(40)] = wanted_at_own = (slopes @ small.coefficients.T)[own, :, torch.arange(40)]
    assert float(wanted_at_own.abs().max()) > 0
    assert_close(votes, slopes @ small.coefficients.T, rtol=1e-2, atol=1e-9)


def test_too_many_votes_take_no_advice(monkeypatch):
    jury = jury_on()
    monkeypatch.setattr(left_out, "MOST_VOTES", 40 * 120 * 4 - 1)
    assert jury.verdict().advice is None
    with pytest.raises(SettingError, match="got more"):
        jury.left_out("jury")


def test_votes_are_counted_in_one_go(tmp_path):
    with pytest.raises(SettingError, match="no parallel and no resume"):
        jury_on().verdict(resume=tmp_path / "counts")
    with pytest.raises(SettingError, match="no parallel and no resume"):
        jury_on(run=Run(parallel=2)).verdict()
