"""What work will cost, said beforehand; what does not fit is refused."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from jurygcn import GCN, Jury, LeaveOut, Retraining, Run, Votes, costs, finding, jury, train
from jurygcn.conformal.rank import sampled_nodes
from jurygcn.costs import Cost
from jurygcn.data import synthetic
from jurygcn.errors import SettingError
from jurygcn.linalg import choose

N, F, C = 200, 30, 4


@pytest.fixture(scope="module")
def data() -> Data:
    return synthetic(num_nodes=N, num_edges=800, num_features=F, num_classes=C, seed=0)


def sage(**settings) -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(F, 8, 2, C, **settings)


def jury_of(data: Data, model=None, labels: int = 30, **settings) -> Jury:
    return Jury(model or sage(), data, list(range(labels)), weight_decay=1e-2, **settings)


@pytest.mark.parametrize("model", [sage(), sage(dropout=0.5), GCN(F, 8, C)], ids=["sage", "dropout", "gcn"])
@pytest.mark.parametrize("labels", [30, 190])
@pytest.mark.parametrize("votes", ["exact", "linearized"])
def test_the_plan_is_what_happens(data, model, labels, votes):
    case = jury_of(data, model, labels, votes=votes, leave_out=LeaveOut(max_jurors=20))
    cost = case.cost()
    assert not case.fitted
    fitted = case.fit().jurors
    assert (cost.solver, cost.jurors, cost.masks) == (fitted.solver, fitted.count, case.dropout_masks)
    assert cost.why_slow == fitted.why_slow == ""
    assert cost.fit_seconds > 0
    assert cost.verdict_seconds > 0
    assert 0 < cost.bytes < 1e9
    assert f"solver {fitted.solver}" in cost.words
    assert ("first-order votes" in cost.words) == (votes == "linearized")
    assert ("draws of dropout" in cost.words) == bool(case.dropout_masks)


def test_the_slow_way_is_said_with_its_reason_before_and_after(data):
    case = jury_of(data, forward=lambda model, graph: model(graph.x, graph.edge_index))
    assert "row by row, because the model is called through forward=" in case.cost().words
    health = case.fit().health()
    assert "forward=" in health.why_slow
    assert any("row by row, which is slow, because the model is called through forward=" in a for a in health.advice)
    fast = jury_of(data).fit().health()
    assert fast.why_slow == ""
    assert not any("row by row" in advice for advice in fast.advice)


def test_retraining_has_a_cost_too(data):
    case = jury_of(data, leave_out="retrain", retraining=Retraining(epochs=5))
    assert case.cost().words.startswith("30 jurors retrained")


def test_long_work_is_announced_once_before_it_starts(data, monkeypatch, capsys):
    monkeypatch.setattr(jury, "LONG", 0.0)
    case = jury_of(data, run=Run(progress=True))
    found: list[str] = []
    find = jury.find_jurors
    monkeypatch.setattr(jury, "find_jurors", lambda case: _noting(case, find, capsys, found))
    case.fit()
    assert "30 jurors of 30 labels" in found[0]
    assert "GB." in found[0]
    case.verdict()
    assert "jurors of" not in capsys.readouterr().err


def _noting(case: Jury, find, capsys, found: list[str]):
    found.append(capsys.readouterr().err)
    return find(case)


@pytest.mark.parametrize(("progress", "limit"), [(False, 0.0), (True, 1e9)])
def test_short_or_silent_work_announces_nothing(data, monkeypatch, capsys, progress, limit):
    monkeypatch.setattr(jury, "LONG", limit)
    jury_of(data, run=Run(progress=progress)).fit().verdict()
    assert "jurors of" not in capsys.readouterr().err


def test_durations_are_in_words_that_fit():
    made = Cost("Work", 3.2, 5000.0, 2.5e9, 5, "dual", 0, "")
    assert made.words == "Work: about 3 s to fit, 83 minutes for a verdict on all nodes, 2.5 GB."
    assert "2.0 hours to fit" in Cost("Work", 7200.0, 1.0, 1e9, 5, "dual", 0, "").words


# --- memory -------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_before_it_starts(data, monkeypatch):
    monkeypatch.setattr(costs, "NEVER_REFUSED", 1e4)
    started = []
    monkeypatch.setattr(jury, "find_jurors", lambda case: (started.append(case), None))
    with pytest.raises(SettingError, match=r"fit to fit in memory='50KB', got .* for 30 jurors .*max_jurors=1000"):
        jury_of(data, run=Run(memory="50KB")).fit()
    assert not started
    jury_of(data, run=Run(memory="5GB")).fit()
    assert started


def test_a_verdict_that_does_not_fit_is_refused_and_some_nodes_at_a_time_are_not(data, monkeypatch):
    case = jury_of(data, votes="linearized").fit()
    monkeypatch.setattr(costs, "NEVER_REFUSED", 1.0)
    case.run = Run(memory="100KB")
    with pytest.raises(SettingError, match=r"verdict to fit in memory='100KB', got about .* for 200 nodes; ask for so"):
        case.verdict()
    assert len(case.verdict([3, 5]).p_values) == 2


def test_little_memory_makes_auto_take_an_iterative_solver_and_fewer_jurors(data, monkeypatch):
    monkeypatch.setattr(costs, "FEW_JURORS", 20)
    monkeypatch.setattr(finding, "FEW_JURORS", 20)
    monkeypatch.setitem(choose.__globals__, "NEVER_REFUSED", 1.0)
    small = jury_of(data, run=Run(memory="200KB"))
    assert small.cost().solver == "cg"
    assert len(small.positions) == 20
    asked = jury_of(data, run=Run(memory="200KB"), leave_out=LeaveOut(max_jurors=25))
    assert len(asked.positions) == 25
    ample = jury_of(data)
    assert len(ample.positions) == 30
    few = small.fit().jurors
    assert few.solver == "cg"
    torch.testing.assert_close(few.steps, ample.fit().jurors.steps[small.positions], rtol=1e-4, atol=1e-6)


def test_ballots_get_an_eighth_of_the_memory():
    assert Run(memory="8GB").ballots == "1000000000B"
    assert Run(memory="1B").ballots == "1B"
    assert Run().bytes == 8e9
    assert Run(memory="999999TB").ballots == "100000000000000000B"


# --- how many directions ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many() -> dict:
    data = synthetic(num_nodes=2500, num_edges=12_000, num_features=16, num_classes=4, seed=3)
    nodes = torch.randperm(2500, generator=torch.Generator().manual_seed(0))[:800]
    model = GCN(16, 12, 4)
    train(model, data, nodes, epochs=100, weight_decay=5e-3)
    return {"model": model, "data": data, "train_nodes": nodes, "weight_decay": 5e-3}


def linearised(many: dict, rank: int | str) -> Jury:
    return Jury(**many, leave_out=LeaveOut(decay="stated"), votes=Votes("linearized", rank=rank)).fit()


def test_auto_takes_the_smallest_rank_that_keeps_p_values(many):
    auto, most = linearised(many, "auto"), linearised(many, 128)
    chosen = auto.jurors.rank
    assert 2 < chosen < 128  # else the test would show nothing
    nodes = sampled_nodes(auto.engine)
    assert not bool(torch.isin(nodes, auto.train_nodes).any())
    whole, share, kept = most.verdict(nodes, advice=None).p_values, {}, most.jurors
    for rank in (chosen // 2, chosen):
        most._jurors = kept.in_fewer(rank)
        change = (most.verdict(nodes, advice=None).p_values - whole).abs().amax(dim=1)
        share[rank] = float((change > 0.002).double().mean())
    assert share[chosen] <= 0.01 < share[chosen // 2]
    assert auto.health().discarded == pytest.approx(auto.jurors.discarded)
    assert not any("raise rank" in advice for advice in auto.health().advice)


def test_fewer_directions_are_those_of_a_smaller_search(many):
    few, cut = linearised(many, 12).jurors, linearised(many, 128).jurors.in_fewer(12)
    assert cut.rank == 12
    assert cut.coefficients.shape == few.coefficients.shape
    assert 0.98 * few.discarded < cut.discarded < (1 + 1e-6) * few.discarded  # the best of 128 directions, not of 20


def test_a_saved_jury_keeps_its_automatic_rank(many, tmp_path):
    auto = linearised(many, "auto")
    again = Jury.load(auto.save(tmp_path / "jury"), many["model"], many["data"])
    assert again.votes.rank == "auto"
    assert again.jurors.rank == auto.jurors.rank


@pytest.mark.parametrize("rank", ["few", "", 0, 1.5])
def test_other_ranks_are_refused(rank):
    with pytest.raises(SettingError, match="expected rank as a whole number"):
        Votes("linearized", rank=rank)


def test_several_iterations_cost_more(data):
    once, more = (jury_of(data, labels=190, leave_out=LeaveOut(iterations=i)).cost() for i in (1, 20))
    assert more.fit_seconds > once.fit_seconds
    assert more.bytes > once.bytes


def test_the_cost_of_added_labels_follows_the_settings_and_the_weights(data):
    case = jury_of(data).fit()
    parts = [{"advice": "panel"}, {"advice": None, "diffusion": 0}, {"advice": None}, {}]
    seconds = [min(case.cost(full=True, **part).full_seconds for _ in range(3)) for part in parts]
    assert seconds[1] < seconds[2]
    assert seconds[0] < seconds[3]
    case._advice["auto"] = replace(case.advice(), left_out=torch.zeros_like(case.advice().left_out))
    assert case.cost(full=True).full_seconds < seconds[1]  # the model has no weight


# --- full conformal prediction ------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [sage(), GCN(F, 8, C)], ids=["sage", "gcn"])
def test_added_labels_have_a_cost(data, model):
    case = jury_of(data, model)
    plain, full = case.cost(), case.cost(full=True)
    assert plain.full_seconds == 0.0
    assert "full conformal" not in plain.words
    assert full.full_seconds > 0.0
    assert full.verdict_seconds > full.full_seconds
    assert full.bytes > plain.bytes
    assert "of it for full conformal prediction" in full.words


def test_the_cost_of_added_labels_has_the_right_size():
    """Within a factor of ten, on a machine that does other work: a wrong count of operations is off by far more."""
    graph = synthetic(num_nodes=1500, num_edges=6000, num_features=64, num_classes=5, seed=1)
    case = jury_of(graph, GCN(64, 16, 5), labels=80).fit()
    settings = {"advice": None, "diffusion": 0}
    case.verdict(full=True, **settings)
    taken = {}
    for full in (False, True):
        started = time.process_time()
        case.verdict(full=full, **settings)
        taken[full] = time.process_time() - started
    estimate = min((case.cost(full=True) for _ in range(3)), key=lambda cost: cost.full_seconds)
    assert 0.1 < estimate.full_seconds / (taken[True] - taken[False]) < 10.0


def test_added_labels_are_announced_before_they_are_counted(data, monkeypatch, capsys):
    monkeypatch.setattr(jury, "LONG", 0.0)
    case = jury_of(data, run=Run(progress=True)).fit()
    capsys.readouterr()
    case.verdict(full=True)
    assert "for full conformal prediction" in capsys.readouterr().err
    case.verdict(full=True)
    assert "for full conformal prediction" not in capsys.readouterr().err


def test_added_labels_that_do_not_fit_are_refused_before_votes_are_counted(data, monkeypatch):
    case = jury_of(data).fit()
    monkeypatch.setattr(costs, "NEVER_REFUSED", 1.0)
    case.run = Run(memory="300KB")
    with pytest.raises(SettingError, match=r"expected full conformal prediction to fit in memory='300KB'.*panel"):
        case.verdict(full=True)
    assert case.verdict(full=True, advice="panel").tally("full").counts.shape == (N, C)
