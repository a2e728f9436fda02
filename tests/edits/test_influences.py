"""Influence of edges, nodes and features, forgetting, and explanations, each against edits one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from edited_cases import DECAY, models, small
from torch_geometric.data import Data
from torch_geometric.explain import Explainer, fidelity, unfaithfulness
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import GCNConv
from torch_geometric.utils import k_hop_subgraph

from jurygcn import Jury, LeaveOut, Retraining
from jurygcn.conformal.claims import Agreement
from jurygcn.edits import influences, together
from jurygcn.edits.certificate import Certificate
from jurygcn.edits.explainer import JuryExplainer
from jurygcn.errors import DataError, JuryWarning, SettingError
from jurygcn.models import train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
NODE = 5


def jury_of(name: str, loss: str = "cross_entropy") -> Jury:
    data, nodes = small(regression=loss == "mse")
    model = models(name)
    train(model, data, nodes, epochs=60, weight_decay=DECAY, loss=loss, seed=0)
    return Jury(model, data, nodes, loss=loss, weight_decay=DECAY, leave_out=LeaveOut(decay="stated")).fit()


JURIES = {key: jury_of(*key) for key in (("gcn", "cross_entropy"), ("gat", "cross_entropy"), ("gcn", "mse"))}


def edit_for(jury: Jury, of: str, row: dict[str, int]) -> dict[str, object]:
    if of == "edges":
        return {"remove_edges": [(int(row["source"]), int(row["target"]))]}
    if of == "nodes":
        return {"remove_nodes": [int(row["node"])]}
    features = jury.data.x[NODE].clone()
    features[int(row["feature"])] = 0
    return {"change_features": {NODE: features}}


@pytest.mark.parametrize("case", JURIES, ids="-".join)
@pytest.mark.parametrize("of", ["edges", "nodes", "features"])
def test_each_row_is_the_edit_alone(case: tuple[str, str], of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(influences, "TOGETHER", 3)
    jury = JURIES[case]
    table = jury.influence_on(NODE, of=of)
    assert len(table) > 2
    c = int(jury.what_if([NODE]).before[0].argmax()) if case[1] == "cross_entropy" else 0
    for row in table.to_dict("records"):
        result = jury.what_if([NODE], **edit_for(jury, of, row))
        assert row["direct"] == pytest.approx(-float(result.direct_effect[0, c]), abs=1e-9)
        assert row["through_parameters"] == pytest.approx(-float(result.parameter_effect[0, c]), abs=2e-4)
        assert row["support"] == pytest.approx(row["direct"] + row["through_parameters"])
    assert table["support"].abs().is_monotonic_decreasing


def test_edges_out_of_reach_do_nothing_and_those_in_reach_are_all_listed() -> None:
    jury = JURIES["gcn", "cross_entropy"]
    data = jury.data
    near = k_hop_subgraph(NODE, 2, data.edge_index)[0].tolist()
    wanted = {(a, b) for a, b in data.edge_index.T.tolist() if a < b and (a in near or b in near)}
    table = jury.influence_on(NODE, of="edges")
    assert {(int(a), int(b)) for a, b in table[["source", "target"]].to_numpy()} == wanted


def test_labels_act_through_the_parameters_only() -> None:
    table = JURIES["gcn", "cross_entropy"].influence_on(NODE)
    assert not table["direct"].any()
    assert table["through_parameters"].equals(table["support"])
    with pytest.raises(SettingError, match="of"):
        JURIES["gcn", "cross_entropy"].influence_on(NODE, of="colours")


def untrusted(why: str) -> Jury:
    """A jury whose estimates are not trusted, for one of three reasons."""
    data, nodes = small()
    model, decay = models("gcn"), DECAY
    if why == "batch normalisation":
        model = BatchNormalised(data.num_features, 3)
    if why == "no weight decay":
        decay = 0.0
    train(model, data, nodes, epochs=60, weight_decay=decay, seed=0)
    settings = {"weight_decay": decay, "leave_out": LeaveOut(damping=0.01, decay="effective" if decay else "stated")}
    jury = Jury(model, data, nodes, **settings).fit()
    if why == "differ too much":
        jury._agreement = Agreement(0.2, 0.5, 0.9, trusted=False)
    return jury


class BatchNormalised(torch.nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.norm = GCNConv(features, 4), torch.nn.BatchNorm1d(4)
        self.second = GCNConv(4, classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x, edge_index))), edge_index)


@pytest.mark.filterwarnings("error::jurygcn.errors.JuryWarning")
@pytest.mark.parametrize("why", ["batch normalisation", "no weight decay", "differ too much"])
def test_estimates_that_are_not_trusted_are_said_to_be_so(why: str) -> None:
    jury = untrusted(why)
    for of in ("labels", "edges"):
        with pytest.warns(JuryWarning, match=f"{why}.*Effects through training may be wrong") as caught:
            jury.influence_on(NODE, of=of)
        assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]  # the caller's line
    health = jury.what_if([NODE], remove_nodes=[2]).health
    assert why in health.doubt
    assert health.doubt in health.words


@pytest.mark.filterwarnings("error::jurygcn.errors.JuryWarning")
def test_trusted_estimates_carry_no_caution() -> None:
    jury = JURIES["gcn", "cross_entropy"]
    jury.influence_on(NODE, of="edges")
    assert jury.what_if([NODE], remove_nodes=[2]).health.doubt == ""
    untrusted_until_compared = untrusted("batch normalisation")
    untrusted_until_compared._agreement = Agreement(0.99, 0.5, 0.5, trusted=True)
    untrusted_until_compared.influence_on(NODE)


@pytest.mark.filterwarnings("error::jurygcn.errors.JuryWarning")
def test_influences_of_labels_by_retrained_jurors_carry_no_caution() -> None:
    data, nodes = small()
    model = models("gcn")
    train(model, data, nodes, epochs=5, weight_decay=0.0, seed=0)
    how = Retraining(epochs=5, processes=1)
    settings = {"weight_decay": 0.0, "leave_out": "retrain", "retraining": how}
    jury = Jury(model, data, nodes, **settings).fit()
    jury.influence_on(NODE)


def test_only_drawn_labels_have_jurors_after_an_edit_too() -> None:
    data, nodes = small()
    model = models("gcn")
    train(model, data, nodes, epochs=60, weight_decay=DECAY, seed=0)
    drawn = [int(node) for node in nodes[:4]]
    settings = {"chosen": "actively", "drawn": drawn, "leave_out": LeaveOut(decay="stated")}
    jury = Jury(model, data, nodes, weight_decay=DECAY, **settings).fit()
    edited = jury.what_if(remove_nodes=drawn[:1]).jury()
    assert edited.drawn
    assert edited.train_nodes[edited.positions].tolist() == sorted(drawn[1:], key=edited.train_nodes.tolist().index)
    assert not jury.what_if(remove_nodes=drawn).jury().drawn


def test_forgetting_is_removing_and_its_certificate_compares_with_retraining() -> None:
    jury = JURIES["gcn", "cross_entropy"]
    plain = jury.forget([2])
    assert plain.certificate is None
    done = jury.forget([2], certify=Retraining(epochs=60), sample=[0, 1, 3])
    removed = jury.what_if(remove_nodes=[2])
    for name, value in done.state_dict.items():
        assert torch.equal(value, removed.state_dict()[name])
    model = models("gcn")
    weights = torch.full((5,), 5 / 6).double()
    train(model, removed.data, removed.train_nodes, epochs=60, weight_decay=DECAY, node_weights=weights, seed=0)
    with torch.no_grad():
        again = model(removed.data.x, removed.data.edge_index).softmax(dim=1)[[0, 1, 3]]
    assert done.certificate is not None
    wanted = float((again - removed.after[[0, 1, 3]]).abs().mean())
    assert done.certificate.predictions == pytest.approx(wanted, rel=1e-3)
    assert done.certificate.sample == 3
    assert "retrained" in done.certificate.words
    moved = (removed.after - removed.before)[[0, 1, 3]]
    with torch.no_grad():
        old = jury.engine.model(removed.data.x, removed.data.edge_index).softmax(dim=1)[[0, 1, 3]]
    pairs = torch.stack([(removed.after[[0, 1, 3]] - old).flatten(), (again - old).flatten()])
    assert done.certificate.correlation == pytest.approx(float(torch.corrcoef(pairs)[0, 1]), abs=1e-4)
    assert float(moved.abs().max()) > 0
    assert removed.certify(Retraining(epochs=60), sample=[0, 1, 3]) == done.certificate


def test_a_certificate_says_when_the_step_is_no_nearer_than_the_old_model() -> None:
    common = {"parameters": 1.0, "correlation": 0.1, "same_class": 1.0, "sample": 5}
    good = Certificate(predictions=0.1, untouched=0.2, **common)
    bad = Certificate(predictions=0.2, untouched=0.1, **common)
    assert good.helps
    assert not bad.helps
    assert "do not use it" in bad.words
    assert "do not use it" not in good.words


@pytest.mark.parametrize("of", ["labels", "edges", "nodes", "features"])
def test_rows_can_be_checked_by_training_again(of: str) -> None:
    data, nodes = small()
    model = models("gcn")
    train(model, data, nodes, epochs=60, weight_decay=DECAY, seed=0)
    jury = Jury(model, data, nodes, weight_decay=DECAY, retraining=Retraining(epochs=60)).fit()
    table = jury.influence_on(NODE, of=of, check=2)
    assert table["retrained"].notna().sum() == 2
    row = table.iloc[0]
    left, features = nodes, data.x.clone()
    edge_index = data.edge_index
    if of == "labels":
        left = nodes[nodes != int(row["train_node"])]
    elif of == "features":
        features[NODE, int(row["feature"])] = 0
    else:
        gone = {int(row["node"])} if of == "nodes" else {int(row["source"]), int(row["target"])}
        cut = [len(gone & {a, b}) == len(gone) for a, b in edge_index.T.tolist()]
        edge_index = edge_index[:, ~torch.tensor(cut)]
        left = nodes[nodes != int(row["node"])] if of == "nodes" else nodes
    again, edited = models("gcn"), Data(x=features, edge_index=edge_index, y=data.y, num_nodes=12)
    weights = torch.full((len(left),), len(left) / len(nodes)).double()
    train(again, edited, left, epochs=60, weight_decay=DECAY, node_weights=weights, seed=0)
    with torch.no_grad():
        before = model(data.x, data.edge_index).softmax(dim=1)[NODE]
        after = again(features, edge_index).softmax(dim=1)[NODE]
    c = int(before.argmax())
    assert row["retrained"] == pytest.approx(float(before[c] - after[c]), abs=1e-4)
    assert "retrained" not in jury.influence_on(NODE, of=of)


@pytest.mark.parametrize("effect", ["direct", "both"])
def test_the_explainer_gives_masks_that_pyg_can_measure(effect: str) -> None:
    jury = JURIES["gat", "cross_entropy"]
    model, data = jury.engine.model, jury.data
    explainer = Explainer(
        model,
        algorithm=JuryExplainer(jury, effect=effect),
        explanation_type="model",
        node_mask_type="object",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    explanation = explainer(data.x, data.edge_index, index=NODE)
    assert explanation.edge_mask.shape == (data.edge_index.shape[1],)
    assert float(explanation.edge_mask.max()) == 1.0
    assert float(explanation.node_mask[NODE]) == 1.0
    table = jury.influence_on(NODE, of="edges")
    table["drop"] = table["direct" if effect == "direct" else "support"]
    best = table.loc[table["drop"].idxmax()]
    pair = {int(best["source"]), int(best["target"])}
    near = k_hop_subgraph(NODE, 1, data.edge_index)[0].tolist() if effect == "direct" else list(range(12))
    top = data.edge_index[:, explanation.edge_mask == 1.0].T.tolist()
    wanted = [list(ends) for ends in (sorted(pair), sorted(pair, reverse=True)) if ends[1] in near]
    assert sorted(top) == sorted(wanted), "the most supporting edge, in the directions whose messages arrive"
    for (_, receiver), value in zip(data.edge_index.T.tolist(), explanation.edge_mask.tolist(), strict=True):
        assert value == 0.0 or receiver in near
    plus, minus = fidelity(explainer, explanation)
    assert 0.0 <= plus <= 1.0
    assert 0.0 <= minus <= 1.0
    assert 0.0 <= unfaithfulness(explainer, explanation) <= 1.0
    with pytest.raises(DataError, match="graph of the jury"):
        explainer(data.x, data.edge_index[:, 2:], index=NODE)


def test_the_order_of_edges_is_the_greedy_one_on_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "MOST", 4)
    jury = JURIES["gat", "cross_entropy"]
    model, data = jury.engine.model, jury.data
    explainer = Explainer(
        model,
        algorithm=JuryExplainer(jury),
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    mask = explainer(data.x, data.edge_index, index=NODE).edge_mask
    E = data.edge_index.shape[1]
    near = k_hop_subgraph(NODE, 1, data.edge_index)[0]
    inside = torch.isin(data.edge_index[1], near)
    assert not bool(mask[~inside].any()), "their messages never arrive"

    def probability(weights: torch.Tensor) -> torch.Tensor:
        set_masks(model, weights, data.edge_index, apply_sigmoid=False)
        z = model(data.x, data.edge_index)[NODE].softmax(dim=0)
        clear_masks(model)
        return z[c]

    c = int(model(data.x, data.edge_index)[NODE].argmax())
    chosen: list[int] = []
    for _ in range(4):
        values = torch.full((E,), -torch.inf).double()
        for e in inside.nonzero()[:, 0].tolist():
            if e not in chosen:
                kept = torch.zeros(E).double()
                kept[[*chosen, e]] = 1.0
                with torch.no_grad():
                    values[e] = probability(kept) - probability(1.0 - kept)
        chosen.append(int(values.argmax()))
    assert mask.argsort(descending=True)[:4].tolist() == chosen
    weights = torch.ones(E).double()
    steps = []
    for k in range(together.POINTS):
        part = (weights * (k + 0.5) / together.POINTS).requires_grad_()
        steps.append(torch.autograd.grad(probability(part).log(), part)[0])
    single = torch.stack(steps).mean(dim=0)
    rest = [e for e in single.argsort(descending=True).tolist() if e not in chosen and single[e] > 0]
    assert mask.argsort(descending=True)[4 : 4 + len(rest)].tolist() == rest


def test_masks_that_it_cannot_make_are_refused() -> None:
    jury = JURIES["gcn", "cross_entropy"]
    with pytest.raises(ValueError, match="does not support"):
        Explainer(
            jury.engine.model,
            algorithm=JuryExplainer(jury),
            explanation_type="model",
            node_mask_type="attributes",
            model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
        )
