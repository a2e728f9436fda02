"""What every benchmark script shares: options, the environment, a table, a JSON file."""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from jurygcn.experiments.cells import Cell, Cells, environment
from jurygcn.io.files import replacing, write_text

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"


def options(description: str | None, **flags: str) -> argparse.Namespace:
    """`--quick` (few repeats, nothing saved over the full results), `--threads`, and flags; sets torch's threads."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a few repeats instead of all")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's threads")
    for name, words in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=words)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    return chosen


def save(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    quick: bool = False,
    runs: Sequence[Mapping[str, Any]] | None = None,
    before: Mapping[str, Any] | None = None,
    **meta: Any,
) -> Path:
    """Write rows, environment with the date, and settings to results/NAME.json; quick runs to NAME.quick.json.

    ``runs`` are the single runs behind the rows. They go to results/runs/, which git ignores. ``before`` is what the
    file held, if some of its rows are still there: the date says from when to when.
    """
    if runs is not None and not quick:
        (RESULTS / "runs").mkdir(exist_ok=True)
        write_text(RESULTS / "runs" / f"{name}.json", json.dumps(list(runs), indent=2) + "\n")
    path = RESULTS / f"{name}{'.quick' if quick else ''}.json"
    measured = environment() | {"date": _period(before, datetime.now(timezone.utc).date().isoformat())}
    document = {"benchmark": name, "quick": quick, **meta, "environment": measured, "rows": list(rows)}
    write_text(path, json.dumps(document, indent=2) + "\n")
    return path


def with_published(cells: Cells) -> Cells:
    """The cells, with those of results/cells/NAME.jsonl.gz: more splits can be added without measuring these again."""
    path = _published(cells)
    if path.exists():
        with gzip.open(path, "rt", encoding="utf-8") as file:
            cells.add(map(json.loads, file))
    return cells


def publish(cells: Cells, wanted: Iterable[Cell]) -> None:
    """Write the measured ones of these cells to results/cells/NAME.jsonl.gz."""
    lines = [json.dumps(row, sort_keys=True) + "\n" for row in cells.measured(wanted)]
    path = _published(cells)
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def _period(before: Mapping[str, Any] | None, today: str) -> str:
    """Like 2026-11-18 to 19, for a result that was begun on another day."""
    first = before["environment"]["date"].split(" to ")[0] if before else today
    return today if first == today else f"{first} to {today[8:] if first[:8] == today[:8] else today}"


def earlier(name: str) -> dict[str, Any]:
    """What results/NAME.json holds, {} if it is not there."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def longest(
    rows: Iterable[dict[str, Any]], before: Iterable[dict[str, Any]], *keys: str, by: str
) -> list[dict[str, Any]]:
    """Of the rows with the same keys that with the largest ``by``; of equal ones the new one."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in (*before, *rows):
        key = tuple(row[k] for k in keys)
        if key not in best or row[by] >= best[key][by]:
            best[key] = row
    return list(best.values())


def _published(cells: Cells) -> Path:
    return RESULTS / "cells" / f"{cells.path.stem}.jsonl.gz"


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, note: str | None = None) -> None:
    """Print rows; the first column is text, the others are right-aligned."""
    shown = Table(title=title, box=box.SIMPLE_HEAD, caption=note, title_justify="left", caption_justify="left")
    for position, column in enumerate(columns):
        shown.add_column(column, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*map(str, row))
    console = Console(width=None if sys.stdout.isatty() else 150)
    console.print(shown)
