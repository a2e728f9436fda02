"""The setting that several benchmarks share: datasets, splits, a trained GCN, juries of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, Jury, Retraining, load_dataset, train
from jurygcn.data import Split, cache_folder, paper_split, random_labels

CITATION = ("cora", "citeseer", "pubmed")
DECAY = 5e-4
# Real graphs that are not fetched: used where this folder lies beside the project.
EXTRA = Path(__file__).resolve().parents[2] / "shared" / "data"


@dataclass(frozen=True)
class Trial:
    """One split with its labels and the model trained on them; no dropout, the paper's other settings."""

    name: str
    data: Data
    split: Split
    labels: Tensor
    model: GCN
    recipe: Retraining

    def jury(self, leave_out: str) -> Jury:
        """A fitted jury of that kind."""
        return Jury(
            self.model, self.data, self.labels, weight_decay=DECAY, leave_out=leave_out, retraining=self.recipe
        ).fit()


def trial(name: str, *, seed: int, num_labels: int = 60, epochs: int = 100, lr: float = 0.01) -> Trial:
    data = graph(name)
    split = paper_split(data, seed=seed)
    labels = random_labels(split.pool, num_labels, seed=seed)
    model = fit_gcn(data, labels, seed=seed, epochs=epochs, lr=lr)
    return Trial(name, data, split, labels, model, Retraining(epochs=epochs, lr=lr, seed=seed))


def fit_gcn(data: Data, labels: Tensor, *, seed: int, epochs: int = 100, lr: float = 0.01) -> GCN:
    model = GCN(data.num_features, 16, int(data.num_classes))
    train(model, data, labels, epochs=epochs, lr=lr, weight_decay=DECAY, seed=seed)
    return model


_graphs: dict[str, Data] = {}


def graph(name: str) -> Data:
    if name not in _graphs:
        path = EXTRA / f"{name}.npz"
        _graphs[name] = load_dataset(str(path) if path.exists() and name not in CITATION else name)
    return _graphs[name]


def extra(*names: str) -> tuple[str, ...]:
    """Those of the extra graphs that are there."""
    return tuple(name for name in names if (EXTRA / f"{name}.npz").exists())


def spread(values: list[float], digits: int = 3) -> str:
    """Mean ± standard deviation, as text."""
    return f"{mean(values):.{digits}f} ± {pstdev(values):.{digits}f}"


class Cells:
    """Measured cells as JSON lines in the data folder, so that an interrupted benchmark loses nothing.

    ``stamp(cell)`` says with which settings a cell is measured; cells measured with others do not count.
    """

    def __init__(self, name: str, stamp: Callable[[dict[str, Any]], str], *, fresh: bool = False) -> None:
        self.path = cache_folder() / "benchmarks" / f"{name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.stamp = stamp
        self.found: dict[str, dict[str, Any]] = {}
        if fresh:
            self.path.unlink(missing_ok=True)
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []:
            if line.endswith("}"):  # a line that was cut off does not count
                row = json.loads(line)
                self.found[self._key(row["cell"], row.get("stamp", ""))] = row

    def _key(self, cell: dict[str, Any], stamp: str | None = None) -> str:
        return json.dumps([cell, self.stamp(cell) if stamp is None else stamp], sort_keys=True)

    def measure(self, cells: Iterable[dict[str, Any]], run: Callable[..., dict[str, Any]]) -> None:
        """Run what is missing; every result is on disk before the next begins."""
        for cell in cells:
            if self._key(cell) in self.found:
                continue
            row = {"cell": cell, "stamp": self.stamp(cell), **run(**cell)}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self.found[self._key(cell)] = row

    def rows(self, cells: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those of the cells that are measured, each with its key."""
        there = (self.found.get(self._key(cell)) for cell in cells)
        return [{**row["cell"], **{k: v for k, v in row.items() if k != "cell"}} for row in there if row is not None]
