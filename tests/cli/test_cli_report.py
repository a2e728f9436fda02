"""From the shell to the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from invoke import FAST, refuses, run, run_json

from jurygcn.cli import trained_model

QUANTIFY = ("quantify", "karate", *FAST)


def test_from_a_folder(tmp_path: Path):
    results = tmp_path / "results"
    assert run(*QUANTIFY, "--out", results).exit_code == 0
    result = run("report", results)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"Wrote {results / 'report.html'}\n"
    page = (results / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "Verdict on karate" in page
    assert "The relative gradient is" in page  # health was examined
    elsewhere = run_json("report", results / "report.json", "--out", tmp_path / "new" / "page.html")
    assert elsewhere["files"] == [str(tmp_path / "new" / "page.html")]
    assert (tmp_path / "new" / "page.html").read_text(encoding="utf-8") == page


def test_quantify_writes_the_page(tmp_path: Path):
    page = tmp_path / "page.html"
    result = run(*QUANTIFY, "--report", page, "--retrain", 2)
    assert result.exit_code == 0, result.output
    assert f"Wrote {page}" in result.stdout
    assert "2 jurors were retrained for comparison." in page.read_text(encoding="utf-8")
    assert "correlation" in result.stdout  # and the doctor's report is printed
    assert "were not compared" not in result.stdout  # the claim follows what was measured
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert run_json(*QUANTIFY, "--votes", "linearized", "--report", page)["files"] == [str(page)]
    assert "were not computed" in page.read_text(encoding="utf-8")


def test_the_page_is_about_the_test_nodes(tmp_path: Path):
    shown = run_json(*QUANTIFY, "--out", tmp_path)
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    tiles = {tile["what"]: tile["value"] for tile in content["headline"]}
    assert tiles["Coverage"] == f"{100 * shown['test']['set_coverage']:.1f}".removesuffix(".0") + " %"
    assert shown["files"] == [str(tmp_path / name) for name in ("verdict.csv", "report.json", "run.json")]


def test_demo_writes_the_page(tmp_path: Path, monkeypatch):
    real = trained_model.load_graph
    monkeypatch.setattr(trained_model, "load_graph", lambda name: real("karate"))
    monkeypatch.setattr(trained_model, "DEFAULT_LABELS", 10)
    page = tmp_path / "demo.html"
    result = run("demo", "--report", page)
    assert result.exit_code == 0, result.output
    assert f"Wrote {page}" in result.stdout
    assert "Verdict on karate" in page.read_text(encoding="utf-8")


def test_refusals(tmp_path: Path):
    assert "quantify --out" in refuses("report", tmp_path)
    assert "quantify --out" in refuses("report", tmp_path / "nothing")
    (tmp_path / "report.json").write_text("{}")
    assert "write it again" in refuses("report", tmp_path)
    assert "got the folder" in refuses(*QUANTIFY, "--report", tmp_path)
    assert "no permission in" in refuses(*QUANTIFY, "--report", tmp_path / "report.json" / "page.html")
    assert "no HTML page" in refuses(*QUANTIFY, "--report", tmp_path / "report.json")
    assert (tmp_path / "report.json").read_text() == "{}"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_writing_the_page_does_not_wait_for_torch(tmp_path: Path):
    """Importing torch and PyG takes seconds; the page of saved results needs neither."""
    assert run(*QUANTIFY, "--out", tmp_path).exit_code == 0
    code = (
        "import sys; from jurygcn.cli import app; app(['report', sys.argv[1]], standalone_mode=False); "
        "print(sorted({'torch', 'torch_geometric', 'pandas', 'sklearn'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "report.html").exists()
