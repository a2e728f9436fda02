"""Linearised jurors: what is compressed, and what is counted, against loops over all jurors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch_geometric.nn import SAGEConv

from cases import CASES, Case
from jurygcn.assembling import assemble
from jurygcn.conformal import first_order
from jurygcn.conformal.asked import Asked, Question
from jurygcn.conformal.claims import Grounds
from jurygcn.conformal.first_order import Block, count_at_least
from jurygcn.counting import counter_of
from jurygcn.data import synthetic
from jurygcn.derivatives import autodiff
from jurygcn.errors import SettingError
from jurygcn.finding import MANY_BALLOTS
from jurygcn.jury import Jury
from jurygcn.models import GCN, train
from jurygcn.settings import LeaveOut, Votes

DECAY = 0.05


def pair(case: Case, **settings) -> tuple[Jury, Jury]:
    """The same jury with exact and with linearised ballots, all directions kept."""
    engine = case.engine(weight_decay=DECAY, trained=True)
    settings = {"weight_decay": DECAY, "loss": case.loss, **settings}
    exact, linear = (
        Jury(engine.model, engine.data, engine.train_nodes, votes=mode, **settings).fit()
        for mode in ("exact", "linearized")
    )
    return exact, linear


@pytest.fixture(scope="module")
def medium() -> Jury:
    """150 labels on 600 nodes: enough jurors for blocks, candidates and bounds to matter."""
    data = synthetic(num_nodes=600, num_edges=3000, num_features=8, num_classes=4, seed=3)
    data.x = data.x.double()
    nodes = torch.randperm(600, generator=torch.Generator().manual_seed(0))[:150]
    model = GCN(8, 6, 4).double()
    train(model, data, nodes, epochs=200, weight_decay=5e-3)
    return Jury(model, data, nodes, weight_decay=5e-3, votes=Votes("linearized", rank=150)).fit()


@pytest.mark.parametrize("case", CASES[::3], ids=str)
@pytest.mark.parametrize("leave_out", ["newton", "influence"])
def test_with_all_directions_nothing_is_lost(case: Case, leave_out: str):
    exact, linear = pair(case, leave_out=leave_out)
    steps, scale = exact.jurors.steps, float(exact.jurors.steps.abs().max())
    assert_close(linear.jurors.steps, steps, rtol=1e-6, atol=1e-7 * scale + 1e-12)
    assert linear.jurors.discarded < 1e-6
    if leave_out == "newton":
        assert_close(linear.jurors.leverage, exact.jurors.leverage)
    engine = exact.engine
    J = autodiff.jacobian_rows(engine, engine.theta, engine.train_nodes)
    own = engine.train_outputs + torch.einsum("icp,ip->ic", J, steps)
    assert_close(engine.loss.predict(linear.jurors.own_outputs), engine.loss.predict(own), rtol=1e-6, atol=1e-9)


def test_directions_are_orthonormal_and_the_discarded_share_is_what_is_lost(medium: Jury):
    few = Jury(
        medium.engine.model, medium.data, medium.train_nodes, weight_decay=5e-3, votes=Votes("linearized", rank=12)
    ).fit()
    H = few.curvature.to_dense()
    V = few.jurors.directions
    assert_close(V @ H @ V.T, torch.eye(12, dtype=V.dtype), rtol=0, atol=1e-8)
    whole = medium.jurors.steps
    lost = whole - few.jurors.steps
    energy = torch.einsum("ip,pq,iq->", whole, H, whole)
    share = float(torch.einsum("ip,pq,iq->", lost, H, lost) / energy)
    assert few.jurors.discarded == pytest.approx(share, rel=1e-6)
    # no 12 directions can hold more than the 12 largest eigenvalues
    spectrum = torch.linalg.svdvals(torch.linalg.cholesky(H).T @ whole.T).square()
    assert 0 < few.jurors.discarded < 1.02 * float(spectrum[12:].sum() / spectrum.sum()) + 1e-9


def naive_first_order(jury: Jury) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every juror's probabilities and norms to first order by dense derivatives, (n, N, C), (n, N), and p (N, C)."""
    engine = jury.engine
    N = int(jury.data.num_nodes)
    z = engine.outputs(engine.theta)
    p = torch.softmax(z, dim=1)
    J = autodiff.jacobian_rows(engine, engine.theta, torch.arange(N))
    moved = torch.einsum("ucp,ip->iuc", J, jury.jurors.steps)
    change = p * (moved - (p * moved).sum(dim=2, keepdim=True))
    norm = p.norm(dim=1)
    return (p + change).numpy(), (norm + (p * change).sum(dim=2) / norm).numpy(), p.numpy()


