"""What the pages show runs, and where they point there is something."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import jurygcn
from jurygcn import GCN, Jury, load_dataset

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

FENCE = re.compile(r"^( *)```python\n(.*?)^\1```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FROM_INDEX = re.compile(r'"(cora|citeseer|pubmed)"')


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str) -> list[tuple[int, str]]:
    """Line number and code of every python block."""
    return [(text[: match.start()].count("\n") + 1, match[2]) for match in FENCE.finditer(text)]


def pages_with_code() -> list:
    """Every page that has python blocks; those that fetch a real graph carry the mark `data`."""
    found = []
    for page in PAGES:
        if page.parent.name == "tutorials":  # test_tutorials.py runs their notebooks
            continue
        code = "".join(block for _, block in blocks(page.read_text(encoding="utf-8")))
        if code:
            marks = [pytest.mark.data] if FROM_INDEX.search(code) else []
            found.append(pytest.param(page, id=short(page), marks=marks))
    return found


@pytest.mark.parametrize("page", pages_with_code())
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In order and in one namespace, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "__docs__"}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        exec(compile("\n" * line + code, short(page), "exec"), namespace)


def test_the_names_of_the_notation_exist():
    data = load_dataset("karate")
    nodes = [0, 8, 16, 24, 33]
    model = GCN(data.num_features, 4, data.num_classes)
    jury = Jury(model, data, nodes, weight_decay=5e-4).fit()
    known = {"engine": jury.engine, "jury": jury, "verdict": jury.verdict([0]), "ClosedForm": jury.engine.theorem_1()}
    page = (ROOT / "docs" / "notation.md").read_text(encoding="utf-8")
    named = [(owner, name) for owner, name in re.findall(r"`(\w+)\.(\w+)", page) if owner in known]
    assert len(named) > 20
    assert [f"{owner}.{name}" for owner, name in named if not hasattr(known[owner], name)] == []


def test_the_main_pages_show_code():
    shown = {param.id for param in pages_with_code()}
    assert {"README.md", "docs/index.md", "docs/choosing_a_score.md", "docs/errata.md"} <= shown


@pytest.mark.parametrize("path", EXAMPLES, ids=short)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) >= 3
    assert list(tmp_path.iterdir()) == [], "an example leaves no files behind"


def test_there_are_examples():
    assert {"quickstart.py", "own_model.py", "regression.py"} <= {path.name for path in EXAMPLES}


# --- links ---------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+\s+(.+?)\s*$", prose, flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead to no file or no heading."""
    broken = []
    for target in LINK.findall(re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or not there.is_relative_to(ROOT):
            broken.append(target)
        elif anchor and there.suffix == ".md":
            known = anchors(text if there == page else there.read_text(encoding="utf-8"))
            broken += [target] if anchor not in known else []
    return broken


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_links_resolve(page: Path):
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_caught():
    page = ROOT / "README.md"
    text = "# A title\n[a](gone.md) [b](#a-title) [c](#nowhere) [d](https://example.org) [e](docs/index.md#nowhere)"
    assert broken_links(page, text) == ["gone.md", "#nowhere", "docs/index.md#nowhere"]


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f"{page.name}\n" not in navigation]
    assert missing == []


def test_the_reference_has_every_public_name():
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = set(jurygcn.__all__) - {"__version__"}
    assert [name for name in names if f"::: jurygcn.{name}\n" not in reference] == []


def test_the_site_builds_without_warnings(tmp_path: Path):
    """Strict, and not --quiet: that would hide the warnings from strict mode as well."""
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    pages = {page: page.read_text(encoding="utf-8") for page in (tmp_path / "site").glob("*.html")}
    assert len(pages) > 5
    fetched = r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//[^"]+"'
    assert [link for text in pages.values() for link in re.findall(fetched, text)] == [], "the site works offline"


@pytest.mark.parametrize("page", PAGES, ids=short)
def test_pages_name_no_machine(page: Path):
    """No path of somebody's computer, no local address."""
    text = page.read_text(encoding="utf-8")
    folders = "|".join(f"/{name}/" for name in ("home", "Users", "root", "work", "tmp"))
    assert re.findall(rf"(?:{folders}|localhost|127\.0\.0\.1|[A-Z]:\\\\)\S*", text) == []
