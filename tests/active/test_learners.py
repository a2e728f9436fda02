"""What is learned with the labels, and how good it is expected to be, against the jury's own verdicts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scenes import FAST
from torch_geometric.nn import GCN as PyGGCN

from jurygcn import active
from jurygcn.active import History
from jurygcn.active.learners import Lesson, stacked_probabilities
from jurygcn.active.scene import hide_labels
from jurygcn.data import paper_split, synthetic
from jurygcn.errors import SettingError
from jurygcn.models import fit_gcn, train

DATA = synthetic(num_nodes=150, num_edges=700, num_features=10, num_classes=3, separation=3.0)
RECIPE = replace(FAST, epochs=60, dropout=0.0)


def quick(strategy="margin", **settings) -> History:
    return active.run(DATA, strategy, initial=8, budget=32, step=12, recipe=RECIPE, **settings)


def lesson(count: int) -> Lesson:
    nodes = torch.arange(count)
    seen = hide_labels(DATA, nodes, DATA.y[nodes])
    return Lesson(seen, nodes, fit_gcn(seen, nodes, RECIPE, seed=0)[0], RECIPE, 0)


def test_the_stacked_jury_needs_no_votes_to_predict():
    jury = lesson(40).jury()
    verdict = jury.verdict()
    torch.testing.assert_close(stacked_probabilities(jury), verdict.calibrated)
    assert verdict.advice.model_share < 1.0  # regressions do count


@pytest.mark.parametrize("learner", ["gcn", "advised"])
def test_accuracies_and_what_is_expected_are_the_verdicts(learner):
    history = quick(learner=learner)
    plain = quick()
    assert history.labelled.tolist() == plain.labelled.tolist()  # the learner chooses nothing
    test = paper_split(DATA, seed=0).test
    for number, step in enumerate(history.steps, start=1):
        nodes, labels = history.labelled[: step.labels], history.labels[: step.labels]
        seen = hide_labels(DATA, nodes, labels)
        seed = int(active.loop._generator(0, "model", number).integers(2**31 - 1))
        model = fit_gcn(seen, nodes, RECIPE, seed=seed)[0]
        verdict = Lesson(seen, nodes, model, RECIPE, seed).jury().verdict()
        said = verdict.predicted_class if learner == "gcn" else verdict.jury_class
        right = [int(said[v]) == int(DATA.y[v]) for v in test.tolist()]
        assert step.learner_accuracy == pytest.approx(sum(right) / len(right))
        others = [v for v in range(150) if v not in nodes.tolist()]
        sure = [float(verdict.calibrated[v, said[v]]) for v in others]
        assert step.expected_accuracy == pytest.approx(sum(sure) / len(sure), abs=1e-5)
        model_right = [int(verdict.predicted_class[v]) == int(DATA.y[v]) for v in test.tolist()]
        assert step.accuracy == pytest.approx(sum(model_right) / len(model_right))


@pytest.mark.parametrize(("learner", "of"), [("gcn", "model"), ("advised", "jury")])
def test_left_out_accuracy_is_that_of_jurors_at_their_own_nodes(learner, of):
    history = quick(learner=learner)
    nodes, seen = history.labelled, hide_labels(DATA, history.labelled, history.labels)
    seed = int(active.loop._generator(0, "model", len(history.steps)).integers(2**31 - 1))
    jury = Lesson(seen, nodes, fit_gcn(seen, nodes, RECIPE, seed=seed)[0], RECIPE, seed).jury()
    assert history.steps[-1].left_out_accuracy == pytest.approx(jury.expected_accuracy(of=of).accuracy)


def test_any_model_learns_anew_at_every_step():
    model = PyGGCN(10, 8, 2, 3)
    before = [p.clone() for p in model.parameters()]
    history = quick(learner=model)
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters()))
    last, test = history.steps[-1], paper_split(DATA, seed=0).test
    seed = int(active.loop._generator(0, "model", len(history.steps)).integers(2**31 - 1))
    train(model, DATA, history.labelled, epochs=60, lr=RECIPE.lr, weight_decay=RECIPE.weight_decay, seed=seed)
    with torch.no_grad():
        said = model(DATA.x, DATA.edge_index).argmax(dim=1)
    assert last.learner_accuracy == pytest.approx(float((said == DATA.y)[test].double().mean()))
    assert last.accuracy == quick().steps[-1].accuracy
    assert math.isnan(last.expected_accuracy)
    assert "no jurors" in history.outlook


def test_a_function_may_learn_and_sees_no_other_labels():
    def majority(data, nodes, seed):
        assert (data.y >= 0).sum() == len(nodes)
        scores = torch.zeros(150, 3)
        scores[:, data.y[nodes].mode().values] = 1.0
        return scores

    test = paper_split(DATA, seed=0).test
    history = quick(learner=majority)
    for step in history.steps:
        common = history.labels[: step.labels].mode().values
        assert step.learner_accuracy == pytest.approx(float((DATA.y[test] == common).double().mean()))
    assert history.settings["learner"] == "majority"


@pytest.mark.parametrize(("learner", "words"), [("oracle", "gcn, advised"), (lambda *_: torch.zeros(3), "150")])
def test_refusals(learner, words):
    with pytest.raises(SettingError, match=words):
        quick(learner=learner)


def test_a_run_with_another_learner_is_not_resumed(tmp_path):
    path = tmp_path / "history.json"
    history = quick(learner="advised", resume=path)
    loaded = History.load(path)
    assert loaded.steps == history.steps
    assert quick(learner="advised", resume=path).steps == history.steps
    with pytest.raises(SettingError, match="learner"):
        quick(resume=path)


def test_the_outlook_says_what_the_last_labels_brought():
    history = quick(learner="advised")
    first, last = history.steps[-2].expected_accuracy, history.steps[-1].expected_accuracy
    assert f"With 32 labels {last:.0%} of the other nodes" in history.outlook
    assert f"{100 * (last - first):+.1f} points by the last 8 labels" in history.outlook
    assert "no promise" in history.outlook


def test_a_run_stops_at_an_expected_accuracy():
    whole = quick(learner="advised")
    goal = whole.steps[1].expected_accuracy
    wanted = next(s.labels for s in whole.steps if s.expected_accuracy >= goal)
    stopped = quick(learner="advised", stop=[active.expected(goal)])
    assert stopped.steps[-1].labels == wanted
    assert stopped.stopped.startswith("expected accuracy")
    with pytest.raises(SettingError, match="accuracy above 0"):
        active.expected(1.5)
