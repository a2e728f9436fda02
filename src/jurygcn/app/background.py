"""The server's side of the worker process."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from jurygcn.app.rounds import Job, Message, Source
from jurygcn.app.worker import work

PATIENCE = 5.0  # seconds for the worker to end


class Background:
    """The worker process. ``submit`` does not wait; results come through ``listener``, in another thread."""

    def __init__(self, source: Source, listener: Callable[[Message], None]) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=work, args=(there, source), daemon=True, name="jurygcn-worker")
        self._listener = listener
        self._start()
        there.close()  # so that the end of the worker is noticed
        self._thread = threading.Thread(target=self._listen, daemon=True, name="jurygcn-listener")
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Send a job to the idle worker."""
        with suppress(OSError):  # if the worker has ended, the listener is told
            self._here.send(job)

    def close(self) -> None:
        """End the worker."""
        self._process.terminate()
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(PATIENCE)
        self._thread.join(PATIENCE)
        self._here.close()

    def _start(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._process.start()
            return
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: the worker never sees Ctrl-C
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)

    def _listen(self) -> None:
        try:
            while True:
                self._listener(self._here.recv())
        except (EOFError, OSError):
            self._listener(None)
