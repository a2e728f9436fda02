"""`jurygcn quantify --out`: interrupted and run again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import torch
from invoke import FAST, refuses, run

from jurygcn.conformal import resuming as record_module
from jurygcn.conformal.counts import Counts
from jurygcn.conformal.exact import ExactCounter

QUANTIFY = ("quantify", "karate", "--labels", 12, *FAST, "--memory", "1B")


def test_quantify_resumes(tmp_path: Path, monkeypatch):
    count, heard = ExactCounter.count, []
    monkeypatch.setattr(record_module, "SHARE", 1.0)  # keep every batch, however short

    def interrupted(counter: ExactCounter, jurors: torch.Tensor) -> Counts:
        heard.extend(jurors.tolist())
        if heard == [0, 1, 2, 3, 4, 5]:
            raise KeyboardInterrupt
        return count(counter, jurors)

    monkeypatch.setattr(ExactCounter, "count", interrupted)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    result = run(*QUANTIFY, "--out", broken)
    assert result.exit_code == 130
    assert "Interrupted" in result.stderr
    assert [path.name for path in broken.iterdir()] == [".batches"]
    assert run(*QUANTIFY, "--out", broken).exit_code == 0
    assert heard == [*range(6), *range(5, 12)]
    assert run(*QUANTIFY, "--out", whole).exit_code == 0
    assert sorted(path.name for path in broken.iterdir()) == ["report.json", "run.json", "verdict.csv"]
    assert (broken / "verdict.csv").read_bytes() == (whole / "verdict.csv").read_bytes()


def test_quantify_on_processes(tmp_path: Path):
    for where, name in ((2, "two"), ("serial", "one")):
        assert run(*QUANTIFY, "--out", tmp_path / name, "--parallel", where).exit_code == 0
    two, one = (pd.read_csv(tmp_path / name / "verdict.csv") for name in ("two", "one"))
    pd.testing.assert_frame_equal(two, one, rtol=1e-5)


def test_places_that_are_refused():
    assert "dask://host:port" in refuses("quantify", "karate", "--parallel", "everywhere")
    assert "2GB" in refuses("quantify", "karate", "--memory", "lots")
