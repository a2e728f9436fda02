"""Selection: against training and leaving out by hand, paired differences by hand, one run for many epochs."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

import hetero_models
import jurygcn
from jurygcn import GCN, Jury, LeaveOut, Recipe, candidates, selection, train
from jurygcn.data import synthetic
from jurygcn.errors import ModelError, SettingError
from jurygcn.leave_one_out.stacking import stack_classes
from jurygcn.losses import FLOOR
from jurygcn.models import fit_gcn
from jurygcn.selection import CORRECTED, TOLD_APART, Selection, select

NODES = torch.arange(0, 90, 3)
RECIPES = [
    Recipe(hidden=4, epochs=epochs, weight_decay=decay, dropout=0.0) for decay in (5e-4, 5e-2) for epochs in (5, 40)
]


def graph() -> Data:
    return synthetic(num_nodes=150, num_edges=450, num_features=8, num_classes=3, separation=1.5, seed=2)


def by_hand(recipe: Recipe, data: Data) -> Tensor:
    """Log losses of left-out labels of a model that is trained for itself."""
    model, _ = fit_gcn(data, NODES, recipe, seed=0)
    jury = Jury(model, data, NODES, weight_decay=recipe.weight_decay, leave_out=LeaveOut(decay="effective")).fit()
    return -jury.left_out().own.clamp_min(FLOOR).log()


def test_losses_are_those_of_separate_trainings() -> None:
    """Recipes that differ in epochs share a run, and give the same numbers as training each for itself."""
    data = graph()
    found = select(RECIPES, data, NODES, by="log_loss")
    losses = {name: by_hand(recipe, data) for name, recipe in found.candidates.items()}
    for row in found.table.itertuples():
        assert row.log_loss == pytest.approx(float(losses[row.candidate].mean()), rel=1e-5)
    best = min(losses, key=lambda name: float(losses[name].mean()))
    assert found.best == best
    for row in found.table.itertuples():
        paired = losses[row.candidate] - losses[best]
        assert row.difference == pytest.approx(float(paired.mean()), abs=1e-5)
        assert row.error == pytest.approx(float(paired.std()) / 30**0.5, abs=1e-5)
        assert row.tied == (row.difference <= TOLD_APART * row.error)


def folds_by_hand(recipe: Recipe, data: Data, nodes: Tensor, folds: int) -> Tensor:
    """Probabilities of each node by a model that is trained for itself on the labels of the other folds."""
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0)).tolist()
    found = torch.empty(len(nodes), 3, dtype=torch.float64)
    for k in range(folds):
        out = [place for turn, place in enumerate(order) if turn % folds == k]
        rest = torch.tensor([int(nodes[place]) for place in range(len(nodes)) if place not in out])
        model, _ = fit_gcn(data, rest, recipe, seed=0)
        with torch.no_grad():
            pi = torch.softmax(model.double()(data.x.double(), data.edge_index), dim=1)
        for place in out:
            found[place] = pi[nodes[place]]
    return found


@pytest.mark.parametrize("nodes", [NODES, NODES.flip(0)], ids=["sorted", "in another order"])
def test_folds_are_those_of_a_loop_by_hand(nodes: Tensor) -> None:
    data = graph()
    found = select(RECIPES, data, nodes, by="log_loss", leave_out="folds", folds=4)
    labels, losses = data.y[nodes], {}
    assert (found.leave_out, found.folds) == ("folds", 4)
    for row in found.table.itertuples():
        p = folds_by_hand(found.candidates[row.candidate], data, nodes, 4)
        losses[row.candidate] = -p[torch.arange(30), labels].log()
        assert row.log_loss == pytest.approx(float(losses[row.candidate].mean()), rel=1e-4)
        assert row.accuracy == pytest.approx(float((p.argmax(dim=1) == labels).double().mean()))
    for row in found.table.itertuples():
        paired = losses[row.candidate] - losses[found.best]
        assert row.difference == pytest.approx(float(paired.mean()), abs=1e-4)
        assert row.error == pytest.approx(float(paired.std()) / 30**0.5, abs=1e-4)


def test_folds_hide_labels() -> None:
    """A function sees a train_mask without the fold; a label changes no prediction of its own fold."""
    data, seen = graph(), []
    data.train_mask = torch.zeros(150, dtype=torch.bool).index_fill(0, NODES, True)
    untouched = data.train_mask.clone()

    def by_mask(given: Data, nodes: Tensor) -> nn.Module:
        assert given.train_mask.nonzero().squeeze(1).tolist() == nodes.tolist()
        seen.append(len(nodes))
        return fit_gcn(given, given.train_mask.nonzero().squeeze(1), RECIPES[1], seed=0)[0]

    found = select({"function": by_mask, "recipe": RECIPES[1]}, data, leave_out="folds").table.set_index("candidate")
    assert seen == [30, 24, 24, 24, 24, 24]
    assert data.train_mask.equal(untouched)
    assert found.loc["function", "log_loss"] == pytest.approx(found.loc["recipe", "log_loss"], rel=1e-6)
    changed, run = data.clone(), {"it": RECIPES[1]}
    changed.y = data.y.clone()
    changed.y[NODES[7]] = (data.y[NODES[7]] + 1) % 3
    before, after = (candidates.predictions_in_folds(run, d, NODES, folds=5, seed=0)["it"] for d in (data, changed))
    same = (before - after).abs().amax(dim=1) < 1e-9
    assert same[7]
    assert int(same.sum()) == 6  # of its fold


class Wrapped(nn.Module):
    """A GCN that is not recognised as one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.model(x, edges)


