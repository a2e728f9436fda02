"""Odd command lines, over all commands: an answer, or one sentence and exit code 2; no traceback, no partial file.

In the lines, @name stands for something that the fixture has put into the folder.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from pathlib import Path

import pytest
from invoke import run

from jurygcn.io.files import LARGEST_TEXT

# a GCN that takes no time
QUICK = "--epochs 5 --hidden 2"
REFUSED = f"""
""
" "
train
train ""
train " "
train .
train /
train /dev/null
train @folder
train @empty.npz
train @binary.npz
train @text.csv
train karate karate
train karate --epochs
train karate --epochs= --lr 0.1
train karate --nonsense
train karate --epochs 5 --epochs 0
train karate --method
train karate --method GCN
train karate --method "gcn "
train karate --method gat --layers 3
train karate --labels 0
train karate --labels 16
train karate --labels 3 --per-class 1
train karate --per-class 0
train karate --per-class 1000000000
train karate --lr 0
train karate --lr 1000000 --layers 9
train karate --dropout 1
train karate --hidden 0
train karate --layers 0
train karate --train-nodes @fifo
train karate --train-nodes @folder
train karate --train-nodes @socket
train karate --train-nodes /dev/zero
train karate --train-nodes /dev/null
train karate --train-nodes @large.csv
train karate --train-nodes @large.json
train karate --train-nodes @binary.csv
train karate --train-nodes @empty.csv
train karate --train-nodes @nested.json
train karate --train-nodes @list.json
train karate --train-nodes @text.csv
train karate --train-nodes ""
train karate --train-nodes @loop
train karate --train-nodes @no/such/file
train karate --out @text.csv
train karate --out @text.csv/below
train karate --out @fifo
train karate --out /dev/null
train karate --out /proc/new
train karate --out @loop/below
train karate --json=yes
train --version
quantify
quantify karate --alpha 0
quantify karate --alpha 0.5
quantify karate --alpha 0,1
quantify karate --diffusion 101
quantify karate --diffusion 1.5
quantify karate --diffusion Auto
quantify karate --diffusion ""
quantify karate --memory ""
quantify karate --memory 0GB
quantify karate --memory GB
quantify karate --memory 1PB
quantify karate --memory 1K\N{KELVIN SIGN}
quantify karate --memory -1GB
quantify karate --memory 1e9
quantify karate --memory 9999999999999999999GB
quantify karate --parallel 0
quantify karate --parallel 1025
quantify karate --parallel -2
quantify karate --parallel 1.5
quantify karate --parallel dask://
quantify karate --parallel dask://host
quantify karate --parallel http://host:80
quantify karate --parallel processes:0
quantify karate --parallel processes:99999999999
quantify karate --parallel ""
quantify karate --max-jurors 0
quantify karate --max-jurors 16 {QUICK}
quantify karate --solver Auto
quantify karate --solver magic
quantify karate --curvature ""
quantify karate --votes linear
quantify karate --chosen randomly
quantify karate --leave-out none
quantify karate --advice=1
quantify karate --model @fifo
quantify karate --model /dev/zero
quantify karate --model @folder
quantify karate --model @text.csv
quantify karate --model @empty.npz
quantify karate --model @binary.npz
quantify karate --report @folder
quantify karate --report @fifo
quantify karate --report /dev/null
quantify karate --report @text.csv/page.html
quantify karate --weight-decay 0 {QUICK} --solver cg --curvature hessian --leave-out influence
quantify karate --votes linearized --diffusion 1 {QUICK}
quantify karate --votes linearized --curvature printed {QUICK}
doctor
doctor karate --retrain -1
doctor karate --retrain 1.0
doctor karate --dropout 0.5
doctor karate --model @nothing.pt
report
report @nothing
report @fifo
report @socket
report /dev/zero
report /dev/random
report /dev/null
report /dev/stdin
report @folder
report @zeros
report @piped
report @large.json
report @nested.json
report @list.json
report @empty.csv
report @binary.csv
report @loop
report @done --out @folder
report @done --out @fifo
report @done --out /dev/full
report @done --out @text.csv/page.html
report @done --out ""
report @done @done
evaluate
evaluate karate --labels 1
evaluate karate --labels 1000000000
evaluate karate --splits 0
evaluate karate --splits 10001
evaluate karate --alpha 0
evaluate karate --alpha 1
evaluate karate --methods ""
evaluate karate --methods ,,,
evaluate karate --methods jury,nothing
evaluate karate --methods jury --out @piped
evaluate karate --out @text.csv
reproduce
reproduce table9
reproduce table1 table2
reproduce table1 --runs 0
reproduce table1 --runs 10001
reproduce table1 --out @text.csv
reproduce table1 --out /dev/null
active
active nothing
active next
active next karate --strategy ""
active next karate --strategy nothing
active next karate --batch 0
active next karate --batch 1000000000
active next karate --labels @fifo
active next karate --labels /dev/zero
active next karate --labels @folder
active next karate --labels @large.csv
active next karate --labels @binary.csv
active next karate --labels @text.csv
active next karate --candidates @fifo
active next karate --candidates /dev/zero
active next karate --candidates @empty.csv
active next karate --classes ,
active next karate --classes a,b
active next karate --classes a,a,a,a
active next karate --out @folder
active next karate --out @new.csv
active next karate --out @text.csv/tasks.json
active next karate --out @fifo.json
active add karate
active add karate --answers @fifo --labels @new.csv
active add karate --answers @fifo.json --labels @new.csv
active add karate --answers /dev/zero --labels @new.csv
active add karate --answers @nested.json --labels @new.csv
active add karate --answers @large.json --labels @new.csv
active add karate --answers @list.json --labels @new.csv
active add karate --answers @good.csv --labels @folder
active add karate --answers @good.csv --labels @new.txt
active add karate --answers @good.csv --labels @fifo.csv
active add karate --answers @good.csv --labels @text.csv
active run karate --budget 999999999 --step 1
active run karate --budget 1000000000 --initial-on-top --step 1
active run karate --initial 10 --budget 10
active run karate --initial 15 --budget 15 --initial-on-top --step 1
active run karate --step 0
active run karate --stop-at 0
active run karate --stop-at 1.5
active run karate --oracle @fifo
active run karate --oracle /dev/zero
active run karate --oracle @folder
active run karate --oracle Terminal
active run karate --out @text.csv
active run karate --out @piped
active run karate --out @damaged
data
data nothing
data list list
data info
data info karat
data info -- --help
data fetch
data fetch @folder
data fetch karate karate
demo karate
demo --report @folder
demo --report /dev/null
--nonsense
--json
-h
"""
ANSWERED = f"""
--help
--version
--version train
--version --help
train --help
active run --help
train karate {QUICK} --labels +5
train karate {QUICK} --lr .1
train karate {QUICK} --lr 1.
train karate {QUICK} --lr 1E-2
train karate {QUICK} --weight-decay 0
train karate {QUICK} --layers 1
train karate {QUICK} --seed 4294967295
train karate {QUICK} --seed 1 --seed 0
train karate {QUICK} --json --json
train karate {QUICK} --train-nodes all
train KARATE {QUICK}
train -- karate
quantify karate {QUICK} --diffusion 100
quantify karate {QUICK} --diffusion 007
quantify karate {QUICK} --memory 1
quantify karate {QUICK} --memory .5KiB
quantify karate {QUICK} --memory " 2 gb "
quantify karate {QUICK} --memory 999999TB
quantify karate {QUICK} --parallel serial
quantify karate {QUICK} --alpha 1e-300
quantify karate {QUICK} --max-jurors 1
doctor karate {QUICK} --retrain 0
doctor karate {QUICK} --retrain 2
active next karate {QUICK} --batch 1
active next karate {QUICK} --labels @good.csv --candidates @nodes.txt --batch 3
active run karate {QUICK} --initial 2 --budget 4 --step 1000000000
active run karate {QUICK} --initial 0 --budget 4 --step 4 --strategy random
report @done/report.json --json
data list
data info karate --json
data fetch karate
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> str:
    """The report.json of a run."""
    folder = tmp_path_factory.mktemp("run")
    assert run("quantify", "karate", *QUICK.split(), "--out", folder).exit_code == 0
    return (folder / "report.json").read_text(encoding="utf-8")


