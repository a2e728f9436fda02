"""Active learning, few-label methods, bandits and the command line on graphs at the edge: an answer or a sentence."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from trials import Trial, is_one_sentence, trials
from typer.testing import CliRunner, Result

from jurygcn.active import STRATEGIES, Recipe, run
from jurygcn.bandit import POLICIES, Play, play_bandit
from jurygcn.cli import app
from jurygcn.data import Split, labelled
from jurygcn.errors import JuryError
from jurygcn.learning import METHODS

QUICK, MANY = 60, 500

# with features 10⁴ times too large a solver may say that it is not exact
pytestmark = pytest.mark.filterwarnings("ignore::jurygcn.errors.JuryWarning")


def examples(count: int, *, derandomize: bool = True) -> settings:
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, derandomize=derandomize, suppress_health_check=checks)


def fresh(trial: Trial) -> Data:
    """The trial's graph in float32, as these uses take it."""
    data = trial.data.clone()
    data.x = data.x.float()
    return data


# --- which node to label next -------------------------------------------------------------------------------------


def check_active(trial: Trial, strategy: str, initial: int) -> None:
    data = fresh(trial)
    known = labelled(data).nonzero()[:, 0]
    budget = min(initial + 2, len(known))
    try:
        history = run(
            data,
            strategy,
            initial=initial,
            budget=budget,
            step=1,
            seed=trial.seed,
            split=Split(pool=known, val=known[:0], test=known),
            recipe=Recipe(hidden=3, epochs=3),
        )
    except JuryError as refusal:
        words = refusal
    else:
        asked = history.labelled.tolist()
        assert len(asked) == len(set(asked)) == budget
        assert set(asked) <= set(known.tolist())
        assert torch.equal(history.labels, data.y[history.labelled])
        assert all(math.isfinite(score) for step in history.steps for score in step.scores)
        assert 0 <= history.steps[-1].accuracy <= 1
        return
    assert is_one_sentence(words), words
    # nothing else is refused: one class, no label to spare, a model wanted before there is one, numbers out of range
    expected = trial.classes < 2 or budget <= initial or initial == 0 or trial.values == "large"
    assert expected, words


strategies = st.sampled_from(sorted(STRATEGIES))


@examples(QUICK)
@given(trials(), strategies, st.integers(0, 2))
def test_strategies(trial: Trial, strategy: str, initial: int):
    check_active(trial, strategy, initial)


@pytest.mark.slow
@examples(MANY, derandomize=False)
@given(trials(), strategies, st.integers(0, 2))
def test_strategies_on_many_graphs(trial: Trial, strategy: str, initial: int):
    check_active(trial, strategy, initial)


# --- learning from few labels -------------------------------------------------------------------------------------


def hurried(method: Any) -> Any:
    """The same method with few epochs, members and samples."""
    few = {"epochs": 12, "teacher_epochs": 12, "flow_epochs": 12, "members": 2, "samples": 5}
    present = {field.name: getattr(method, field.name) for field in fields(method)}
    changed = {name: few[name] for name in present if name in few}
    changed |= {name: hurried(part) for name, part in present.items() if hasattr(part, "train")}
    return replace(method, **changed)


def check_method(trial: Trial, name: str) -> None:
    data = fresh(trial)
    rest = labelled(data)
    rest[trial.train_nodes] = False
    held_out = rest.nonzero()[:, 0]
    try:
        fitted = hurried(METHODS[name](None)).fit(
            data, torch.tensor(trial.train_nodes), val_nodes=held_out if len(held_out) else None, seed=trial.seed
        )
    except JuryError as refusal:
        words = refusal
    else:
        total = fitted.probabilities.sum(dim=1)
        assert fitted.probabilities.shape == (trial.nodes, trial.classes)
        torch.testing.assert_close(total, torch.ones_like(total), rtol=1e-4, atol=1e-4)
        for score in fitted.uncertainties.values():
            assert torch.isfinite(score).all()
        return
    assert is_one_sentence(words), words
    # a jury of one label says nothing of that label; some methods cannot do without validation nodes
    expected = not len(held_out) or trial.values == "large" or (name == "reweight" and len(trial.train_nodes) < 2)
    assert expected, words


# its variances once came out below nothing
LARGE = Trial(
    **{"nodes": 1, "features": 30, "classes": 8, "edges": "none", "values": "large", "labels": "all", "labelled": 4},
    **{"layers": 2, "scale": 1.0, "trained": False, "double": True, "weight_decay": 0.001, "leave_out": "newton"},
    **{"solver": "auto", "alpha": 0.1, "exact": False, "score": "lac", "diffusion": "auto", "seed": 307},
)

# its factors once overflowed
EDGELESS = replace(LARGE, nodes=6, features=3, classes=3, seed=0)


@examples(QUICK)
@example(LARGE, "laplace")
@example(EDGELESS, "cagcn")
@given(trials(), st.sampled_from(sorted(METHODS)))
def test_methods(trial: Trial, name: str):
    check_method(trial, name)


@pytest.mark.slow
@examples(MANY, derandomize=False)
@given(trials(), st.sampled_from(sorted(METHODS)))
def test_methods_on_many_graphs(trial: Trial, name: str):
    check_method(trial, name)


# --- bandits --------------------------------------------------------------------------------------------------------


