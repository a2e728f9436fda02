"""The commands `label` and `label-studio`: refusals, exports, the way to other commands."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest
from annotators import CLASSES, Server, in_thread, truth, write_graph
from typer.testing import CliRunner, Result

from jurygcn.app.rounds import Source
from jurygcn.app.server import Settings
from jurygcn.app.store import Answer, Answers
from jurygcn.cli import app

WORDS = ",".join(CLASSES)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


@pytest.fixture
def folder(tmp_path):
    return write_graph(tmp_path / "graph")


@pytest.mark.parametrize("command", ["label", "label-studio"])
def test_another_host_needs_a_second_flag(command, folder):
    said = refused(command, folder, "--host", "0.0.0.0")
    assert "expected --share beside --host 0.0.0.0" in said
    assert "nothing is encrypted" in said


@pytest.mark.parametrize("package", ["uvicorn", "starlette"])
def test_missing_packages_are_one_sentence(folder, monkeypatch, package):
    for name in [name for name in sys.modules if name.startswith(("jurygcn.app.", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'jurygcn[app]'" in refused("label", folder, "--no-browser")


def test_a_port_that_is_taken(folder):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another --port" in refused("label", folder, "--port", taken.getsockname()[1], "--no-browser")


def test_a_graph_without_classes_ends_the_server(tmp_path, folder):
    """The address is printed before the graph is loaded; then the program ends with a sentence."""
    served = Server("-m", "jurygcn", "label", str(folder), "--no-browser", cwd=tmp_path)
    _, said = served.process.communicate(timeout=120)
    assert served.process.returncode == 2
    assert said.startswith("Error: expected at least two different classes")
    assert said.count("\n") == 1
    assert not (folder / "answers.sqlite").exists()


def test_a_second_server_for_the_same_file_is_refused(folder, tmp_path):
    file = tmp_path / "answers.sqlite"
    light = str(__file__).replace("test_cli_label", "light_server")
    server = Server(light, str(file), "10", "0", cwd=tmp_path)
    try:
        assert "no other process" in refused("label", folder, "--answers", file, "--no-browser")
    finally:
        server.kill()


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("command", "name", "code"), [("label", "SIGINT", 0), ("label", "SIGTERM", 143), ("label-studio", "SIGINT", 130)]
)
def test_ctrl_c_is_the_way_to_end(command, name, code, early, folder, tmp_path):
    """At once or when the graph is loaded; it says where the answers are. SIGTERM ends with one word, as elsewhere."""
    port = ("--port", "0", *["--no-browser"] * (command == "label"))
    served = Server("-m", "jurygcn", command, str(folder), "--classes", WORDS, *port, cwd=tmp_path)
    if not early and command == "label":
        client = served.client()
        while client.post("next")[0] != 200:
            time.sleep(0.2)
    served.process.send_signal(getattr(signal, name))
    out, errors = served.process.communicate(timeout=60)
    last = f"Ended. Answers are saved in {folder / 'answers.sqlite'}; the same command goes on."
    assert served.process.returncode == code
    assert errors == {0: "", 130: "Interrupted\n", 143: "Terminated\n"}[code]
    assert (out.splitlines()[-1:] == [last]) == (code == 0)


def answered(path, count: int = 40) -> None:
    answers = Answers(path)
    answers.bind({"classes": list(CLASSES)})
    for node in range(count):
        answers.record(Answer(node, "ann", "label", truth(node)))
    answers.close()


def test_exports_are_read_by_the_other_commands(folder, tmp_path):
    answered(folder / "answers.sqlite")
    labels, tasks = tmp_path / "labels.csv", tmp_path / "tasks.json"
    for out in (labels, tasks):
        result = run("label", folder, "--export", out)
        assert result.exit_code == 0, result.output
        assert str(out) in result.stdout.replace("\n", "")
    result = run("quantify", folder, "--train-nodes", labels, "--epochs", 30, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["chosen"] == "actively"
    assert len(found["train_nodes"]) == 40
    page = tmp_path / "page.html"
    assert run("quantify", folder, "--train-nodes", labels, "--epochs", 30, "--report", page).exit_code == 0
    assert "chosen actively" in page.read_text()
    again = tmp_path / "again.csv"
    result = run("active", "add", folder, "--classes", WORDS, "--answers", tasks, "--labels", again)
    assert result.exit_code == 0, result.output
    assert again.read_text() == labels.read_text()


def test_label_studios_export_can_be_the_start(folder, tmp_path):
    answered(folder / "answers.sqlite")
    tasks, other = tmp_path / "tasks.json", tmp_path / "other.sqlite"
    assert run("label", folder, "--export", tasks).exit_code == 0
    Answers(other).close()
    labels = tmp_path / "labels.csv"
    result = run("label", folder, "--classes", WORDS, "--labels", tasks, "--answers", other, "--export", labels)
    assert result.exit_code == 0, result.output
    assert len(labels.read_text().splitlines()) == 41


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--export", "labels.txt"), "a .csv or .json file"),
        (("--export", "labels.csv", "--answers", "nowhere.sqlite"), "expected a file of answers"),
        (("--export", "labels.csv", "--classes", "x,y"), "belong to this graph"),
    ],
)
def test_exports_that_are_refused(folder, options, words, monkeypatch):
    monkeypatch.chdir(folder.parent)
    answered(folder / "answers.sqlite", 5)
    assert words in refused("label", folder, *options)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("graph/nodes.csv", None, "got the graph's table"),
        ("graph/edges.csv", None, "got the graph's table"),
        ("table.csv", "node,label,size\n1,alpha,3\n", "got one with the columns node, label, size"),
        ("tasks.json", '[{"data": {"node": 1, "score": 2}}]', "got one with other tasks or answers"),
        ("export.json", '[{"id": 7, "data": {"node": 1, "answers": []}}]', "got one with other tasks or answers"),
        ("other.json", "{", "got other content"),
    ],
)
def test_an_export_replaces_no_other_file(folder, name, text, words):
    answered(folder / "answers.sqlite", 5)
    out = folder.parent / name
    if text is not None:
        out.write_text(text)
    before = out.read_bytes()
    assert words in refused("label", folder, "--export", out)
    assert out.read_bytes() == before


@pytest.mark.parametrize(("count", "words"), [(0, "0 labels so far"), (1, "1 label so far"), (5, "5 labels so far")])
@pytest.mark.parametrize("name", ["labels.csv", "tasks.json"])
def test_an_export_says_how_many_labels_there_are(folder, tmp_path, count, words, name):
    answered(folder / "answers.sqlite", count)
    result = run("label", folder, "--export", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == words


def test_an_export_replaces_an_earlier_one(folder, tmp_path):
    answered(folder / "answers.sqlite", 5)
    for name in ("labels.csv", "tasks.json"):
        for _ in range(2):
            assert run("label", folder, "--export", tmp_path / name).exit_code == 0


def test_label_studio_backend(folder):
    """The protocol over HTTP, with the real worker; browsers are refused."""
    settings = Settings(Source(str(folder), classes=CLASSES), folder / "answers.sqlite")
    with in_thread(settings, for_label_studio=True) as server:
        client, headers = server.client(), {"Content-Type": "application/json"}
        status, text, _ = client.send("GET", "health")
        assert status == 200
        assert json.loads(text)["status"] == "UP"
        assert client.send("GET", "health", headers={"Origin": "http://127.0.0.1"})[0] == 403
        tasks = [{"id": node, "data": {"node": node}} for node in range(30)]

        def predict() -> tuple[int, dict]:
            status, text, _ = client.send("POST", "predict", json.dumps({"tasks": tasks}).encode(), headers)
            return status, json.loads(text)

        while predict()[0] == 409:
            time.sleep(0.2)
        for node in range(20):
            result = [{"type": "choices", "value": {"choices": [CLASSES[truth(node)]]}}]
            event = {"action": "ANNOTATION_CREATED", "task": tasks[node], "annotation": {"id": node, "result": result}}
            assert client.send("POST", "webhook", json.dumps(event).encode(), headers)[0] == 200
        deadline = time.monotonic() + 60
        while not all(entry["result"] for entry in predict()[1]["results"]):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert json.loads(client.send("POST", "setup", b"{}", headers)[1])["model_version"].startswith("jurygcn-")
        assert client.send("POST", "train", b"{}", headers)[0] == 200
        assert client.send("POST", "other", b"{}", headers)[0] == 400
        assert json.loads(client.send("GET", "versions")[1])["versions"]
