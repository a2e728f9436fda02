"""SIGKILL at random times and around every step of writing: each file is the old one or the new one, and the same
command finishes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cases import Case
from children import child, command
from jurygcn import Jury
from jurygcn.active import History
from jurygcn.conformal import resuming as record
from jurygcn.io.fingerprints import fingerprint
from jurygcn.settings import LeaveOut, Run

ORDINARY, MANY = 1, 13  # kills for each of the eight writers: 8 in all, and 104
STEPS = ("open", "fsync", "chmod", "replace", "unlink")  # of writing; a process dies before or after one of them
QUICK = ("--epochs", 10, "--hidden", 4)


@dataclass(frozen=True)
class Writer:
    """Something that writes: first ``old`` fills the folder, then ``new`` is killed while it works there."""

    old: Callable[[Path], Any]
    new: Callable[[Path], Any]
    read: Callable[[Path], Any] = lambda folder: None
    grows: bool = False  # a file that is kept as it grows has stages between old and new


def done(*words: object) -> None:
    code, _, error = command(*words)
    assert code == 0, error


def train(seed: int) -> Callable[[Path], None]:
    return lambda folder: done("train", "karate", "--labels", 8, *QUICK, "--seed", seed, "--out", folder)


def quantify(seed: int) -> Callable[[Path], None]:
    words = ("quantify", "karate", "--labels", 8, *QUICK, "--memory", "1B", "--seed", seed)
    return lambda folder: done(*words, "--out", folder)


def page(seed: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        if not (folder / "report.json").exists() or seed == 0:
            quantify(0)(folder)
        done("report", folder, "--out", folder / f"page{seed}.html")

    return write


def tasks(seed: int) -> Callable[[Path], None]:
    words = ("active", "next", "karate", "--strategy", "random", "--batch", 5, *QUICK, "--seed", seed)
    return lambda folder: done(*words, "--out", folder / "tasks.json")


def answers(count: int) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        given = folder.with_name(f"answers{count}.csv")
        given.write_text("node,label\n" + "".join(f"{node},{node % 4}\n" for node in range(count)))
        done("active", "add", "karate", "--answers", given, "--labels", folder / "labels.csv")

    return write


def run(folder: Path) -> None:
    words = ("active", "run", "karate", "--strategy", "margin", "--initial", 4, "--budget", 10, "--step", 2)
    done(*words, *QUICK, "--out", folder)


@cache
def jury(damping: float) -> Jury:
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=0.05, trained=True)
    settings = {"weight_decay": 0.05, "leave_out": LeaveOut(damping=damping), "run": Run(memory="1B")}
    return Jury(engine.model, engine.data, engine.train_nodes, **settings).fit()


def loaded(folder: Path) -> Any:
    return Jury.load(folder, jury(0.0).engine.model, jury(0.0).data).jurors.steps


WRITERS = {
    "train": Writer(train(0), train(1)),
    "quantify": Writer(quantify(0), quantify(1)),
    "report": Writer(page(0), page(1)),
    "next": Writer(tasks(0), tasks(1)),
    "add": Writer(answers(5), answers(20)),
    "run": Writer(lambda folder: folder.mkdir(), run, grows=True),
    "save": Writer(lambda folder: jury(0.0).save(folder), lambda folder: jury(0.5).save(folder), loaded),
    "resume": Writer(
        lambda folder: folder.mkdir(),
        lambda folder: jury(0.0).verdict(resume=folder),
        lambda folder: jury(0.0).verdict(resume=folder).p_values,
        grows=True,
    ),
}


# --- what a file says, without the time of day ----------------------------------------------------------------


def timeless(value: Any) -> Any:
    """JSON without seconds, and without the digest that covers them."""
    if isinstance(value, dict):
        return {key: timeless(v) for key, v in value.items() if "seconds" not in key and key != "digest"}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def meaning(path: Path) -> str:
    if path.suffix == ".json":
        return fingerprint(json.dumps(timeless(json.loads(path.read_text()))))
    if path.suffix == ".pt":
        return fingerprint(torch.load(path, weights_only=True))
    if path.suffix == ".npz":
        return fingerprint(dict(np.load(path)))
    if path.name == "history.csv":
        frame = pd.read_csv(path)
        return fingerprint(frame[[c for c in frame.columns if "seconds" not in c]].to_csv())
    return fingerprint(path.read_bytes())


def meanings(folder: Path) -> dict[str, str]:
    """Every file that is not hidden: what a killed process leaves half written has a hidden name."""
    return {path.name: meaning(path) for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


# --- killing --------------------------------------------------------------------------------------------------


def dying(work: Callable[[Path], Any], folder: Path, when: int) -> None:
    """Do the work, and die before or after one of the steps of writing."""
    count = 0

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 2
            if count == when + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            result = step(*arguments, **options)
            if count == when:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    work(folder)


def steps_of(work: Callable[[Path], Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many steps of writing the work takes."""
    seen: list[str] = []
    with monkeypatch.context() as patch:
        for name in STEPS:
            real = getattr(os, name)
            patch.setattr(os, name, lambda *a, real=real, name=name, **o: seen.append(name) or real(*a, **o))
        work(folder)
    return len(seen)


def killed(name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> int:
    """Kill a writer so many times; how many of them were still at work."""
    writer, rng = WRITERS[name], np.random.default_rng([seed, sorted(WRITERS).index(name)])
    monkeypatch.setattr(record, "SHARE", 1.0)  # keep every batch, however short
    before, after = tmp_path / "before", tmp_path / "after"
    writer.old(before)
    writer.old(after)
    started = time.monotonic()
    steps = steps_of(writer.new, after, monkeypatch)
    lasting = time.monotonic() - started
    old, new, at_work = meanings(before), meanings(after), 0
    results = [writer.read(folder) for folder in (before, after)]
    for number in range(count):
        folder = tmp_path / f"out{number}"
        writer.old(folder)
        if (number + sorted(WRITERS).index(name)) % 2:
            pid = os.fork()
            if pid == 0:
                try:
                    dying(writer.new, folder, int(rng.integers(1, 2 * steps + 1)))
                finally:
                    os._exit(0)
            at_work += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        else:
            with child(lambda folder=folder: writer.new(folder)) as pid:
                time.sleep(rng.uniform(0, lasting))
                at_work += os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        for file, found in meanings(folder).items():
            assert file in new, f"{file} is left behind"
            assert writer.grows or found in (old.get(file), new[file]), f"{file} is neither the old nor the new one"
        assert meanings(folder).keys() >= old.keys(), "a file is lost"
        if (folder / "history.json").exists():  # a beginning of the same run
            there = History.load(folder / "history.json").labelled
            assert torch.equal(there, History.load(after / "history.json").labelled[: len(there)])
        result = writer.read(folder)
        assert result is None or any(torch.equal(result, other) for other in results)
        writer.new(folder)
        assert meanings(folder) == new
    return at_work


@pytest.mark.parametrize("name", WRITERS)
def test_killed_anywhere(name: str, tmp_path: Path, monkeypatch):
    killed(name, ORDINARY, tmp_path, monkeypatch, seed=0)


@pytest.mark.slow
def test_killed_a_hundred_times(tmp_path: Path, monkeypatch):
    at_work = 0
    for name in WRITERS:
        (tmp_path / name).mkdir()
        at_work += killed(name, MANY, tmp_path / name, monkeypatch, seed=1)
    print(f"{at_work} of {MANY * len(WRITERS)} processes were at work when they were killed")
    assert at_work > 0.7 * MANY * len(WRITERS)
