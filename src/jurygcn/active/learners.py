"""What is learned with the labels: the GCN that strategies see, the stacked jury, or any other model."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.choices import LEARNERS, Recipe
from jurygcn.conformal.averaging import NeighbourAverages
from jurygcn.conformal.predictions import LeaveOneOutPredictions
from jurygcn.errors import JuryError, SettingError
from jurygcn.io.fingerprints import architecture, fingerprint
from jurygcn.jury import Jury
from jurygcn.models import GCN, ReceptiveField, train
from jurygcn.models.calling import call

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

    def jury(self) -> Jury:
        """A fitted jury of the GCN."""
        decay = self.recipe.weight_decay
        return Jury(self.model, self.data, self.labelled, weight_decay=decay, chosen="actively").fit()


@dataclass(frozen=True, eq=False)
class Learnt:
    """Predicted classes of all nodes, and how good they are expected to be. Neither expectation uses other labels.

    Attributes:
        expected: the mean probability of the predicted classes of unlabelled nodes, as the stacked jury says. Its
            temperature comes from left-out labels. NaN for learners without jurors.
        left_out: the share of the labels that the learner predicts without them; NaN for learners without jurors.

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
    """The GCN itself."""
    return _expected(lesson, predictions(lesson.model, lesson.data), "model")


def _advised(lesson: Lesson) -> Learnt:
    """The stacked jury: the GCN and the panel's regressions, with weights chosen by left-out labels."""
    return _expected(lesson, None, "jury")


def _expected(lesson: Lesson, classes: Tensor | None, of: str) -> Learnt:
    """These classes, or those of the stacked jury, and what is expected of them: nothing where no juror can vote."""
    try:
        jury = lesson.jury()
        stacked, own = stacked_probabilities(jury), jury.left_out(of)
    except JuryError:
        return Learnt(predictions(lesson.model, lesson.data) if classes is None else classes)
    said = stacked.argmax(dim=1) if classes is None else classes
    sure = stacked.gather(1, said[:, None]).squeeze(1)
    unlabelled = torch.ones(len(sure), dtype=torch.bool).index_fill_(0, lesson.labelled.cpu(), False)
    right = (own.probabilities.argmax(dim=1) == own.labels).double()
    return Learnt(said, float(sure[unlabelled].double().mean()), float(right.mean()))


@torch.no_grad()
def stacked_probabilities(jury: Jury) -> Tensor:
    """The stacked jury's class probabilities of all nodes, as ``jury.verdict().calibrated``, without a vote, (N, C)."""
    advice, everything = jury.advice(), torch.arange(int(jury.data.num_nodes))
    parameters, engine = jury.engine.theta[None], jury.engine
    averages = NeighbourAverages(engine.data, everything, advice.diffusion)
    votes = LeaveOneOutPredictions(engine, jury.jurors.steps, averages.reach, memory=jury.run.ballots)
    return advice.outputs(averages(votes.of_parameters(parameters))[advice.diffusion][:, :, 0]).cpu()


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
