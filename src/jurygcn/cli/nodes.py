"""Read the nodes that a model was trained on from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.active.labels import node_words
from jurygcn.choices import CHOSEN
from jurygcn.data import check_nodes, labelled
from jurygcn.data.names import Names
from jurygcn.errors import DataError
from jurygcn.io.files import read_json
from jurygcn.io.fingerprints import SEAL, fingerprint, state, unsealed
from jurygcn.io.spreadsheet import check_header, read_rows, unquoted
from jurygcn.models import GCN

HEADERS = ("node", "nodes", "id", "name")  # first cells that mark a heading


@dataclass(frozen=True, eq=False)
class Recorded:
    """The entries of a training run's run.json; None if it has none."""

    train_nodes: Tensor | None = None
    weight_decay: float | None = None
    chosen: str | None = None


def read_nodes(path: Path, data: Data) -> Tensor:
    """Node indices from a run.json, or from a text or CSV file with one node in the first column of each line.

    See `jurygcn.data.names` for the meaning of a line. Empty lines, lines that begin with # and a heading such as
    "node" are skipped.
    """
    return checked(_read(path, data, "--train-nodes"), data, str(path.name))


def read_any_nodes(path: Path, data: Data, option: str) -> Tensor:
    """Node indices from the same kinds of file, labelled or not; ``option`` is the one that names the file."""
    return check_nodes(torch.tensor(_read(path, data, option), dtype=torch.long), data, what=path.name)


def _read(path: Path, data: Data, option: str) -> list[int]:
    try:
        if path.suffix == ".json":
            run = read_json(path)
            return _numbers((unsealed(run) if SEAL in run else run)["train_nodes"])
        return _from_lines(path, data)
    except OSError as error:
        raise DataError(f"expected a file of nodes at {path}, got {error.strerror}; check {option}") from error
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"expected one node number or name per line in {path.name}, or a run.json with train_nodes, "
            f"got other content ({type(error).__name__}); correct the file"
        ) from error


def read_chosen(path: Path) -> str | None:
    """How the training nodes of a run.json were chosen; None for other files, which do not say it."""
    return _chosen(read_json(path)) if path.suffix == ".json" else None


def _chosen(run: Any) -> str | None:
    return run["chosen"] if isinstance(run, dict) and run.get("chosen") in CHOSEN else None


def recorded_beside(checkpoint: Path, data: Data, model: GCN) -> Recorded:
    """The entries of the run.json next to a checkpoint, if it belongs to this graph and model."""
    path = checkpoint.parent / "run.json"
    if not path.is_file():
        return Recorded()
    try:
        run = read_json(path)
        if isinstance(run, dict) and {SEAL, "parameters"} & run.keys():  # earlier versions have neither
            run = unsealed(run)
        if not isinstance(run, dict) or run.get("command") != "train" or run["data"]["name"] != data.name:
            return Recorded()
        if run.get("parameters", "") not in ("", fingerprint(state(model))):
            raise ValueError("its parameters differ")
        nodes, weight_decay = _numbers(run["train_nodes"]), float(run["settings"]["weight_decay"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"expected the run.json that was written with {checkpoint.name}, got another file ({error}); "
            "train again, or remove it and pass --train-nodes and --weight-decay"
        ) from error
    return Recorded(checked(nodes, data, "run.json"), weight_decay, _chosen(run))


def checked(nodes: list[int], data: Data, file: str) -> Tensor:
    """The nodes as a tensor; raise DataError unless they are in range, unique and labelled."""
    indices = check_nodes(torch.tensor(nodes, dtype=torch.long), data, what=f"{file} (training nodes)")
    without = indices[~labelled(data)[indices]]
    if len(without):
        node = node_words(int(without[0]), data)
        raise DataError(f"expected training nodes with a label, got {node} without one in {file}; drop it")
    return indices


def _numbers(values: Any) -> list[int]:
    if not isinstance(values, list) or any(not _is_number(value) for value in values):
        raise TypeError("not a list of numbers")
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


def _from_lines(path: Path, data: Data) -> list[int]:
    names = Names.of_nodes(data)
    rows = [(line, [unquoted(cell) for cell in row]) for line, row in read_rows(path) if row[0].strip()]
    rows = [(line, row) for line, row in rows if not row[0].startswith("#") or row[0] in names]
    column = None  # the column of names, if the file has one besides the first column
    if rows and rows[0][1][0].strip().lower() in HEADERS and rows[0][1][0].strip() not in names:
        header = [cell.strip().lower() for cell in rows[0][1]]
        if len(header) > 1:
            check_header(header, path.name)
            column = header.index("name") if "name" in header[1:] else None
        rows = rows[1:]
    found = []
    for line, row in rows:
        try:
            found.append(names.position(row[0], row[column] if column is not None and column < len(row) else None))
        except DataError as error:
            raise DataError(f"{path.name}, line {line}: {error}") from None
    return found
