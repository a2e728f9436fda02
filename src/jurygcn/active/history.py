"""What a run did, step by step; kept as JSON so that it can go on after an interruption."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from jurygcn.canvas import canvas
from jurygcn.errors import DataError, SettingError
from jurygcn.io.files import read_json, write_text
from jurygcn.io.fingerprints import sealed, unsealed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMAT = 2
COLUMNS = ("labels", "queried", "accuracy", "micro_f1", "val_accuracy", "changed", "seconds", "training_seconds")


@dataclass(frozen=True)
class Step:
    """One round: nodes chosen and labelled, a GCN trained on all labels so far, its scores.

    Attributes:
        labels: labelled nodes by now, the initial ones included.
        queried: of these, how many a strategy chose.
        accuracy, micro_f1: on the test nodes; NaN without any.
        val_accuracy: on the validation nodes; NaN without any.
        changed: share of all nodes predicted differently than one step before; NaN at first.
        seconds: what choosing took, the model's training not included.
        training_seconds: what training took.
        nodes, answers: the nodes labelled in this step, and their labels.
        skipped: nodes the oracle could not label; they are not asked for again.
        scores: the strategy's scores of the chosen nodes; empty for the initial ones.
    """

    labels: int
    queried: int
    accuracy: float
    micro_f1: float
    val_accuracy: float
    changed: float
    seconds: float
    training_seconds: float
    nodes: tuple[int, ...] = field(repr=False)
    answers: tuple[int, ...] = field(repr=False)
    skipped: tuple[int, ...] = field(default=(), repr=False)
    scores: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class History:
    """A run of active learning.

    Attributes:
        settings: everything that decides the run.
        steps: what happened, the initial labels first.
        memory: what the strategy keeps between steps.
        stopped: why it ended: "budget", "pool" or the stopping rule; empty while it has not.
    """

    settings: Mapping[str, Any]
    steps: tuple[Step, ...] = ()
    memory: Mapping[str, Any] = field(default_factory=dict, repr=False)
    stopped: str = ""

    @property
    def labelled(self) -> Tensor:
        """The labelled nodes, in the order in which they were labelled."""
        return torch.tensor([node for step in self.steps for node in step.nodes], dtype=torch.long)

    @property
    def labels(self) -> Tensor:
        """Their labels."""
        return torch.tensor([label for step in self.steps for label in step.answers], dtype=torch.long)

    @property
    def skipped(self) -> Tensor:
        """The nodes that the oracle could not label."""
        return torch.tensor([node for step in self.steps for node in step.skipped], dtype=torch.long)

    def grown(self, step: Step, memory: Mapping[str, Any]) -> History:
        """This history and one more step."""
        return replace(self, steps=(*self.steps, step), memory=dict(memory))

    def to_frame(self) -> pd.DataFrame:
        """One row per step, the initial labels first."""
        rows = [asdict(step) for step in self.steps]
        return pd.DataFrame([{column: row[column] for column in COLUMNS} for row in rows], columns=list(COLUMNS))

    def plot(self, axes: Axes | None = None, **style: Any) -> Axes:
        """Test accuracy over the number of labels, into ``axes`` or a figure of its own."""
        if axes is None:
            _, (axes,) = canvas(1, width=5.0, height=3.5)
            axes.set(xlabel="labels", ylabel="test accuracy, %")
        frame = self.to_frame()
        line = {"marker": "o", "label": str(self.settings.get("strategy", "")), **style}
        axes.plot(frame["labels"], 100 * frame["accuracy"], **line)
        axes.legend(frameon=False)
        return axes

    # --- on disk ---------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the history as one JSON file, in one piece."""
        path = Path(path)
        document = {"format": FORMAT, **asdict(self)}
        # JSON has no NaN
        document["steps"] = [{k: None if v != v else v for k, v in step.items()} for step in document["steps"]]
        write_text(path, json.dumps(sealed(document), allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> History:
        """A history saved before."""
        path = Path(path)
        try:
            document = unsealed(read_json(path))
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}")
            steps = tuple(_step(step) for step in document["steps"])
            history = cls(document["settings"], steps, document["memory"], document["stopped"])
            _check_sums(history)
            return history
        except OSError as error:
            raise DataError(f"expected a history at {path}, got {error.strerror}; check the path") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"expected a history that jurygcn saved in {path.name}, got something else ({error}); "
                "choose another file"
            ) from error

    def check_same(self, settings: Mapping[str, Any], path: Path) -> None:
        """Refuse to go on with other settings than the run began with."""
        other = {key for key in {*settings, *self.settings} if settings.get(key) != self.settings.get(key)}
        if other:
            key = min(other, key=lambda name: (name == "split", name))  # the split differs with the seed too
            raise SettingError(
                f"expected the settings that {path.name} began with, got {key} {settings.get(key)!r} instead of "
                f"{self.settings.get(key)!r}; use the same, or another file"
            )


def _step(entries: Mapping[str, Any]) -> Step:
    known: dict[str, Any] = {key: math.nan if value is None else value for key, value in entries.items()}
    known.update({key: tuple(value) for key, value in known.items() if isinstance(value, list)})
    step = Step(**known)
    whole = (step.labels, step.queried, *step.nodes, *step.answers, *step.skipped)
    if any(type(number) is not int or not 0 <= number < 2**63 for number in whole):
        raise ValueError("nodes, answers or counts that are not numbers from 0 on")
    if len(step.nodes) != len(step.answers) or len(step.scores) not in (0, len(step.nodes)):
        raise ValueError("another number of answers or scores than of nodes")
    shares = (step.accuracy, step.micro_f1, step.val_accuracy, step.changed)
    numbers = (*shares, step.seconds, step.training_seconds, *step.scores)
    if any(type(number) not in (int, float) for number in numbers):
        raise ValueError("measures that are not numbers")
    if any(not 0 <= share <= 1 for share in shares if share == share):
        raise ValueError("an accuracy or a share outside of 0..1")
    if not all(0 <= seconds < math.inf for seconds in (step.seconds, step.training_seconds)):
        raise ValueError("times below 0")
    return step


def _check_sums(history: History) -> None:
    """Refuse steps that do not add up: counts are sums of what was labelled, and no node is labelled twice."""
    if not isinstance(history.settings, dict) or not isinstance(history.memory, dict):
        raise ValueError("settings or memory that are no mappings")
    if not isinstance(history.stopped, str):
        raise ValueError("an end that is not in words")
    seen: set[int] = set()
    labels = 0
    for step in history.steps:
        labels += len(step.nodes)
        if step.labels != labels or step.queried != labels - len(history.steps[0].nodes):
            raise ValueError(
                f"{step.labels} labels, {step.queried} of them queried, where {labels} nodes were labelled"
            )
        new = {*step.nodes, *step.skipped}
        if len(new) != len(step.nodes) + len(step.skipped) or new & seen:
            raise ValueError("a node that was asked for twice")
        seen |= new
