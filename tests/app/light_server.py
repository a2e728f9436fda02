"""A server with a worker that chooses in this process, without torch: it starts at once.

Run as: python light_server.py FILE NODES PORT
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from jurygcn.app import routes, server
from jurygcn.app.nodes import NodeTable
from jurygcn.app.rounds import Job, Loaded, Round, Source
from jurygcn.app.scheduling import Chosen

CLASSES = ["a", "b", "<i>c</i>"]


def ring(count: int) -> NodeTable:
    """A ring of nodes with odd names."""
    around = np.stack([(np.arange(count) - 1) % count, (np.arange(count) + 1) % count], axis=1)
    return NodeTable(
        graph="ring",
        classes=CLASSES,
        names=[f"<b>node</b> {node}" for node in range(count)],
        written_by_name=False,
        first=np.arange(0, 2 * count + 1, 2, dtype=np.int64),
        neighbours=np.sort(around, axis=1).ravel().astype(np.int32),
        features=None,
        strongest=np.zeros((count, 1), dtype=np.int32),
        values=np.ones((count, 1), dtype=np.float32),
        texts={"title": [f"<img src=x onerror=alert(1)> {node}" for node in range(count)]},
    )


class Chooser:
    """In place of the worker process: chooses the first candidates at once."""

    count = 60

    def __init__(self, _: Source, listener: Any) -> None:
        self.listener = listener
        listener(Loaded(ring(self.count)))

    def submit(self, job: Job) -> None:
        choices = [Chosen(int(node), "it is next") for node in job.candidates[: job.size]]
        self.listener(Round(len(job.labels), choices))

    def close(self) -> None:
        pass


if __name__ == "__main__":
    file, nodes, port = sys.argv[1:]
    Chooser.count = int(nodes)
    routes.Background = Chooser
    settings = server.Settings(Source("ring"), Path(file), batch=8, port=int(port))
    server.serve(settings, announce=lambda address: print(address, flush=True))
