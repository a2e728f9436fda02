"""The labelling page: how long people wait, how many can label at once, and what their labels are worth.

Waiting is the time from an answer to the next node, while the worker trains: for a program that answers without a
pause, for many at once, and in Chromium from the key to the drawn page. Everything runs on this machine over loopback;
times depend on its load, so the server's CPU time per answer is given too. The last part lets simulated annotators
answer with the true labels, while choices arrive late as in the application, and compares the accuracy after 60 labels
with `active.run` on the same splits.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch_geometric.data import Data

from harness import options, save, table
from jurygcn import active
from jurygcn.active.learners import predictions
from jurygcn.active.scene import hide_labels
from jurygcn.app.choosing import play
from jurygcn.app.preparation import table_of
from jurygcn.app.rounds import Job, Loaded
from jurygcn.app.session import Caller, Session
from jurygcn.app.store import Answers
from jurygcn.data import paper_split
from jurygcn.models import Recipe, fit_gcn
from protocol import graph

GRAPHS = ("cora", "pubmed")
ANSWERS, QUICK_ANSWERS, BATCH = 300, 40, 10
CROWD, EACH = 20, 30
WAYS = ("application", "active.run", "random")
SPLITS, QUICK_SPLITS, LABELS, LATE, MODELS = 10, 1, 60, 5, 3
# presses a key and waits until the next node is drawn; milliseconds
PRESS = """(key) => new Promise((resolve) => {
  const [task, start] = [document.getElementById('task'), performance.now()];
  const seen = new MutationObserver(() => {
    seen.disconnect();
    requestAnimationFrame(() => resolve(performance.now() - start));
  });
  seen.observe(task, { attributes: true, attributeFilter: ['data-node'] });
  document.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
})"""


class Client:
    """One annotator over one connection."""

    def __init__(self, address: str, name: str) -> None:
        self.parts, self.name = urlsplit(address), name
        self.line = http.client.HTTPConnection(str(self.parts.hostname), self.parts.port, timeout=120)

    def post(self, action: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        """Status and reply of an action."""
        body = json.dumps({"annotator": self.name, "tab": "1", **fields}).encode()
        self.line.request("POST", f"{self.parts.path}api/{action}", body, {"Content-Type": "application/json"})
        reply = self.line.getresponse()
        return reply.status, json.loads(reply.read())

    def label(self, data: Data, times: int) -> list[tuple[float, bool, int]]:
        """Answer with the true labels: seconds to the next node, whether the worker was busy, the status."""
        found = self.post("next")[1]
        measured = []
        for number in range(times):
            node = found["page"]["node"]
            request = {"node": node, "kind": "label", "label": int(data.y[node]), "request": f"{self.name}-{number}"}
            started = time.perf_counter()
            status, found = self.post("answer", **request)
            measured.append((time.perf_counter() - started, bool(found["state"]["training"]), status))
        return measured


@contextmanager
def serving(name: str, batch: int = BATCH) -> Iterator[tuple[str, int]]:
    """The address and the process of `jurygcn label`, when its first nodes are chosen."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "jurygcn", "label", name, "--no-browser", "--batch", str(batch)]
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            found = re.search(r"http://\S+", server.stdout.readline() if server.stdout else "")
            if found is None:
                raise SystemExit("the server did not start")
            client = Client(found[0], "nobody")
            while client.post("next")[0] != 200:
                time.sleep(0.2)
            yield found[0], server.pid
        finally:
            server.kill()
            server.wait()


def cpu_seconds(process: int) -> float:
    """CPU time of a process, without its children; NaN where the system does not tell."""
    path = Path(f"/proc/{process}/stat")
    if not path.exists():
        return float("nan")
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(seconds: list[float]) -> dict[str, float]:
    """Median, 95th percentile and maximum in milliseconds."""
    middle, high = np.percentile(seconds, [50, 95])
    return {"p50": round(1000 * middle, 1), "p95": round(1000 * high, 1), "max": round(1000 * max(seconds), 1)}


def waiting(name: str, answers: int) -> dict[str, Any]:
    """One annotator without pauses; every BATCH // 2 answers the choice is renewed."""
    with serving(name) as (address, process):
        client, before = Client(address, "ann"), cpu_seconds(process)
        client.label(graph(name), 5)
        measured = client.label(graph(name), answers)
        used = cpu_seconds(process) - before
    busy = mean(was for _, was, _ in measured)
    row = {"part": "waiting", "dataset": name, "annotators": 1, "answers": answers, "while_training": round(busy, 2)}
    return {**row, **summary([s for s, _, _ in measured]), "cpu": round(1000 * used / (answers + 5), 1)}


