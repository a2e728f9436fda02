"""A full disk, a folder without permission, a full standard output, too little memory: one sentence, nothing lost."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch

from children import command, files_in, in_child
from jurygcn.cli import verdicts

NOBODY = 65534
FAST = ("--epochs", 10, "--hidden", 2)
FEW = ("--methods", "jury", "--no-left-out")
ANSWERS = "{place}/results/answers.csv"
WRITERS = {
    "train": ("train", "karate", *FAST, "--out", "{place}/out"),
    "train a method": ("train", "karate", "--method", "temperature", "--epochs", 5, "--out", "{place}/out"),
    "quantify": ("quantify", "karate", *FAST, "--out", "{place}/out"),
    "quantify in batches": ("quantify", "karate", *FAST, "--memory", "1B", "--out", "{place}/out"),
    "page": ("quantify", "karate", *FAST, "--report", "{place}/out/page.html"),
    "report": ("report", "{place}/results", "--out", "{place}/out/page.html"),
    "evaluate": ("evaluate", "karate", "--labels", 8, "--splits", 1, *FEW, "--out", "{place}/out"),
    "active next": ("active", "next", "karate", *FAST, "--out", "{place}/out/tasks.json"),
    "active add": (
        "active",
        "add",
        "karate",
        "--labels",
        "{place}/out/labels.csv",
        "--answers",
        "{place}/results/answers.csv",
    ),
    "active run": ("active", "run", "karate", "--initial", 4, "--budget", 8, *FAST, "--out", "{place}/out"),
}


@dataclass(frozen=True)
class Place:
    """A folder that a process can write nothing into once it is prepared."""

    folder: Path
    prepare: Callable[[], object] = lambda: None


@cache
def results() -> dict[str, bytes]:
    """What the commands read: files of an earlier run, and answers."""
    with tempfile.TemporaryDirectory() as folder:
        assert command("quantify", "karate", *FAST, "--out", folder)[0] == 0
        answers = "node,label\n" + "".join(f"{node},0\n" for node in range(30))
        return {**files_in(Path(folder)), "answers.csv": answers.encode()}


def furnish(folder: Path) -> None:
    """An earlier run's files, to be read, and to be lost by nobody."""
    for name, content in results().items():
        for place in ("out", "results"):
            (folder / place).mkdir(parents=True, exist_ok=True)
            (folder / place / name).write_bytes(content)
    (folder / "out" / "labels.csv").write_text("node,label\n33,3\n")


def limited(tmp_path: Path) -> Iterator[Place]:
    """No file may grow beyond 64 bytes: write() fails as on a full disk, everywhere."""
    furnish(tmp_path / "limited")
    yield Place(tmp_path / "limited", lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))


def full(tmp_path: Path) -> Iterator[Place]:
    """A file system that is full; only where the tests may mount one."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a file system")
    try:
        furnish(folder)
        with pytest.raises(OSError, match="No space left"):
            (folder / "filling").write_bytes(bytes(256 << 10))
        yield Place(folder)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def forbidden(_: Path) -> Iterator[Place]:
    """A folder of somebody else's."""
    folder = Path(tempfile.mkdtemp())  # pytest's own folders cannot be entered by others
    try:
        furnish(folder)
        for place in (folder / "out", folder):
            place.chmod(0o555)
        yield Place(folder, lambda: os.geteuid() == 0 and os.seteuid(NOBODY))
    finally:
        for place in (folder, folder / "out"):
            place.chmod(0o755)
        shutil.rmtree(folder)


@pytest.fixture(params=[limited, full, forbidden], ids=["limited", "full", "forbidden"])
def place(request, tmp_path: Path) -> Iterator[Place]:
    yield from request.param(tmp_path)


REHEARSED: set[str] = set()  # commands that this process has run, and that children are forked from


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_can_be_written(place: Place, writer: str, tmp_path: Path):
    def words(folder: Path) -> list[str]:
        return [str(word).format(place=folder) for word in WRITERS[writer]]

    before = files_in(place.folder)
    if writer not in REHEARSED:  # Python's own files may be closed to the demoted, so that all imports come first
        furnish(tmp_path / "rehearsal")
        command(*words(tmp_path / "rehearsal"))
        REHEARSED.add(writer)

    def work() -> tuple[int, str, str]:
        place.prepare()
        return command(*words(place.folder))

    code, out, err = in_child(work)
    assert code == 2, err
    assert out == ""
    assert err.splitlines()[-1].startswith("Error: expected")
    assert all(line.startswith("Note: ") for line in err.splitlines()[:-1])
    assert "unexpected" not in err
    after = {name: content for name, content in files_in(place.folder).items() if not name.endswith(".jsonl")}
    assert after == before, "measurements are kept line by line: half a line does not count and may stay"


# --- standard output, memory ----------------------------------------------------------------------------------

PROGRAM = [sys.executable, "-m", "jurygcn"]


def test_standard_output_is_full():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*PROGRAM, "data", "list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: expected to read and write files, got No space left on device")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_leaves():
    """As in `jurygcn data list --json | head -c 0`."""
    with subprocess.Popen(
        [*PROGRAM, "data", "list", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert "Traceback" not in said


def test_too_little_memory():
    """A real allocation that is refused, by torch and by numpy."""

    def work(allocate: Callable[[], object]) -> tuple[int, str, str]:
        verdicts.judge = lambda *_, **__: allocate()
        return command("quantify", "karate", *FAST)

    for allocate in (lambda: torch.empty(2**60, dtype=torch.uint8), lambda: np.empty(2**60, dtype=np.uint8)):
        code, out, err = in_child(partial(work, allocate))
        assert (code, out) == (2, "")
        assert err.startswith("Error: expected enough memory")
        assert err.count("\n") == 1
