"""Interrupted counting goes on where it stopped, and says the same to the last bit."""

from __future__ import annotations

import copy
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from cases import Case
from jurygcn.conformal import resuming as record_module
from jurygcn.conformal.counts import Counts
from jurygcn.conformal.exact import ExactCounter
from jurygcn.errors import JuryWarning
from jurygcn.io.archives import read_sealed, write_sealed
from jurygcn.jury import Jury
from jurygcn.progress import progress_bar
from jurygcn.settings import LeaveOut, Run
from jurygcn.verdict import Verdict

FIELDS = ("outputs", "lower", "upper", "loo_variance", "label_flips", "loo_errors")


def jury_of(loss: str = "cross_entropy", **settings) -> Jury:
    """Five jurors, each a batch of its own."""
    engine = Case("two_block", 2, loss).engine(weight_decay=0.05, trained=True)
    settings = {"weight_decay": 0.05, "loss": loss, "run": Run(memory="1B"), **settings}
    return Jury(engine.model, engine.data, engine.train_nodes, **settings).fit()


def assert_equal(verdict: Verdict, reference: Verdict) -> None:
    assert verdict.diffusion == reference.diffusion
    for name in FIELDS:
        assert torch.equal(getattr(verdict, name), getattr(reference, name)), name
    if len(verdict.neighbour_doubt):
        assert torch.equal(verdict.p_values, reference.p_values)


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """The jurors whose votes are counted, as it happens."""
    jurors: list[int] = []
    count = ExactCounter.count

    def noted(counter: ExactCounter, chunk: torch.Tensor) -> Counts:
        counts = count(counter, chunk)
        jurors.extend(chunk.tolist())
        return counts

    monkeypatch.setattr(ExactCounter, "count", noted)
    monkeypatch.setattr(record_module, "SHARE", 1.0)  # keep every batch, however short
    return jurors


def interrupt(monkeypatch, *, after: int) -> None:
    """Ctrl-C while the juror after these is being heard."""
    count = ExactCounter.count

    def interrupted(counter: ExactCounter, chunk: torch.Tensor) -> Counts:
        if int(chunk[0]) == after:
            raise KeyboardInterrupt
        return count(counter, chunk)

    monkeypatch.setattr(ExactCounter, "count", interrupted)


def slowly(folder: str) -> None:
    """What the killed process does: a juror every half second."""
    torch.set_num_threads(1)
    count = ExactCounter.count

    def slow(counter: ExactCounter, chunk: torch.Tensor) -> Counts:
        time.sleep(0.5)
        return count(counter, chunk)

    ExactCounter.count = slow  # type: ignore[method-assign]
    jury_of().verdict(resume=folder)


