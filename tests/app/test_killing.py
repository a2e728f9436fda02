"""kill -9 while people label: every acknowledged answer is there afterwards, none twice."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from annotators import Client, Server

LIGHT = Path(__file__).with_name("light_server.py")
NODES = 4000


def label_until_it_ends(client: Client, acknowledged: dict[tuple[int, str], int], number: int) -> None:
    """Label as fast as possible; remembers what the server has acknowledged."""
    try:
        _, found = client.post("next")
        while found.get("page"):
            node = found["page"]["node"]
            label = (node + number) % 3
            status, found = client.answer(node, label, request=f"{number}-{node}")
            if status == 200:
                acknowledged[node, client.me["annotator"]] = label
    except OSError:
        pass
    except Exception as error:  # the reply was cut
        if type(error).__module__ != "http.client" and not isinstance(error, ValueError):
            raise


def kill_once(file: Path, moment: float, number: int, acknowledged: dict[tuple[int, str], int]) -> int:
    server = Server(str(LIGHT), str(file), str(NODES), "0", cwd=file.parent)
    clients = [server.client(name) for name in ("ann", "bob", "eve")]
    clients[0].wait_until_ready()
    threads = [threading.Thread(target=label_until_it_ends, args=(client, acknowledged, number)) for client in clients]
    before = len(acknowledged)
    for thread in threads:
        thread.start()
    time.sleep(moment)
    server.kill()
    for thread in threads:
        thread.join()
    return len(acknowledged) - before


def check(file: Path, acknowledged: dict[tuple[int, str], int]) -> None:
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = connection.execute("SELECT node, annotator, label FROM answers").fetchall()
    there = {(node, annotator): label for node, annotator, label in rows}
    assert len(there) == len(rows)  # none twice
    assert {key: there.get(key) for key in acknowledged} == acknowledged  # none lost
    assert len(there) <= len(acknowledged) + 3 * 40  # at most one answer per annotator and kill was under way
    nodes = [node for node, _ in there]
    assert len(set(nodes)) == len(nodes)  # nobody got the same node


def run_kills(folder: Path, times: int) -> int:
    file, draw = folder / "answers.sqlite", random.Random(0)
    acknowledged: dict[tuple[int, str], int] = {}
    answered = 0
    for number in range(times):
        answered += kill_once(file, draw.uniform(0.02, 0.6), number, acknowledged)
        check(file, acknowledged)
    return answered


def test_three_kills(tmp_path):
    assert run_kills(tmp_path, 3) > 10


@pytest.mark.slow
def test_thirty_kills(tmp_path):
    assert run_kills(tmp_path, 30) > 100
