"""Files that may be written over: those of the kind that would be written, and never a graph's own tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from jurygcn.data.csv_folder import EDGES, NODES
from jurygcn.errors import DataError, SettingError, listing
from jurygcn.io.files import read_json
from jurygcn.io.spreadsheet import read_rows

LABEL_COLUMNS = ("node", "name", "label", "chosen")


def check_labels_file(path: Path, option: str, graph: str) -> None:
    """Raise SettingError if the file exists and writing labels into it would lose anything else."""
    check_no_table(path, option, graph)
    # by the column id a file names nodes as nodes.csv does; of such a file only the labels are read
    check_columns(path, option, lambda names: set(names) <= {*LABEL_COLUMNS} or set(names) == {"id", "label"})


def check_no_table(path: Path, option: str, graph: str) -> None:
    """Raise SettingError if the file is a table of this graph, or of any graph that is a folder."""
    places = (path, Path(os.path.realpath(path)))
    folders = (place.parent for place in places if place.name in (NODES, EDGES))
    beside = any((folder / NODES).exists() and (folder / EDGES).exists() for folder in folders)
    tables = (Path(graph) / name for name in (NODES, EDGES))
    if beside or (path.exists() and any(table.exists() and path.samefile(table) for table in tables)):
        raise SettingError(
            f"expected {option} to write a file of its own, got the graph's table {path}, whose other columns would be "
            "lost; choose another name, such as labels.csv"
        )


def check_columns(path: Path, option: str, ours: Callable[[list[str]], bool]) -> None:
    """Raise SettingError if the file exists and is no CSV table with such columns. Nothing is lost of an empty file."""
    if not path.exists():
        return
    try:
        names = [cell.strip() for cell in next(read_rows(path), (0, []))[1]]
    except (OSError, DataError) as error:
        raise _refusal(path, option, getattr(error, "strerror", None) or "other content") from error
    if names and not ours(names):
        raise _refusal(path, option, f"one with the columns {listing(names)}")


def check_tasks(path: Path, option: str, ours: Callable[[dict[str, Any]], bool]) -> None:
    """Raise SettingError if the file exists and is no JSON list of such tasks."""
    if not path.exists() or not path.stat().st_size:
        return
    try:
        tasks = read_json(path)
    except (OSError, ValueError) as error:
        raise _refusal(path, option, "other content") from error
    if not isinstance(tasks, list) or not all(_about(task) and ours(task) for task in tasks):
        raise _refusal(path, option, "one with other tasks or answers")


def check_next_tasks(path: Path, option: str, graph: str, columns: Collection[str]) -> None:
    """Raise SettingError if one of the three files of ``jurygcn active next`` would replace something else."""
    table, interface = path.with_suffix(".csv"), path.with_suffix(".xml")
    check_no_table(table, option, graph)
    check_tasks(path, option, lambda task: "score" in _about(task) and not task.get("annotations"))
    check_columns(table, option, lambda names: names == list(columns))
    if interface.exists() and interface.read_bytes()[:5] not in (b"", b"<View"):
        raise _refusal(interface, option, "other content")


def check_exported(path: Path, option: str, graph: str) -> None:
    """Raise SettingError if an export, labels as CSV or tasks as JSON, would replace something else."""
    if path.suffix.lower() == ".csv":
        check_labels_file(path, option, graph)
    else:
        check_tasks(path, option, lambda task: "answers" in _about(task) and "id" not in task)


def check_history_folder(folder: Path, option: str) -> None:
    """Raise SettingError if the folder has files that ``jurygcn active run`` would replace but has not written."""
    for name in ("history.csv", "labels.csv", "drawn.csv"):
        if (folder / name).exists() and not (folder / "history.json").exists():
            raise _refusal(folder / name, option, "one without the history.json of a run beside it")


def _about(task: Any) -> dict[str, Any]:
    """The fields of a task; none if it is no task about a node."""
    about = task.get("data") if isinstance(task, dict) else None
    return about if isinstance(about, dict) and "node" in about else {}


def _refusal(path: Path, option: str, got: str) -> SettingError:
    return SettingError(
        f"expected {option} to write a new file, or over one that it wrote before, got {got} at {path}; move it away "
        "or choose another name"
    )
