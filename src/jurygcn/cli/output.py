"""Write results to files: all of them, or none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jurygcn.cli.reporting import visible, without_nan
from jurygcn.errors import SettingError
from jurygcn.io.files import replacing
from jurygcn.io.fingerprints import sealed
from jurygcn.io.spreadsheet import as_csv
from jurygcn.report import Report

if TYPE_CHECKING:
    import pandas as pd

Writer = Callable[[Path], object]
PAGE_START = b"<!doctype html"


def check_out(folder: Path | None) -> None:
    """Raise SettingError before the work starts if the folder cannot be written; do not create it."""
    if folder is None:
        return
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise SettingError(f"expected --out to be a folder, got the file {nearest}; choose another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise SettingError(f"expected an --out that can be written to, got no permission in {nearest}; choose another")


def check_page(path: Path | None, option: str = "--report") -> None:
    """Raise SettingError before the work starts if the page cannot be written."""
    if path is None:
        return
    if path.is_dir():
        raise SettingError(f"expected {option} to be a file, got the folder {path}; add a name such as report.html")
    if path.exists() and not path.is_file():
        raise SettingError(f"expected {option} to be a file, got the device, pipe or socket {path}; choose another")
    if path.exists() and not _is_page(path):
        raise SettingError(
            f"expected {option} to be a new file or an earlier page, got {path}, which is no HTML page; choose another"
        )
    nearest = next(folder for folder in path.absolute().parents if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise SettingError(f"expected a {option} that can be written, got no permission in {nearest}; choose another")


def _is_page(path: Path) -> bool:
    """Whether a file is empty or begins as a page does; other files are not written over."""
    try:
        with path.open("rb") as file:
            start = file.read(len(PAGE_START))
    except OSError:
        return True  # the message about permission is clearer
    return not start or start.lower() == PAGE_START


def write_content(report: Report) -> Writer:
    """A writer of the page's content as JSON."""
    return lambda path: path.write_text(report.to_json(), encoding="utf-8")


def write_page(report: Report, path: Path) -> Path:
    """Write the report's page, atomically."""
    try:
        return report.write(path)
    except OSError as error:
        raise SettingError(
            f"expected to write the page {path}, got {error.strerror or error}; choose another file"
        ) from error


def write_run(folder: Path, run: Mapping[str, Any], files: Mapping[str, Writer]) -> list[Path]:
    """Write the files and run.json into the folder; all appear after the last one is complete, run.json last."""
    text = json.dumps(sealed(without_nan(run)), indent=2, allow_nan=False) + "\n"
    writers: dict[str, Writer] = {"run.json": lambda path: path.write_text(text, encoding="utf-8"), **files}
    try:
        with ExitStack() as stack:  # contexts exit in reverse order, so run.json appears last
            for name, write in writers.items():
                write(stack.enter_context(replacing(folder / name)))
    except OSError as error:
        raise SettingError(
            f"expected to write into {folder}, got {error.strerror or error}; free it or change --out"
        ) from error
    return [folder / name for name in (*files, "run.json")]


def say_written(console: Console, files: Iterable[Path]) -> None:
    """Name the files that were written."""
    for path in files:
        console.print(visible(f"Wrote {path}"), soft_wrap=True, highlight=False, markup=False)


def write_csv(frame: pd.DataFrame) -> Writer:
    """A writer of the table as CSV; no spreadsheet runs its text cells as formulas."""
    cells = frame.astype(object).where(frame.notna(), "")
    text = as_csv([str(column) for column in frame.columns], cells.itertuples(index=False, name=None))
    return lambda path: path.write_text(text, encoding="utf-8", newline="")
