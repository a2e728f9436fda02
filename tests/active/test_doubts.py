"""Labels that may be wrong: the learners that doubt them, and the loop that asks again."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scenes import FAST

from jurygcn import active
from jurygcn.active import asking, learners
from jurygcn.active.history import History
from jurygcn.active.learners import LabelledGraph, find_learner, label_weights, suspicion
from jurygcn.active.scene import hide_labels
from jurygcn.annotators import agreement
from jurygcn.data import Split, synthetic
from jurygcn.diagnostics.noise import NoiseModel
from jurygcn.errors import DataError, SettingError
from jurygcn.models import fit_gcn

EASY = synthetic(num_nodes=240, num_edges=1200, num_features=12, num_classes=3, homophily=0.9, separation=4.0, seed=8)
EASY.name = "easy"
SPLIT = Split(torch.arange(120), torch.arange(120, 140), torch.arange(140, 240))


def wrong_labels(share: float = 0.25) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Nodes, their labels, and which labels are wrong."""
    nodes = torch.arange(60)
    bad = torch.from_numpy(np.random.default_rng(0).random(60) < share)
    return nodes, torch.where(bad, (EASY.y[nodes] + 1) % 3, EASY.y[nodes]), bad


def given(nodes: torch.Tensor, labels: torch.Tensor, answers: tuple[tuple[int, int], ...] = ()) -> LabelledGraph:
    seen = hide_labels(EASY, nodes, labels)
    return LabelledGraph(seen, nodes, fit_gcn(seen, nodes, FAST, seed=0)[0], FAST, 0, answers)


def independent(seed: int, rate: float):
    """An oracle whose answers are wrong with this probability, anew each time."""
    rng = np.random.default_rng(seed)

    def answer(nodes: torch.Tensor) -> list[int]:
        return [int((EASY.y[n] + (rng.random() < rate) * rng.integers(1, 3)) % 3) for n in nodes.tolist()]

    return answer


# --- learners ------------------------------------------------------------------------------------------------


def test_wrong_labels_are_found_and_counted():
    nodes, labels, bad = wrong_labels()
    noise = suspicion(given(nodes, labels))
    assert noise.wrong[bad].min() > noise.wrong[~bad].median()
    assert noise.rate == pytest.approx(float(bad.double().mean()), abs=0.1)


def test_weights_are_right_minus_wrong():
    noise = NoiseModel(0.2, torch.tensor([0.0, 0.1, 0.5, 0.9]).double(), torch.empty(4, 2), torch.empty(4, 2))
    assert label_weights(noise).tolist() == pytest.approx([1.0, 0.8, 0.0, 0.0])


def test_the_weighted_learner_is_a_gcn_with_these_weights():
    nodes, labels, _ = wrong_labels()
    here = given(nodes, labels)
    found = find_learner("weighted")[1](here)
    weights = label_weights(suspicion(here))
    model, _ = fit_gcn(here.data, nodes, FAST, seed=0, node_weights=weights)
    assert found.classes.equal(learners.predictions(model, EASY))
    assert found.wrong == suspicion(here).rate


def test_the_screened_learner_does_without_wrong_labels(monkeypatch):
    nodes, labels, bad = wrong_labels()
    here = given(nodes, labels)
    learned = []
    advised = learners._advised
    monkeypatch.setattr(learners, "_advised", lambda one: learned.append(one.labelled) or advised(one))
    found = find_learner("screened")[1](here)
    assert learned[0].equal(nodes[suspicion(here).wrong <= 0.5])
    assert float(bad[learned[0]].double().mean()) < 0.1 < float(bad.double().mean())
    test = SPLIT.test
    right = {name: float((c[test] == EASY.y[test]).double().mean()) for name, c in
             (("screened", found.classes), ("gcn", find_learner("gcn")[1](here).classes))}  # fmt: skip
    assert right["screened"] > right["gcn"]


def test_each_class_keeps_a_label(monkeypatch):
    nodes = torch.arange(30)
    doubt = NoiseModel(
        0.9, torch.linspace(0.6, 0.9, 30).double(), torch.full((30, 3), 1 / 3).double(), torch.zeros(30, 3)
    )
    monkeypatch.setattr(learners, "suspicion", lambda one: doubt)
    kept = []
    monkeypatch.setattr(learners, "_advised", lambda one: kept.append(one.labelled) or learners._gcn(one))
    find_learner("screened")[1](given(nodes, EASY.y[nodes]))
    first = [int((EASY.y[nodes] == c).nonzero()[0]) for c in range(3)]
    assert kept[0].tolist() == sorted(first)


def test_several_answers_replace_the_single_one():
    nodes, labels, _ = wrong_labels()
    pairs = [
        *zip(nodes.tolist(), labels.tolist()),
        *((n, int(EASY.y[n])) for n in range(10)),
        *((n, int(EASY.y[n])) for n in range(10)),
    ]
    alone, several = suspicion(given(nodes, labels)), suspicion(given(nodes, labels, tuple(pairs)))
    prior = dict(zip(nodes.tolist(), alone.truth.numpy()))
    found = agreement(((n, "x", c) for n, c in pairs), 3, prior=prior)
    expected = 1 - found.posterior[np.arange(60), labels.numpy()]
    assert several.wrong.numpy() == pytest.approx(expected)
    assert several.rate == found.error_rate


# --- asking again --------------------------------------------------------------------------------------------