def crowd(name: str, people: int, each: int) -> dict[str, Any]:
    """Many annotators at once; counts errors and lost answers."""
    measured: list[tuple[float, bool, int]] = []
    with serving(name) as (address, process):
        before = cpu_seconds(process)
        clients = [Client(address, f"annotator {k}") for k in range(people)]
        work = lambda client: measured.extend(client.label(graph(name), each))  # noqa: E731
        threads = [threading.Thread(target=work, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        labels = clients[0].post("next")[1]["state"]["labels"]
        used = cpu_seconds(process) - before
    total = people * each
    errors = total - sum(status == 200 for _, _, status in measured)
    busy = mean(was for _, was, _ in measured)
    row = {"part": "crowd", "dataset": name, "annotators": people, "answers": total, "while_training": round(busy, 2)}
    lost = {"errors": errors, "lost": total - labels}
    return {**row, **summary([s for s, _, _ in measured]), "cpu": round(1000 * used / total, 1), **lost}


def browser(name: str, answers: int) -> dict[str, Any] | None:
    """From the key to the drawn page, in Chromium; None where it is not installed."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        return None
    from playwright.sync_api import sync_playwright

    data, seconds = graph(name), []
    with serving(name) as (address, _), sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        tab = program.new_page()
        tab.set_default_timeout(120_000)
        tab.goto(address)
        tab.get_by_label("Your name").fill("ann")
        tab.keyboard.press("Enter")
        tab.locator("#task[data-node]").wait_for()
        for _ in range(answers):
            node = int(tab.get_attribute("#task", "data-node") or 0)
            seconds.append(tab.evaluate(PRESS, str(int(data.y[node]) + 1)) / 1000)
        program.close()
    return {"part": "browser", "dataset": name, "annotators": 1, "answers": answers, **summary(seconds)}


def simulated(data: Data, pool: torch.Tensor, seed: int) -> torch.Tensor:
    """LABELS nodes that two annotators label, while every choice arrives LATE answers after it was asked for."""
    jobs: list[tuple[int, Job]] = []
    with tempfile.TemporaryDirectory() as folder:
        given = 0
        session = Session(Answers(Path(folder) / "answers.sqlite"), batch=20)
        session.submit = lambda job: jobs.append((given, job))
        session.hear(Loaded(table_of(data)))
        allowed = pool.numpy()
        while len(session.answers.labels) < LABELS:
            if jobs and (not session.rounds or given >= jobs[0][0] + LATE):
                job = jobs.pop(0)[1]
                candidates = np.intersect1d(job.candidates, allowed)
                session.hear(play(data, Job(job.labels, job.pending, candidates, job.size, job.train), seed=seed))
                continue
            caller = Caller(("ann", "bob")[given % 2], "1")
            page = session.next(caller)
            if page is None or page["node"] not in allowed:
                raise SystemExit("the choice was empty")
            label = int(data.y[page["node"]])
            session.answer(caller, {"node": page["node"], "kind": "label", "label": label})
            given += 1
        return torch.tensor(sorted(session.answers.labels))


def accuracy(data: Data, nodes: torch.Tensor, test: torch.Tensor) -> float:
    """Mean test accuracy of MODELS networks trained on these nodes."""
    seen = hide_labels(data, nodes, data.y[nodes])
    models = [fit_gcn(seen, nodes, Recipe(), seed=seed)[0] for seed in range(MODELS)]
    return mean(float((predictions(model, data)[test] == data.y[test]).double().mean()) for model in models)


def worth(splits: int) -> list[dict[str, Any]]:
    """Accuracy after 60 labels on Cora: the application, active.run in steps of 20, and random nodes."""
    rows, data = [], graph("cora")
    for seed in range(splits):
        split = paper_split(data, seed=seed)
        run = active.run(data, "jury-design", initial=0, budget=LABELS, step=20, seed=seed)
        drawn = split.pool[torch.randperm(len(split.pool), generator=torch.Generator().manual_seed(seed))[:LABELS]]
        ways = {"application": simulated(data, split.pool, seed), "active.run": run.labelled, "random": drawn}
        for way, nodes in ways.items():
            rows.append({"part": "worth", "way": way, "seed": seed, "accuracy": accuracy(data, nodes, split.test)})
    return rows


def summed(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over splits; for every way the mean paired difference to active.run with its standard error."""
    ways = {way: np.array([run["accuracy"] for run in runs if run["way"] == way]) for way in WAYS}
    rows = []
    for way, found in ways.items():
        beside = found - ways["active.run"]
        error = float(beside.std(ddof=1) / np.sqrt(len(beside))) if len(beside) > 1 else 0.0
        row = {"part": "worth", "way": way, "splits": len(found), "accuracy": float(found.mean())}
        rows.append({**row, "deviation": float(found.std()), "difference": float(beside.mean()), "error": error})
    return rows


def main() -> None:
    chosen = options(__doc__)
    answers = QUICK_ANSWERS if chosen.quick else ANSWERS
    rows: list[dict[str, Any]] = []
    for name in GRAPHS:
        rows.append(waiting(name, answers))
        rows += filter(None, [browser(name, answers // 3)])
    rows.append(crowd("cora", CROWD, 5 if chosen.quick else EACH))
    columns = (
        "part",
        "dataset",
        "annotators",
        "answers",
        "while_training",
        "p50",
        "p95",
        "max",
        "cpu",
        "errors",
        "lost",
    )
    cells = [[row.get(key, "") for key in columns] for row in rows]
    table("From an answer to the next node, ms; cpu: of the server, per answer", columns, cells)
    runs = worth(QUICK_SPLITS if chosen.quick else SPLITS)
    rows += summed(runs)
    cells = [[row["way"], row["splits"], f"{row['accuracy']:.3f}", f"{row['deviation']:.3f}"] for row in rows[-3:]]
    table(
        "Accuracy on 1000 test nodes of Cora after 60 labels", ("labels by", "splits", "accuracy", "deviation"), cells
    )
    save("labelling", rows, quick=chosen.quick, runs=runs, batch=BATCH, late=LATE)


if __name__ == "__main__":
    main()
