"""The paper's tables and figures: what is measured is what it is called, and what is written is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, pstdev

import numpy as np
import pandas as pd
import pytest

from cli.invoke import refuses, run, run_json
from jurygcn import active, learning
from jurygcn.data import paper_split, random_labels
from jurygcn.errors import SettingError
from jurygcn.evaluation import micro_f1
from jurygcn.experiments import EXPERIMENTS, figure1, figure2, figure3, graphs, memory, reproduce, table1, table2
from jurygcn.experiments.curves import curves, in_layout, over_runs, with_paper
from jurygcn.experiments.experiment import Experiment, Scope, run_experiment
from jurygcn.experiments.paper import ACTIVE, SEMI_SUPERVISED, STATISTICS

ROWS = [
    {"dataset": "cora", "method": method, "labels": labels, "seed": seed, "micro_f1": 50.0 + labels + 3 * seed + shift}
    for shift, method in enumerate(("jury", "random"))
    for labels in (20, 40)
    for seed in range(3)
]


def toy() -> Experiment:
    return Experiment(
        title="Toy",
        about="",
        cells=lambda scope: [{"seed": seed} for seed in range(scope.runs)],
        measure=lambda seed: {"dataset": "cora", "method": "jury", "labels": 20, "micro_f1": float(seed)},
        stamp=lambda _: "1",
        summary=lambda rows: over_runs(rows, x="labels"),
        shown=lambda frame: in_layout(frame, x="labels"),
        draw=lambda frame: curves(frame, x="labels", xlabel="labels"),
    )


# --- the runner ---------------------------------------------------------------------------------------------------


def test_the_runner_writes_what_it_measured(tmp_path: Path):
    found = run_experiment("toy", toy(), out=tmp_path, runs=4, quick=False)
    assert [path.name for path in found.files] == ["toy.csv", "toy.json", "toy.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.csv", "toy.json", "toy.jsonl", "toy.png"]
    summary = pd.read_csv(tmp_path / "toy.csv").iloc[0]
    assert (summary["runs"], summary["mean"]) == (4, 1.5)
    assert summary["sd"] == pytest.approx(pstdev(range(4)))
    document = json.loads((tmp_path / "toy.json").read_text(encoding="utf-8"))
    assert [row["micro_f1"] for row in document["rows"]] == [0, 1, 2, 3]
    assert {"jurygcn", "torch", "threads"} <= document["environment"].keys()
    assert (tmp_path / "toy.png").read_bytes().startswith(b"\x89PNG")


def test_quick_and_full_runs_do_not_mix(tmp_path: Path):
    run_experiment("toy", toy(), out=tmp_path, runs=None, quick=True)
    assert not (tmp_path / "toy.json").exists()
    assert json.loads((tmp_path / "toy.quick.json").read_text(encoding="utf-8"))["runs"] == 2


def test_every_experiment_has_cells_that_json_can_hold_and_no_two_alike():
    for name, experiment in EXPERIMENTS.items():
        for scope in (Scope(), Scope(2, quick=True)):
            keys = [json.dumps(cell, sort_keys=True) for cell in experiment.cells(scope)]
            assert len(keys) == len(set(keys)) > 0, name


def test_unknown_names_and_no_runs_are_refused(tmp_path: Path):
    with pytest.raises(SettingError, match="expected one of table1"):
        reproduce("table3", out=tmp_path)
    with pytest.raises(SettingError, match="expected runs as a whole number between 1 and 10000, got"):
        reproduce("table1", out=tmp_path, runs=0)
    assert list(tmp_path.iterdir()) == []


# --- tables and curves ----------------------------------------------------------------------------------------------


def test_means_and_the_papers_numbers_side_by_side():
    frame = with_paper(over_runs(ROWS, x="labels"), {("cora", "jury", 40): 64.7}, x="labels")
    cell = frame[(frame["method"] == "random") & (frame["labels"] == 20)].iloc[0]
    values = [71.0, 74.0, 77.0]
    assert (cell["mean"], cell["sd"]) == pytest.approx((mean(values), pstdev(values)))
    assert cell["se"] == pytest.approx(np.std(values, ddof=1) / 3**0.5)
    table = in_layout(frame, x="labels")["Cora"]
    assert table.columns.tolist() == ["method", "20", "40"]
    assert table.to_numpy().tolist() == [
        ["jury", "73.0 ± 2.4", "93.0 ± 2.4 [64.7]"],
        ["random", "74.0 ± 2.4", "94.0 ± 2.4"],
    ]


def test_curves_have_a_line_and_a_band_per_method():
    frame = with_paper(over_runs(ROWS, x="labels"), {("cora", "jury", 40): 64.7}, x="labels")
    figure = curves(frame, x="labels", xlabel="labels", first=("random",), dashed={"jury": "the paper's"})
    (axes,) = figure.axes
    lines = {line.get_label(): line for line in axes.lines}
    assert lines.keys() == {"jury", "random", "the paper's"}
    assert lines["jury"].get_ydata().tolist() == [73.0, 93.0]
    assert lines["the paper's"].get_ydata().tolist() == [64.7]
    assert lines["random"].get_color() != lines["jury"].get_color()
    assert len(axes.collections) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("labels", "Micro-F1, %")


def test_the_papers_numbers_have_its_shape():
    assert {name: len(by) for name, by in ACTIVE.items()} == dict.fromkeys(STATISTICS, 8)
    for dataset, by_strategy in ACTIVE.items():
        initial, budget, step = active.protocol.PAPER[dataset]
        for numbers in by_strategy.values():
            assert list(numbers) == list(range(step, budget + 1, step))
            assert initial < step
    assert all(by.keys() == STATISTICS.keys() for by in SEMI_SUPERVISED.values())
    assert set(SEMI_SUPERVISED) == set(figure1.METHODS) - {"self-train"}


# --- what each one measures ----------------------------------------------------------------------------------------


@pytest.mark.data
def test_table_1_counts_edges_once():
    row = table1.measure("cora")
    data = graphs.load("cora")
    pairs = {frozenset(edge) for edge in data.edge_index.T.tolist()}
    assert row == {"nodes": 2708, "edges": len(pairs), "features": 1433, "classes": 7}
    frame = table1.summary([{"dataset": "cora", **row}])
    assert (frame.loc[0, "edges"], frame.loc[0, "edges_paper"]) == (5278, 5429)


def test_the_stand_in_is_named_as_such():
    data = graphs.stand_in(share=500, degree=20)
    assert data.name == graphs.STAND_IN
    assert (data.num_nodes, data.num_features, data.num_classes) == (465, 602, 41)
    assert "stand-in" in graphs.NAMES[graphs.STAND_IN]
    assert graphs.counterpart(graphs.STAND_IN) == "reddit"
    assert graphs.fourth_graph() in (graphs.REDDIT, graphs.STAND_IN)


def test_table_2_is_a_run_of_active_learning():
    row = table2.measure("digits", "degree", 0)
    history = active.run(graphs.load("digits"), "degree", seed=0)
    assert row["micro_f1"] == [step.micro_f1 for step in history.steps]
    steps = table2.by_step([{"dataset": "digits", "method": "degree", "seed": 0, **row}])
    assert [step["labels"] for step in steps] == [20, 40, 60, 80, 100], "the initial labels are no query step"


@pytest.mark.data
def test_figure_3_contains_the_papers_settings():
    """At 2α = 0.05 the strategy is the one of Table 2, and τ = 0 is ordinary training."""
    data, seed = graphs.load("cora"), 3
    third = active.run(data, "jury", seed=seed, budget=60).steps[-1]
    assert third.labels == 60
    assert figure3.by_alpha(0.05, "cora", seed) == third.micro_f1
    split = paper_split(data, seed=seed)
    nodes = random_labels(split.pool, 60, seed=seed)
    plain = learning.GCNClassifier().fit(data, nodes, seed=seed)
    assert figure3.by_tau(0.0, "cora", seed) == micro_f1(plain.predict(split.test), data.y[split.test])


def test_figure_2_multiplies_one_juror_by_the_labels():
    row = figure2.timed("digits", 15)
    assert row["speedup"] == pytest.approx(row["retraining_s"] / row["jury_s"])
    assert row["speedup_whole_graph"] == pytest.approx(row["whole_graph_s"] / row["jury_s"])
    assert min(row["jury_s"], row["retraining_s"], row["whole_graph_s"]) > 0


def test_memory_is_that_of_a_process_of_its_own():
    """What this process had when it started the other is not counted."""
    ballast = np.ones(150_000_000)  # 1.2 GB
    assert memory.peak_mb() > 1200
    row = memory.measured_apart("digits", labels=20, method=memory.VERDICT, seed=0)
    assert 50 < row["before_mb"] <= row["peak_mb"] < 1200
    assert 0 < row["micro_f1"] <= 100
    del ballast


def test_a_process_that_fails_is_a_sentence():
    with pytest.raises(SettingError, match="in a separate process, got exit code 1"):
        memory.measured_apart("no such graph", labels=20, method="gcn", seed=0)


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_reproduce_writes_and_goes_on(tmp_path: Path):
    result = run("reproduce", "table1", "--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "Cora in the paper" in result.stdout
    before = (tmp_path / "table1.quick.jsonl").read_bytes()
    again = run_json("reproduce", "table1", "--quick", "--out", tmp_path)
    assert (tmp_path / "table1.quick.jsonl").read_bytes() == before, "nothing is measured twice"
    assert again["tables"]["table1"][0]["nodes"] == 2708
    assert all(Path(file).is_file() for file in again["files"])


def test_reproduce_refuses_what_it_does_not_know(tmp_path: Path):
    assert "table1, table2, figure1, figure2, figure3, all" in refuses("reproduce", "table9", "--out", tmp_path)
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "--out" in refuses("reproduce", "table1", "--out", tmp_path / "file")
