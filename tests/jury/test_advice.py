"""The stacked jury: its weights against their optimality conditions, its verdict against brute force."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from jurygcn import GCN, Jury, LeaveOut, Retraining, Run, Verdict, train
from jurygcn.conformal import advice as advice_module
from jurygcn.conformal import exact
from jurygcn.conformal.advice import take_advice
from jurygcn.conformal.claims import Agreement
from jurygcn.conformal.counts import FLOOR
from jurygcn.data import synthetic
from jurygcn.diagnostics import left_out
from jurygcn.diagnostics.grounds import jurors_trusted
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.panel import Panel, with_constant

NODES = torch.arange(0, 75, 3)
DECAY = 5e-3


def graph() -> Data:
    return synthetic(num_nodes=120, num_edges=360, num_features=8, num_classes=3, separation=1.0, seed=2)


def numbers() -> Data:
    data = graph()
    noise = torch.randn(120, generator=torch.Generator().manual_seed(0))
    data.y, data.num_classes = (data.x[:, 0] + data.x[:, 1] + 0.1 * noise + 20.0)[:, None], 0
    return data


def model_of(data: Data, loss: str = "cross_entropy") -> GCN:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GCN(8, 4, 3 if loss == "cross_entropy" else 1).double()
    data.x = data.x.double()
    data.y = data.y.double() if loss == "mse" else data.y
    train(model, data, NODES, epochs=200, weight_decay=DECAY, loss=loss, seed=0)
    return model


def jury_of(data: Data, loss: str = "cross_entropy", **settings: object) -> Jury:
    return Jury(model_of(data, loss), data, NODES, loss=loss, weight_decay=DECAY, **settings).fit()


def test_many_labels_need_no_predictions_without_two(monkeypatch: pytest.MonkeyPatch):
    """Matrices of all pairs of labels take 20 GB with 5,000 labels, and the weights do not need them."""
    asked = []
    plain = Panel.pairs
    monkeypatch.setattr(Panel, "pairs", lambda *given: asked.append(1) or plain(*given))
    jury = jury_of(graph())
    few = jury.advice()
    assert asked
    asked.clear()
    monkeypatch.setattr(advice_module, "MOST_PAIRS", len(NODES) - 1)
    many = jury_of(graph()).advice()
    assert not asked
    for found in (few, many):
        counted = {name: float(weight) for name, weight in zip(found.members, found.weights) if weight > 0}
        assert counted == pytest.approx({n: float(w) for n, w in zip(few.members, few.weights) if w > 0})


# --- the verdict ------------------------------------------------------------------------------------------


def refitted_votes(jury: Jury, verdict: Verdict, diffusion: int) -> tuple[Tensor, Tensor]:
    """Stacked votes of all jurors on all nodes, every regression fitted anew without the juror's label: (n, N, C)."""
    data, advice, panel = jury.data, verdict.advice, jury.panel
    assert advice is not None
    N = int(data.num_nodes)
    closed = torch.eye(N, dtype=torch.float64)
    closed[data.edge_index[1], data.edge_index[0]] = 1.0
    mean = torch.linalg.matrix_power(closed / closed.sum(dim=1, keepdim=True), diffusion)
    model = torch.einsum("uv,ivc->iuc", mean, jury.leave_one_out_predictions())
    outputs = mean @ verdict.outputs if advice.classify else verdict.outputs
    said = {member.words: member for member in panel.members}
    chosen = [said[words] for words in advice.members[1:]]
    assert len(chosen) == len(advice.advisers) > 0

    def fitted(member: object, rows: list[int]) -> Tensor:
        features = with_constant(panel.columns(member.design) @ member.design.basis)
        there, penalty = features[NODES[rows]], member.ridge * torch.eye(features.shape[1], dtype=torch.float64)
        return features @ torch.linalg.solve(there.T @ there + penalty, there.T @ panel.targets[rows])

    def pooled(own: Tensor, weights: Tensor, rows: list[int]) -> Tensor:
        total = weights[0] * (own.clamp_min(FLOOR).log() if advice.classify else own)
        total = total + sum(w * fitted(member, rows) for w, member in zip(weights[1:], chosen))
        return torch.softmax(total, dim=1) if advice.classify else total

    everyone = list(range(len(NODES)))
    votes = [pooled(model[i], advice.left_out[:, i], [j for j in everyone if j != i]) for i in everyone]
    return torch.stack(votes), pooled(outputs, advice.weights, everyone)