def test_folds_of_any_model() -> None:
    data = graph()

    def wrapped(given: Data, nodes: Tensor) -> nn.Module:
        return Wrapped(fit_gcn(given, nodes, RECIPES[1], seed=0)[0])

    found = select({"wrapped": wrapped, "recipe": RECIPES[1]}, data, NODES, leave_out="folds").table.set_index(
        "candidate"
    )
    for measure in selection.RANKED_BY:
        assert found.loc["wrapped", measure] == pytest.approx(found.loc["recipe", measure], rel=1e-5)


def test_folds_of_heterogeneous_graphs() -> None:
    """A function of a HeteroData sees the mask of its node type without the fold; losses against a loop by hand."""
    data, nodes = hetero_models.library(), hetero_models.NODES
    mask = torch.zeros(hetero_models.PAPERS, dtype=torch.bool).index_fill(0, nodes, True)
    data["paper"].train_mask = mask

    def trained(given: HeteroData, at: Tensor) -> nn.Module:
        assert given["paper"].train_mask.nonzero().squeeze(1).tolist() == at.tolist()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = hetero_models.HGT(given).double()
            model(given.x_dict, given.edge_index_dict)  # lazy layers
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.03)
        for _ in range(10):
            optimizer.zero_grad()
            z = model(given.x_dict, given.edge_index_dict)
            z = z["paper"] if isinstance(z, dict) else z
            nn.functional.cross_entropy(z[at], given["paper"].y[at]).backward()
            optimizer.step()
        return model

    run, n = {"it": trained}, len(nodes)
    found = candidates.predictions_in_folds(run, data, nodes, folds=3, seed=0)["it"]
    assert data["paper"].train_mask is mask
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    for k in range(3):
        out = order[k::3]
        seen = data.clone()
        rest = nodes[[place for place in range(n) if place not in out]]
        seen["paper"].train_mask = torch.zeros_like(mask).index_fill(0, rest, True)
        with torch.no_grad():
            z = trained_eval(trained, seen, rest)
        for place in out:
            torch.testing.assert_close(found[place], torch.softmax(z[nodes[place]], dim=0))
    chosen = select(run, data, leave_out="folds", folds=3)
    assert chosen.table["log_loss"].iloc[0] == pytest.approx(
        float(-found.gather(1, data["paper"].y[nodes][:, None]).log().mean())
    )


def trained_eval(trained: Callable[..., nn.Module], data: HeteroData, nodes: Tensor) -> Tensor:
    """Logits of the papers by a model that is trained on these nodes."""
    with torch.enable_grad():
        model = trained(data, nodes).eval()
    z = model(data.x_dict, data.edge_index_dict)
    return z["paper"] if isinstance(z, dict) else z


def test_folds_where_models_can_be_trained() -> None:
    data = graph()
    model, _ = fit_gcn(data, NODES, RECIPES[0], seed=0)
    mixed = select({"a": model, "b": RECIPES[0]}, data, NODES)
    assert (mixed.leave_out, mixed.folds) == ("jurors", 0)
    assert "left out by jurors" in mixed.words
    assert "left out in 5 folds" in select(RECIPES[:1], data, NODES, leave_out="folds").words
    assert select(RECIPES[:1], data, NODES[:3], leave_out="folds").folds == 3  # not more folds than labels
    with pytest.raises(SettingError, match="'a', which cannot be trained again"):
        select({"a": model, "b": RECIPES[0]}, data, NODES, leave_out="folds")
    with pytest.raises(SettingError, match="at least 2 folds, got 1"):
        select(RECIPES, data, NODES, folds=1)
    with pytest.raises(SettingError, match="leave_out to be one of jurors, folds"):
        select(RECIPES, data, NODES, leave_out="newton")
    with pytest.raises(SettingError, match="at least 2 labels for folds, got 1"):
        select(RECIPES, data, NODES[:1], leave_out="folds")


