"""The command line as a real process: closed streams, streams without Unicode, signals at any time, odd terminals."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from invoke import FAST, run
from processes import PROGRAM, forked, start

import jurygcn
from children import wait_for
from jurygcn.cli import COMMANDS, train
from jurygcn.cli.reporting import load
from jurygcn.io import files

TINY = ("--initial", 2, "--budget", 4, "--step", 2)
SAID = {"SIGINT": b"Interrupted\n", "SIGTERM": b"Terminated\n"}
NAMED = "ünïcode→graph"


@pytest.fixture
def named(tmp_path) -> Path:
    """A graph whose nodes and classes have names that ASCII and latin-1 do not hold."""
    folder = tmp_path / NAMED
    folder.mkdir()
    rows = "\n".join(f"нода{k},{k % 2},{'κλάση' if k % 3 else 'Straße'}" for k in range(30))
    (folder / "nodes.csv").write_text(f"id,f,label\n{rows}\n", encoding="utf-8")
    edges = "\n".join(f"нода{k},нода{(k + 1) % 30}" for k in range(30))
    (folder / "edges.csv").write_text(f"source,target\n{edges}\n", encoding="utf-8")
    return folder


# --- streams --------------------------------------------------------------------------------------------------


def test_nobody_at_the_terminal():
    code, out, err = forked("active", "run", "karate", "--oracle", "terminal", *TINY, *FAST, closed={0})
    assert code == 2
    assert out.startswith(b"node ")
    assert err == b"Error: expected an answer, got the end of the input; start again to go on\n"


def test_stderr_is_closed():
    assert forked("data", "info", "karat", closed={2}) == (2, b"", b"")
    code, out, _ = forked("data", "info", "karate", "--json", closed={2})
    assert (code, json.loads(out)["nodes"]) == (0, 34)


def test_stdout_is_closed():
    assert forked("data", "info", "karate", closed={1}) == (0, b"", b"")
    code, _, err = forked("data", "info", "karat", closed={1})
    assert code == 2
    assert err.startswith(b"Error: ")


def test_every_stream_is_closed(tmp_path):
    """A real process: files that it writes could get the numbers of streams, and nothing may be printed into them."""
    out = tmp_path / "out"
    line = f"{' '.join(PROGRAM)} quantify karate {' '.join(FAST)} --out '{out}' <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", line], check=False).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == ["report.json", "run.json", "verdict.csv"]
    assert json.loads((out / "run.json").read_text())["command"] == "quantify"
    assert (out / "verdict.csv").read_text().startswith("node,")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "koi8-r"])
def test_streams_without_unicode(encoding, named):
    code, out, err = forked("quantify", named, *FAST, encoding=encoding)
    assert code == 0
    assert err.startswith(b"Note: ")
    text = out.decode(encoding)
    assert "GCN 1 -> 4 -> 2" in text
    assert ("нода" if encoding == "koi8-r" else "\\u043d\\u043e\\u0434\\u0430") in text  # the nodes' names
    assert ("Straße" if encoding in ("latin-1", "cp1252") else "Stra\\xdfe") in text
    code, out, err = forked("train", f"{named}s", encoding=encoding)
    assert (code, out) == (2, b"")
    assert err.startswith(b"Error: expected")
    assert forked("--help", encoding=encoding)[0] == 0


def test_unicode_where_the_stream_has_it(named):
    code, out, _ = forked("train", named, *FAST)
    assert code == 0
    assert "GCN 1 → 4 → 2" in out.decode("utf-8")


def test_answers_that_the_stream_cannot_read():
    typed = b"\xe9\n\xff\xfe\n" + b"1\n" * 40
    code, out, err = forked("active", "run", "karate", "--oracle", "terminal", *TINY, *FAST, typed=typed)
    assert (code, err) == (0, b"")
    assert out.count(b"expected one of the classes") == 2


@pytest.mark.parametrize("width", ["1", "10000", "0", "-5", "wide"])
@pytest.mark.parametrize(
    ("words", "code"), [(("--help",), 0), (("train", "karate", *FAST), 0), (("train", "karat"), 2)]
)
def test_odd_terminals(width, words, code, monkeypatch):
    for name, value in {"COLUMNS": width, "LINES": width, "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    result = run(*words)
    assert result.exit_code == code, result.output
    assert "\x1b" not in result.output


# --- signals --------------------------------------------------------------------------------------------------


def heeding() -> None:
    """Undo what whoever runs the tests in the background does: SIGINT is ignored there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def listens(pid: int) -> bool:
    """Whether the process catches SIGTERM, which Python itself does not."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return caught is not None and bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks the kernel when the program is ready")
@pytest.mark.parametrize(
    ("name", "seconds"),
    [*[("SIGINT", seconds) for seconds in (0.0, 0.1, 0.4, 1.0, 2.5)], ("SIGTERM", 0.0), ("SIGTERM", 1.5)],
)
def test_a_signal_during_the_imports_is_one_word(name, seconds):
    number = getattr(signal, name)
    with start("quantify", "karate", "--epochs", 10_000_000, preexec_fn=heeding) as running:
        wait_for(lambda: listens(running.pid))  # before that there is only Python's own start
        time.sleep(seconds)
        running.send_signal(number)
        out, err = running.communicate(timeout=300)
    assert (running.returncode, out, err) == (128 + number, b"", SAID[name])


def written_slowly(number: int, *, swallowed: bool) -> None:
    """From here on this process gets the signal while it writes run.json."""

    def write(folder: Path, *_: object) -> None:
        with files.replacing(folder / "run.json") as temporary:
            temporary.write_text("half")
            try:
                os.kill(os.getpid(), number)
                time.sleep(60)
            except KeyboardInterrupt:
                if not swallowed:
                    raise
                raise ImportError("half a module") from None  # as an import that is interrupted may end

    heeding()
    train.write_run = write


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_in_the_middle_of_a_file_leaves_nothing(name, swallowed, tmp_path):
    number = getattr(signal, name)
    before = partial(written_slowly, number, swallowed=swallowed)
    ended = forked("train", "karate", *FAST, "--out", tmp_path / "out", before=before)
    assert ended == (128 + number, b"", SAID[name])
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_a_library_swallows_ends_the_command(name, tmp_path):
    number = getattr(signal, name)

    def swallow(*_: object) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            time.sleep(60)

    def before() -> None:
        heeding()
        train.write_run = swallow

    code, _, said = forked("train", "karate", *FAST, "--out", tmp_path / "out", before=before)
    assert (code, said) == (128 + number, SAID[name])


def test_a_signal_inside_exec_keeps_the_exit_code(tmp_path):
    """CPython ends by SIGINT what let a KeyboardInterrupt through exec, as imports call it, unless it is cleared."""
    (tmp_path / "probe.py").write_text(
        "import os, signal, sys, time\n"
        "from jurygcn.__main__ import main\n"
        "from jurygcn.cli import train\n"
        "wait = 'os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)'\n"
        "train.write_run = lambda *_: exec(wait)\n"
        "sys.argv = ['jurygcn', 'train', 'karate', '--epochs', '2', '--out', 'out']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "probe"], cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, b"", SAID["SIGTERM"])


def test_a_background_job_is_not_interrupted():
    """As with nohup: what the caller has ignored stays ignored."""

    def ignoring() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    code, out, err = forked("data", "info", "karate", "--json", before=ignoring)
    assert (code, err) == (0, b"")
    assert json.loads(out)["nodes"] == 34


# --- the entry point ------------------------------------------------------------------------------------------


def test_help_and_version_do_not_wait_for_torch():
    for words in (["--help"], ["--version"], []):
        program = f"""
import sys
from jurygcn.__main__ import main
sys.argv = ["jurygcn", *{words!r}]
try:
    main()
finally:
    print("torch" in sys.modules, "numpy" in sys.modules)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert done.returncode == (0 if words else 2)
        assert done.stdout.splitlines()[-1] == "False False"


def test_the_list_of_commands_says_what_the_commands_say():
    for name, about in COMMANDS.items():
        assert load(name).help.split("\n\n")[0].replace("\n", " ") == about


def test_every_public_name_is_there():
    for name in jurygcn.__all__:
        assert getattr(jurygcn, name) is not None
        assert name in dir(jurygcn)
    assert jurygcn.linalg.__name__ == "jurygcn.linalg"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = jurygcn.nonsense
    tree = ast.parse(Path(jurygcn.__file__).read_text(encoding="utf-8"))
    typed = [n.names for node in tree.body if isinstance(node, ast.If) for n in node.body if hasattr(n, "names")]
    assert {alias.name for names in typed for alias in names} - {"Any"} | {"__version__"} == set(jurygcn.__all__)


def test_the_script_is_the_entry_point():
    tomllib = pytest.importorskip("tomllib")
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["scripts"] == {"jurygcn": "jurygcn.__main__:main"}
