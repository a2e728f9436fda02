"""Run the notebooks of examples/notebooks and write them, with their outputs and pictures, as pages of docs/tutorials.

The notebooks are the source and hold no outputs. ``python tools/tutorials.py`` runs all of them, or those that are
named. The cells run in this process: no kernel and no further package is needed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "examples" / "notebooks"
PAGES = ROOT / "docs" / "tutorials"


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook: text, or code."""

    kind: str  # "markdown" or "code"
    text: str


@dataclass(frozen=True)
class Output:
    """What a cell of code printed and showed."""

    text: str
    picture: bytes | None


def cells_of(notebook: Path) -> list[Cell]:
    """The cells; one with outputs is refused, because outputs belong into the page."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    if any(cell.get("outputs") or cell.get("execution_count") for cell in document["cells"]):
        raise SystemExit(f"{notebook.name} has outputs. Remove them: tools/tutorials.py puts them into the page.")
    return [Cell(cell["cell_type"], "".join(cell["source"])) for cell in document["cells"]]


def run(cells: list[Cell]) -> Iterator[tuple[Cell, Output | None]]:
    """Each cell with its output, in one namespace; the value of a last expression is shown, as in a notebook."""
    namespace: dict[str, Any] = {"__name__": "__tutorial__"}
    for place, cell in enumerate(cells):
        if cell.kind != "code":
            yield cell, None
            continue
        body = ast.parse(cell.text).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(body, []), f"cell {place}", "exec"), namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), f"cell {place}", "eval"), namespace)
        yield cell, shown(printed.getvalue(), value)


def shown(printed: str, value: Any) -> Output:
    """Figures as pictures, tables and everything else as text."""
    if hasattr(value, "savefig"):
        png = io.BytesIO()
        value.savefig(png, format="png", dpi=110, metadata={"Software": None})
        return Output(printed, png.getvalue())
    if value is None:
        return Output(printed, None)
    text = value.to_string(float_format="%.3f") if hasattr(value, "to_string") else repr(value)
    return Output(f"{printed}{text}\n", None)


def page_of(name: str, ran: list[tuple[Cell, Output | None]]) -> tuple[str, dict[str, bytes]]:
    """The page as markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for cell, output in ran:
        if output is None:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if output.text.strip():
            parts.append(f"```text\n{output.text.rstrip()}\n```")
        if output.picture:
            file = f"{name}_{len(pictures) + 1}.png"
            pictures[file] = output.picture
            parts.append(f"![What the code above draws]({file})")
    note = (
        f"This page is the notebook `examples/notebooks/{name}.ipynb` with its outputs. `tools/tutorials.py` writes it."
    )
    return "\n\n".join([*parts, f"---\n\n{note}"]) + "\n", pictures


def main(names: list[str]) -> None:
    """Write the pages of these notebooks, or of all."""
    PAGES.mkdir(exist_ok=True)
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and notebook.stem not in names:
            continue
        text, pictures = page_of(notebook.stem, list(run(cells_of(notebook))))
        for old in PAGES.glob(f"{notebook.stem}_*.png"):
            old.unlink()
        (PAGES / f"{notebook.stem}.md").write_text(text, encoding="utf-8")
        for file, picture in pictures.items():
            (PAGES / file).write_bytes(picture)
        print(f"wrote docs/tutorials/{notebook.stem}.md and {len(pictures)} pictures")


if __name__ == "__main__":
    main(sys.argv[1:])
