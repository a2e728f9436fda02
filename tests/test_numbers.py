"""The tables in README.md, docs/results/ and docs/reliability.md show what the benchmarks measured."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "number_tables.py"
PAGES = ("README.md", "docs/results/label_sets.md")
PICTURES = ("errors", "expected_accuracy", "label_sets", "labelling")
OTHERS = ("docs/reliability.md", *(f"docs/figures/{name}.png" for name in PICTURES))


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
    for name in (PAGES[0], *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    shutil.copytree(ROOT / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_pages_show_the_results(script: ModuleType, capsys: pytest.CaptureFixture):
    assert script.main(["--check"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_an_altered_number_is_caught(script: ModuleType, copy: Path, page: str, capsys: pytest.CaptureFixture):
    path = copy / page
    text = path.read_text(encoding="utf-8")
    start = text.index("<!-- table: ")
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
    assert all(name in said for name in (*PAGES, "figures/label_sets.png")), "the picture is old as well"


def test_the_same_results_give_the_same_pages(script: ModuleType, copy: Path):
    texts = [(copy / page).read_bytes() for page in PAGES]
    for _ in range(2):
        assert script.main([], copy) == 0
        assert [(copy / page).read_bytes() for page in PAGES] == texts
    assert script.main(["--check"], copy) == 0


def test_text_between_tables_stays(script: ModuleType, copy: Path):
    path = copy / "docs/results/label_sets.md"
    text = path.read_text(encoding="utf-8").replace("## Label sets\n", "## Label sets\n\nA sentence by hand.\n")
    path.write_text(text, encoding="utf-8")
    assert script.main(["--check"], copy) == 0
    assert script.main([], copy) == 0
    assert path.read_text(encoding="utf-8") == text


def test_a_table_without_a_result_is_named(script: ModuleType, copy: Path):
    (copy / "benchmarks/results/any_gnn.json").unlink()
    with pytest.raises(SystemExit, match=r"any_gnn\.$"):
        script.main([], copy)


def test_a_table_without_a_place_or_with_two_is_named(script: ModuleType, copy: Path):
    path = copy / "docs/results/labelling.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("<!-- table: bandits -->", "<!-- table: fidelity -->"), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"bandits, fidelity\.$"):
        script.main(["--check"], copy)


def test_a_new_row_appears(script: ModuleType, copy: Path):
    path = copy / "benchmarks" / "results" / "any_gnn.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["rows"][0] |= {"model": "Another", "graph": "digits", "accuracy": 0.75, "gradient": 1e-4}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert script.main([], copy) == 0
    assert "| Another, digits | 0.750 | 1.0e-04 |" in (copy / "docs/results/jurors.md").read_text(encoding="utf-8")


def test_no_script_hides_a_module_of_python():
    """Scripts find their own folder first: a file called numbers.py there would break every import of `numbers`."""
    names = {path.stem for path in (ROOT / "benchmarks").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert names & set(sys.stdlib_module_names) == set()
