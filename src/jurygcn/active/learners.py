"""What is learned with the labels: the GCN that strategies see, the stacked jury, self-training, or any other model.

Two learners doubt the labels. The probability that a label is wrong comes from predictions without it, by the model of
:mod:`jurygcn.diagnostics.label_errors`, and from all its answers if a node has several.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.active.scene import hide_labels
from jurygcn.annotators import agreement
from jurygcn.choices import LEARNERS, Recipe
from jurygcn.conformal.advice import Advice, panel_of, take_advice
from jurygcn.conformal.averaging import NeighbourAverages
from jurygcn.conformal.counts import FLOOR
from jurygcn.diagnostics.noise import NoiseModel, fit_noise
from jurygcn.errors import JuryError, SettingError
from jurygcn.io.fingerprints import architecture, fingerprint
from jurygcn.jury import Jury
from jurygcn.models import GCN, ReceptiveField, fit_gcn, train
from jurygcn.models.calling import call
from jurygcn.self_training.rounds import SelfTraining, run

FOLDS = 5  # parts of the labels; each is predicted by a GCN that learned the others
WRONG = 0.5  # probability of being wrong above which a label is screened out
ORACLE = "oracle"  # the annotator of a run
# takes the graph with the labels given so far, the labelled nodes and a seed; returns the class of every node, or a
# score of every node and class
Predictor = Callable[[Data, Tensor, int], Tensor]


@dataclass(frozen=True, eq=False)
class LabelledGraph:
    """What there is to learn from: the graph with the labels given so far, and the GCN trained on them.

    ``answers`` are all answers so far, (node, class), if some nodes were asked about several times.
    """

    data: Data
    labelled: Tensor
    model: GCN
    recipe: Recipe
    seed: int
    answers: tuple[tuple[int, int], ...] = ()

    def bare_jury(self) -> Jury:
        """A jury of the GCN before its jurors are found."""
        decay = self.recipe.weight_decay
        return Jury(self.model, self.data, self.labelled, weight_decay=decay, chosen="actively")

    def jury(self) -> Jury:
        """A fitted jury of the GCN."""
        return self.bare_jury().fit()


@dataclass(frozen=True, eq=False)
class Predicted:
    """Predicted classes of all nodes, and how good they are expected to be. Neither expectation uses other labels.

    Attributes:
        expected: the mean probability of the predicted classes of unlabelled nodes. The GCN's and the panel's
            predictions of left-out labels choose its temperature. NaN for other learners.
        left_out: the share of the labels that the learner predicts without them; NaN for other learners.
        wrong: the estimated share of wrong labels; NaN for learners that do not estimate it.

    Shapes: classes (N,).
    """

    classes: Tensor
    expected: float = math.nan
    left_out: float = math.nan
    wrong: float = math.nan


Learner = Callable[[LabelledGraph], Predicted]


def find_learner(learner: str | nn.Module | Predictor) -> tuple[str, Learner]:
    """The name of a learner, and what it predicts from a labelled graph."""
    if isinstance(learner, nn.Module):
        model = learner
        return f"{type(model).__name__} {fingerprint(architecture(model))}", lambda given: _trained(model, given)
    if callable(learner):
        predictor = learner
        return str(getattr(predictor, "__name__", repr(predictor))), lambda given: _predicted(predictor, given)
    if learner not in LEARNERS:
        raise SettingError(
            f"expected a learner of {', '.join(LEARNERS)}, a model or a function, got {learner!r}; choose one"
        )
    named = {
        "gcn": _gcn,
        "advised": _advised,
        "self-trained": _self_trained,
        "weighted": _weighted,
        "screened": _screened,
    }
    return learner, named[learner]


def _gcn(given: LabelledGraph) -> Predicted:
    """The GCN itself. The stacked jury says how probable its predictions are."""
    classes = predictions(given.model, given.data)
    try:
        jury = given.jury()
        advice, own = jury.advice(), jury.left_out("model")
    except JuryError:
        return Predicted(classes)  # no juror can vote, so nothing is expected
    right = own.probabilities.argmax(dim=1) == own.labels
    return _with_expectations(given, stacked_probabilities(advice, given), right, classes)


def _advised(given: LabelledGraph) -> Predicted:
    """The GCN and the panel's regressions, stacked."""
    if len(given.labelled) < 2:  # no label can be left out
        return _gcn(given)
    advice, scores = left_out_scores(given)
    right = scores.argmax(dim=1) == given.data.y[given.labelled]
    return _with_expectations(given, stacked_probabilities(advice, given), right)


