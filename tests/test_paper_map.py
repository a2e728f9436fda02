"""docs/paper_map.md is complete and true: every item of the paper, the code that is it, the test that shows it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
MAP = ROOT / "docs" / "paper_map.md"

ITEMS = (
    *(f"Eq. ({number})" for number in range(1, 19)),
    *("Prop. 1", "Prop. 2", "Theorem 1", "Algorithm 1", "Algorithm 2", "Definition 1", "Problem 1"),
    *("Application 1", "Application 2"),
)
# Items that may be marked as not built yet, and the layer whose arrival ends that.
AWAITED = {"Application 1": "active", "Application 2": "semi"}


@dataclass(frozen=True)
class Row:
    """One line of the map."""

    item: str
    functions: tuple[str, ...]
    tests: tuple[str, ...]
    awaited: bool


def read_map(text: str) -> list[Row]:
    """The rows of the map's tables: | item | what | function | test |."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4 or cells[0] == "Item" or set(cells[0]) <= set("-: "):
            continue
        functions, tests = (tuple(re.findall(r"`([^`]+)`", cell)) for cell in cells[2:])
        rows.append(Row(cells[0], functions, tests, awaited="arrives with" in " ".join(cells[2:])))
    return rows


def problems(rows: list[Row]) -> list[str]:
    """What is missing in the map, or names something that is not there."""
    found = [f"{item} is missing" for item in ITEMS if item not in {row.item for row in rows}]
    found += [f"{row.item} is not an item of the paper" for row in rows if row.item not in ITEMS]
    names = [row.item for row in rows]
    found += [f"{item} is there twice" for item in sorted(set(names)) if names.count(item) > 1]
    for row in rows:
        if row.awaited:
            layer = AWAITED.get(row.item)
            if layer is None:
                found.append(f"{row.item} cannot be awaited")
            elif (SOURCE / "jurygcn" / layer / "__init__.py").exists():
                found.append(f"{row.item} is still awaited, but jurygcn.{layer} is there")
        elif not row.functions or not row.tests:
            found.append(f"{row.item} names no function or no test")
        found += [f"{row.item}: {path} cannot be imported" for path in row.functions if module_of(path) is None]
        found += [f"{row.item}: there is no test {test}" for test in row.tests if not names_a_test(test)]
    return found


def module_of(path: str) -> str | None:
    """The module that a dotted path leads through, or None if the path leads nowhere."""
    parts = path.split(".")
    for split in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError:
            continue
        for name in parts[split:]:
            if not hasattr(found, name) and name not in getattr(found, "__annotations__", {}):
                return None
            found = getattr(found, name, None)
        return ".".join(parts[:split])
    return None


def names_a_test(name: str) -> bool:
    """Whether tests/...py::[Class::]function is defined there."""
    file, *inside = name.split("::")
    path = ROOT / file
    if not inside or not path.is_file() or not file.startswith("tests/"):
        return False
    scope: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for step in inside:
        match = next((n for n in scope if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == step), None)
        if match is None:
            return False
        scope = match.body
    return inside[-1].startswith("test")


# --- citations in docstrings ----------------------------------------------------------------------------------

NUMBERS = r"\(?\d+\)?(?:\s*[-–]\s*\(?\d+\)?)?"
EQUATIONS = re.compile(rf"\b(?:Eqs?\.|Equations?)\s*({NUMBERS}(?:(?:,\s*(?:and\s+)?|\s+and\s+){NUMBERS}(?!\w))*)")
OTHERS = re.compile(r"\b(Prop\.|Proposition|Theorem|Algorithm|Definition|Problem|Application)\s+(\d+)")


def cited(text: str) -> set[str]:
    """The paper's items that a text names: "Eqs. (11)-(15), (17)" is six of them."""
    items = set()
    for match in EQUATIONS.finditer(text):
        for first, last in re.findall(r"(\d+)\)?(?:\s*[-–]\s*\(?(\d+))?", match[1]):
            items |= {f"Eq. ({number})" for number in range(int(first), int(last or first) + 1)}
    items |= {f"{'Prop.' if kind == 'Proposition' else kind} {number}" for kind, number in OTHERS.findall(text)}
    return items


def implemented(docstring: str) -> set[str]:
    """The items that a docstring claims: what stands between "Implements:" and the end of that paragraph."""
    claims = re.findall(r"Implements:(.*?)(?=\n\s*\n|\n\s*[A-Z][\w ]*:|\Z)", docstring, flags=re.DOTALL)
    return cited(" ".join(claims))


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and docstring of the module and of everything defined in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "the module"), text


def unlisted(text: str, module: str, rows: list[Row]) -> list[str]:
    """Claims of one module that the map does not know of, and mentions of items that the paper does not have."""
    where = {row.item: {module_of(path) for path in row.functions} for row in rows}
    found = []
    for name, docstring in docstrings(ast.parse(text)):
        claims = implemented(docstring)
        found += [f"{module}: {name} cites {item}, which the paper lacks" for item in cited(docstring) - set(ITEMS)]
        found += [
            f"{module}: {name} implements {item}, but that row of the map does not name {module}"
            for item in sorted(claims & set(ITEMS))
            if module not in where.get(item, set())
        ]
    return found