def check_bandit(trial: Trial, policy: str, batch: int) -> None:
    generator = torch.Generator().manual_seed(trial.seed)
    means = torch.zeros(trial.nodes) if trial.labels == "one_class" else torch.rand(trial.nodes, generator=generator)
    play = Play(plays=7, batch=batch, alpha=0.4, epochs=4, hidden=3, dimensions=8)
    try:
        game = play_bandit(fresh(trial), means, policy=policy, play=play, seed=trial.seed)
    except JuryError as refusal:
        words = refusal
    else:
        assert len(game.arms) == 7
        assert set(game.arms.tolist()) <= set(range(trial.nodes))
        expected = np.cumsum(float(means.max()) - means.double().numpy()[game.arms])
        np.testing.assert_allclose(game.regret, expected, rtol=1e-6, atol=1e-12)
        assert np.isfinite(game.rewards).all()
        return
    assert is_one_sentence(words), words
    assert batch > trial.nodes or trial.values == "large", words


@examples(QUICK)
@given(trials(), st.sampled_from(sorted(POLICIES)), st.integers(1, 2))
def test_policies(trial: Trial, policy: str, batch: int):
    check_bandit(trial, policy, batch)


@pytest.mark.slow
@examples(MANY, derandomize=False)
@given(trials(), st.sampled_from(sorted(POLICIES)), st.integers(1, 2))
def test_policies_on_many_graphs(trial: Trial, policy: str, batch: int):
    check_bandit(trial, policy, batch)


# --- files and the command line ---------------------------------------------------------------------------------


def folder_with(path: Path, nodes: str, edges: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "nodes.csv").write_text(nodes, encoding="utf-8")
    (path / "edges.csv").write_text(edges, encoding="utf-8")
    return path


def error_line(result: Result) -> str:
    """The one sentence that the command ends with; notes on repairs may come before it."""
    *notes, line = result.stderr.strip().splitlines()
    assert all(note.startswith("Note: ") for note in notes)
    assert line.startswith("Error: ")
    return line


def quantify(folder: Path, *options: str) -> Result:
    fast = ("--epochs", "3", "--hidden", "2", "--json", *options)
    return CliRunner().invoke(app, ["quantify", str(folder), *fast])


NODES = "label,a,b\n" + "\n".join(f"{i % 2},{i},1" for i in range(8)) + "\n"
ANSWERED = {
    "no edges": (NODES, "source,target\n"),
    "duplicates, loops, one way": (NODES, "source,target\n0,1\n0,1\n1,0\n2,2\n3,4\n"),
    "hub": (NODES, "source,target\n" + "".join(f"0,{i}\n" for i in range(1, 8))),
    "zero features": (NODES.replace(",1\n", ",0\n").replace("label,a", "label,c"), "source,target\n0,1\n"),
    "one feature": ("label,a\n" + "0,1\n1,2\n" * 4, "source,target\n0,1\n"),
    "names": ("label,a\n" + "cat,1\ndog,2\n" * 4, "source,target\n0,1\n"),
    "whole floats": ("label,a\n" + "0.0,1\n1.0,2\n" * 4, "source,target\n0,1\n"),
    "one class": ("label,a\n" + "0,1\n0,2\n" * 4, "source,target\n0,1\n"),
    "missing labels": ("label,a\n" + "0,1\n1,2\n,3\n" * 4, "source,target\n0,1\n"),
}
REFUSED = {
    "fractions": ("label,a\n" + "0.5,1\n1,2\n" * 4, "source,target\n", "integer labels"),
    "names among numbers": ("label,a\n" + "cat,1\n1,2\n" * 4, "source,target\n", "among numbers"),
    "below -1": ("label,a\n" + "-2,1\n1,2\n" * 4, "source,target\n", "renumber"),
    "gaps": ("label,a\n" + "0,1\n99,2\n" * 4, "source,target\n", "without gaps"),
    "no labels": ("label,a\n" + ",1\n,2\n" * 4, "source,target\n", ""),
    "no label column": ("a,b\n1,2\n3,4\n", "source,target\n", ""),
    "one node": ("label,a\n0,1\n", "source,target\n", ""),
    "no nodes": ("label,a\n", "source,target\n", "at least one node"),
    "edge out of range": (NODES, "source,target\n0,8\n", "0..7"),
    "edge below zero": (NODES, "source,target\n-1,0\n", "0..7"),
    "not finite": ("label,a\n0,nan\n1,inf\n", "source,target\n", "finite number"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_files_that_are_judged(name: str, tmp_path: Path):
    result = quantify(folder_with(tmp_path / "graph", *ANSWERED[name]), "--labels", "2")
    assert result.exit_code == 0, result.output
    assert "NaN" not in result.stdout
    assert "Infinity" not in result.stdout


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_are_refused(name: str, tmp_path: Path):
    *files, words = REFUSED[name]
    result = quantify(folder_with(tmp_path / "graph", *files))
    assert result.exit_code == 2, result.output
    assert words in error_line(result)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("0\n0\n", "expected each node once"),
        ("0\n99\n", "99"),
        ("-1\n", "-1"),
        ("0.5\n", "0.5"),
        ("", "expected at least one node"),
        ("cat\n", "cat"),
        ("7\n", "without"),
    ],
)
def test_train_nodes_that_are_refused(lines: str, words: str, tmp_path: Path):
    nodes = NODES.replace("1,7,1", ",7,1")
    folder = folder_with(tmp_path / "graph", nodes, "source,target\n0,1\n")
    (tmp_path / "nodes.txt").write_text(lines)
    result = quantify(folder, "--train-nodes", str(tmp_path / "nodes.txt"))
    assert result.exit_code == 2, result.output
    assert words in error_line(result)


@pytest.mark.parametrize("alpha", ["0", "1", "-0.1", "0.5", "nan", "many"])
def test_levels_that_are_refused(alpha: str, tmp_path: Path):
    folder = folder_with(tmp_path / "graph", NODES, "source,target\n0,1\n")
    result = quantify(folder, "--labels", "3", "--alpha", alpha)
    assert result.exit_code == 2, result.output
    assert "alpha" in result.stderr
    assert "Traceback" not in result.output