def _self_trained(given: LabelledGraph) -> Predicted:
    """A GCN trained on the labels and on pseudo-labels. The stacked jury says how probable its predictions are."""
    if len(given.labelled) < 2:
        return _gcn(given)
    classes = predictions(self_trained(given), given.data)
    advice, _ = left_out_scores(given)
    return _with_expectations(given, stacked_probabilities(advice, given), None, classes)


def self_trained(given: LabelledGraph) -> GCN:
    """The GCN after self-training, with the recipe's network and optimiser, and self-training's own epochs."""
    recipe = given.recipe
    settings = SelfTraining(
        hidden=recipe.hidden, lr=recipe.lr, weight_decay=recipe.weight_decay, dropout=recipe.dropout
    )
    return run(given.data, given.labelled, settings, seed=given.seed).model


def left_out_scores(given: LabelledGraph) -> tuple[Advice, Tensor]:
    """The stacked advice, and its scores of the labelled nodes without their own label, (n, C)."""
    engine, count = given.bare_jury().engine, len(given.labelled)
    panel, own = panel_of(engine), folded(given)
    advice = take_advice(engine, panel, torch.arange(count), own)
    total = advice.left_out[0][:, None] * own[advice.diffusion].clamp_min(FLOOR).log()
    for weight, adviser in zip(advice.left_out[1:], advice.advisers):
        total = total + weight[:, None] * (panel.targets - adviser.errors)  # y_i - e_i = f_{-i}(i)
    return advice, total


def suspicion(given: LabelledGraph) -> NoiseModel:
    """How probable it is that each label is wrong, and the distribution of the true one without it."""
    labels = given.data.y[given.labelled].cpu()
    noise = fit_noise(torch.log_softmax(left_out_scores(given)[1].double(), dim=1), labels)
    if not given.answers:
        return noise
    nodes = given.labelled.tolist()
    said = ((node, ORACLE, label) for node, label in given.answers)
    found = agreement(said, int(given.data.num_classes), prior=dict(zip(nodes, noise.truth.numpy())))
    rows = np.searchsorted(found.nodes, nodes)
    wrong = torch.from_numpy(1.0 - found.posterior[rows, labels.numpy()])
    return replace(noise, rate=found.error_rate, wrong=wrong)


def label_weights(noise: NoiseModel) -> Tensor:
    """By how much it is more probable that a label is right than that it is wrong; at least 0, (n,)."""
    return (1.0 - 2.0 * noise.wrong).clamp_min(0.0).float()


def _weighted(given: LabelledGraph) -> Predicted:
    """A GCN with losses weighted by how much more probable it is that a label is right than that it is wrong."""
    if len(given.labelled) < 2:
        return _gcn(given)
    noise = suspicion(given)
    model, _ = fit_gcn(given.data, given.labelled, given.recipe, seed=given.seed, node_weights=label_weights(noise))
    return Predicted(predictions(model, given.data), wrong=noise.rate)


def _screened(given: LabelledGraph) -> Predicted:
    """The advised learner without the labels that are probably wrong; each class keeps its least suspicious label."""
    if len(given.labelled) < 2:
        return _gcn(given)
    noise = suspicion(given)
    labels = given.data.y[given.labelled].cpu()
    kept = noise.wrong <= WRONG
    for c in labels.unique():
        kept[torch.where(labels == c, noise.wrong, torch.inf).argmin()] = True
    if bool(kept.all()):
        return replace(_advised(given), wrong=noise.rate)
    nodes = given.labelled[kept]
    seen = hide_labels(given.data, nodes, labels[kept])
    model, _ = fit_gcn(seen, nodes, given.recipe, seed=given.seed)
    return replace(_advised(LabelledGraph(seen, nodes, model, given.recipe, given.seed)), wrong=noise.rate)


