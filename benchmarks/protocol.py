"""The setting that several benchmarks share: datasets, splits, a trained GCN, juries of every kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, pstdev

from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, Jury, Retraining, load_dataset
from jurygcn.choices import Recipe
from jurygcn.data import Split, paper_split, random_labels
from jurygcn.experiments.cells import Cells
from jurygcn.experiments.graphs import CITATION
from jurygcn.models import fit_gcn

__all__ = ["CITATION", "PLAIN", "Cells", "Trial", "extra", "graph", "spread", "trial"]

PLAIN = Recipe(dropout=0.0)  # the setting of all benchmarks without dropout
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
            self.model,
            self.data,
            self.labels,
            weight_decay=PLAIN.weight_decay,
            leave_out=leave_out,
            retraining=self.recipe,
        ).fit()


def trial(name: str, *, seed: int, num_labels: int = 60, epochs: int = PLAIN.epochs, lr: float = PLAIN.lr) -> Trial:
    data = graph(name)
    split = paper_split(data, seed=seed)
    labels = random_labels(split.pool, num_labels, seed=seed)
    model, _ = fit_gcn(data, labels, replace(PLAIN, epochs=epochs, lr=lr), seed=seed)
    return Trial(name, data, split, labels, model, Retraining(epochs=epochs, lr=lr, seed=seed))


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
