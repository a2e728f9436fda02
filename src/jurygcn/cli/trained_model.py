"""Load a graph and train or load a model: the common part of train, quantify, demo and doctor."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import Tensor
from torch_geometric.data import Data

import jurygcn
from jurygcn.active.labels import chosen_together, has_labels, read_labels, read_origins, with_classes
from jurygcn.checks import all_finite
from jurygcn.choices import Recipe
from jurygcn.cli.checkpoint import load_gcn
from jurygcn.cli.nodes import Recorded, checked, read_chosen, read_nodes, recorded_beside
from jurygcn.cli.reporting import say
from jurygcn.data import labelled, load_dataset, paper_split, per_class_labels, random_labels, sizes
from jurygcn.errors import DataError, ModelError, SettingError
from jurygcn.io.fingerprints import fingerprint, state
from jurygcn.models import GCN, Training, fit_gcn
from jurygcn.progress import progress_bar

DEFAULT_LABELS = 100  # the paper's largest number of labels
EVERY_LABEL = Path("all")  # the value of --train-nodes that means every labelled node
TRAIN_MASK = Path("mask")  # the value that means the graph's own train_mask


@dataclass(frozen=True)
class Settings:
    """Settings of the model and its training nodes; None means the default."""

    labels: int | None = None
    per_class: int | None = None
    train_nodes: Path | None = None
    checkpoint: Path | None = None
    epochs: int = Recipe.epochs
    lr: float = Recipe.lr
    weight_decay: float | None = None
    dropout: float = 0.0
    hidden: int = Recipe.hidden
    layers: int = Recipe.layers
    seed: int = 0
    chosen: str | None = None

    def __post_init__(self) -> None:
        given = {"--labels": self.labels, "--per-class": self.per_class, "--train-nodes": self.train_nodes}
        chosen = [option for option, value in given.items() if value is not None]
        if len(chosen) > 1:
            raise SettingError(
                f"expected one option that chooses the training nodes, got {' and '.join(chosen)}; drop one"
            )


@dataclass(frozen=True, eq=False)
class Session:
    """A graph, a model trained on some of its nodes, the seconds of each stage, and how the labels were chosen.

    Shapes: train_nodes (n,), test_nodes (t,), which are labelled nodes that were not trained on.
    """

    data: Data
    settings: Settings
    train_nodes: Tensor
    test_nodes: Tensor
    model: GCN
    weight_decay: float
    training: Training | None
    seconds: dict[str, float] = field(default_factory=dict)
    chosen: str = "random"

    @contextmanager
    def timed(self, stage: str, what: str) -> Iterator[None]:
        """Time the block as ``stage``, with a spinner."""
        with stopwatch(self.seconds, stage), progress_bar(what):
            yield

    def describe(self, command: str) -> dict[str, Any]:
        """The run so far as plain values, for --json and run.json."""
        widths = [W.shape[1] for W in self.model.weights]
        options = {
            "labels": len(self.train_nodes),
            "seed": self.settings.seed,
            "weight_decay": self.weight_decay,
            "hidden": widths[0] if len(widths) > 1 else None,
            "layers": len(widths),
        }
        if self.training is not None:  # unknown for a checkpoint
            options |= {key: getattr(self.settings, key) for key in ("per_class", "epochs", "lr", "dropout")}
        return {
            "command": command,
            "data": {"name": self.data.name, **sizes(self.data)._asdict()},
            "model": "checkpoint" if self.training is None else "trained",
            "parameters": fingerprint(state(self.model)),
            "settings": options,
            "training": None if self.training is None else {"epochs": self.training.epochs, "loss": self.loss},
            "versions": versions(),
            "seconds": {stage: round(seconds, 3) for stage, seconds in self.seconds.items()},
            "chosen": self.chosen,
            "train_nodes": self.train_nodes.tolist(),
        }

    @property
    def loss(self) -> float:
        """The training loss of the last epoch."""
        return math.nan if self.training is None else self.training.losses[-1]


def open_session(name: str, settings: Settings) -> Session:
    """Load the graph, choose the nodes, and train the GCN or load it from the checkpoint."""
    return start_session(*load_graph(name), settings)


def load_graph(name: str) -> tuple[Data, float]:
    """A graph with classes, and the loading time in seconds."""
    seconds: dict[str, float] = {}
    with stopwatch(seconds, "data"), progress_bar(f"Loading {name}"):
        data = load_dataset(name)
    if data.y.is_floating_point():
        raise DataError(
            f"expected classes to predict, got regression targets in {data.name}; "
            "use jurygcn.Jury(..., loss='mse') in Python"
        )
    return data, seconds["data"]


def start_session(data: Data, loading: float, settings: Settings) -> Session:
    """The session on a loaded graph."""
    data = with_labels_from(settings.train_nodes, data)
    if int(data.num_classes) < 1:
        raise DataError(
            f"expected labels in {data.name}, got none; label some nodes in the column label of nodes.csv, or name a "
            "file with the columns node and label by --train-nodes"
        )
    seconds = {"data": loading}
    model, training, recorded = None, None, Recorded()
    if settings.checkpoint is not None:
        model = load_gcn(settings.checkpoint, data)
        recorded = recorded_beside(settings.checkpoint, data, model)
    train_nodes, test_nodes = choose_nodes(data, settings, recorded)
    given = (settings.weight_decay, recorded.weight_decay, Recipe.weight_decay)
    weight_decay = next(value for value in given if value is not None)
    if model is not None and weight_decay not in given[:2]:
        say(
            f"Note: the weight decay of the checkpoint is unknown, so {weight_decay:g} is assumed; pass --weight-decay "
            "if it was trained with another",
            style="yellow",
        )
    if model is None:
        with stopwatch(seconds, "training"), progress_bar("Training"):
            model, training = train_gcn(data, train_nodes, settings, weight_decay)
    chosen = how_chosen(data, settings, recorded)
    return Session(data, settings, train_nodes, test_nodes, model, weight_decay, training, seconds, chosen)


def how_chosen(data: Data, settings: Settings, recorded: Recorded) -> str:
    """How the training nodes were chosen: by --chosen, by the file that names them, or by the checkpoint's run.json."""
    path, said = settings.train_nodes, None
    if path is not None and path not in (EVERY_LABEL, TRAIN_MASK):
        said = chosen_together(read_origins(path, data).values()) if has_labels(path) else read_chosen(path)
    elif settings.per_class is not None:
        said = "per class"
    elif settings.labels is None:
        said = recorded.chosen
    if said == "actively" and settings.chosen not in (None, "actively"):
        raise SettingError(
            f"expected --chosen actively, because the training nodes were chosen actively, got {settings.chosen!r}; "
            "leave it out"
        )
    return settings.chosen or said or "random"