@pytest.fixture
def place(tmp_path, done, monkeypatch) -> Path:
    """A folder with all sorts of things in it; commands run beside them."""
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (here, there / "folder", there / "zeros", there / "piped", there / "damaged", there / "done"):
        folder.mkdir(parents=True)
    contents = {
        "empty.csv": b"",
        "empty.npz": b"",
        "text.csv": b"neither,here\nnor,there\n",
        "binary.csv": b"node,label\n\xff\xfe\x00\x01,1\n",
        "binary.npz": os.urandom(2000),
        "good.csv": b"node,label\n0,0\n5,1\n",
        "nodes.txt": b"7\n8\n9\n",
        "nested.json": b"[" * 200_000,
        "list.json": b'[{"train_nodes": NaN}]',
        "done/report.json": done.encode(),
        "damaged/history.json": b"\xff{",
    }
    for name, content in contents.items():
        (there / name).write_bytes(content)
    for name in ("large.csv", "large.json"):  # sparse: they take no room
        with (there / name).open("wb") as file:
            file.truncate(LARGEST_TEXT + 1)
    for name in ("fifo", "fifo.csv", "fifo.json", "piped/report.json", "piped/history.json", "piped/evaluation.jsonl"):
        os.mkfifo(there / name)
    (there / "zeros" / "report.json").symlink_to("/dev/zero")
    (there / "loop").symlink_to(there / "loop")
    monkeypatch.chdir(there)
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind("socket")  # a short name: these may not be long
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "80")
    return there


def listing(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def words_of(line: str, place: Path) -> list[str]:
    return [re.sub(r"^@", f"{place}/", word) for word in shlex.split(line)]


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_a_line_that_is_refused(line, place):
    before = listing(place.parent)
    result = run(*words_of(line, place))
    shown = result.stdout + result.stderr
    assert result.exit_code == 2, shown
    assert "Traceback" not in shown
    assert "Error: unexpected" not in shown
    assert listing(place.parent) == before
    if "Usage" not in result.stdout:  # a group that is called without a command shows its help
        assert result.stdout == ""
        *notes, error = result.stderr.splitlines()
        assert error.startswith("Error: ")
        assert all(note.startswith("Note: ") for note in notes)


@pytest.mark.parametrize("line", ANSWERED.strip().splitlines())
def test_a_line_that_is_answered(line, place):
    before = listing(place.parent)
    result = run(*words_of(line, place))
    assert result.exit_code == 0, result.stdout + result.stderr
    assert result.stdout
    assert "Error" not in result.stderr
    if "--json" in line:
        json.loads(result.stdout)
    assert listing(place.parent) - before <= {"there/done/report.html"}
