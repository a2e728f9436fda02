"""The worker's loop, in a thread of this process: what it sends, and that it ends with the server."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing import Pipe
from threading import Thread

import numpy as np
import pytest
from annotators import CLASSES, write_graph

from jurygcn.app import choosing
from jurygcn.app.rounds import Failed, Job, Loaded, Round, Source
from jurygcn.app.worker import _work


@pytest.fixture
def talk():
    """Starts a worker on a source; returns the server's end of the pipe."""
    threads = []

    def start(source: Source):
        here, there = Pipe()

        def work() -> None:
            with suppress(EOFError):
                _work(there, source)

        threads.append((Thread(target=work, daemon=True), here))
        threads[-1][0].start()
        return here

    yield start
    for thread, here in threads:
        here.close()
        thread.join(30)
        assert not thread.is_alive()  # it ends when the server's end is closed


def test_jobs_are_answered(talk, tmp_path):
    line = talk(Source(str(write_graph(tmp_path / "graph")), classes=CLASSES))
    assert isinstance(line.recv(), Loaded)
    for labels in ({}, {0: 0, 1: 1}):
        line.send(Job(labels, [], np.arange(10, 20), 3))
        found = line.recv()
        assert isinstance(found, Round)
        assert found.labels == len(labels)
        assert len(found.choices) == 3


def test_a_surprise_is_a_note(talk, tmp_path, monkeypatch):
    """An error that is not ours: people can go on, and the worker too."""
    line = talk(Source(str(write_graph(tmp_path / "graph")), classes=CLASSES))
    line.recv()
    monkeypatch.setattr(choosing, "scene_of", lambda *_, **__: 1 / 0)
    line.send(Job({0: 0, 1: 1}, [], np.arange(10, 20), 3))
    assert "ZeroDivisionError" in line.recv().note
    monkeypatch.undo()
    line.send(Job({0: 0, 1: 1}, [], np.arange(10, 20), 3))
    assert line.recv().note == ""


def test_a_graph_that_is_not_there(talk, tmp_path):
    found = talk(Source(str(tmp_path / "nowhere"))).recv()
    assert isinstance(found, Failed)
    assert found.why.startswith("expected")
