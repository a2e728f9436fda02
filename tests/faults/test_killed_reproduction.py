"""kill -9 in the middle of `jurygcn reproduce`: the same command goes on, and writes the same tables."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pandas as pd
import pytest

from children import child, command, files_in, wait_for
from jurygcn import GCN, load_dataset, train
from jurygcn.experiments import EXPERIMENTS, Experiment
from jurygcn.experiments.cells import Cells

MEASURED: list[int] = []


def measure(seed: int) -> dict:
    """The loss of a small GCN, to the last bit."""
    MEASURED.append(seed)
    data = load_dataset("karate")
    model = GCN(34, 4, 4)
    return {"loss": train(model, data, list(range(0, 34, 3)), epochs=20, seed=seed).losses[-1]}


SMALL = Experiment(
    title="Losses",
    about="Small.",
    cells=lambda scope: [{"seed": seed} for seed in range(scope.runs)],
    measure=measure,
    stamp=lambda cell: "1",
    summary=lambda rows: pd.DataFrame(rows)[["seed", "loss"]],
    shown=lambda frame: {"Losses": frame},
)


def hang_between(cells: Cells, row: dict, started: Path) -> None:
    keep(cells, row)
    if row["cell"]["seed"] == 2:
        started.touch()
        time.sleep(300)


def hang_within(cells: Cells, row: dict, started: Path) -> None:
    if row["cell"]["seed"] < 3:
        return keep(cells, row)
    with cells.path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row)[:40])
    started.touch()
    time.sleep(300)
    return None


keep = Cells._keep


@pytest.mark.parametrize("hang", [hang_between, hang_within])
def test_killed_while_reproducing(tmp_path: Path, monkeypatch, hang):
    monkeypatch.setitem(EXPERIMENTS, "table1", SMALL)
    words = ("reproduce", "table1", "--runs", 6, "--out")
    out, whole, started = tmp_path / "out", tmp_path / "whole", tmp_path / "started"
    with monkeypatch.context() as patch:
        patch.setattr(Cells, "_keep", lambda cells, row: hang(cells, row, started))
        with child(lambda: command(*words, out)):
            wait_for(started.exists)
    assert [path.name for path in out.iterdir()] == ["table1.jsonl"]
    MEASURED.clear()
    code, _, err = command(*words, out)
    assert code == 0, err
    assert MEASURED == [3, 4, 5]
    assert command(*words, whole)[0] == 0
    ours, theirs = files_in(out), files_in(whole)
    assert ours.keys() == theirs.keys()
    assert ours["table1.csv"] == theirs["table1.csv"]
    assert ours["table1.json"] == theirs["table1.json"]