@pytest.mark.parametrize("diffusion", [0, 1])
def test_label_sets_against_brute_force(diffusion: int):
    data = graph()
    jury = jury_of(data)
    verdict = jury.verdict(diffusion=diffusion)
    votes, everyone = refitted_votes(jury, verdict, diffusion)
    torch.testing.assert_close(verdict.calibrated, everyone, atol=1e-9, rtol=1e-9)
    assert verdict.jury_class.tolist() == everyone.argmax(dim=1).tolist()
    expected = torch.zeros_like(verdict.p_values)
    for u in range(int(data.num_nodes)):
        jurors = [i for i in range(len(NODES)) if int(NODES[i]) != u]
        for y in range(3):
            k = sum(votes[i, u, y] >= votes[i, NODES[i], data.y[NODES[i]]] * (1 - 1e-12) for i in jurors)
            expected[u, y] = (1 + k) / (1 + len(jurors))
    torch.testing.assert_close(verdict.p_values, expected)


def test_the_model_is_judged_not_the_jury():
    data = graph()
    jury = jury_of(data)
    advised, alone = jury.verdict(), jury.verdict(advice=None)
    assert advised.outputs.equal(alone.outputs)
    for name in ("lower", "upper", "loo_errors", "loo_variance", "label_flips", "neighbour_doubt"):
        assert getattr(advised, name).equal(getattr(alone, name)), name
    doubt = 1 - advised.calibrated[torch.arange(120), alone.predicted_class]
    assert advised.uncertainty().equal(doubt.double())
    assert advised.ranking().tolist() == advised.ranking(by="doubt").tolist()
    assert alone.ranking().tolist() == alone.ranking(by="ambiguity").tolist()
    frame = advised.to_frame()
    assert frame["jury_class"].tolist() == advised.jury_class.tolist()
    assert frame["doubt"].tolist() == doubt.tolist()
    assert "doubt" not in alone.to_frame()
    with pytest.raises(SettingError, match="expected a classification with advice"):
        alone.ranking(by="doubt")


def test_intervals_of_a_regression_against_brute_force():
    data = numbers()
    jury = jury_of(data, "mse")
    verdict = jury.verdict(alpha=0.1)
    votes, everyone = refitted_votes(jury, verdict, 0)
    torch.testing.assert_close(verdict.jury_outputs, everyone, atol=1e-8, rtol=1e-9)
    errors = [(data.y[v] - votes[i, v]).abs() for i, v in enumerate(NODES.tolist())]
    for u in (0, 1, 50, 119):
        jurors = [i for i in range(len(NODES)) if int(NODES[i]) != u]
        rank = int(0.1 * (len(jurors) + 1) + 1e-9)
        low = sorted(float(votes[i, u] - errors[i]) for i in jurors)[rank - 1]
        high = sorted((float(votes[i, u] + errors[i]) for i in jurors), reverse=True)[rank - 1]
        assert float(verdict.lower[u]) == pytest.approx(low, abs=1e-8)
        assert float(verdict.upper[u]) == pytest.approx(high, abs=1e-8)
    alone = jury.verdict(alpha=0.1, advice=None)
    assert verdict.outputs.equal(alone.outputs)
    assert not verdict.lower.equal(alone.lower)
    assert verdict.to_frame()["jury_value"].tolist() == verdict.jury_outputs[:, 0].tolist()
    assert "jury_value" not in alone.to_frame()


def same(one: Verdict, two: Verdict) -> None:
    assert one.advice is not None
    torch.testing.assert_close(one.jury_outputs, two.jury_outputs, atol=1e-12, rtol=1e-9)
    assert one.p_values.equal(two.p_values)
    assert one.advice.words == two.advice.words


def test_batches_processes_and_few_nodes_change_nothing(tmp_path: Path):
    data = graph()
    jury = jury_of(data)
    whole = jury.verdict()
    model = jury.engine.model
    given = {"weight_decay": DECAY}
    same(Jury(model, data, NODES, run=Run(memory="20KB"), **given).fit().verdict(), whole)
    same(Jury(model, data, NODES, run=2, **given).fit().verdict(), whole)
    some = torch.tensor([7, 0, 90, 33])
    few = jury.verdict(some)
    assert few.p_values.equal(whole.p_values[some])
    torch.testing.assert_close(few.calibrated, whole.calibrated[some])
    jury.save(tmp_path / "jury")
    same(Jury.load(tmp_path / "jury", model, data).verdict(), whole)
    assert jury.fit().verdict().p_values.equal(whole.p_values)


def test_votes_that_are_not_kept_are_the_same(monkeypatch: pytest.MonkeyPatch):
    data = graph()
    whole = jury_of(data).verdict()
    monkeypatch.setattr(exact, "KEPT_BYTES", 0)
    same(jury_of(data).verdict(), whole)


