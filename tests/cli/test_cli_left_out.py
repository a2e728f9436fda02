"""`jurygcn select` and `jurygcn labels check`, and what `quantify` says about left-out labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from invoke import FAST, refuses, run, run_json

from jurygcn import Jury, Recipe, load_dataset, select
from jurygcn.data import paper_split, random_labels
from jurygcn.models import fit_gcn

GRID = ("--hidden", "4", "--epochs", "5,20", "--weight-decay", "0.0005", "--dropout", "0", "--layers", "1,2")


@pytest.mark.parametrize(
    ("options", "how"),
    [((), {}), (("--leave-out", "folds", "--folds", "3"), {"leave_out": "folds", "folds": 3})],
    ids=["jurors", "three folds"],
)
def test_select_ranks_as_the_library_does(options: tuple[str, ...], how: dict[str, Any]) -> None:
    found = run_json("select", "digits", "--labels", 30, *GRID, *options)
    data = load_dataset("digits")
    nodes = random_labels(paper_split(data, seed=0).pool, 30, seed=0)
    recipes = [Recipe(4, epochs, 0.01, 5e-4, 0.0, layers) for epochs in (5, 20) for layers in (1, 2)]
    same = select(recipes, data, nodes, **how)
    assert (found["leave_out"], found["folds"]) == (same.leave_out, same.folds)
    assert found["best"] == same.best
    assert [row["candidate"] for row in found["candidates"]] == same.table["candidate"].tolist()
    assert found["candidates"][0]["log_loss"] == pytest.approx(same.table["log_loss"].iloc[0], rel=1e-5)
    assert found["train_nodes"] == nodes.tolist()


def test_select_prints_a_table_and_goes_on_from_a_folder(tmp_path: Path) -> None:
    first = run("select", "digits", "--labels", 30, *GRID, "--out", tmp_path)
    assert first.exit_code == 0, first.output
    assert "worse by" in first.stdout
    assert "is best of 4" in " ".join(first.stdout.split())
    table = pd.read_csv(tmp_path / "selection.csv")
    assert len(table) == 4
    kept = (tmp_path / "selection.jsonl").read_text()
    assert run("select", "digits", "--labels", 30, *GRID, "--out", tmp_path).exit_code == 0
    assert (tmp_path / "selection.jsonl").read_text() == kept  # nothing was measured again


def test_select_refuses_what_is_no_number() -> None:
    for option, value in (
        ("--epochs", "ten"),
        ("--layers", "0"),
        ("--dropout", "1.5"),
        ("--weight-decay", ""),
        ("--epochs", "1_0"),
        ("--hidden", "٣"),
    ):
        result = run("select", "digits", option, value)
        assert result.exit_code == 2
        assert "separated by commas" in result.stderr
    assert "jurors, folds" in refuses("select", "digits", "--leave-out", "newton")
    assert run("select", "digits", "--folds", "1").exit_code == 2
    many = ",".join(map(str, range(1, 200)))
    assert "at most 10,000 settings" in refuses("select", "digits", "--hidden", many, "--epochs", many)


def test_labels_check_finds_what_was_flipped(tmp_path: Path) -> None:
    data = load_dataset("digits")
    nodes = random_labels(paper_split(data, seed=0).pool, 80, seed=0)
    labels = data.y[nodes].clone()
    labels[:8] = (labels[:8] + 3) % 10
    file = tmp_path / "labels.csv"
    pd.DataFrame({"node": nodes.tolist(), "label": labels.tolist()}).to_csv(file, index=False)
    found = run_json("labels", "check", "digits", "--labels", file, "--out", tmp_path / "out")
    flagged = {row["node"] for row in found["flagged"]}
    assert len(flagged & set(nodes[:8].tolist())) >= 6
    table = pd.read_csv(tmp_path / "out" / "labels_check.csv")
    assert sorted(table["node"]) == nodes.tolist()
    assert table["wrong"].is_monotonic_decreasing
    spoiled = data.clone()
    spoiled.y = data.y.index_put((nodes,), labels)
    model, _ = fit_gcn(spoiled, nodes, Recipe(dropout=0.0), seed=0)
    same = Jury(model, spoiled, nodes, weight_decay=Recipe.weight_decay).fit().label_errors()
    assert [row["node"] for row in found["flagged"]] == same.flagged.tolist()
    shown = run("labels", "check", "digits", "--labels", file)
    assert "labelled nodes that speak for" in " ".join(shown.stdout.split())
    assert torch.equal(load_dataset("digits").y, data.y)


def test_labels_check_refuses_a_missing_file(tmp_path: Path) -> None:
    assert "labels.csv" in refuses("labels", "check", "digits", "--labels", tmp_path / "labels.csv")


def test_quantify_says_what_left_out_labels_say() -> None:
    found = run_json("quantify", "karate", "--labels", 12, *FAST)["left_out"]
    assert found["labels"] == 12
    assert found["interval"][0] <= found["accuracy"] <= found["interval"][1]
    assert found["temperature"] > 0
    words = " ".join(run("quantify", "karate", "--labels", 12, *FAST).stdout.split())
    assert "expected accuracy" in words
    assert "labels to check" in words