def test_killed_in_the_middle(tmp_path: Path, counted: list[int]):
    reference = jury_of().verdict()
    counted.clear()
    child = subprocess.Popen(
        [sys.executable, "-c", f"import test_resume; test_resume.slowly({str(tmp_path)!r})"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*.npz")):
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.05)
        time.sleep(0.6)  # at least one more juror
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert_equal(jury_of().verdict(resume=tmp_path), reference)
    assert counted == list(range(counted[0], 5))
    assert 1 <= counted[0] < 5
    counted.clear()
    assert_equal(jury_of().verdict(resume=tmp_path), reference)
    assert counted == []


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
@pytest.mark.parametrize("interval", ["jackknife+", "jackknife", "minmax"])
def test_interrupted(loss: str, interval: str, tmp_path: Path, counted: list[int], monkeypatch):
    reference = jury_of(loss).verdict([3, 0, 8], interval=interval, alpha=0.2)
    counted.clear()
    with monkeypatch.context() as patch:
        interrupt(patch, after=3)
        with pytest.raises(KeyboardInterrupt):
            jury_of(loss).verdict([3, 0, 8], interval=interval, alpha=0.2, resume=tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]  # nothing half-written
    assert_equal(jury_of(loss).verdict([3, 0, 8], interval=interval, alpha=0.2, resume=tmp_path), reference)
    assert counted == [0, 1, 2, 3, 4]


def test_other_questions_do_not_meet(tmp_path: Path, counted: list[int]):
    jury = jury_of()
    jury.verdict(resume=tmp_path)
    moved, rewired = copy.copy(jury.data), copy.copy(jury.data)
    moved.x = jury.data.x.clone()
    moved.x[0, 0] += 1e-9
    rewired.edge_index = jury.data.edge_index[:, :-2]
    settings = {"run": Run(memory="1B"), "weight_decay": 0.05}
    elsewhere = [Jury(jury.engine.model, graph, jury.train_nodes, **settings).fit() for graph in (moved, rewired)]
    others = [
        lambda: jury.verdict(alpha=0.1, resume=tmp_path),
        lambda: jury.verdict(exact_ranks=True, resume=tmp_path),
        lambda: jury.verdict(nonconformity="aps", resume=tmp_path),
        lambda: jury.verdict(diffusion=1, resume=tmp_path),
        lambda: jury.verdict([0, 1], resume=tmp_path),
        lambda: jury_of(leave_out="influence").verdict(resume=tmp_path),
        lambda: jury_of(leave_out=LeaveOut(damping=0.1)).verdict(resume=tmp_path),
        *(functools.partial(other.verdict, resume=tmp_path) for other in elsewhere),
    ]
    for ask in others:
        counted.clear()
        ask()
        assert counted == [0, 1, 2, 3, 4]
    assert len(list(tmp_path.iterdir())) == 1 + len(others)
    for ask in (lambda: jury.verdict(resume=tmp_path), lambda: jury_of(run=Run(memory="1GB")).verdict(resume=tmp_path)):
        counted.clear()
        ask()
        assert counted == []


def test_damaged_records_are_counted_again(tmp_path: Path, counted: list[int]):
    reference = jury_of().verdict(resume=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = [b"", b"not a zip file", whole[: len(whole) // 2], whole[100:]]
    for place in range(0, len(whole), 97):
        damaged.append(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
    jury, again = jury_of(), 0
    for content in damaged:
        path.write_bytes(content)
        counted.clear()
        assert_equal(jury.verdict(resume=tmp_path), reference)
        again += counted == [0, 1, 2, 3, 4]
    assert again >= len(damaged) // 2  # flips outside of contents, in times of day for instance, do no damage


def test_a_foreign_record_is_not_believed(tmp_path: Path, counted: list[int]):
    jury = jury_of()
    jury.verdict(resume=tmp_path / "a")
    reference = jury.verdict(alpha=0.1, resume=tmp_path / "b")
    (ours,), (theirs,) = (list((tmp_path / name).iterdir()) for name in "ba")
    ours.write_bytes(theirs.read_bytes())
    counted.clear()
    assert_equal(jury.verdict(alpha=0.1, resume=tmp_path / "b"), reference)
    assert counted == [0, 1, 2, 3, 4]


def first(array: np.ndarray, value: float) -> np.ndarray:
    array = array.copy()
    array.reshape(-1)[0] = value
    return array


FORGERIES = {
    "p-values beyond 1": lambda a: {key: a[key] + 666_666 for key in a if key.startswith("counts")},
    "one count too many": lambda a: {"counts_0": first(a["counts_0"], 6)},
    "a count below zero": lambda a: {"counts_0": first(a["counts_0"], -1)},
    "counts as fractions": lambda a: {"counts_0": a["counts_0"].astype(float)},
    "counts of one node": lambda a: {"counts_0": a["counts_0"][:1]},
    "no counts": lambda a: {"counts_0": None},
    "more counts": lambda a: {"counts_7": a["counts_0"]},
    "a node's own juror counted": lambda a: {"counts_0": np.full_like(a["counts_0"], 5)},
    "flips below zero": lambda a: {"flips": a["flips"] - 5},
    "too many flips": lambda a: {"flips": a["flips"] + 5},
    "a negative square": lambda a: {"square": first(a["square"], -1.0)},
    "sums without squares": lambda a: {"square": np.zeros_like(a["square"])},
    "squares too large": lambda a: {"square": first(a["square"], 1e6)},
    "one square for all nodes": lambda a: {"square": a["square"][:1]},
    "a sum that is no number": lambda a: {"total": first(a["total"], np.nan)},
    "a sum too large": lambda a: {"total": first(a["total"], 1e9)},
    "a negative error": lambda a: {"errors": first(a["errors"], -0.1)},
    "an error beyond the simplex": lambda a: {"errors": first(a["errors"], 1.5)},
    "an infinite error": lambda a: {"errors": first(a["errors"], np.inf)},
    "an error twice": lambda a: {"errors": np.concatenate([a["errors"], a["errors"][:1]])},
    "errors in another precision": lambda a: {"errors": a["errors"].astype(np.float32)},
    "a bound that is no number": lambda a: {"low": first(a["low"], np.nan)},
    "a bound beyond the simplex": lambda a: {"high": first(a["high"], 7.0)},
    "bounds of more jurors": lambda a: {"low": a["low"].repeat(4, axis=1)},
    "bounds of one node": lambda a: {"high": a["high"][:1]},
    "a positive log score": lambda a: {"log_scores_0": first(a["log_scores_0"], 2.0)},
    "an infinite log score": lambda a: {"log_scores_0": first(a["log_scores_0"], -np.inf)},
    "log scores of fewer jurors": lambda a: {"log_scores_0": a["log_scores_0"][1:]},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_counts_that_cannot_be_are_counted_again(tmp_path: Path, counted: list[int], forgery: str):
    """Forged with a digest that agrees: only the numbers themselves tell."""
    jury = jury_of()
    reference = jury.verdict(resume=tmp_path)
    (path,) = tmp_path.iterdir()
    about, arrays = read_sealed(path)
    changed = {**arrays, **FORGERIES[forgery](arrays)}
    write_sealed(path, about, {key: value for key, value in changed.items() if value is not None})
    counted.clear()
    assert_equal(jury.verdict(resume=tmp_path), reference)
    assert counted == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("jurors", [0, -1, 6, 4, 10**30, "5", None, [5], True])
def test_another_number_of_jurors_is_not_believed(tmp_path: Path, counted: list[int], jurors: object):
    jury = jury_of()
    reference = jury.verdict(resume=tmp_path)
    (path,) = tmp_path.iterdir()
    about, arrays = read_sealed(path)
    write_sealed(path, {**about, "jurors": jurors}, arrays)
    counted.clear()
    assert_equal(jury.verdict(resume=tmp_path), reference)
    assert counted == [0, 1, 2, 3, 4]


def test_one_batch_leaves_no_record(tmp_path: Path):
    jury_of(run=Run(memory="1GB")).verdict(resume=tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_run_goes_on_with_other_workers(tmp_path: Path, monkeypatch, counted: list[int]):
    reference = jury_of().verdict()
    with monkeypatch.context() as patch:
        interrupt(patch, after=2)
        with pytest.raises(KeyboardInterrupt):
            jury_of().verdict(resume=tmp_path)
    verdict = jury_of(run=Run("processes:2", memory="1B")).verdict(resume=tmp_path)
    torch.testing.assert_close(verdict.lower, reference.lower, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(verdict.loo_variance, reference.loo_variance, rtol=1e-9, atol=1e-12)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path):
    (tmp_path / "file").touch()
    reference = jury_of().verdict()
    with pytest.warns(JuryWarning, match="cannot be saved") as warned:
        assert_equal(jury_of().verdict(resume=tmp_path / "file" / "folder"), reference)
    assert len(warned) == 1


# --- bars -----------------------------------------------------------------------------------------------------


def test_a_bar_says_what_is_being_done(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("jurygcn.progress.SHOWN_AFTER", 0.0)
    count = ExactCounter.count

    def slow(counter: ExactCounter, chunk: torch.Tensor) -> Counts:
        time.sleep(0.15)
        return count(counter, chunk)

    monkeypatch.setattr(ExactCounter, "count", slow)
    jury_of(run=Run(memory="1B", progress=True)).verdict()
    shown = capsys.readouterr()
    assert "Counting votes" in shown.err
    assert "/5" in shown.err
    assert "jurors" in shown.err
    assert shown.out == ""


def test_short_or_unasked_work_shows_nothing(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    jury_of(run=Run(memory="1B", progress=True)).verdict()
    with progress_bar("Work", total=2, show=False) as advance:
        advance(2)
    shown = capsys.readouterr().err
    assert not any(word in shown for word in ("Finding", "Counting", "Work"))
