"""The history of a run, step by step. It is saved as JSON, so that a run can continue after an interruption."""

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
COLUMNS = (
    *("labels", "queried", "accuracy", "micro_f1", "val_accuracy", "learner_accuracy", "learner_val_accuracy"),
    *("expected_accuracy", "left_out_accuracy", "error_rate", "changed", "seconds", "training_seconds"),
)


@dataclass(frozen=True)
class Step:
    """One step: nodes are chosen and labelled, and a GCN is trained on all labels so far and measured.

    Attributes:
        labels: number of labelled nodes after this step, with the initial ones.
        queried: how many of these the strategy chose.
        accuracy, micro_f1: at the test nodes; NaN without test nodes.
        val_accuracy: at the validation nodes; NaN without validation nodes.
        changed: share of all nodes whose predicted class differs from the step before; NaN in the first step.
        seconds: time to choose the nodes, without the model's training.
        training_seconds: time to train the model.
        nodes, answers: the nodes labelled in this step, and their labels.
        skipped: nodes that the oracle could not label. They are not queried again.
        scores: the strategy's scores of the chosen nodes; empty for the initial ones.
        learner_accuracy, learner_val_accuracy: of the learner, which is the GCN itself unless another was given.
        expected_accuracy: what the learner is expected to reach at unlabelled nodes: the mean probability of its
            predictions, calibrated by left-out labels. No other label is used. It is no promise, because chosen labels
            are no random sample. NaN for learners without jurors.
        left_out_accuracy: the share of the labels that the learner predicts without them. Chosen labels are harder or
            easier than other nodes, so this is further from the accuracy there. NaN for learners without jurors of
            their own.
        error_rate: the estimated share of wrong answers; NaN unless the learner or ``doubts`` estimate it.
        again, again_answers: the nodes asked about again in this step, and the new answers; -1 where there was none.
        settled: the labels of these nodes after this step.
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
    learner_accuracy: float = math.nan
    learner_val_accuracy: float = math.nan
    expected_accuracy: float = math.nan
    left_out_accuracy: float = math.nan
    error_rate: float = math.nan
    again: tuple[int, ...] = field(default=(), repr=False)
    again_answers: tuple[int, ...] = field(default=(), repr=False)
    settled: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class History:
    """A run of active learning.

    Attributes:
        settings: all settings that determine the run.
        steps: the steps so far; the first has the initial labels.
        memory: values that the strategy keeps between steps.
        stopped: why the run ended: "budget", "pool" or the reason of a stopping rule; empty while it goes on.
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
        """The labels of the nodes in ``labelled``; where a node was asked about again, what was settled last."""
        found: dict[int, int] = {}
        for step in self.steps:
            found |= dict(zip(step.nodes, step.answers)) | dict(zip(step.again, step.settled))
        return torch.tensor(list(found.values()), dtype=torch.long)

    @property
    def answers(self) -> tuple[tuple[int, int], ...]:
        """All answers, (node, class), in the order in which they were given; a node may have several."""
        pairs = (
            pair for step in self.steps for pair in zip(step.nodes + step.again, step.answers + step.again_answers)
        )
        return tuple((node, label) for node, label in pairs if label >= 0)

    @property
    def explored(self) -> Tensor:
        """The labelled nodes that were drawn at random before a run with ``explore``; empty without, or before its end.

        Every node of the pool was drawn with the same probability, so they are exchangeable with nodes that the
        strategy did not choose, as long as it does not depend on those.
        """
        ended = bool(self.settings.get("explored")) and self.stopped == "budget"
        return torch.tensor(self.steps[-1].nodes if ended else (), dtype=torch.long)

    @property
    def skipped(self) -> Tensor:
        """The nodes that the oracle could not label."""
        return torch.tensor([node for step in self.steps for node in step.skipped], dtype=torch.long)

    def with_step(self, step: Step, memory: Mapping[str, Any]) -> History:
        """A copy of this history with one more step."""
        return replace(self, steps=(*self.steps, step), memory=dict(memory))

    def to_frame(self) -> pd.DataFrame:
        """A table with one row per step. The first row has the initial labels."""
        rows = [asdict(step) for step in self.steps]
        return pd.DataFrame([{column: row[column] for column in COLUMNS} for row in rows], columns=list(COLUMNS))

    @property
    def outlook(self) -> str:
        """What is expected after the last step, what its labels brought, and why this is no promise; in sentences."""
        known = [step for step in self.steps if step.expected_accuracy == step.expected_accuracy]
        if not known:
            return "Nothing is expected of the learner: it has no jurors."
        last = known[-1]
        said = f"With {last.labels} labels {last.expected_accuracy:.0%} of the other nodes are expected to be right"
        if len(known) > 1:
            rise = 100 * (last.expected_accuracy - known[-2].expected_accuracy)
            said += f", {rise:+.1f} points by the last {last.labels - known[-2].labels} labels"
        return f"{said}. This is no promise: the labels were chosen, so they are no random sample."

    def plot(self, axes: Axes | None = None, **style: Any) -> Axes:
        """Plot test accuracy against the number of labels, into ``axes`` or into a new figure."""
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
        """Write the history to a JSON file, atomically."""
        path = Path(path)
        document = {"format": FORMAT, **asdict(self)}
        # JSON has no NaN, so NaN becomes null
        document["steps"] = [{k: None if v != v else v for k, v in step.items()} for step in document["steps"]]
        write_text(path, json.dumps(sealed(document), allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> History:
        """Read a history that ``save`` wrote."""
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
                f"expected a history that jurygcn saved in {path.name}, got other content ({error}); "
                "choose another file"
            ) from error

    def check_same(self, settings: Mapping[str, Any], path: Path) -> None:
        """Raise SettingError if the settings differ from those of the saved run."""
        other = {key for key in {*settings, *self.settings} if settings.get(key) != self.settings.get(key)}
        if other:
            # name the split last, because it also differs if the seed does
            key = min(other, key=lambda name: (name == "split", name))
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
        raise ValueError("nodes, answers or counts that are not whole numbers of at least 0")
    if any(type(number) is not int for number in (*step.again, *step.again_answers, *step.settled)) or any(
        number < least
        for least, numbers in ((0, step.again), (-1, step.again_answers), (0, step.settled))
        for number in numbers
    ):
        raise ValueError("nodes asked about again, or their answers, that are not whole numbers")
    if not len(step.again) == len(step.again_answers) == len(step.settled):
        raise ValueError("numbers of answers that differ from the number of nodes asked about again")
    if len(step.nodes) != len(step.answers) or len(step.scores) not in (0, len(step.nodes)):
        raise ValueError("numbers of answers or scores that differ from the number of nodes")
    learner = (step.learner_accuracy, step.learner_val_accuracy, step.expected_accuracy, step.left_out_accuracy)
    shares = (step.accuracy, step.micro_f1, step.val_accuracy, step.changed, step.error_rate, *learner)
    numbers = (*shares, step.seconds, step.training_seconds, *step.scores)
    if any(type(number) not in (int, float) for number in numbers):
        raise ValueError("measures that are not numbers")
    if any(not 0 <= share <= 1 for share in shares if share == share):
        raise ValueError("an accuracy or a share outside 0..1")
    if not all(0 <= seconds < math.inf for seconds in (step.seconds, step.training_seconds)):
        raise ValueError("times that are negative or not finite")
    return step


def _check_sums(history: History) -> None:
    """Raise ValueError if counts differ from the number of labelled nodes, or if a node was queried twice."""
    if not isinstance(history.settings, dict) or not isinstance(history.memory, dict):
        raise ValueError("settings or memory that are not mappings")
    if not isinstance(history.stopped, str):
        raise ValueError("a reason to stop that is not text")
    seen: set[int] = set()
    labels = 0
    for step in history.steps:
        labels += len(step.nodes)
        if step.labels != labels or step.queried != labels - len(history.steps[0].nodes):
            raise ValueError(
                f"{step.labels} labels, {step.queried} of them queried, where {labels} nodes were labelled"
            )
        if not set(step.again) <= seen or len(set(step.again)) != len(step.again):
            raise ValueError("a node asked about again that was not labelled, or twice in one step")
        new = {*step.nodes, *step.skipped}
        if len(new) != len(step.nodes) + len(step.skipped) or new & seen:
            raise ValueError("a node that was queried twice")
        seen |= new
