"""Names that want to be formulas, markup or terminal commands: in CSV files, on the screen, in a page."""

from __future__ import annotations

import csv
import io
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from typer.testing import CliRunner

from jurygcn.active.labels import read_labels, write_labels
from jurygcn.cli import app
from jurygcn.cli.nodes import read_any_nodes
from jurygcn.cli.output import write_csv
from jurygcn.cli.reporting import say, shown, visible
from jurygcn.data import load_dataset
from jurygcn.io.spreadsheet import as_csv, quoted, unquoted

FORMULAS = ["=1+1", "+1", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1", "－1", "＠x", '=HYPERLINK("x")']
HARMLESS = ["plain", "a=b", "'tis", "''", "", "1e5", "<b>bold</b>", "ä, b", 'say "x"']
STEERING = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x08\x08", "\u202e", "\u2028", "\ud800"]
MARKUP = ["[red]", "[/red]", "[link=x]y[/link]", "[/]", "\\[bold]"]


# --- spreadsheets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_quoted(text):
    assert quoted(text) == f"'{text}"
    assert unquoted(quoted(text)) == text


@pytest.mark.parametrize("cell", [*HARMLESS, -1, -0.5, None, True])
def test_everything_else_is_left_alone(cell):
    assert quoted(cell) is cell


tricky = st.text(alphabet="'=+-@\t\r\n＝ax\"", max_size=6) | st.text(max_size=8)


@given(tricky)
@settings(max_examples=500, deadline=None)
def test_quoting_can_be_undone(text):
    assert unquoted(quoted(text)) == text
    assert re.match(r"[=+\-@\t\r\n＝＋－＠]", quoted(text)) is None


@given(tricky, tricky)
@settings(max_examples=500, deadline=None)
def test_different_texts_stay_different(one, other):
    assert (quoted(one) == quoted(other)) == (one == other)


@given(st.lists(st.text(alphabet="'=+-@\t\r\n,\"; ax", min_size=1, max_size=6), min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_csv_text_round_trips(cells):
    rows = list(csv.reader(io.StringIO(as_csv(["c"] * len(cells), [cells]), newline="")))
    assert [unquoted(cell) for cell in rows[1]] == cells


def hostile_graph(count: int = 12) -> Data:
    names = [*FORMULAS, *(f"'{text}" for text in FORMULAS)][: count - 1] + ["x"]
    return Data(
        x=torch.eye(count),
        edge_index=torch.stack([torch.arange(count), torch.arange(count).roll(1)]),
        y=torch.arange(count) % 3,
        node_names=names,
        class_names=["=CMD()", "'=CMD()", "-"],
        num_classes=3,
        name="g",
    )


def test_labels_round_trip(tmp_path):
    data, path = hostile_graph(), tmp_path / "labels.csv"
    labels = {node: node % 3 for node in range(12)}
    write_labels(path, labels, data)
    assert not re.search(r"(^|,)\"?[=+\-@]", path.read_text())
    nodes, kinds = read_labels(path, data)
    assert dict(zip(nodes.tolist(), kinds.tolist())) == labels


def test_names_written_by_us_are_found_again(tmp_path):
    data, path = hostile_graph(20), tmp_path / "names.csv"
    write_csv(pd.DataFrame({"name": data.node_names, "score": np.linspace(-1, 1, 20)}))(path)
    rows = path.read_text().splitlines()
    assert any(row.endswith(",-1.0") for row in rows), "numbers keep their sign"
    with path.open(newline="") as file:
        written = [row["name"] for row in csv.DictReader(file)]
    assert [unquoted(name) for name in written] == data.node_names
    chosen = [node for node, name in enumerate(data.node_names) if name == name.strip() and "\r" not in name]
    path.write_text(as_csv(["name"], [[data.node_names[node]] for node in chosen]))
    assert read_any_nodes(path, data, "--candidates").tolist() == chosen


# --- the terminal ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [*STEERING, *MARKUP])
def test_text_cannot_steer_the_terminal(text, capsys):
    say(f"Error: a{text}b")
    printed = capsys.readouterr().err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028\ud800]", printed)
    assert visible("ä – 漢字 🙂 a\nb") == "ä – 漢字 🙂 a\\x0ab"
    assert shown("[red]\x1b") == "\\[red]\\x1b"


@pytest.fixture
def rude(tmp_path):
    """A graph whose folder, nodes and classes have rude names."""
    folder = tmp_path / "g[red]\x1b[31m"
    folder.mkdir()
    names = ["a\x1b[2Jb", "[/bold]c", "d\x07", "e", "f", "h\u202e", "i", "j"]
    kinds = ["up[/i]\x1b[31m", "down\x1b]0;x\x07"]
    rows = [f"{name},{node % 2},{1 - node % 2},{kinds[node % 2]}" for node, name in enumerate(names)]
    (folder / "nodes.csv").write_text("\n".join(["id,f1,f2,label", *rows]) + "\n", encoding="utf-8")
    pairs = [f"{a},{b}" for one, two in pairwise(names) for a, b in ((one, two), (two, one))]
    (folder / "edges.csv").write_text("\n".join(["source,target", *pairs]) + "\n", encoding="utf-8")
    return folder


FAST = ("--epochs", "3", "--hidden", "2")


@pytest.mark.parametrize(
    "command",
    [
        ("data", "info", "{graph}"),
        ("train", "{graph}", "--labels", "4", *FAST),
        ("train", "{graph}", "--labels", "4", "--method", "ensemble", "--epochs", "2", "--out", "{graph}/out"),
        ("quantify", "{graph}", "--labels", "4", *FAST, "--out", "{graph}/out", "--report", "{graph}/page.html"),
        ("doctor", "{graph}", "--labels", "4", *FAST, "--retrain", "0"),
        ("why", "{graph}", "0", "--labels", "4", *FAST),
        ("evaluate", "{graph}", "--labels", "2", "--splits", "1", "--methods", "jury", "--no-left-out"),
        ("active", "next", "{graph}", "--labels", "{labels}", "--batch", "2", *FAST, "--out", "{graph}/tasks.json"),
        ("active", "add", "{graph}", "--labels", "{graph}/l.csv", "--answers", "{labels}"),
        ("active", "run", "{graph}", "--initial", "2", "--budget", "3", "--step", "1", *FAST, "--oracle", "terminal"),
        ("data", "info", "{graph}/nothing"),
        ("quantify", "{graph}", "--train-nodes", "{graph}/nodes.csv"),
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_no_command_passes_rude_names_on(rude, tmp_path, command):
    labels = tmp_path / "labels.csv"
    write_labels(labels, {0: 0, 1: 1}, load_dataset(rude))
    words = [word.replace("{graph}", str(rude)).replace("{labels}", str(labels)) for word in command]
    result = CliRunner().invoke(app, words, input="0\n1\n" * 5)
    assert result.exit_code in (0, 2), result.output
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", result.output)
    assert "unexpected" not in result.output


def test_pages_of_rude_graphs_hold_no_markup(rude, tmp_path):
    page = tmp_path / "page.html"
    (rude / "nodes.csv").write_text((rude / "nodes.csv").read_text().replace("up[/i]", "<img src=x onerror=alert(1)>"))
    words = ["quantify", str(rude), "--labels", "4", *FAST, "--report", str(page)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert "<img" not in page.read_text(encoding="utf-8")