def test_one_training_for_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    usual = candidates.train
    monkeypatch.setattr(candidates, "train", lambda *a, **k: (seen.append((k["epochs"], len(a[2]))), usual(*a, **k)))
    select(RECIPES, graph(), NODES)
    assert seen == [(40, 30)] * 2
    select(RECIPES, graph(), NODES, leave_out="folds", folds=3)
    assert seen[2:] == [(40, 30), (40, 20), (40, 20), (40, 20)] * 2


def test_words_say_what_cannot_be_told_apart() -> None:
    data = graph()
    model, _ = fit_gcn(data, NODES, Recipe(dropout=0.0), seed=0)
    found = select({"one": model, "other": model, "untrained": _untrained(data)}, data, NODES)
    assert found.best == "one"
    assert found.tied == ["other"]
    assert "cannot tell it apart from other" in found.words
    assert select({"alone": model}, data, NODES).words.endswith(").")
    assert "All others are worse" in select({"one": model, "untrained": _untrained(data)}, data, NODES).words
    assert found.fit() is model


def _untrained(data: Data) -> nn.Module:
    model = GCN(8, 4, 3)
    train(model, data, NODES, epochs=1, lr=1e-6, seed=3)
    return model


def test_functions_pairs_and_models_are_candidates() -> None:
    data = graph()

    def trained(given: Data, nodes: Tensor) -> tuple[nn.Module, torch.optim.Optimizer]:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = GCN(8, 4, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=5e-3)
        for _ in range(30):
            optimizer.zero_grad()
            z = model(given.x, given.edge_index)[nodes]
            nn.functional.cross_entropy(z, given.y[nodes]).backward()
            optimizer.step()
        return model, optimizer

    pair = trained(data, NODES)
    pair[0].eval()
    found = select({"function": trained, "pair": pair, "recipe": RECIPES[1]}, data, NODES)
    rows = found.table.set_index("candidate")
    assert rows.loc["function", "log_loss"] == pytest.approx(rows.loc["pair", "log_loss"], rel=1e-6)
    assert set(rows.index) == {"function", "pair", "recipe"}
    assert isinstance(found.fit(), nn.Module)


def test_ranking_by_each_measure() -> None:
    found = {
        "sure": {"calibrated_log_loss": [0.5, 0.5], "log_loss": [0.9, 0.9], "accuracy": [1.0, 0.0], "seconds": [1, 1]},
        "right": {"calibrated_log_loss": [0.6, 0.6], "log_loss": [0.7, 0.7], "accuracy": [1.0, 1.0], "seconds": [1, 2]},
    }
    found["sure"] |= {"expected_accuracy": [0.7, 0.6], "corrected": [0.9, 0.6]}
    found["right"] |= {"expected_accuracy": [0.5, 0.6], "corrected": [0.4, 0.5]}
    first = {by: selection._ranked(found, list(found), by)["candidate"].iloc[0] for by in selection.RANKED_BY}
    assert first == {
        "expected_accuracy": "sure",
        "calibrated_log_loss": "sure",
        "log_loss": "right",
        "accuracy": "right",
    }
    other = selection._ranked(found, list(found), "expected_accuracy").iloc[1]
    assert other["difference"] == pytest.approx(0.1)
    # The corrected differences are 0.5 and 0.1: their standard error is 0.2, and 0.2 of their mean is not applied.
    assert other["error"] == pytest.approx((0.2**2 + 0.2**2) ** 0.5)
    assert selection._ranked(found, list(found), "log_loss")["seconds"].tolist() == [3, 2]


