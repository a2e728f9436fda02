"""The worker process: loads the graph, trains and chooses. It ends when the server does."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from multiprocessing.connection import Connection

from jurygcn.app.rounds import Failed, Round, Source

NICE = 5  # pages come first


def work(connection: Connection, source: Source) -> None:
    """Answer jobs until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the server ends this process
    with suppress(AttributeError, OSError):
        os.nice(NICE)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _work(connection, source)


def _work(connection: Connection, source: Source) -> None:
    import torch

    from jurygcn.app.choosing import play
    from jurygcn.app.preparation import load
    from jurygcn.errors import JuryError

    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    try:
        data, loaded = load(source)
    except JuryError as error:
        connection.send(Failed(str(error)))
        return
    except Exception as error:  # the server ends with this sentence
        connection.send(Failed(f"expected to load the graph, got {type(error).__name__} ({error}); check its files"))
        return
    connection.send(loaded)
    while True:
        job = connection.recv()
        try:
            found = play(data, job, seed=source.seed)
        except Exception as error:  # people can go on; the page shows the note
            found = Round(len(job.labels), note=f"The next choice failed: {type(error).__name__} ({error}).")
        connection.send(found)
