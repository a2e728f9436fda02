"""kill -9 in the middle of writing: the old file or the new one, never half of one, and the next run is the same."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from children import child, command, files_in, wait_for
from jurygcn.active import History
from jurygcn.conformal import resuming as record
from jurygcn.conformal.exact import ExactCounter
from jurygcn.io import files
from jurygcn.io.files import replacing, write_text
from jurygcn.report import Report
from jurygcn.report.document import SECTIONS

KILLS = 20


def endlessly(path: Path, texts: list[str]) -> None:
    while True:
        for text in texts:
            write_text(path, text)


def test_killed_at_any_time(tmp_path: Path):
    """Two texts in turn, killed at random: one of them is there, whole."""
    path, texts, rng = tmp_path / "file.txt", ["a" * 4_000_000, "b" * 4_000_000], np.random.default_rng(0)
    for _ in range(KILLS):
        with child(lambda: endlessly(path, texts)):
            wait_for(path.exists)
            time.sleep(rng.uniform(0, 0.05))
        assert path.read_text() in texts
        for other in tmp_path.iterdir():
            if other != path:
                other.unlink()


def report(title: str) -> Report:
    return Report({**{section: [] for section in SECTIONS}, "title": title})


WRITERS = {
    "report": (lambda path, title: report(title).write(path), Path.read_text),
    "history": (lambda path, title: History({"title": title}).save(path), History.load),
    "text": (write_text, Path.read_text),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_killed_in_the_middle_of_a_file(tmp_path: Path, monkeypatch, writer: str):
    """Half of the new file is on the disk when the process dies: the old one is still there, then the next run's."""
    path, started = tmp_path / "out" / "file", tmp_path / "started"
    write, read = WRITERS[writer]
    write(path, "old")
    old = path.read_bytes()

    def half_of_it(file: Path, text: str, **options) -> int:
        with file.open("w", encoding="utf-8") as stream:
            stream.write(text[: len(text) // 2])
        started.touch()
        time.sleep(300)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half_of_it)
        with child(lambda: write(path, "new")):
            wait_for(started.exists)
    assert path.read_bytes() == old
    read(path)
    (left,) = abandoned(path)
    assert left.stat().st_size > 0
    write(path, "new")
    write(path.with_name("other"), "new")
    assert path.read_bytes() == path.with_name("other").read_bytes() != old


# --- what killed writers leave behind -------------------------------------------------------------------------


def abandoned(path: Path) -> list[Path]:
    return [other for other in path.parent.iterdir() if other.name.startswith(f".{path.name}.")]


def half(path: Path, started: Path) -> None:
    with replacing(path) as temporary:
        temporary.write_text("half")
        started.touch()
        time.sleep(300)


def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, monkeypatch):
    path, started = tmp_path / "out" / "file.txt", tmp_path / "started"
    with child(lambda: half(path, started)):
        wait_for(started.exists)
    (left,) = abandoned(path)
    write_text(path, "whole")
    assert abandoned(path) == [left], "perhaps somebody is about to lock it"
    os.utime(left, (time.time() - 2 * files.FRESH,) * 2)
    write_text(path, "whole again")
    assert {p.name: p.read_text() for p in path.parent.iterdir()} == {"file.txt": "whole again"}


def test_a_slow_writer_is_not_disturbed(tmp_path: Path):
    path, started = tmp_path / "out" / "file.txt", tmp_path / "started"
    with child(lambda: half(path, started)):
        wait_for(started.exists)
        (busy,) = abandoned(path)
        os.utime(busy, (time.time() - 2 * files.FRESH,) * 2)
        write_text(path, "whole")
        assert abandoned(path) == [busy]
        assert busy.read_text() == "half"


# --- a command ------------------------------------------------------------------------------------------------

QUANTIFY = ("quantify", "karate", "--labels", 12, "--epochs", 20, "--hidden", 4, "--memory", "1B")


def test_killed_while_quantifying(tmp_path: Path, monkeypatch):
    count, out, whole = ExactCounter.count, tmp_path / "out", tmp_path / "whole"
    monkeypatch.setattr(record, "SHARE", 1.0)  # keep every batch, however short

    def slowly(counter: ExactCounter, jurors: torch.Tensor):
        time.sleep(0.2)
        return count(counter, jurors)

    with monkeypatch.context() as patch:
        patch.setattr(ExactCounter, "count", slowly)
        with child(lambda: command(*QUANTIFY, "--out", out)):
            wait_for(lambda: list((out / ".batches").glob("[!.]*.npz")) if out.exists() else [])
    assert [path.name for path in out.iterdir()] == [".batches"]
    heard = []
    monkeypatch.setattr(ExactCounter, "count", lambda counter, jurors: heard.extend(jurors) or count(counter, jurors))
    assert command(*QUANTIFY, "--out", out)[0] == 0
    assert 0 < len(heard) < 12
    assert command(*QUANTIFY, "--out", whole)[0] == 0
    ours, theirs = files_in(out), files_in(whole)
    assert ours.keys() == theirs.keys() == {"verdict.csv", "report.json", "run.json"}
    assert ours["verdict.csv"] == theirs["verdict.csv"]
    assert ours["report.json"] == theirs["report.json"]


RUN = ("active", "run", "karate", "--strategy", "margin", "--initial", 4, "--budget", 12, "--step", 2, "--epochs", 30)


@pytest.mark.parametrize("steps", [1, 3])
def test_killed_while_learning_actively(tmp_path: Path, monkeypatch, steps: int):
    out, whole = tmp_path / "out", tmp_path / "whole"
    save = History.save

    def then_wait(history: History, path: Path) -> Path:
        saved = save(history, path)
        if len(history.steps) == steps:
            (tmp_path / "there").touch()
            time.sleep(300)
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(History, "save", then_wait)
        with child(lambda: command(*RUN, "--out", out)):
            wait_for((tmp_path / "there").exists)
    assert len(History.load(out / "history.json").steps) == steps
    assert command(*RUN, "--out", out)[0] == 0
    assert command(*RUN, "--out", whole)[0] == 0
    ours, theirs = (json.loads((folder / "history.json").read_text()) for folder in (out, whole))
    for step in (*ours["steps"], *theirs["steps"]):
        del step["seconds"], step["training_seconds"]
    assert ours.pop("digest") != theirs.pop("digest")  # of the seconds too
    assert ours == theirs
