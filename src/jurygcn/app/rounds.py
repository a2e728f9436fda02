"""What the server and the worker tell each other: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jurygcn.app.nodes import NodeTable
from jurygcn.app.scheduling import Chosen
from jurygcn.app.store import Point


@dataclass(frozen=True)
class Source:
    """What the worker loads: a graph, labels from a file, and the classes if they are given."""

    data: str
    labels: Path | None = None
    classes: tuple[str, ...] | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Loaded:
    """The graph is loaded. ``labels`` and ``origins`` come from the file of labels."""

    table: NodeTable
    labels: dict[int, int] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failed:
    """Loading failed for a reason that the user can change."""

    why: str


@dataclass(frozen=True, eq=False)
class Job:
    """Choose the next nodes.

    Attributes:
        labels: the label of each labelled node.
        pending: nodes that people are labelling now.
        candidates: the nodes to choose from.
        size: how many to choose.
        train: whether to train a model; without one the choice is a design on the features alone.
    """

    labels: dict[int, int]
    pending: list[int]
    candidates: NDArray[np.int64]
    size: int
    train: bool = True


@dataclass(frozen=True)
class Doubtful:
    """A label that the jurors who did not see it find implausible.

    ``chance`` is the probability of the label without it, ``suggested`` the most probable class.
    """

    node: int
    label: int
    suggested: int
    chance: float


@dataclass(frozen=True, eq=False)
class View:
    """What the model and its jury say of every node.

    Shapes: predictions (N,), probabilities (N,), sets (N, C), p_values (N, C).
    """

    predictions: NDArray[np.int16]
    probabilities: NDArray[np.float32]
    sets: NDArray[np.bool_]
    p_values: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Round:
    """The result of a job.

    Attributes:
        labels: the number of labels that it used.
        choices: the nodes to label next, best first.
        view: the model's predictions; None without a model.
        point: the estimated accuracy; None without a model.
        doubtful: labels to look at again, most doubtful first.
        note: what went wrong, in words; empty if nothing did.
        seconds: how long it took.
    """

    labels: int
    choices: list[Chosen] = field(default_factory=list)
    view: View | None = None
    point: Point | None = None
    doubtful: list[Doubtful] = field(default_factory=list)
    note: str = ""
    seconds: float = 0.0


Message = Any  # Loaded, Failed or Round; None when the worker has ended
