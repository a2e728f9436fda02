"""The numbers in README.md, docs/results.md and docs/reliability.md are those that the benchmarks measured."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "number_tables.py"
PAGES = ("README.md", "docs/results.md")
OTHERS = ("docs/reliability.md", "docs/figures/headline.png")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The script as a module; its folder is on the path only while it is imported."""
    spec = importlib.util.spec_from_file_location("number_tables", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Pages, picture, scripts and results, to be spoilt."""
    for name in (*PAGES, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def without(root: Path, name: str) -> Path:
    (root / "benchmarks" / "results" / f"{name}.json").unlink(missing_ok=True)
    return root


def test_the_pages_show_the_results():
    run = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("page", PAGES)
def test_an_altered_number_is_caught(script: ModuleType, copy: Path, page: str, capsys: pytest.CaptureFixture):
    path = copy / page
    text = path.read_text(encoding="utf-8")
    start = text.index("<!-- numbers -->")
    altered = re.sub(r"\b0\.(\d)(\d\d)\b", lambda m: f"0.{(int(m[1]) + 1) % 10}{m[2]}", text[start:], count=1)
    assert altered != text[start:]
    path.write_text(text[:start] + altered, encoding="utf-8")
    assert script.main(["--check"], copy) == 1
    assert page in capsys.readouterr().out
    assert path.read_text(encoding="utf-8") == text[:start] + altered, "a check writes nothing"
    assert script.main(["--quick"], copy) == 0, "the quick form only says so"
    assert script.main([], copy) == 0
    assert path.read_text(encoding="utf-8") == text


def test_altered_results_are_caught(script: ModuleType, copy: Path, capsys: pytest.CaptureFixture):
    path = copy / "benchmarks" / "results" / "label_sets.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for row in document["rows"]:
        row["coverage"] *= 0.9
    path.write_text(json.dumps(document), encoding="utf-8")
    assert script.main(["--check"], copy) == 1
    said = capsys.readouterr().out
    assert all(name in said for name in (*PAGES, "headline.png")), "the picture is old as well"


def test_the_same_results_give_the_same_pages(script: ModuleType, copy: Path):
    texts = [(copy / page).read_bytes() for page in PAGES]
    for _ in range(2):
        assert script.main([], copy) == 0
        assert [(copy / page).read_bytes() for page in PAGES] == texts
    assert script.main(["--check"], copy) == 0


@pytest.mark.parametrize("name", ["any_gnn", "regression"])
def test_a_result_may_be_missing(script: ModuleType, copy: Path, name: str):
    assert script.main([], without(copy, name)) == 0
    assert f"`benchmarks/{name}.py`" not in (copy / "docs/results.md").read_text(encoding="utf-8")
    assert script.main(["--check"], copy) == 0


def test_other_models_appear_once_measured(script: ModuleType, copy: Path):
    keys = ("influence_correlation", "newton_correlation", "influence_error", "newton_error", "retrained_error")
    row = {"graph": "digits", "model": "GAT", "accuracy": 0.75, "gradient": 1e-4, **dict.fromkeys(keys, 0.987)}
    environment = json.loads((copy / "benchmarks/results/fidelity.json").read_text(encoding="utf-8"))["environment"]
    document = {"benchmark": "any_gnn", "weight_decay": 0.005, "schedule": [[0.01, 400]], "environment": environment}
    path = copy / "benchmarks" / "results" / "any_gnn.json"
    path.write_text(json.dumps({**document, "rows": [row]}), encoding="utf-8")
    assert script.main([], copy) == 0
    assert "GAT 0.987" in (copy / "README.md").read_text(encoding="utf-8")
    assert "| GAT, digits | 0.750 | 1.0e-04 | 0.987 |" in (copy / "docs/results.md").read_text(encoding="utf-8")


def test_no_script_hides_a_module_of_python():
    """Scripts find their own folder first: a file called numbers.py there would break every import of `numbers`."""
    names = {path.stem for path in (ROOT / "benchmarks").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert names & set(sys.stdlib_module_names) == set()
