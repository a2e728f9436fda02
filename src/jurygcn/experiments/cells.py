"""Measured cells as JSON lines, so that no cell is measured twice, even after an interruption."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from jurygcn.data import cache_folder
from jurygcn.errors import SettingError
from jurygcn.io.files import changing, open_text
from jurygcn.io.fingerprints import sealed, unsealed
from jurygcn.progress import progress_bar

Cell = dict[str, Any]
Row = dict[str, Any]


class Cells:
    """Rows in ``folder/NAME.jsonl``; by default the folder is benchmarks/ in the data folder.

    ``stamp(cell)`` describes the settings of a cell's measurement; cells with another stamp are ignored.
    """

    def __init__(
        self, name: str, stamp: Callable[[Cell], str], *, fresh: bool = False, folder: Path | None = None
    ) -> None:
        folder = cache_folder() / "benchmarks" if folder is None else folder
        self.path = folder / f"{name}.jsonl"
        self.stamp = stamp
        self.found: dict[str, Row] = {}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if fresh:
                self.path.unlink(missing_ok=True)
            text = ""
            if self.path.exists():
                with open_text(self.path, encoding="utf-8", errors="replace") as file:
                    text = file.read()
        except OSError as error:
            raise SettingError(
                f"expected to save results in {folder}, got {error.strerror}; choose another folder"
            ) from error
        for line in text.splitlines():
            try:
                row = json.loads(line)
                row = unsealed(row)["row"] if "row" in row else row  # lines of earlier versions have no digest
                self.found[self._key(row["cell"], str(row.get("stamp", "")))] = row
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # skip a truncated or altered line

    def _key(self, cell: Cell, stamp: str | None = None) -> str:
        return json.dumps([cell, self.stamp(cell) if stamp is None else stamp], sort_keys=True)

    def measure(self, cells: Iterable[Cell], run: Callable[..., Row], *, what: str = "", show: bool = False) -> None:
        """Measure the missing cells; each result is written to disk before the next cell starts."""
        wanted: Sequence[Cell] = list(cells)
        with progress_bar(what, total=len(wanted), unit="cells", show=show) as advance:
            for cell in wanted:
                if self._key(cell) not in self.found:
                    self._keep({"cell": cell, "stamp": self.stamp(cell), **run(**cell)})
                advance(1)

    def _keep(self, row: Row) -> None:
        with changing(self.path), self.path.open("ab+") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            cut_off = file.read() not in (b"", b"\n")  # after a truncated line, start a new one
            file.write((b"\n" if cut_off else b"") + json.dumps(sealed({"row": row})).encode() + b"\n")
        self.found[self._key(row["cell"])] = row

    def measured(self, cells: Iterable[Cell]) -> list[Row]:
        """The rows of the measured cells, as :meth:`add` takes them."""
        there = (self.found.get(self._key(cell)) for cell in cells)
        return [row for row in there if row is not None]

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows that were measured elsewhere; what was measured here stays."""
        for row in rows:
            self.found.setdefault(self._key(row["cell"], row["stamp"]), row)

    def rows(self, cells: Iterable[Cell]) -> list[Row]:
        """The rows of the measured cells, each with its cell's entries."""
        return [{**row["cell"], **{k: v for k, v in row.items() if k != "cell"}} for row in self.measured(cells)]


def environment() -> dict[str, Any]:
    """The versions and the machine of a measurement."""
    return {
        "jurygcn": version("jurygcn"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": version("torch_geometric"),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