def test_resumed_counts_belong_to_the_advice(tmp_path: Path):
    data = graph()
    small = Run(memory="20KB")
    jury = jury_of(data, run=small)
    alone = jury.verdict(advice=None, resume=tmp_path)
    advised = jury.verdict(resume=tmp_path)
    assert not advised.p_values.equal(alone.p_values)
    same(jury.verdict(resume=tmp_path), advised)
    assert len(list(tmp_path.glob("*.npz"))) == 2


def test_without_edges_and_features_the_model_is_alone():
    """No view distinguishes nodes, so the advice is only a temperature."""
    data = graph()
    data.x, data.edge_index = torch.ones(120, 8), torch.empty(2, 0, dtype=torch.long)
    verdict = jury_of(data).verdict()
    assert verdict.advice is not None
    assert verdict.advice.advisers == []
    assert verdict.calibrated.isfinite().all()
    model = jury_of(data).verdict(advice=None)
    assert (verdict.p_values.argsort(dim=1, stable=True) == model.p_values.argsort(dim=1, stable=True)).all()


def test_some_jurors_take_advice():
    data = graph()
    verdict = jury_of(data, leave_out=LeaveOut(max_jurors=12)).verdict()
    assert verdict.advice is not None
    assert verdict.advice.left_out.shape[1] == 12
    assert verdict.p_values.min() >= 1 / 13


def test_too_many_linearised_jurors_take_no_advice(monkeypatch):
    monkeypatch.setattr(left_out, "MOST_VOTES", 10)
    verdict = jury_of(graph(), votes="linearized").verdict()
    assert verdict.advice is None
    with pytest.raises(SettingError, match="with exact votes"):
        _ = verdict.calibrated


def test_advice_makes_a_promise_a_target():
    data = graph()
    recipe = Retraining(epochs=20, lr=0.01, seed=0)
    jury = Jury(model_of(data), data, NODES, leave_out="retrain", retraining=recipe, weight_decay=DECAY).fit()
    assert jury.verdict(diffusion=0, advice=None).claim(0.1).kind == "promise"
    claim = jury.verdict(diffusion=0).claim(0.1)
    assert claim.kind == "target"
    assert any("weights of the advice were chosen with the same labels" in reason for reason in claim.reasons)


def test_the_share_of_the_model_is_said_in_words():
    advice = jury_of(graph()).verdict().advice
    assert advice is not None
    assert f"The model's own jurors make up {advice.model_share:.0%} of the stacked jury" in advice.words
    assert float(advice.table["share"].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("advice", ["always", True, 3])
def test_other_advice_is_refused(advice: object):
    with pytest.raises(SettingError, match="expected advice to be 'auto', 'panel' or None"):
        jury_of(graph()).verdict(advice=advice)


class Normalised(torch.nn.Module):
    """A GCN with batch normalisation, whose estimated jurors are not trusted before ``fidelity``."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = GCNConv(F, 8), torch.nn.BatchNorm1d(8), GCNConv(8, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(torch.relu(self.norm(self.first(x, edge_index))), edge_index)


def test_jurors_that_are_not_trusted_have_no_vote_in_the_stacked_jury():
    data = synthetic(num_nodes=120, num_edges=500, num_features=12, num_classes=3, seed=1)
    nodes = torch.arange(0, 120, 4)
    torch.manual_seed(0)
    model = Normalised(12, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-4)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes]).backward()
        optimizer.step()
    jury = Jury(model.eval(), data, nodes, weight_decay=optimizer).fit()
    verdict = jury.verdict()
    assert verdict.advice.model_share == 0.0
    assert verdict.claim(0.1).kind == "none"
    others = Normalised(12, 3).eval()  # the sets do not depend on the model
    state = model.state_dict()
    others.load_state_dict({k: v + 0.01 * torch.randn_like(v) if v.dim() > 1 else v for k, v in state.items()})
    again = Jury(others, data, nodes, weight_decay=5e-4).fit().verdict()
    torch.testing.assert_close(verdict.p_values, again.p_values)
    jury._agreement, jury._advice = Agreement(1.0, 0.5, 0.5, trusted=True), {}
    perfect = dict.fromkeys((0, 1, 2), one_hot(data.y[nodes], 3) * 0.9 + 0.1 / 3)
    assert take_advice(jury.engine, jury.panel, jury.positions, perfect).model_share > 0.5
    assert take_advice(jury.engine, jury.panel, jury.positions, perfect, heard=False).model_share == 0.0
    assert jurors_trusted(jury)
