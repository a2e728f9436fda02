"""The command line when something is wrong: one sentence, an exit code, no half-written files."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections import OrderedDict

import pytest
import torch
from invoke import FAST, refuses, run

from jurygcn import GCN, progress
from jurygcn.cli import doctor, quantify, verdicts
from jurygcn.errors import DataNotice, JuryWarning


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "karat"), "did you mean 'karate'"),
        (("train", "no/such.npz"), "got nothing;"),
        (("train", "karate", "--labels", 0), "got 0"),
        (("train", "karate", "--labels", 30), "between 1 and 15 labels"),
        (("train", "karate", "--labels", 3, "--per-class", 1), "--labels and --per-class"),
        (("train", "karate", "--per-class", 9), "lower per_class"),
        (("train", "karate", "--epochs", 0), "epochs"),
        (("train", "karate", "--epochs", "many"), "--epochs"),
        (("train", "karate", "--lr", "nan"), "--lr"),
        (("train", "karate", "--lr", 0), "expected lr above 0"),
        (("train", "karate", "--lr", 1e6, "--layers", 9), "lower --lr"),
        (("train", "karate", "--weight-decay", "-1"), "--weight-decay"),
        (("train", "karate", "--weight-decay", "nan"), "--weight-decay"),
        (("train", "karate", "--dropout", 1), "dropout"),
        (("train", "karate", "--hidden", 0), "--hidden"),
        (("train", "karate", "--seed", -1), "--seed"),
        (("quantify", "karate", "--alpha", 0.7), "alpha"),
        (("quantify", "karate", "--alpha", "nan"), "alpha"),
        (("quantify", "karate", "--solver", "magic"), "auto, direct"),
        (("quantify", "karate", "--curvature", "flat"), "ggn, hessian, printed"),
        (("quantify", "karate", "--curvature", "hessian", *FAST), "expected curvature='ggn'"),
        (("quantify", "karate", "--leave-out", "two"), "newton, influence"),
        (("quantify", "karate", "--diffusion", "-1"), "--diffusion"),
        (("quantify", "karate", "--model", "missing.pt"), "got no such file"),
        (("quantify", "karate", "--train-nodes", "missing.txt"), "No such file"),
        (("quantify",), "Missing argument"),
        (("quantify", "karate", "--alhpa", 0.1), "--alhpa"),
        (("quantfy",), "quantify"),
    ],
)
def test_refusals(arguments, message, tmp_path):
    out = tmp_path / "out"
    with_out = (*arguments, "--out", out) if len(arguments) > 1 else arguments
    assert message in refuses(*with_out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\n0\n", "expected each node once"),
        ("0\n99\n", "line 2: expected a node number 0..33, got '99'"),
        ("node\n", "expected at least one node"),
        ("\x00\x01", "expected"),
    ],
)
def test_train_nodes_refusals(tmp_path, content, message):
    path = tmp_path / "nodes.txt"
    path.write_text(content)
    assert message in refuses("quantify", "karate", "--train-nodes", path)


class Malicious:
    """Creates a file when unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (GCN(7, 4, 2).state_dict(), "from 34 features to 4 classes for karate, got model.pt from 7 to 2"),
        (OrderedDict({"weights.0": torch.ones(34, 5), "weights.1": torch.ones(6, 4)}), "consecutive layers"),
        (OrderedDict({"conv1.weight": torch.ones(34, 4)}), "weights.0, weights.1, ..."),
        (torch.ones(3), "got Tensor"),
        ({"weights.0": torch.ones(3)}, "a matrix of numbers per layer"),
        ({"weights.0": torch.full((34, 4), torch.nan)}, "NaN"),
    ],
)
def test_checkpoint_refusals(tmp_path, state, message):
    torch.save(state, tmp_path / "model.pt")
    given = ("--labels", 9, "--weight-decay", 5e-4)
    assert message in refuses("quantify", "karate", *given, "--model", tmp_path / "model.pt")


def test_pickled_checkpoint_is_not_run(tmp_path):
    proof = tmp_path / "proof"
    for content in (Malicious(proof), {"weights.0": Malicious(proof)}):
        torch.save(content, tmp_path / "model.pt")
        assert "none of it was run" in refuses("quantify", "karate", "--model", tmp_path / "model.pt")
        assert not proof.exists()
    (tmp_path / "model.pt").write_bytes(b"no checkpoint at all")
    assert "weights-only" in refuses("quantify", "karate", "--model", tmp_path / "model.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_regression_targets_are_refused(tmp_path):
    graph = tmp_path / "graph"
    graph.mkdir()
    (graph / "nodes.csv").write_text("f,target\n1,0.5\n2,1.25\n3,0.1\n")
    (graph / "edges.csv").write_text("source,target\n0,1\n1,0\n")
    assert "loss='mse'" in refuses("train", graph)


def test_out_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("mine")
    for out in (tmp_path / "out", tmp_path / "out" / "below"):
        assert "--out" in refuses("quantify", "karate", "--out", out)
    assert (tmp_path / "out").read_text() == "mine"


def test_all_files_or_none(tmp_path, monkeypatch):
    def fail(path):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(quantify, "write_csv", lambda frame: fail)
    (tmp_path / "run.json").write_text("older")
    assert "No space left" in refuses("quantify", "karate", *FAST, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").read_text() == "older"


def test_warnings_become_notes(monkeypatch):
    real = doctor.examine

    def examine(*arguments):
        warnings.warn("look here", JuryWarning, stacklevel=2)
        warnings.warn("and\nthere", DataNotice, stacklevel=2)
        warnings.warn("not ours", UserWarning, stacklevel=2)
        return real(*arguments)

    monkeypatch.setattr(doctor, "examine", examine)
    result = run("doctor", "karate", *FAST, "--retrain", 0, "--json")
    assert result.stderr == "Note: look here\nNote: and there\n"
    assert json.loads(result.stdout)["command"] == "doctor"


def test_spinner_only_for_people_and_long_work(monkeypatch, capsys):
    def work(seconds: float) -> str:
        with progress.progress_bar("Thinking"):
            time.sleep(seconds)
        out, err = capsys.readouterr()
        assert out == ""
        return err

    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.05)
    assert work(0.2) == ""  # not a terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "Thinking" in work(0.2)
    monkeypatch.setattr(progress, "SHOWN_AFTER", 60.0)
    assert work(0.0) == ""


def test_interruption_and_surprise(monkeypatch):
    def raising(error):
        def call(*arguments, **settings):
            raise error

        return call

    monkeypatch.setattr(verdicts, "judge", raising(KeyboardInterrupt()))
    result = run("quantify", "karate", *FAST)
    assert (result.exit_code, result.stderr, result.stdout) == (130, "Interrupted\n", "")
    monkeypatch.setattr(verdicts, "judge", raising(ZeroDivisionError("by [zero]")))
    result = run("quantify", "karate", *FAST)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: unexpected ZeroDivisionError (by [zero]); please report it")
    assert result.stderr.count("\n") == 1
    monkeypatch.setenv("JURYGCN_DEBUG", "1")
    assert isinstance(run("quantify", "karate", *FAST).exception, ZeroDivisionError)
