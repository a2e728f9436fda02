"""`jurygcn data list|info|fetch`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_graphs import write_planetoid
from typer.testing import CliRunner

from jurygcn.cli.data import app
from jurygcn.data import DATASETS
from jurygcn.errors import DataError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("JURYGCN_DATA", str(tmp_path))

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    return call


def test_list(run, tmp_path):
    shown = run("list")
    assert all(name in shown for name in DATASETS)
    listed = json.loads(run("list", "--json"))
    assert listed["folder"] == str(tmp_path)
    ready = {row["name"]: row["ready"] for row in listed["datasets"]}
    assert ready["karate"]
    assert not ready["cora"]
    write_planetoid(tmp_path / "Cora" / "raw", "cora")
    assert {row["name"]: row["ready"] for row in json.loads(run("list", "--json"))["datasets"]}["cora"]


def test_info(run, tmp_path):
    facts = json.loads(run("info", "karate", "--json"))
    assert (facts["nodes"], facts["edges"], facts["features"], facts["classes"]) == (34, 78, 34, 4)
    assert sum(facts["class_counts"]) == facts["labelled_nodes"] == 34
    assert facts["max_degree"] == 17
    assert "78" in run("info", "karate")
    path = tmp_path / "mine.npz"
    arrays = {"x": np.eye(4), "edge_index": [[0, 1, 1, 2], [1, 0, 2, 1]], "y": [0, 0, 1, -1]}
    np.savez(path, **arrays, train_masks=np.array([[1, 0, 0, 0], [0, 1, 0, 0]], dtype=bool))
    mine = json.loads(run("info", str(path), "--json"))
    assert mine["homophily"] == 0.5
    assert mine["isolated_nodes"] == 1
    assert mine["labelled_nodes"] == 3
    assert mine["public_split"] == {"train": [1, 1]}


def test_fetch(run, tmp_path):
    write_planetoid(tmp_path / "raw", "citeseer")
    facts = json.loads(run("fetch", "citeseer", "--json"))
    assert (facts["name"], facts["nodes"], facts["folder"]) == ("citeseer", 9, str(tmp_path))
    assert json.loads(run("fetch", "digits", "--json"))["folder"] is None
    assert "comes with the library" in run("fetch", "karate")


@pytest.mark.parametrize("command", ["info", "fetch"])
def test_unknown_name(run, command):
    with pytest.raises(DataError, match="did you mean 'cora'"):
        run(command, "corra")