def test_the_loop_asks_again_about_doubtful_labels():
    asked = []
    oracle = independent(0, 0.3)

    def listening(nodes):
        asked.append(nodes.tolist())
        return oracle(nodes)

    history = active.run(
        EASY, "random", initial=20, budget=80, step=20, split=SPLIT, recipe=FAST, oracle=listening, doubts=0.5
    )
    again = [step.again for step in history.steps]
    assert again[0] == ()
    assert any(again)
    for step, before in zip(history.steps[1:], history.steps):
        assert len(step.again) <= 10
        assert len(step.nodes) + len(step.again) == 20
        assert set(step.again) <= {n for s in history.steps[: history.steps.index(step)] for n in s.nodes}
        assert before.labels + len(step.nodes) == step.labels
    assert sum(map(len, asked)) == 80
    assert len(history.answers) == 80
    assert history.steps[-1].error_rate == pytest.approx(0.3, abs=0.12)
    assert "error_rate" in history.to_frame()
    # what was settled is what counts
    last = {n: label for s in history.steps for n, label in [*zip(s.nodes, s.answers), *zip(s.again, s.settled)]}
    assert history.labels.tolist() == list(last.values())
    first = {n: label for s in history.steps for n, label in zip(s.nodes, s.answers)}
    changed = [n for n in last if last[n] != first[n]]
    assert changed
    assert sum(last[n] == EASY.y[n] for n in changed) > len(changed) / 2


def test_asking_again_gives_better_labels_than_the_first_answers():
    better = 0
    for seed in range(4):
        history = active.run(
            EASY, "random", initial=20, budget=80, step=20, seed=seed, split=SPLIT, recipe=FAST,
            oracle=independent(seed, 0.3), doubts=0.5,
        )  # fmt: skip
        first = {n: label for s in history.steps for n, label in zip(s.nodes, s.answers)}
        right = sum(int(EASY.y[n]) == label for n, label in first.items()) / len(first)
        better += float((history.labels == EASY.y[history.labelled]).double().mean()) > right
    assert better == 4


def test_settling_is_the_posterior_of_all_answers(monkeypatch):
    nodes = torch.tensor([3, 5, 8])
    labels = torch.tensor([0, 1, 2])
    truth = torch.tensor([[0.1, 0.8, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]).double()
    noise = NoiseModel(0.3, torch.zeros(3).double(), truth, truth.log())
    one = LabelledGraph(hide_labels(EASY, nodes, labels), nodes, None, FAST, 0)  # type: ignore[arg-type]
    settled, rate = asking.settle(one, noise, torch.tensor([3, 8]), [1, -1])
    said = [(3, "o", 0), (5, "o", 1), (8, "o", 2), (3, "o", 1)]
    found = agreement(said, 3, prior={n: truth[k].numpy() for k, n in enumerate((3, 5, 8))})
    assert settled == (int(found.labels[0]), 2) == (1, 2)
    assert rate == found.error_rate
    monkeypatch.setattr(
        asking, "suspicion", lambda _: NoiseModel(0.1, torch.tensor([0.1, 0.9, 0.3]).double(), truth, truth.log())
    )
    assert asking.doubtful(one, 3)[0].tolist() == [5, 8]
    assert asking.doubtful(one, 1)[0].tolist() == [5]


def test_an_interrupted_run_goes_on_with_the_same_answers(tmp_path):
    table = {}
    oracle = independent(1, 0.3)

    def remembered(nodes):  # the k-th answer for a node is always the same
        return [table.setdefault((n, counts(n)), oracle(torch.tensor([n]))[0]) for n in nodes.tolist()]

    seen: dict[int, int] = {}

    def counts(node: int) -> int:
        seen[node] = seen.get(node, 0) + 1
        return seen[node]

    settings = {"initial": 20, "step": 20, "split": SPLIT, "recipe": FAST, "doubts": 0.5}
    whole = active.run(EASY, "random", budget=80, oracle=remembered, **settings)
    seen.clear()
    path = tmp_path / "h.json"
    steps = []

    def interrupt(history):
        steps.append(history)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return ""

    with pytest.raises(KeyboardInterrupt):
        active.run(EASY, "random", budget=80, oracle=remembered, resume=path, stop=[interrupt], **settings)
    loaded = History.load(path)
    assert 0 < len(loaded.steps) < 4
    seen.clear()
    for node, _ in loaded.answers:
        counts(node)
    rest = active.run(EASY, "random", budget=80, oracle=remembered, resume=path, **settings)
    assert rest.answers == whole.answers
    assert rest.labels.equal(whole.labels)
    with pytest.raises(SettingError, match="doubts"):
        active.run(EASY, "random", budget=80, oracle=remembered, resume=path, **{**settings, "doubts": 0.25})


def test_impossible_histories_are_refused(tmp_path):
    from dataclasses import replace

    history = active.run(
        EASY, "random", initial=20, budget=40, step=20, split=SPLIT, recipe=FAST, oracle=independent(2, 0.4), doubts=0.5
    )
    last = history.steps[-1]
    assert last.again
    for bad in (
        {"settled": last.settled[1:]},
        {"again": (last.nodes[0], *last.again[1:])},
        {"again_answers": (-2, *last.again_answers[1:])},
        {"settled": (-1, *last.settled[1:])},
    ):
        path = replace(history, steps=(*history.steps[:-1], replace(last, **bad))).save(tmp_path / "bad.json")
        with pytest.raises(DataError, match="expected a history"):
            History.load(path)


def test_without_doubts_nothing_is_estimated():
    history = active.run(EASY, "random", initial=6, budget=12, step=6, split=SPLIT, recipe=FAST)
    assert all(math.isnan(step.error_rate) for step in history.steps)
    assert "doubts" not in history.settings
    with pytest.raises(SettingError, match="doubts"):
        active.run(EASY, "random", initial=6, budget=12, step=6, split=SPLIT, recipe=FAST, doubts=1.5)
