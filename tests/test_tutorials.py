"""The notebooks run, draw what they promise, and are the source of the pages in docs/tutorials."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PAGES = ROOT / "docs" / "tutorials"


@pytest.fixture(scope="module")
def tutorials() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "tools" / "tutorials.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tutorials"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_there_are_five():
    names = ["first_ten_minutes", "fraud", "labelling_campaign", "regression", "your_pyg_model"]
    assert [notebook.stem for notebook in NOTEBOOKS] == names
    assert sorted(page.stem for page in PAGES.glob("*.md")) == names


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_its_page(
    tutorials: ModuleType, notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Numbers may differ between machines in the last digit, so of the outputs only the words are compared."""
    monkeypatch.chdir(tmp_path)
    ran = list(tutorials.run(tutorials.cells_of(notebook)))
    text, pictures = tutorials.page_of(notebook.stem, ran)
    page = (PAGES / f"{notebook.stem}.md").read_text(encoding="utf-8")
    assert without_outputs(text) == without_outputs(page), f"run: python tools/tutorials.py {notebook.stem}"
    assert words_of_outputs(text) == words_of_outputs(page), f"run: python tools/tutorials.py {notebook.stem}"
    assert pictures
    assert set(pictures) == {path.name for path in PAGES.glob(f"{notebook.stem}_*.png")}
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert list(tmp_path.iterdir()) == [], "a notebook leaves no files behind"


def words_of_outputs(page: str) -> list[str]:
    outputs = re.findall(r"```text\n.*?\n```\n", page, flags=re.DOTALL)
    return sorted(word for output in outputs for word in re.findall("[a-z]{3,}", output))


def without_outputs(page: str) -> str:
    return re.sub(r"```text\n.*?\n```\n", "", page, flags=re.DOTALL)


def test_a_failing_cell_is_noticed(tutorials: ModuleType):
    with pytest.raises(ZeroDivisionError):
        list(tutorials.run([tutorials.Cell("code", "x = 1\nx / 0")]))


def test_outputs_in_a_notebook_are_refused(tutorials: ModuleType, tmp_path: Path):
    document = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    code = next(cell for cell in document["cells"] if cell["cell_type"] == "code")
    code["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["1"]}]
    (tmp_path / "full.ipynb").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(SystemExit, match="has outputs"):
        tutorials.cells_of(tmp_path / "full.ipynb")