def test_counts_are_those_of_loops_over_all_jurors(medium: Jury):
    verdict = medium.verdict(alpha=0.1, advice=None)
    votes, norms, p = naive_first_order(medium)
    targets, nodes = medium.engine.targets.numpy(), medium.train_nodes.numpy()
    own = torch.softmax(medium.jurors.own_outputs, dim=1).numpy()
    own_label = own[np.arange(150), targets]
    errors = np.linalg.norm(np.eye(4)[targets] - own, axis=1)
    assert_close(verdict.loo_errors.numpy(), errors)
    _, N, C = votes.shape
    for u in range(N):
        others = nodes != u
        counts = [(votes[others, u, y] >= own_label[others]).sum() for y in range(C)]
        assert verdict.label_counts[u].tolist() == counts
        low = np.quantile(norms[others, u] - errors[others], 0.1)
        high = np.quantile(norms[others, u] + errors[others], 0.9)
        np.testing.assert_allclose([verdict.lower[u], verdict.upper[u]], [low, high], rtol=1e-8)
        spread = votes[others, u] - votes[others, u].mean(axis=0)
        variance = (others.sum() - 1) / others.sum() * (spread**2).sum()
        np.testing.assert_allclose(verdict.loo_variance[u], variance, rtol=1e-6, atol=1e-12)
        flips = (votes[others, u].argmax(axis=1) != p[u].argmax()).mean()
        assert float(verdict.label_flips[u]) == pytest.approx(flips)


def test_bounds_settle_most_comparisons_and_never_wrongly(medium: Jury):
    generator = torch.Generator().manual_seed(1)
    coefficients = torch.randn(300, 5, generator=generator) * torch.logspace(-4, 0, 300)[:, None]
    own, value = torch.rand(300, generator=generator), torch.rand(2000, generator=generator)
    slope = 0.1 * torch.randn(2000, 5, generator=generator)
    blocks = [part for block in Block.alike(coefficients, own) for part in block.cut()]
    assert sorted(torch.cat([block.jurors for block in blocks]).tolist()) == list(range(300))
    naive = (value[:, None] + slope @ coefficients.T >= own).sum(dim=1)
    assert_close(count_at_least(value, slope, blocks).long(), naive)


def test_close_to_exact_where_steps_are_small(medium: Jury):
    exact = (
        Jury(medium.engine.model, medium.data, medium.train_nodes, weight_decay=5e-3, votes="exact")
        .fit()
        .verdict(diffusion=0, advice=None)
    )
    linear = medium.verdict(advice=None)
    assert float((exact.p_values - linear.p_values).abs().mean()) < 0.01
    assert float((exact.width - linear.width).abs().mean()) < 0.02
    assert (exact.label_sets(0.1) == linear.label_sets(0.1)).double().mean() > 0.98


def test_regression_intervals():
    case = next(c for c in CASES if c.loss == "mse")
    exact, linear = pair(case)
    for method in ("jackknife+", "jackknife", "minmax"):
        a, b = (jury.verdict(interval=method, alpha=0.3, advice=None) for jury in (exact, linear))
        if len(exact.engine.model.weights) == 1:  # a linear model is its own first order
            assert_close(a.lower, b.lower)
            assert_close(a.upper, b.upper)
        else:
            assert torch.isfinite(b.lower).tolist() == torch.isfinite(a.lower).tolist()


def test_few_nodes_are_judged_as_among_all(medium: Jury):
    everyone = medium.verdict(advice=None)
    asked = torch.cat([medium.train_nodes[:3], torch.tensor([5, 77])]).unique()
    some = medium.verdict(asked, advice=None)
    assert_close(some.label_counts, everyone.label_counts[asked])
    assert_close(some.lower, everyone.lower[asked])
    assert_close(some.loo_variance, everyone.loo_variance[asked])