def _with_expectations(
    given: LabelledGraph, stacked: Tensor, right: Tensor | None, classes: Tensor | None = None
) -> Predicted:
    """These classes, or the most probable ones, and what is expected of them.

    ``right`` says which labels the learner predicts without them; None if that is not known.
    """
    said = stacked.argmax(dim=1) if classes is None else classes
    sure = stacked.gather(1, said[:, None]).squeeze(1).double()
    unlabelled = torch.ones(len(sure), dtype=torch.bool).index_fill_(0, given.labelled.cpu(), False)
    left_out = math.nan if right is None else float(right.double().mean())
    return Predicted(said, float(sure[unlabelled].mean()), left_out)


def folded(given: LabelledGraph) -> dict[int, Tensor]:
    """The probabilities of each labelled node by a GCN that learned only other parts of the labels.

    Estimated jurors of a GCN that was trained with dropout for few epochs still know something of the label that they
    left out. The stacked jury would trust them more than the regressions, whose jurors are exact.

    Shapes: by number of averages over neighbourhoods, (n, C) each.
    """
    nodes, count = given.labelled, len(given.labelled)
    part = torch.from_numpy(np.random.default_rng(given.seed).permutation(count) % min(FOLDS, count))
    found: dict[int, Tensor] = {}
    for fold in range(min(FOLDS, count)):
        model, _ = fit_gcn(given.data, nodes[part != fold], given.recipe, seed=given.seed)
        for averages, rows in averaged_probabilities(model, given.data, "auto").items():
            own = found.setdefault(averages, rows.new_empty(count, rows.shape[1]))
            own[part == fold] = rows[nodes[part == fold]]
    return found


def stacked_probabilities(advice: Advice, given: LabelledGraph) -> Tensor:
    """The stacked prediction of all nodes, as ``jury.verdict().calibrated`` but without a vote, (N, C)."""
    return advice.outputs(averaged_probabilities(given.model, given.data, advice.diffusion)[advice.diffusion])


@torch.no_grad()
def averaged_probabilities(model: GCN, data: Data, averages: int | str) -> dict[int, Tensor]:
    """The class probabilities of all nodes by number of averages over neighbourhoods, (N, C) each."""
    everything = torch.arange(int(data.num_nodes))
    logits = ReceptiveField.of(model, data, everything).logits(list(model.weights))
    smooth = NeighbourAverages(data, everything, averages)(torch.softmax(logits, dim=1).unsqueeze(2))
    return {steps: rows.squeeze(2) for steps, rows in smooth.items()}


def _trained(model: nn.Module, given: LabelledGraph) -> Predicted:
    own, recipe = deepcopy(model), given.recipe
    train(
        *(own, given.data, given.labelled),
        epochs=recipe.epochs,
        lr=recipe.lr,
        weight_decay=recipe.weight_decay,
        seed=given.seed,
    )
    with torch.no_grad():
        return Predicted(call(own, given.data).argmax(dim=1).cpu())


def _predicted(predictor: Predictor, given: LabelledGraph) -> Predicted:
    found = torch.as_tensor(predictor(given.data, given.labelled, given.seed)).detach().cpu()
    count, classes = int(given.data.num_nodes), int(given.data.num_classes)
    if found.shape not in ((count,), (count, classes)):
        raise SettingError(
            f"expected the learner to return ({count},) classes or ({count}, {classes}) scores, got "
            f"{tuple(found.shape)}; correct it"
        )
    return Predicted(found if found.dim() == 1 else found.argmax(dim=1))


@torch.no_grad()
def predictions(model: GCN, data: Data) -> Tensor:
    """The predicted class of every node, (N,)."""
    field = ReceptiveField.of(model, data, torch.arange(int(data.num_nodes)))
    return field.logits(list(model.weights)).argmax(dim=1)