# --- the map against the code -----------------------------------------------------------------------------------

ROWS = read_map(MAP.read_text(encoding="utf-8"))
MODULES = sorted((SOURCE / "jurygcn").rglob("*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_the_map_is_complete_and_true():
    assert problems(ROWS) == []


def test_citations_are_on_the_map():
    for path in MODULES:
        assert unlisted(path.read_text(encoding="utf-8"), dotted(path), ROWS) == [], dotted(path)


def test_something_is_cited():
    claims = [implemented(d) for p in MODULES for _, d in docstrings(ast.parse(p.read_text(encoding="utf-8")))]
    missing = set(ITEMS) - set().union(*claims) - set(AWAITED) - {"Problem 1"}
    assert missing == set(), "no docstring says that it implements these"


@pytest.mark.parametrize("page", sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]), ids=lambda p: p.name)
def test_every_test_that_a_page_names_exists(page: Path):
    named = re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not names_a_test(name)] == []


def test_every_erratum_has_its_section():
    text = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    errata = {section.split()[0].rstrip(":"): section for section in sections if re.match(r"E\d", section)}
    assert list(errata) == [f"E{number}" for number in range(1, 9)]
    for name, section in errata.items():
        assert all(f"**{part}**" in section for part in ("Printed", "Correct", "Why it matters", "Shown by"))
        assert re.search(r"`tests/[\w/]+\.py::\w+`|arrives with", section), f"{name} names no test"


# --- the checker can fail ---------------------------------------------------------------------------------------

HEAD = "| Item | What | Function | Test |\n|---|---|---|---|\n"
GOOD = "`jurygcn.engine.generic.GenericEngine.risk`", "`tests/derivatives/test_derivatives.py::test_exact_hessian`"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (f"| Eq. (2) | x | `jurygcn.engine.generic.Engine.gone` | {GOOD[1]} |", "cannot be imported"),
        (f"| Eq. (2) | x | `jurygcn.nowhere.f` | {GOOD[1]} |", "cannot be imported"),
        (f"| Eq. (2) | x | {GOOD[0]} | `tests/derivatives/test_derivatives.py::test_gone` |", "no test"),
        (f"| Eq. (2) | x | {GOOD[0]} | `tests/gone.py::test_exact_hessian` |", "no test"),
        (f"| Eq. (2) | x | {GOOD[0]} | |", "names no function or no test"),
        (f"| Eq. (2) | x | | {GOOD[1]} |", "names no function or no test"),
        (f"| Eq. (19) | x | {GOOD[0]} | {GOOD[1]} |", "not an item"),
        ("| Eq. (2) | x | arrives with spring | |", "cannot be awaited"),
    ],
)
def test_a_wrong_row_is_caught(line: str, complaint: str):
    rows = read_map(HEAD + line)
    assert len(rows) == 1
    assert any(complaint in problem for problem in problems(rows))
    fine = read_map(HEAD + f"| Eq. (2) | x | {GOOD[0]} | {GOOD[1]} |")
    assert all("missing" in problem for problem in problems(fine))


def test_a_missing_or_repeated_row_is_caught():
    assert "Eq. (9) is missing" in problems([row for row in ROWS if row.item != "Eq. (9)"])
    assert "Eq. (9) is there twice" in problems([*ROWS, *(row for row in ROWS if row.item == "Eq. (9)")])


def test_an_unlisted_citation_is_caught():
    lines = ["Does it.", "", "Implements: Eqs. (11)-(12), Prop. 2.", "Shapes: Eq. (3) is not claimed."]
    text = f"def f():\n    {chr(10).join(lines)!r}"
    assert len(unlisted(text, "jurygcn.io.files", ROWS)) == 3
    assert unlisted(text, "jurygcn.derivatives.closed_form", ROWS) == []
    assert unlisted('"""As in Eq. (21)."""', "jurygcn.io.files", ROWS) != []


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("Eq. (9), Prop. 2", {"Eq. (9)", "Prop. 2"}),
        ("Eqs. (11)-(13), (17)", {"Eq. (11)", "Eq. (12)", "Eq. (13)", "Eq. (17)"}),
        ("Eqs. 6–8 and 10", {"Eq. (6)", "Eq. (7)", "Eq. (8)", "Eq. (10)"}),
        ("Eq. (3), Eq. (4) with errata E1 and E3", {"Eq. (3)", "Eq. (4)"}),
        ("Proposition 1 and Theorem 1; Algorithm 2 steps 1-6", {"Prop. 1", "Theorem 1", "Algorithm 2"}),
        ("no 9 here (10)", set()),
    ],
)
def test_citations_are_understood(text: str, items: set[str]):
    assert cited(text) == items