def test_any_gnn_can_be_linearised():
    class Sage(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = SAGEConv(5, 4), SAGEConv(4, 3)

        def forward(self, x, edge_index):
            return self.second(torch.tanh(self.first(x, edge_index)), edge_index)

    data = synthetic(num_nodes=120, num_edges=600, num_features=5, num_classes=3, seed=0)
    data.x = data.x.double()
    nodes = torch.arange(30)
    model = Sage().double()
    train(model, data, nodes, epochs=200, weight_decay=0.02)
    jury = Jury(model, data, nodes, weight_decay=0.02, votes="linearized").fit()
    verdict = jury.verdict(advice=None)
    votes, _, _ = naive_first_order(jury)
    own = torch.softmax(jury.jurors.own_outputs, dim=1).numpy()[np.arange(30), jury.engine.targets.numpy()]
    for u in range(30, 120):
        assert verdict.label_counts[u].tolist() == [(votes[:, u, y] >= own).sum() for y in range(3)]


def test_what_cannot_be_linearised_is_refused(medium: Jury):
    given = (medium.engine.model, medium.data, medium.train_nodes)
    with pytest.raises(SettingError, match="votes='exact'"):
        Jury(*given, votes="linearized", leave_out="retrain")
    with pytest.raises(SettingError, match="curvature='ggn'"):
        Jury(*given, leave_out=LeaveOut(curvature="hessian"), votes="linearized")
    with pytest.raises(SettingError, match="expected votes to be one of"):
        Jury(*given, votes="quick")
    with pytest.raises(SettingError, match="rank"):
        Jury(*given, votes=Votes(rank=0))
    for question in ({"nonconformity": "aps"}, {"diffusion": 1}, {"resume": "somewhere"}):
        with pytest.raises(SettingError, match="votes='exact'"):
            medium.verdict(**question, advice=None)
    elsewhere = Jury(*given, votes="linearized", run=2).fit()
    with pytest.raises(SettingError, match="expected no parallel and no resume for linearised votes, got parallel=2"):
        elsewhere.verdict(advice=None)


def test_auto_linearises_many_ballots(medium: Jury, monkeypatch):
    given = (medium.engine.model, medium.data, medium.train_nodes)
    assert MANY_BALLOTS > 150 * 600 * 4
    assert Jury(*given).votes.how == "exact"
    monkeypatch.setattr("jurygcn.finding.MANY_BALLOTS", 1e5)
    assert Jury(*given).votes.how == "linearized"
    assert Jury(*given, run=2).votes.how == "exact"  # linearised jurors are counted here only
    assert Jury(*given, leave_out=LeaveOut("influence", curvature="hessian")).votes.how == "exact"


def test_save_and_load(medium: Jury, tmp_path):
    medium.save(tmp_path / "jury")
    again = Jury.load(tmp_path / "jury", medium.engine.model, medium.data)
    assert_close(again.verdict(advice=None).label_counts, medium.verdict(advice=None).label_counts)
    assert again.jurors.discarded == medium.jurors.discarded


def test_health_speaks_of_a_rank_too_low(medium: Jury):
    few = Jury(
        medium.engine.model, medium.data, medium.train_nodes, weight_decay=5e-3, votes=Votes("linearized", rank=2)
    ).fit()
    assert few.health().discarded == few.jurors.discarded > 0.05
    assert any("raise rank" in advice for advice in few.health().advice)


@pytest.mark.parametrize("mode", ["exact", "linearized"])
def test_some_jurors_are_seated(medium: Jury, mode: str):
    given = (medium.engine.model, medium.data, medium.train_nodes)
    all_seats = Jury(*given, weight_decay=5e-3, votes=mode).fit()
    some = Jury(*given, weight_decay=5e-3, leave_out=LeaveOut(max_jurors=40), votes=mode).fit()
    assert len(some.positions) == some.jurors.count == 40
    assert len(some.positions.unique()) == 40
    if mode == "exact":
        assert_close(some.jurors.steps, all_seats.jurors.steps[some.positions])
    verdict = some.verdict(diffusion=0, advice=None)
    assert_close(verdict.loo_errors, all_seats.verdict(diffusion=0, advice=None).loo_errors[some.positions])
    mine = some.train_nodes[some.positions]
    assert set(verdict.num_jurors[mine].tolist()) == {39}
    others = torch.ones(600, dtype=torch.bool).index_fill_(0, mine, False)
    assert set(verdict.num_jurors[others].tolist()) == {40}
    assert float(verdict.p_values.min()) >= 1 / 41
    assert some.influence_on(3)["train_node"].isin(mine.tolist()).all()
    for wrong in (0, 151):
        with pytest.raises(SettingError, match="expected max_jurors as a whole number"):
            Jury(*given, leave_out=LeaveOut(max_jurors=wrong))


def test_some_nodes_at_a_time_say_the_same(medium: Jury, monkeypatch):
    """Nodes are counted in chunks that fit in memory; how long these are changes nothing."""
    whole = medium.verdict(alpha=0.1, advice=None)
    monkeypatch.setattr(first_order, "NUMBERS", 7 * 4 * 150)  # seven nodes
    heard: list[int] = []
    question = Question(alpha=0.1, exact_ranks=False, interval="jackknife+", nonconformity="lac", diffusion=0)
    counter = counter_of(medium, Asked(medium.engine, medium.positions, torch.arange(600), question), None, {})
    parts = assemble(counter, counter.count_all(advance=heard.append), Grounds())
    for name in ("lower", "upper", "loo_variance", "label_flips", "label_counts"):
        assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-9, atol=1e-12)
    assert len(heard) > 30
    assert sum(heard) == 150
