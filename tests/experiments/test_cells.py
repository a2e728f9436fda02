"""Cells are measured once, survive an interruption, and are measured anew when their settings change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jurygcn.errors import SettingError
from jurygcn.experiments.cells import Cells
from jurygcn.io.fingerprints import sealed

WANTED = [{"x": x} for x in range(4)]


class Counter:
    """Doubles, and notes what it was asked."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.asked: list[int] = []
        self.fails_at = fails_at

    def __call__(self, x: int) -> dict:
        if x == self.fails_at:
            raise KeyboardInterrupt
        self.asked.append(x)
        return {"double": 2 * x}


def cells(folder: Path, stamp: str = "1", **options: bool) -> Cells:
    return Cells("things", lambda _: stamp, folder=folder, **options)


def test_an_interrupted_run_goes_on(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        cells(tmp_path).measure(WANTED, Counter(fails_at=2))
    assert [row["double"] for row in cells(tmp_path).rows(WANTED)] == [0, 2]
    second = Counter()
    again = cells(tmp_path)
    again.measure(WANTED, second)
    assert second.asked == [2, 3]
    assert [(row["x"], row["double"]) for row in again.rows(WANTED)] == [(x, 2 * x) for x in range(4)]


@pytest.mark.parametrize("kept", [5, 20, -1])
def test_a_line_cut_off_by_a_crash_is_measured_again(tmp_path: Path, kept: int):
    """Whatever is left of the last line, the lines after it can be read."""
    cells(tmp_path).measure(WANTED, Counter())
    path = tmp_path / "things.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1].rstrip()[:kept], encoding="utf-8")
    second = Counter()
    cells(tmp_path).measure([*WANTED, {"x": 9}], second)
    assert second.asked == [3, 9]
    assert len(cells(tmp_path).rows([*WANTED, {"x": 9}])) == 5


def test_rows_of_another_machine_are_not_measured_again(tmp_path: Path):
    there, here = cells(tmp_path / "there"), cells(tmp_path / "here")
    there.measure(WANTED, Counter())
    here.measure(WANTED[:1], lambda x: {"double": -1})
    here.add(there.measured(WANTED[:3]))
    here.add({**row, "stamp": "2"} for row in there.measured(WANTED[3:]))  # measured with other settings
    counter = Counter()
    here.measure(WANTED, counter)
    assert counter.asked == [3]
    assert [row["double"] for row in here.rows(WANTED)] == [-1, 2, 4, 6]


def test_other_settings_are_measured_anew_and_do_not_mix(tmp_path: Path):
    cells(tmp_path).measure(WANTED, Counter())
    other = Counter()
    cells(tmp_path, "2").measure(WANTED[:1], other)
    assert other.asked == [0]
    assert len(cells(tmp_path, "2").rows(WANTED)) == 1
    assert len(cells(tmp_path).rows(WANTED)) == 4


def test_fresh_forgets(tmp_path: Path):
    cells(tmp_path).measure(WANTED, Counter())
    assert cells(tmp_path, fresh=True).rows(WANTED) == []


def test_rows_are_lines_of_json(tmp_path: Path):
    cells(tmp_path).measure(WANTED[:1], Counter())
    row = {"cell": {"x": 0}, "stamp": "1", "double": 0}
    assert json.loads((tmp_path / "things.jsonl").read_text(encoding="utf-8")) == sealed({"row": row})


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(b'"double": 2', b'"double": 3'),
        lambda line: line.replace(b'"double"', b'"d\xff\xfeuble"'),
        lambda line: b"[" * 100_000 + line,
        lambda line: b"7\n",
        lambda line: line.replace(b'"digest": "', b'"digest": "0'),
    ],
)
def test_an_altered_line_is_measured_again(tmp_path: Path, damage):
    cells(tmp_path).measure(WANTED, Counter())
    path = tmp_path / "things.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], damage(lines[1]), *lines[2:]]))
    second = Counter()
    again = cells(tmp_path)
    again.measure(WANTED, second)
    assert second.asked == [1]
    assert [row["double"] for row in again.rows(WANTED)] == [0, 2, 4, 6]


def test_lines_of_earlier_versions_count(tmp_path: Path):
    (tmp_path / "things.jsonl").write_text('{"cell": {"x": 1}, "stamp": "1", "double": 2}\n', encoding="utf-8")
    assert [row["double"] for row in cells(tmp_path).rows(WANTED)] == [2]


def test_a_file_in_the_way_is_refused(tmp_path: Path):
    (tmp_path / "busy").write_text("", encoding="utf-8")
    with pytest.raises(SettingError, match="expected to save results"):
        cells(tmp_path / "busy")