@pytest.mark.parametrize("how", ["folds", "jurors"])
def test_expected_accuracy_by_hand(how: str) -> None:
    """The panel's probability of the classes that the model predicts, and what left-out labels correct."""
    data = graph()
    model, _ = fit_gcn(data, NODES, RECIPES[1], seed=0)
    row = select({"it": RECIPES[1]}, data, NODES, leave_out=how).table.iloc[0]
    jury = Jury(model, data, NODES, weight_decay=5e-4, leave_out=LeaveOut(decay="effective")).fit()
    panel, labels = jury.panel, data.y[NODES]
    own = torch.stack([torch.zeros(30, 3, dtype=torch.float64), *(member.own for member in panel.members)])
    stack = stack_classes(own, labels, panel.pairs(jury.positions, own[:1]))
    answers = torch.stack([panel.answers(member) for member in panel.members])
    everywhere = torch.softmax(torch.einsum("k,knc->nc", stack.weights[1:], answers), dim=1)
    left_out = torch.softmax(torch.einsum("kn,knc->nc", stack.left_out, own), dim=1)
    with torch.no_grad():
        said = model(data.x, data.edge_index).argmax(dim=1)
    others = [u for u in range(150) if u not in NODES.tolist()]
    mean = np.mean([float(everywhere[u, said[u]]) for u in others])
    predicted = jury.left_out().probabilities if how == "jurors" else folds_by_hand(RECIPES[1], data, NODES, 5)
    classes = predicted.argmax(dim=1)
    gaps = [float(c == y) - float(p[c]) for c, y, p in zip(classes, labels, left_out)]
    assert row["expected_accuracy"] == pytest.approx(mean + CORRECTED[how] * np.mean(gaps), abs=1e-5)


def test_candidates_that_memorise_do_not_win() -> None:
    """One candidate knows its labels by heart and nothing else; its jurors do not forget them."""
    data = graph()
    data.x = torch.cat([data.x, 30.0 * torch.eye(150)], dim=1)
    good, _ = fit_gcn(data, NODES, Recipe(hidden=4, epochs=40, dropout=0.0), seed=0)
    bad = copy.deepcopy(good)
    with torch.no_grad():
        bad.weights[0][:8] = 0.0
    found = select({"bad": bad, "good": good}, data, NODES)
    with torch.no_grad():
        right = {
            k: float((m(data.x, data.edge_index).argmax(1) == data.y).double().mean())
            for k, m in found.candidates.items()
        }
    assert right["good"] > right["bad"]
    assert found.best == "good"


def test_without_a_panel_left_out_labels_decide() -> None:
    data = Data(x=torch.ones(40, 2), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.arange(40) % 2)
    data.num_classes = 2
    nodes = torch.arange(0, 40, 2)
    found = select([Recipe(hidden=2, epochs=5, dropout=0.0)], data, nodes)
    assert found.table["expected_accuracy"].iloc[0] == found.table["accuracy"].iloc[0]


def test_calibrated_log_loss_is_the_best_over_temperatures() -> None:
    data = graph()
    model, _ = fit_gcn(data, NODES, RECIPES[1], seed=0)
    row = select({"it": model}, data, NODES).table.iloc[0]
    z = Jury(model, data, NODES, leave_out=LeaveOut(decay="effective")).fit().left_out()
    logs = z.probabilities.log()
    tried = [float(nn.functional.cross_entropy(b * logs, z.labels)) for b in np.geomspace(0.05, 20, 400)]
    assert row["calibrated_log_loss"] == pytest.approx(min(tried), abs=1e-4)
    assert row["calibrated_log_loss"] <= row["log_loss"] + 1e-9


def test_resumed_selection_trains_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = graph()
    first = select(RECIPES, data, NODES, resume=tmp_path)
    lines = (tmp_path / "selection.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert all(json.loads(line) for line in lines)
    usual = candidates.train
    monkeypatch.setattr(candidates, "train", lambda *_, **__: pytest.fail("trained again"))
    again = select(RECIPES, data, NODES, resume=tmp_path)
    assert again.table.drop(columns="seconds").equals(first.table.drop(columns="seconds"))
    monkeypatch.setattr(candidates, "train", usual)
    other = select(RECIPES, data, NODES, resume=tmp_path, leave_out="folds")  # left out in another way
    assert not other.table["log_loss"].equals(first.table["log_loss"])
    data.y = data.y.clone()
    data.y[NODES[0]] = (data.y[NODES[0]] + 1) % 3
    changed = select(RECIPES, data, NODES, resume=tmp_path)  # other labels: nothing is reused
    assert not changed.table["log_loss"].equals(first.table["log_loss"])


def test_refusals() -> None:
    data = graph()
    for given, words in (
        ({}, "at least one"),
        ({"a": 3}, "to be a model"),
        ([GCN(8, 4, 3)], "mapping from names"),
        ({"a": RECIPES[0]}, None),
    ):
        if words is None:
            with pytest.raises(SettingError, match="log_loss, calibrated"):
                select(given, data, NODES, by="f1")
            with pytest.raises(SettingError, match="train_mask"):
                select(given, data)
        else:
            with pytest.raises(SettingError, match=words):
                select(given, data, NODES)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="return a model"):
        select({"a": lambda *_: 3}, data, NODES)  # type: ignore[dict-item,return-value]


def test_public_names() -> None:
    assert jurygcn.select is select
    assert isinstance(select([RECIPES[0]], graph(), NODES), Selection)
