"""The loop: schedule, history, interruption, stopping, oracles."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import matplotlib as mpl
import pytest
import torch
from scenes import FAST, tail_graph

from jurygcn import active
from jurygcn.active import History, Recipe, Schedule
from jurygcn.active.learners import find_learner
from jurygcn.active.loop import Run
from jurygcn.active.oracle import ask_oracle
from jurygcn.data import Split, paper_split, random_labels, synthetic
from jurygcn.errors import DataError, SettingError
from jurygcn.io.fingerprints import sealed

mpl.use("Agg")


def graph(name: str = "little"):
    data = synthetic(num_nodes=90, num_edges=360, num_features=10, num_classes=3)
    data.name = data.catalog_name = name
    return data


def quick(strategy="margin", **settings) -> History:
    settings = {"initial": 4, "budget": 16, "step": 4, "recipe": FAST, **settings}
    return active.run(settings.pop("data", None) or graph(), strategy, **settings)


def outcome(history: History):
    """All that must not depend on interruptions."""
    steps = [(s.labels, s.queried, s.nodes, s.answers, s.scores, s.accuracy, str(s.changed)) for s in history.steps]
    return steps, history.memory, history.stopped


# --- the schedule --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("cora", [10, 20, 40, 60, 80, 100]),
        ("citeseer", [10, 20, 40, 60, 80, 100]),
        ("pubmed", [5, 10, 20, 30, 40, 50]),
        ("reddit", [20, 50, 100, 150, 200, 250]),
    ],
)
def test_the_papers_schedules(name, sizes):
    data = graph(name)
    unset = {"initial": None, "budget": None, "step": None}
    assert Schedule.of(data, **unset, count_initial=True).sizes == sizes
    on_top = Schedule.of(data, **unset, count_initial=False).sizes
    step = sizes[2] - sizes[1]
    assert on_top == [sizes[0] + step * k for k in range(6)]


def test_a_name_alone_changes_nothing():
    """A folder may be called like a graph of the paper."""
    data = graph("pubmed")
    del data.catalog_name
    unset = {"initial": None, "budget": None, "step": None}
    assert data.name == "pubmed"
    assert Schedule.of(data, **unset, count_initial=True).sizes != [5, 10, 20, 30, 40, 50]


def test_odd_schedules():
    assert Schedule(3, 10, 4).sizes == [3, 4, 8, 10]
    assert Schedule(4, 10, 4).sizes == [4, 8, 10]
    assert Schedule(0, 5, 5).sizes == [0, 5]
    assert Schedule(3, 10, 4, count_initial=False).sizes == [3, 7, 11, 13]
    for wrong in ((-1, 5, 1), (1, 5, 0), (5, 5, 1)):
        with pytest.raises(SettingError):
            Schedule(*wrong)


def test_defaults_are_the_papers_training():
    assert Recipe() == Recipe(hidden=16, epochs=100, lr=0.01, weight_decay=5e-4, dropout=0.5, layers=2)


# --- a run ---------------------------------------------------------------------------------------------------


def test_a_run_by_hand():
    data, seed = graph(), 3
    history = quick(data=data, seed=seed)
    split = paper_split(data, seed=seed)
    frame = history.to_frame()
    assert {"labels", "queried", "accuracy", "micro_f1", "seconds"} <= set(frame.columns)
    assert frame["labels"].tolist() == [4, 8, 12, 16]
    assert frame["queried"].tolist() == [0, 4, 8, 12]
    assert sorted(history.steps[0].nodes) == random_labels(split.pool, 4, seed=seed).tolist()
    assert (frame["accuracy"] == frame["micro_f1"]).all()  # one label per node: the same number
    assert (frame["seconds"][1:] > 0).all()
    assert history.stopped == "budget"
    assert outcome(quick(seed=seed)) == outcome(history)
    assert outcome(quick(seed=seed + 1)) != outcome(history)


def test_accuracy_is_that_of_a_fresh_model_on_the_test_nodes():
    data = graph()
    history = quick(data=data)
    split = paper_split(data, seed=0)
    learner = Run(data, split, Schedule(4, 16, 4), FAST, 0, active.truth(data), find_learner("gcn")[1])
    model = learner.model(history)
    predicted = model(data.x, data.edge_index).argmax(dim=1)
    assert history.steps[-1].accuracy == pytest.approx(
        float((predicted[split.test] == data.y[split.test]).double().mean())
    )


def test_without_initial_labels():
    history = quick("featprop", initial=0)
    assert history.to_frame()["labels"].tolist() == [0, 4, 8, 12, 16]
    assert history.to_frame()["accuracy"].isna().tolist() == [True, False, False, False, False]


def test_count_initial_is_on_record():
    assert quick(count_initial=False).settings["count_initial"] is False
    assert quick(count_initial=False).to_frame()["labels"].tolist() == [4, 8, 12, 16, 20]


def test_refusals():
    with pytest.raises(SettingError, match="labels of the pool"):
        quick(budget=80)
    data = graph()
    data.y = torch.rand(90)
    with pytest.raises(DataError, match="at least two classes"):
        quick(data=data)


def test_plot_has_a_point_per_step():
    history = quick()
    axes = history.plot(color="black")
    assert axes.lines[0].get_xdata().tolist() == [4, 8, 12, 16]
    assert axes.lines[0].get_label() == "margin"
    assert history.plot(axes) is axes
    assert len(axes.lines) == 2


# --- interruptions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["anrmab", "jury-design", "random"])
@pytest.mark.parametrize("after", [1, 3])
def test_a_resumed_run_is_the_same_run(tmp_path, strategy, after):
    whole = quick(strategy)
    path = tmp_path / "history.json"
    steps = []

    def tired(history):
        steps.append(history)
        if len(steps) == after:
            raise KeyboardInterrupt
        return ""

    with pytest.raises(KeyboardInterrupt):
        quick(strategy, resume=path, stop=[tired])
    if path.exists():  # what was saved is a beginning of the same run
        assert len(History.load(path).steps) == after - 1
    assert outcome(quick(strategy, resume=path)) == outcome(whole)
    assert outcome(History.load(path)) == outcome(whole)
    assert outcome(quick(strategy, resume=path)) == outcome(whole)  # finished: nothing more to do


def test_a_killed_run_goes_on(tmp_path):
    path = tmp_path / "history.json"
    script = textwrap.dedent(
        f"""
        import time, torch
        torch.set_num_threads(1)
        from jurygcn import active
        from jurygcn.active import Recipe
        from jurygcn.data import synthetic
        data = synthetic(num_nodes=90, num_edges=360, num_features=10, num_classes=3)
        data.name = "little"
        active.run(data, "margin", initial=4, budget=16, step=4, recipe=Recipe(hidden=4, epochs=20),
                   resume={str(path)!r}, stop=[lambda history: time.sleep(len(history.steps) * 3 - 3) or ""])
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        for _ in range(2400):
            if path.exists():
                break
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    assert 1 <= len(History.load(path).steps) < 4
    assert outcome(quick(resume=path)) == outcome(quick())
    assert [p.name for p in tmp_path.iterdir()] == ["history.json"]


