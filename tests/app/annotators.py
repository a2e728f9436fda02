"""A small graph with every kind of column, a server in its own process, and a client of it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any
from urllib.parse import urlencode, urlsplit

import numpy as np

CLASSES = ("alpha", "beta", "<b>gamma</b>")
SCRIPT = "<script>window.hacked = 1</script>"
NODES = 120
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
PATIENCE = 120.0


def truth(node: int) -> int:
    return node % len(CLASSES)


def write_graph(folder: Path) -> Path:
    """Three communities with noisy features, and columns with text, links, pictures and markup."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pictures").mkdir(exist_ok=True)
    (folder / "pictures" / "one.png").write_bytes(PIXEL)
    (folder.parent / "secret.png").write_bytes(PIXEL)
    rows = ["id,title,home,image,f0,f1,f2,f3"]
    for node in range(NODES):
        features = random.normal(0, 0.6, 4)
        features[truth(node)] += 1.0
        title = f'"{SCRIPT} & co, paper {node}"'
        image = ["pictures/one.png", "../secret.png", "https://example.com/x.png", "none"][node % 4]
        cells = [f"paper {node}" if node else SCRIPT, title, f"https://example.com/{node}", image]
        rows.append(",".join([*cells, *(f"{value:.4f}" for value in features)]))
    (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
    edges = ["source,target"]
    names = [SCRIPT, *(f"paper {node}" for node in range(1, NODES))]
    for node in range(NODES):
        same = [v for v in range(NODES) if truth(v) == truth(node) and v != node]
        others = [*random.choice(same, 3), random.integers(NODES)]
        edges += [f"{names[node]},{names[int(v)]}" for v in others if int(v) != node]
    (folder / "edges.csv").write_text("\n".join(edges) + "\n")
    return folder


def heeding() -> None:
    """Undo what whoever runs the tests in the background does: SIGINT is ignored there."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Address:
    """Where a server listens."""

    def __init__(self, address: str) -> None:
        self.address, self.parts = address, urlsplit(address)

    def client(self, annotator: str = "ann", tab: str = "1") -> Client:
        return Client(self, annotator, tab)


class Server(Address):
    """A server process."""

    def __init__(self, *command: str, cwd: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heeding,
        )
        line = self.process.stdout.readline() if self.process.stdout else ""
        found = re.search(r"http://\S+", line)
        if found is None:
            self.process.kill()
            raise AssertionError(line + str(self.process.communicate()))
        super().__init__(found[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def interrupt(self) -> tuple[int, str]:
        """End it as Ctrl-C does; returns the exit code and what was said on stderr."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


class Client:
    """One annotator: plain HTTP over one connection."""

    def __init__(self, server: Address, annotator: str, tab: str) -> None:
        self.server, self.me = server, {"annotator": annotator, "tab": tab}
        self.line = http.client.HTTPConnection(server.parts.hostname, server.parts.port, timeout=60)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        token: bool = True,
    ) -> tuple[int, str, dict[str, str]]:
        address = f"{self.server.parts.path if token else '/'}{path}"
        self.line.request(method, address, body, headers or {})
        reply = self.line.getresponse()
        return reply.status, reply.read().decode(errors="replace"), dict(reply.getheaders())

    def post(self, action: str, **fields: Any) -> tuple[int, Any]:
        body = json.dumps({**self.me, **fields}).encode()
        status, text, _ = self.send("POST", f"api/{action}", body, {"Content-Type": "application/json"})
        return status, json.loads(text)

    def state(self) -> dict[str, Any]:
        return json.loads(self.send("GET", f"api/state?{urlencode(self.me)}")[1])["state"]

    def wait_until_ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while not (state := self.state())["ready"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        return state

    def answer(self, node: int, label: int, **more: Any) -> tuple[int, Any]:
        return self.post("answer", node=node, kind="label", label=label, **more)


@contextmanager
def labelling(folder: Path, *options: str) -> Iterator[Server]:
    """A server of the command line."""
    server = Server("-m", "jurygcn", "label", str(folder), "--no-browser", *options, cwd=folder.parent)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def in_thread(settings: Any, **more: Any) -> Iterator[Address]:
    """A server in a thread of this process."""
    import uvicorn

    from jurygcn.app.server import serve

    made, address, original = [], Queue[str](), uvicorn.Server

    class Recorded(original):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    uvicorn.Server = Recorded  # type: ignore[misc]
    thread = Thread(target=serve, args=(settings,), kwargs={"announce": address.put, **more}, daemon=True)
    try:
        thread.start()
        yield Address(address.get(timeout=PATIENCE))
    finally:
        uvicorn.Server = original  # type: ignore[misc]
        made[-1].should_exit = True
        thread.join(PATIENCE)
    assert not thread.is_alive()
