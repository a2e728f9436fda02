"""Progress of long work: a bar on a terminal, a line of text in a notebook, nothing in a file."""

from __future__ import annotations

import time

import pytest

from jurygcn import progress


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.05)


def test_a_notebook_sees_long_work(notebook, capsys):
    with progress.progress_bar("Counting votes", total=1000, unit="jurors") as advance:
        advance(250)
        time.sleep(0.3)
    written = capsys.readouterr().err
    assert "\rCounting votes, 250 of 1,000 jurors, 0 s" in written
    assert written.endswith(" \r")  # and the line is cleared at the end
    with progress.progress_bar("Finding the jurors"):
        time.sleep(0.2)
    assert "\rFinding the jurors, 0 s" in capsys.readouterr().err


def test_a_notebook_sees_nothing_of_short_work(notebook, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 60.0)
    with progress.progress_bar("Counting votes"):
        pass
    with progress.progress_bar("Counting votes", show=False):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_file_gets_no_bar(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.05)
    with progress.progress_bar("Counting votes"):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""