def test_a_history_of_another_run_is_refused(tmp_path):
    path = tmp_path / "history.json"
    quick(resume=path)
    for other, word in (({"seed": 1}, "seed"), ({"step": 6}, "step"), ({"strategy": "random"}, "strategy")):
        with pytest.raises(SettingError, match=word):
            quick(**other, resume=path)
    for part, change, word in (
        ("x", lambda x: x + 1, "features"),
        ("edge_index", lambda edges: edges[:, 2:], "edges"),
        ("y", lambda y: y.roll(1), "classes"),
    ):
        changed = graph()
        changed[part] = change(changed[part])
        with pytest.raises(SettingError, match=f"got {word} '"):
            quick(data=changed, resume=path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "settings": {}, "steps": [{}]}'])
def test_a_broken_history_is_refused(tmp_path, text):
    path = tmp_path / "history.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"history\.json"):
        quick(resume=path)
    assert path.read_text() == text
    with pytest.raises(DataError, match="No such file"):
        History.load(tmp_path / "none.json")


def step_with(number, **change):
    return lambda d: d["steps"][number].update(change)


FORGED = {
    "an accuracy of 111": step_with(1, accuracy=111.0),
    "a negative share": step_with(1, changed=-0.5),
    "an accuracy in words": step_with(1, accuracy="high"),
    "seconds below zero": step_with(1, seconds=-1.0),
    "more labels than nodes": step_with(1, labels=111_111),
    "labels that nobody queried": step_with(2, queried=0),
    "scores of nobody": step_with(1, scores=[1.0]),
    "other answers": lambda d: step_with(0, answers=[(a + 1) % 3 for a in d["steps"][0]["answers"]])(d),
    "other initial nodes": lambda d: step_with(0, nodes=d["steps"][1]["nodes"])(d),
    "a node twice": lambda d: step_with(1, nodes=d["steps"][0]["nodes"])(d),
    "an answer less": lambda d: (d["steps"][1]["answers"].pop(), d["steps"][1]["nodes"].pop()),
    "a step less": lambda d: d["steps"].pop(1),
    "an end before the end": lambda d: (d["steps"].pop(), d.update(stopped="budget")),
    "an empty pool": lambda d: (d["steps"].pop(), d.update(stopped="pool")),
    "an end that is no text": lambda d: d.update(stopped=7),
    "settings that are none": lambda d: d.update(settings=[]),
    "memory that is none": lambda d: d.update(memory=None),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_history_that_cannot_be_is_refused(tmp_path, forgery):
    """Forged with a digest that agrees: only what it says tells."""
    path = tmp_path / "history.json"
    quick(resume=path)
    document = json.loads(path.read_text())
    del document["digest"]
    FORGED[forgery](document)
    path.write_text(json.dumps(sealed(document)))
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"history\.json"):
        quick(resume=path)
    assert path.read_bytes() == before


