"""Connect jurygcn to a real Label Studio: tasks in, predictions out, annotations back, the next task by score.

Needs Label Studio in an environment of its own (pip install label-studio) and jurygcn[app] in this one:

    python examples/label_studio/try_it.py --label-studio path/to/bin/label-studio

Both servers listen on this machine only, with their files in a temporary folder, and end with the script. Label Studio
refuses models on the same machine unless ML_BLOCK_LOCAL_IP=false, and webhooks unless SSRF_PROTECTION_ENABLED=false.
The script sets both, for this Label Studio only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jurygcn import active, load_dataset
from jurygcn.active.tasks import label_studio_config, label_studio_tasks

PATIENCE = 600.0  # seconds: Label Studio creates its database at the first start


class Studio:
    """A running Label Studio and a client of its API."""

    def __init__(self, program: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.address, self.token = f"http://127.0.0.1:{port}", secrets.token_hex(20)
        quiet = {"LATEST_VERSION_CHECK": "false", "COLLECT_ANALYTICS": "false", "SENTRY_RATE": "0"}
        local = dict.fromkeys(("ML_BLOCK_LOCAL_IP", "SSRF_PROTECTION_ENABLED"), "false")
        local["LABEL_STUDIO_ENABLE_LEGACY_API_TOKEN"] = "true"
        user = ("--username", "ann@example.com", "--password", secrets.token_hex(8), "--user-token", self.token)
        where = ("--host", "127.0.0.1", "--internal-host", "127.0.0.1", "--port", str(port))
        self.log = (folder / "label-studio.log").open("w")
        self.process = subprocess.Popen(
            [program, "start", "--no-browser", *where, "--data-dir", str(folder / "studio"), *user],
            env={**os.environ, **quiet, **local, "DJANGO_DB": "sqlite"},
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        wait_for(lambda: self.ask("GET", "/api/version") is not None, "Label Studio")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The reply of the API; None while the server does not answer."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Token {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.loads(reply.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error
        except OSError:
            if self.process.poll() is not None:
                raise SystemExit(f"Label Studio ended; see {self.log.name}") from None
            return None


def wait_for(done: Callable[[], bool], what: str) -> None:
    """Wait until ``done``."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not get ready")
        time.sleep(0.5)


def main() -> None:
    """Run both servers and report what each step shows."""
    parser = argparse.ArgumentParser(description="Try jurygcn with a real Label Studio.")
    parser.add_argument("--label-studio", default="label-studio", help="The program of Label Studio.")
    parser.add_argument("--graph", default="cora")
    parser.add_argument("--labels", type=int, default=20)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="jurygcn-label-studio-"))
    graph = load_dataset(given.graph)
    words = [str(word) for word in getattr(graph, "class_names", None) or range(int(graph.num_classes))]
    tasks = label_studio_tasks(active.next_tasks(graph, {}, batch=3 * given.labels))

    command = [sys.executable, "-m", "jurygcn", "label-studio", given.graph, "--port", "0", "--batch", "10"]
    backend = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    processes = [backend]
    try:
        found = re.search(r"http://\S+", backend.stdout.readline() if backend.stdout else "")
        if found is None:
            raise SystemExit("jurygcn label-studio did not start")
        model = found[0]
        studio = Studio(given.label_studio, folder)
        processes.append(studio.process)
        print("Label Studio", studio.ask("GET", "/api/version").get("release", "?"))
        settings = {
            "title": "jurygcn",
            "label_config": label_studio_config(graph),
            "sampling": "Uncertainty sampling",
            "show_collab_predictions": True,
        }
        project = studio.ask("POST", "/api/projects", settings)["id"]
        studio.ask("POST", f"/api/projects/{project}/import", tasks)
        wait_for(lambda: _predicts(model, tasks), "the model")
        connected = studio.ask("POST", "/api/ml", {"url": model, "project": project, "title": "jurygcn"})
        print("connected:", connected.get("state", connected))
        hook = {"project": project, "url": f"{model}webhook", "send_payload": True, "send_for_all_actions": True}
        studio.ask("POST", "/api/webhooks/", hook)

        for step in range(given.labels):
            if step % 10 == 0:
                _retrieve(studio, project)
            task = studio.ask("GET", f"/api/projects/{project}/next/")
            node = int(task["data"]["node"])
            choice = {"choices": [words[int(graph.y[node])]]}
            result = [{"from_name": "label", "to_name": "text", "type": "choices", "value": choice}]
            studio.ask("POST", f"/api/tasks/{task['id']}/annotations", {"result": result})
        time.sleep(5)
        newest = _retrieve(studio, project)
        listed = studio.ask("GET", f"/api/tasks?project={project}&page_size=200&fields=all")["tasks"]
        versions = {p.get("model_version") for task in listed for p in task["predictions"]}
        guesses = [(t, p) for t in listed for p in t["predictions"] if p["model_version"] == newest and p["result"]]
        right = sum(
            p["result"][0]["value"]["choices"] == [words[int(graph.y[int(t["data"]["node"])])]] for t, p in guesses
        )
        print(f"{len(listed)} tasks, {sum(bool(t['annotations']) for t in listed)} annotated")
        print(f"model versions: {sorted(map(str, versions))}")
        print(f"predictions: {len(guesses)}, right: {right}")
        low = sorted((p["score"], t["data"]["node"]) for t, p in guesses if not t["annotations"])[:3]
        task = studio.ask("GET", f"/api/projects/{project}/next/")
        print(f"lowest scores of unlabelled tasks: {low}; the next task is node {task['data']['node']}")
        backend.send_signal(signal.SIGINT)
        backend.wait(30)
        exported = folder / "tasks.json"
        subprocess.run([*command[:3], "label", given.graph, "--export", exported.name], cwd=folder, check=True)
        other = studio.ask("POST", "/api/projects", {**settings, "title": "imported"})["id"]
        studio.ask("POST", f"/api/projects/{other}/import", json.loads(exported.read_text()))
        found = studio.ask("GET", f"/api/projects/{other}")
        print(f"our export, imported: {found['task_number']} tasks, {found['total_annotations_number']} annotations")
    finally:
        for process in processes:
            process.terminate()
            process.wait(30)
    print(f"The files are in {folder}")


def _predicts(model: str, tasks: list[dict[str, Any]]) -> bool:
    """Whether the model has loaded its graph."""
    body = json.dumps({"tasks": tasks[:1]}).encode()
    request = urllib.request.Request(f"{model}predict", body, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=10)
    except urllib.error.URLError:
        return False
    return True


def _retrieve(studio: Studio, project: int) -> str:
    """Let Label Studio ask the model about all tasks, and use the newest version of the model; returns it."""
    every = {"selectedItems": {"all": True, "excluded": []}, "ordering": []}
    studio.ask("POST", f"/api/dm/actions?id=retrieve_tasks_predictions&project={project}", every)
    listed = studio.ask("GET", f"/api/tasks?project={project}&page_size=200&fields=all")["tasks"]
    newest = max((p for task in listed for p in task["predictions"]), key=lambda p: p["id"])["model_version"]
    studio.ask("PATCH", f"/api/projects/{project}", {"model_version": newest})
    return str(newest)


if __name__ == "__main__":
    main()
