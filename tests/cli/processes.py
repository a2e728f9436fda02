"""The command line with streams of its own: as a real process, or forked from this one, which starts at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from typing import Any

from jurygcn.__main__ import main

PROGRAM = [sys.executable, "-m", "jurygcn"]
Ended = tuple[int, bytes, bytes]  # exit code, stdout, stderr


def start(*words: object, **settings: Any) -> subprocess.Popen[bytes]:
    """A real process whose stdout and stderr can be read."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*PROGRAM, *map(str, words)], env=environment, **{**streams, **settings})


def forked(
    *words: object,
    encoding: str = "utf-8",
    typed: bytes = b"",
    closed: Collection[int] = (),
    before: Callable[[], object] = lambda: None,
) -> Ended:
    """A command with an encoding, an input and closed streams as Python would find them at its start."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(typed)
        given.seek(0)
        pid = os.fork()
        if pid == 0:
            code = 99  # an exception that nobody caught
            try:
                for number, file in enumerate((given, out, err)):
                    os.dup2(file.fileno(), number)
                for number, name in enumerate(("stdin", "stdout", "stderr")):
                    if number in closed:
                        os.close(number)
                        setattr(sys, name, None)
                    else:
                        errors = "backslashreplace" if number == 2 else "strict"
                        stream = open(number, "w" if number else "r", encoding=encoding, errors=errors)  # noqa: PTH123, SIM115
                        setattr(sys, name, stream)
                sys.argv = ["jurygcn", *map(str, words)]
                before()
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 98
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        return os.waitstatus_to_exitcode(status), out.read(), err.read()