def test_a_history_that_was_altered_is_refused(tmp_path):
    path = tmp_path / "history.json"
    quick(resume=path)
    document = json.loads(path.read_text())
    document["steps"][1]["accuracy"] = 1.0
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="altered or damaged"):
        quick(resume=path)


@pytest.mark.parametrize(
    "notes",
    [
        {"weights": [1.0, 2.0]},
        {"weights": [1.0, -1.0, 1.0]},
        {"shares": [0.5, 0.0, 0.5]},
        {"last": [[0.1, 0.2]]},
        {"last": "none"},
        {"drawn": {"7": 0.0}},
        {"drawn": {"900": 0.1}},
        {"drawn": [1]},
        {"pool": 0},
        {"pool": None},
        {"more": 1},
    ],
)
def test_notes_of_a_strategy_that_cannot_be_are_refused(tmp_path, notes):
    path = tmp_path / "history.json"
    whole = quick("anrmab")
    begun = replace(whole, steps=whole.steps[:-1], stopped="", memory={**whole.memory, **notes})
    begun.save(path)
    with pytest.raises(DataError, match="memory of anrmab"):
        quick("anrmab", resume=path)


def test_a_saved_history_is_plain_json(tmp_path):
    history = quick("anrmab")
    text = history.save(tmp_path / "h.json").read_text()
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert document["settings"]["strategy"] == "anrmab"
    assert len(document["steps"]) == 4
    assert History.load(tmp_path / "h.json").to_frame().equals(history.to_frame())


# --- stopping ------------------------------------------------------------------------------------------------


def test_stopping_rules():
    history = quick()
    best = max(step.val_accuracy for step in history.steps)
    stopped = quick(stop=[active.reached(best)])
    assert stopped.steps[-1].val_accuracy == best
    assert all(step.val_accuracy < best for step in stopped.steps[:-1])
    assert "validation accuracy" in stopped.stopped
    changes = [step.changed for step in history.steps[1:]]
    stopped = quick(stop=[active.settled(share=max(changes[:2]), steps=2)])
    assert len(stopped.steps) == 3
    assert "predictions changed" in stopped.stopped
    for wrong in (lambda: active.reached(1.5), lambda: active.settled(share=1.0), lambda: active.settled(steps=0)):
        with pytest.raises(SettingError):
            wrong()


# --- oracles -------------------------------------------------------------------------------------------------


def test_a_function_may_answer_and_may_skip():
    data = graph()
    seen = []

    def oracle(nodes):
        seen.extend(nodes.tolist())
        return [-1 if node % 5 == 0 else int(data.y[node]) for node in nodes.tolist()]

    history = quick(data=data, oracle=oracle)
    assert set(history.skipped.tolist()) == {node for node in seen if node % 5 == 0}
    assert len(seen) == len(set(seen)), "a skipped node was asked for again"
    assert not (history.labelled % 5 == 0).any()
    assert history.steps[-1].labels == len(history.labelled)


def test_a_file_may_answer(tmp_path):
    data = graph()
    data.class_names = ["red", "green", "blue"]
    path = tmp_path / "truth.csv"
    lines = [f"{node},{data.class_names[int(label)]}" for node, label in enumerate(data.y) if node != 7]
    path.write_text("node,label\n" + "\n".join(lines) + "\n7,\n")
    oracle = active.from_file(path, data)
    assert list(oracle(torch.tensor([3, 7]))) == [int(data.y[3]), -1]
    assert quick(data=data, oracle=oracle).labels.tolist()


def test_a_person_may_answer():
    data = tail_graph()
    data.class_names = ["left", "right"]
    data.node_names = [f"house {i}" for i in range(8)]
    given, shown, said = iter(["middle", " right ", "0", ""]), [], []
    oracle = active.at_terminal(data, ask=lambda words: shown.append(words) or next(given), say=said.append)
    assert oracle(torch.tensor([4, 2, 1])) == [1, 0, -1]
    assert "node 4 (house 4)" in shown[0]
    assert "0 left, 1 right" in shown[0]
    assert "got 'middle'" in said[0]

    def gone(_):
        raise EOFError

    with pytest.raises(DataError, match="end of the input"):
        active.at_terminal(data, ask=gone)(torch.tensor([1]))


@pytest.mark.parametrize("answer", [[0], [0, 3], [0, -2]])
def test_a_bad_oracle_is_refused(answer):
    with pytest.raises(DataError, match="from the oracle"):
        ask_oracle(lambda nodes: answer, torch.tensor([1, 2]), 3)


def test_a_pool_that_is_used_up_ends_the_run():
    data = graph()
    split = Split(torch.arange(16), torch.arange(16, 30), torch.arange(30, 60))
    history = quick(data=data, split=split, oracle=lambda nodes: [-1 if n > 9 else 0 for n in nodes.tolist()])
    assert history.stopped in ("pool", "budget")
    assert set(history.labelled.tolist()) <= set(range(10))
