"""What is learned with the labels: the GCN that strategies see, the stacked jury, or any other model."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.choices import LEARNERS, Recipe
from jurygcn.conformal.advice import Advice, panel_of, take_advice
from jurygcn.conformal.averaging import NeighbourAverages
from jurygcn.conformal.counts import FLOOR
from jurygcn.errors import JuryError, SettingError
from jurygcn.io.fingerprints import architecture, fingerprint
from jurygcn.jury import Jury
from jurygcn.models import GCN, ReceptiveField, fit_gcn, train
from jurygcn.models.calling import call

FOLDS = 5  # parts of the labels; each is predicted by a GCN that learned the others
# takes the graph with the labels given so far, the labelled nodes and a seed; returns the class of every node, or a
# score of every node and class
Predictor = Callable[[Data, Tensor, int], Tensor]


@dataclass(frozen=True, eq=False)
class Lesson:
    """What there is to learn from: the graph with the labels given so far, and the GCN trained on them."""

    data: Data
    labelled: Tensor
    model: GCN
    recipe: Recipe
    seed: int

    def bare_jury(self) -> Jury:
        """A jury of the GCN before its jurors are found."""
        decay = self.recipe.weight_decay
        return Jury(self.model, self.data, self.labelled, weight_decay=decay, chosen="actively")

    def jury(self) -> Jury:
        """A fitted jury of the GCN."""
        return self.bare_jury().fit()


@dataclass(frozen=True, eq=False)
class Learnt:
    """Predicted classes of all nodes, and how good they are expected to be. Neither expectation uses other labels.

    Attributes:
        expected: the mean probability of the predicted classes of unlabelled nodes. The GCN's and the panel's
            predictions of left-out labels choose its temperature. NaN for other learners.
        left_out: the share of the labels that the learner predicts without them; NaN for other learners.

    Shapes: classes (N,).
    """

    classes: Tensor
    expected: float = math.nan
    left_out: float = math.nan


Learner = Callable[[Lesson], Learnt]


def find_learner(learner: str | nn.Module | Predictor) -> tuple[str, Learner]:
    """The name of a learner, and what it learns in a lesson."""
    if isinstance(learner, nn.Module):
        model = learner
        return f"{type(model).__name__} {fingerprint(architecture(model))}", lambda lesson: _trained(model, lesson)
    if callable(learner):
        predictor = learner
        return str(getattr(predictor, "__name__", repr(predictor))), lambda lesson: _predicted(predictor, lesson)
    if learner not in LEARNERS:
        raise SettingError(
            f"expected a learner of {', '.join(LEARNERS)}, a model or a function, got {learner!r}; choose one"
        )
    return learner, _gcn if learner == "gcn" else _advised


def _gcn(lesson: Lesson) -> Learnt:
    """The GCN itself. The stacked jury says how probable its predictions are."""
    classes = predictions(lesson.model, lesson.data)
    try:
        jury = lesson.jury()
        advice, own = jury.advice(), jury.left_out("model")
    except JuryError:
        return Learnt(classes)  # no juror can vote, so nothing is expected
    right = own.probabilities.argmax(dim=1) == own.labels
    return _learnt(lesson, stacked_probabilities(advice, lesson), right, classes)


def _advised(lesson: Lesson) -> Learnt:
    """The GCN and the panel's regressions, stacked."""
    if len(lesson.labelled) < 2:  # no label can be left out
        return _gcn(lesson)
    engine, labels = lesson.bare_jury().engine, lesson.data.y[lesson.labelled]
    panel, own = panel_of(engine), folded(lesson)
    advice = take_advice(engine, panel, torch.arange(len(labels)), own)
    total = advice.left_out[0][:, None] * own[advice.diffusion].clamp_min(FLOOR).log()
    for weight, adviser in zip(advice.left_out[1:], advice.advisers):
        total = total + weight[:, None] * (panel.targets - adviser.errors)  # y_i - e_i = f_{-i}(i)
    return _learnt(lesson, stacked_probabilities(advice, lesson), total.argmax(dim=1) == labels)


def _learnt(lesson: Lesson, stacked: Tensor, right: Tensor, classes: Tensor | None = None) -> Learnt:
    """These classes, or the most probable ones, and what is expected of them."""
    said = stacked.argmax(dim=1) if classes is None else classes
    sure = stacked.gather(1, said[:, None]).squeeze(1).double()
    unlabelled = torch.ones(len(sure), dtype=torch.bool).index_fill_(0, lesson.labelled.cpu(), False)
    return Learnt(said, float(sure[unlabelled].mean()), float(right.double().mean()))


def folded(lesson: Lesson) -> dict[int, Tensor]:
    """The probabilities of each labelled node by a GCN that learned only other parts of the labels.

    Estimated jurors of a GCN that was trained with dropout for few epochs still know something of the label that they
    left out. The stacked jury would trust them more than the regressions, whose jurors are exact.

    Shapes: by number of averages over neighbourhoods, (n, C) each.
    """
    nodes, count = lesson.labelled, len(lesson.labelled)
    part = torch.from_numpy(np.random.default_rng(lesson.seed).permutation(count) % min(FOLDS, count))
    found: dict[int, Tensor] = {}
    for fold in range(min(FOLDS, count)):
        model, _ = fit_gcn(lesson.data, nodes[part != fold], lesson.recipe, seed=lesson.seed)
        for averages, rows in averaged_probabilities(model, lesson.data, "auto").items():
            own = found.setdefault(averages, rows.new_empty(count, rows.shape[1]))
            own[part == fold] = rows[nodes[part == fold]]
    return found


def stacked_probabilities(advice: Advice, lesson: Lesson) -> Tensor:
    """The stacked prediction of all nodes, as ``jury.verdict().calibrated`` but without a vote, (N, C)."""
    return advice.outputs(averaged_probabilities(lesson.model, lesson.data, advice.diffusion)[advice.diffusion])


@torch.no_grad()
def averaged_probabilities(model: GCN, data: Data, averages: int | str) -> dict[int, Tensor]:
    """The class probabilities of all nodes by number of averages over neighbourhoods, (N, C) each."""
    everything = torch.arange(int(data.num_nodes))
    logits = ReceptiveField.of(model, data, everything).logits(list(model.weights))
    smooth = NeighbourAverages(data, everything, averages)(torch.softmax(logits, dim=1).unsqueeze(2))
    return {steps: rows.squeeze(2) for steps, rows in smooth.items()}


def _trained(model: nn.Module, lesson: Lesson) -> Learnt:
    own, recipe = deepcopy(model), lesson.recipe
    train(
        *(own, lesson.data, lesson.labelled),
        epochs=recipe.epochs,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        seed=lesson.seed,
    )
    with torch.no_grad():
        return Learnt(call(own, lesson.data).argmax(dim=1).cpu())


def _predicted(predictor: Predictor, lesson: Lesson) -> Learnt:
    found = torch.as_tensor(predictor(lesson.data, lesson.labelled, lesson.seed)).detach().cpu()
    count, classes = int(lesson.data.num_nodes), int(lesson.data.num_classes)
    if found.shape not in ((count,), (count, classes)):
        raise SettingError(
            f"expected the learner to return ({count},) classes or ({count}, {classes}) scores, got "
            f"{tuple(found.shape)}; correct it"
        )
    return Learnt(found if found.dim() == 1 else found.argmax(dim=1))


@torch.no_grad()
def predictions(model: GCN, data: Data) -> Tensor:
    """The predicted class of every node, (N,)."""
    field = ReceptiveField.of(model, data, torch.arange(int(data.num_nodes)))
    return field.logits(list(model.weights)).argmax(dim=1)