def with_labels_from(path: Path | None, data: Data) -> Data:
    """The graph with the labels of a CSV file with the columns node and label; unchanged for other files."""
    if path is None or not has_labels(path):
        return data
    graph = copy(with_classes(data, path))
    nodes, classes = read_labels(path, graph)
    graph.y = graph.y.index_put((nodes,), classes)
    return graph


def train_gcn(data: Data, train_nodes: Tensor, settings: Settings, weight_decay: float) -> tuple[GCN, Training]:
    """A GCN with these settings, trained on these nodes."""
    s = settings
    recipe = Recipe(s.hidden, s.epochs, s.lr, weight_decay, s.dropout, s.layers)
    model, training = fit_gcn(data, train_nodes, recipe, seed=s.seed)
    if not all(all_finite(W) for W in model.weights):
        raise ModelError(f"expected training to end with finite weights, got NaN or infinity; lower --lr ({s.lr:g})")
    return model, training


def choose_nodes(data: Data, settings: Settings, recorded: Recorded) -> tuple[Tensor, Tensor]:
    """Training and test nodes: from the file, from the checkpoint's run.json, or drawn by the paper's protocol.

    If the user gives the training nodes, all other labelled nodes are test nodes.
    """
    nodes = recorded.train_nodes
    if settings.train_nodes == TRAIN_MASK:
        return masked_nodes(data)
    if settings.train_nodes == EVERY_LABEL:
        nodes = labelled(data).nonzero()[:, 0]
    elif settings.train_nodes is not None:
        path = settings.train_nodes
        given = sorted(read_labels(path, data)[0].tolist()) if has_labels(path) else None
        nodes = read_nodes(path, data) if given is None else checked(given, data, path.name)
    drawn = settings.labels is not None or settings.per_class is not None
    if nodes is not None and not drawn:
        rest = labelled(data)
        rest[nodes] = False
        return nodes, rest.nonzero()[:, 0]
    if settings.checkpoint is not None and not drawn:
        say(
            "Note: the training nodes of the checkpoint are unknown, so they are drawn with --seed; "
            "pass --train-nodes if it was trained on others",
            style="yellow",
        )
    split = paper_split(data, seed=settings.seed)
    if settings.per_class is not None:
        return per_class_labels(data, split.pool, settings.per_class, seed=settings.seed), split.test
    count = min(DEFAULT_LABELS, len(split.pool)) if settings.labels is None else settings.labels
    if not 1 <= count <= len(split.pool):
        raise SettingError(
            f"expected between 1 and {len(split.pool)} labels, because other labelled nodes are for testing, got "
            f"{count}; change --labels, or train on every label with --train-nodes all"
        )
    return random_labels(split.pool, count, seed=settings.seed), split.test


def masked_nodes(data: Data) -> tuple[Tensor, Tensor]:
    """Training and test nodes by the graph's own masks, the first of several; without a test mask all others test."""
    if data.get("train_mask") is None:
        raise DataError(
            f"expected a train_mask in {data.name} for --train-nodes mask, got none; name the nodes in a file"
        )
    train = data.train_mask.reshape(int(data.num_nodes), -1)[:, 0]
    if not bool(train.any()):
        raise DataError(f"expected nodes in the train_mask of {data.name}, got none; name the nodes in a file")
    rest = labelled(data) if data.get("test_mask") is None else data.test_mask.reshape(len(train), -1)[:, 0]
    return train.nonzero()[:, 0], (rest & ~train).nonzero()[:, 0]


def versions() -> dict[str, str]:
    """The versions of the library and its dependencies."""
    return {
        "jurygcn": jurygcn.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
    }


@contextmanager
def stopwatch(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Store the seconds that the block takes."""
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started
