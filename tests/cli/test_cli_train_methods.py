"""`jurygcn train --method`: every method, its files, and what is refused."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
from invoke import refuses, run, run_json

from jurygcn.learning import METHODS

FAST = {
    "sgnn": ("--epochs", "20"),
    "self-train": ("--epochs", "20"),
    "self-train-validated": ("--epochs", "20"),
    "reweight": ("--epochs", "12"),
}


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("gcn", "sgnn", "mc-dropout")])
def test_methods_run_and_report(name: str):
    said = run_json("train", "karate", "--method", name, "--labels", 8, "--seed", 1, *FAST.get(name, ()))
    assert said["method"] == name
    assert said["settings"]["labels"] == 8
    assert 0 <= said["test"]["accuracy"] <= 1
    assert said["test"]["accuracy"] == pytest.approx(said["test"]["micro_f1"])
    assert said["files"] == []


def test_files_and_screen(tmp_path):
    out = tmp_path / "run"
    result = run("train", "karate", "--method", "self-train", "--labels", 6, "--epochs", 20, "--out", out)
    assert result.exit_code == 0, result.output
    assert "self-train on karate" in result.stdout
    assert "pseudo labels" in result.stdout
    assert {path.name for path in out.iterdir()} == {"predictions.csv", "state.pt", "run.json"}
    described = json.loads((out / "run.json").read_text())
    frame = pd.read_csv(out / "predictions.csv")
    assert len(frame) == described["data"]["nodes"] == 34
    assert frame.loc[frame["trained_on"], "node"].tolist() == described["train_nodes"]
    assert frame["probability"].between(0, 1).all()
    state = torch.load(out / "state.pt", weights_only=True)
    assert list(state) == ["weights.0", "weights.1"]


def test_the_same_seed_gives_the_same_run():
    first, again = (
        run_json("train", "karate", "--method", "reweight", "--labels", 8, "--epochs", 12) for _ in range(2)
    )
    assert first["test"] == again["test"]
    assert first["train_nodes"] == again["train_nodes"]


def test_stated_options_reach_the_method():
    said = run_json(
        "train", "karate", "--method", "reweight", "--labels", 8, "--epochs", 5, "--lr", 0.02, "--hidden", 4
    )
    assert (said["settings"]["epochs"], said["settings"]["lr"], said["settings"]["hidden"]) == (5, 0.02, 4)


def test_refusals(tmp_path):
    assert "--method" in refuses("train", "karate", "--method", "guess")
    assert "--layers" in refuses("train", "karate", "--method", "gat", "--layers", 3)
    assert "--hidden" in refuses("train", "karate", "--method", "energy", "--hidden", 4)
    (tmp_path / "file").write_text("here")
    assert "folder" in refuses("train", "karate", "--method", "gat", "--out", tmp_path / "file")
    assert "labels" in refuses("train", "karate", "--method", "gat", "--labels", 1000)


def test_nothing_is_left_when_a_method_fails(tmp_path):
    out = tmp_path / "run"
    refuses("train", "karate", "--method", "self-train", "--labels", 6, "--lr", -1, "--out", out)
    assert not out.exists()
