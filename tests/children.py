"""Work in a process of its own that can be killed, limited or demoted; forked, so that it starts at once."""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from jurygcn.cli import app

PATIENCE = 120.0  # seconds


def in_child(work: Callable[[], Any]) -> Any:
    """What the work returns, done in a child; its exception is this process's failure."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            answer = ("done", work())
        except BaseException:
            answer = ("failed", traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    assert content, "the child died"
    state, answer = pickle.loads(content)  # noqa: TID251 (written by our own child)
    assert state == "done", answer
    return answer


@contextmanager
def child(work: Callable[[], Any]) -> Iterator[int]:
    """The process id of a child that does the work; it is killed with SIGKILL when the block ends."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def command(*words: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.stdout, result.stderr


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and its content."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
