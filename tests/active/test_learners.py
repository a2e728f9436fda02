"""What is learned with the labels, and how good it is expected to be, against the jury's own verdicts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scenes import FAST
from torch_geometric.nn import GCN as PyGGCN

from jurygcn import active, learning
from jurygcn.active import History
from jurygcn.active.learners import LabelledGraph, find_learner, folded, left_out_scores, stacked_probabilities
from jurygcn.active.loop import _generator
from jurygcn.active.scene import hide_labels
from jurygcn.conformal.advice import panel_of, take_advice
from jurygcn.data import paper_split, synthetic
from jurygcn.errors import SettingError
from jurygcn.graph.propagation import Propagation
from jurygcn.models import fit_gcn, train

DATA = synthetic(num_nodes=150, num_edges=700, num_features=10, num_classes=3, separation=3.0)
RECIPE = replace(FAST, epochs=60, dropout=0.0)


def quick(strategy="margin", **settings) -> History:
    return active.run(DATA, strategy, initial=8, budget=32, step=12, recipe=RECIPE, **settings)


def given(count: int) -> LabelledGraph:
    nodes = torch.arange(count)
    seen = hide_labels(DATA, nodes, DATA.y[nodes])
    return LabelledGraph(seen, nodes, fit_gcn(seen, nodes, RECIPE, seed=0)[0], RECIPE, 0)


def test_the_stacked_jury_needs_no_votes_to_predict():
    here = given(40)
    jury = here.jury()
    verdict = jury.verdict()
    torch.testing.assert_close(stacked_probabilities(jury.advice(), here), verdict.calibrated)
    assert verdict.advice.model_share < 1.0  # regressions do count


def graph_of_step(history: History, number: int) -> LabelledGraph:
    """What there was to learn from at a step, counted from 1."""
    count = history.steps[number - 1].labels
    nodes, labels = history.labelled[:count], history.labels[:count]
    seen, seed = hide_labels(DATA, nodes, labels), int(_generator(0, "model", number).integers(2**31 - 1))
    return LabelledGraph(seen, nodes, fit_gcn(seen, nodes, RECIPE, seed=seed)[0], RECIPE, seed)


def test_the_gcn_and_what_is_expected_of_it_are_the_verdicts():
    history = quick()
    test = paper_split(DATA, seed=0).test
    for number, step in enumerate(history.steps, start=1):
        jury = graph_of_step(history, number).jury()
        verdict = jury.verdict()
        said = verdict.predicted_class
        right = [int(said[v]) == int(DATA.y[v]) for v in test.tolist()]
        assert step.learner_accuracy == step.accuracy == pytest.approx(sum(right) / len(right))
        others = [v for v in range(150) if v not in history.labelled[: step.labels].tolist()]
        sure = [float(verdict.calibrated[v, said[v]]) for v in others]
        assert step.expected_accuracy == pytest.approx(sum(sure) / len(sure), abs=1e-5)
        assert step.left_out_accuracy == pytest.approx(jury.expected_accuracy(of="model").accuracy)


def test_the_advised_learner_by_hand():
    """Its folds are trained here, and the predictions are pooled here."""
    history, plain = quick(learner="advised"), quick()
    assert history.labelled.tolist() == plain.labelled.tolist()  # the learner chooses nothing
    assert [step.accuracy for step in history.steps] == [step.accuracy for step in plain.steps]
    here = graph_of_step(history, len(history.steps))
    own, nodes = folded(here), here.labelled
    for fold in range(5):
        part = np.random.default_rng(here.seed).permutation(len(nodes)) % 5
        model = fit_gcn(here.data, nodes[part != fold], RECIPE, seed=here.seed)[0]
        with torch.no_grad():
            said = torch.softmax(model(here.data.x, here.data.edge_index), dim=1)
        torch.testing.assert_close(own[0][part == fold], said[nodes[part == fold]])

    engine = here.bare_jury().engine
    advice = take_advice(engine, panel_of(engine), torch.arange(len(nodes)), own)
    with torch.no_grad():
        model = torch.softmax(here.model(DATA.x, DATA.edge_index), dim=1)
    for _ in range(advice.diffusion):
        model = torch.from_numpy(Propagation.of(DATA).averaging @ model.numpy())
    scores = advice.weights[0] * model.log()
    for weight, adviser in zip(advice.weights[1:], advice.advisers):
        scores = scores + weight * adviser.answers
    said, last = scores.argmax(dim=1), history.steps[-1]
    test = paper_split(DATA, seed=0).test
    assert last.learner_accuracy == pytest.approx(float((said == DATA.y)[test].double().mean()))
    others = [v for v in range(150) if v not in nodes.tolist()]
    assert last.expected_accuracy == pytest.approx(float(torch.softmax(scores, 1).amax(1)[others].mean()), abs=1e-4)
    assert 0 < last.left_out_accuracy <= 1


@pytest.mark.parametrize("learner", ["advised", "self-trained"])
def test_these_learners_with_one_label_are_the_gcn(learner):
    history = active.run(DATA, "random", initial=1, budget=3, step=1, recipe=RECIPE, learner=learner)
    assert history.steps[0].learner_accuracy == history.steps[0].accuracy


def test_the_self_trained_learner_by_hand():
    """`learning.self_train` on the given labels; what is expected of it comes from the pool of the advised learner."""
    history = quick(learner="self-trained")
    assert history.labelled.tolist() == quick().labelled.tolist()  # the learner chooses nothing
    here, last = graph_of_step(history, len(history.steps)), history.steps[-1]
    other = DATA.clone()
    other.y = torch.zeros(150, dtype=torch.long)  # no label but the given ones may matter
    other.y[here.labelled] = DATA.y[here.labelled]
    taught = learning.self_train(
        *(other, here.labelled), seed=here.seed, hidden=RECIPE.hidden, lr=RECIPE.lr, weight_decay=RECIPE.weight_decay,
        dropout=RECIPE.dropout,
    )  # fmt: skip
    with torch.no_grad():
        said = taught.model(DATA.x, DATA.edge_index).argmax(dim=1)
    test = paper_split(DATA, seed=0).test
    assert last.learner_accuracy == pytest.approx(float((said == DATA.y)[test].double().mean()))
    pool = stacked_probabilities(left_out_scores(here)[0], here)
    others = [v for v in range(150) if v not in here.labelled.tolist()]
    assert last.expected_accuracy == pytest.approx(float(pool[others, said[others]].mean()), abs=1e-5)
    assert math.isnan(last.left_out_accuracy)


@pytest.mark.parametrize("labels", [(1, 1), (0, 1)])
def test_the_self_trained_learner_with_two_labels(labels):
    nodes = torch.stack([(DATA.y == c).nonzero()[:, 0][k] for k, c in enumerate(labels)])
    seen = hide_labels(DATA, nodes, DATA.y[nodes])
    here = LabelledGraph(seen, nodes, fit_gcn(seen, nodes, RECIPE, seed=0)[0], RECIPE, 0)
    found = find_learner("self-trained")[1](here)
    assert set(found.classes.tolist()) <= set(labels)


def test_any_model_learns_anew_at_every_step():
    model = PyGGCN(10, 8, 2, 3)
    before = [p.clone() for p in model.parameters()]
    history = quick(learner=model)
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters()))
    last, test = history.steps[-1], paper_split(DATA, seed=0).test
    seed = int(_generator(0, "model", len(history.steps)).integers(2**31 - 1))
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
