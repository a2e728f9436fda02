"""Self-training with few labels: nodes with high p-values get pseudo-labels and become training nodes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.baselines.classifier import Fitted, check_labels, check_validation, classes_of, logits_of, softmax_scores
from jurygcn.choices import Recipe
from jurygcn.errors import SettingError
from jurygcn.jury import Jury
from jurygcn.models.gcn import GCN
from jurygcn.models.training import fit_gcn
from jurygcn.self_training.feature_views import FeatureView, feature_views
from jurygcn.self_training.pseudo_labels import (
    NO_PSEUDO_LABELS,
    PseudoLabels,
    choose_pseudo_labels,
    class_shares,
    count_changes,
    score_labels,
)

# numbers of hops to choose from: the jurors choose with "auto", the validation nodes with "validated"
HOPS = {"auto": (0, 2, 4, 8, 16), "validated": (0, 2, 4, 8, 16, 32, 64)}
AUTO_TEACHERS = 2  # teachers with hops="auto"
STANDARD_ERRORS = 2.0  # a view within so many standard errors of the best is not clearly worse
MIN_TRAIN_ACCURACY = 0.9  # training accuracy that a teacher needs, as a share of the best teacher's
JUDGES = ("jury", "confidence")
LABELS_PER_CLASS = 5  # with so many labels per class the exponent of the p-values is one half


@dataclass(frozen=True, eq=False)
class SelfTrained:
    """A model trained on labels and pseudo-labels.

    Attributes:
        model: the final GCN, the student. It uses the graph's own features.
        history: for each round the number of pseudo-labels, how many changed, and their mean weight.
        pseudo_labels: the pseudo-labels that the final model was trained on.
        teacher_probabilities: mean class probabilities of the last teachers, (N, C).
        hops: for each teacher the number of hops its features were averaged over.
        components: for each teacher the number of principal components it used; None if it used all features.
        validation_accuracy: the model's accuracy at the validation nodes; None if they did not choose the teachers.
    """

    model: GCN
    history: list[dict[str, float]] = field(repr=False)
    pseudo_labels: PseudoLabels = field(repr=False)
    teacher_probabilities: Tensor = field(repr=False)
    hops: tuple[int, ...]
    components: tuple[int | None, ...]
    validation_accuracy: float | None = None


@dataclass(frozen=True)
class SelfTraining:
    """Settings of :func:`self_train`, and self-training as a method; only ``hops="validated"`` uses validation nodes.

    Attributes:
        rounds: share of the graph's nodes that have a pseudo-label after each round.
        max_pseudo_labels: the largest number of pseudo-labels in any round.
        judge: "jury" ranks and weights pseudo-labels with the jury's p-values; "confidence" uses probabilities alone.
        hops: number of hops the features are averaged over, for each teacher. "auto" chooses at most two teachers by
            their jurors' leave-one-out errors and their own training accuracy. "validated" trains teachers with 0 to
            64 hops separately and chooses an ensemble of them by accuracy at the validation nodes.
        components: with "validated", numbers of principal components. Each adds one teacher for each number of hops.
        max_teachers: with "validated", the largest number of teachers in the ensemble.
        diffusion: how often the jury's votes are averaged over neighbourhoods, as in ``Jury.verdict``.
        balance: number added to the label count of each class that has a label. These counts set the share of each
            class among the pseudo-labels.
        weight: weight of a pseudo-label whose p-value is 1.
        distil: True trains the final model on the last teachers' predictions for all unlabelled nodes; False trains it
            on the pseudo-labels of the last round.
        hidden, lr, weight_decay: of the teachers and the final model.
        teacher_epochs: of the teachers. Teachers have no dropout, so each jury belongs to the objective its teacher
            was trained on.
        epochs, dropout: of the final model.
    """

    rounds: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    max_pseudo_labels: int = 2000
    judge: str = "jury"
    hops: int | tuple[int, ...] | str = "auto"
    components: tuple[int, ...] = (5, 10, 20)
    max_teachers: int = 10
    diffusion: int | str = "auto"
    balance: float = 5.0
    weight: float = 1.0
    distil: bool = True
    hidden: int = Recipe.hidden
    lr: float = Recipe.lr
    weight_decay: float = Recipe.weight_decay
    teacher_epochs: int = Recipe.epochs
    epochs: int = 200
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if not self.rounds or not all(0 < share <= 1 for share in self.rounds):
            raise SettingError(
                f"expected rounds to be one or more shares above 0 and at most 1, got {self.rounds}; change them"
            )
        if self.judge not in JUDGES:
            raise SettingError(f"expected judge to be one of {', '.join(JUDGES)}, got {self.judge!r}; choose one")
        if not self.candidates or not all(isinstance(k, int) and k >= 0 for k in self.candidates):
            raise SettingError(
                "expected hops to be 'auto', 'validated' or whole numbers of at least 0 such as (8, 16), "
                f"got {self.hops!r}; change them"
            )
        if not all(isinstance(count, int) and count >= 1 for count in (self.max_teachers, *self.components)):
            raise SettingError(
                "expected max_teachers and components to be whole numbers of at least 1, "
                f"got {self.max_teachers} and {self.components}; change them"
            )
        if not (self.balance >= 0 and self.weight > 0 and self.max_pseudo_labels >= 1):
            raise SettingError(
                "expected balance of at least 0, weight above 0 and max_pseudo_labels of at least 1, "
                f"got {self.balance}, {self.weight} and {self.max_pseudo_labels}; change them"
            )

    @property
    def candidates(self) -> tuple[int, ...]:
        """The numbers of hops to try."""
        hops: Any = HOPS.get(self.hops, self.hops) if isinstance(self.hops, str) else self.hops
        return hops if isinstance(hops, tuple) else (hops,)

    @plain_torch()
    def fit(self, data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0) -> Fitted:
        """Self-train; see :func:`self_train`."""
        found = run(data, train_nodes, self, val_nodes=val_nodes if self.hops == "validated" else None, seed=seed)
        probabilities = torch.softmax(logits_of(found.model, data), dim=1)
        details = {"hops": sum(found.hops) / len(found.hops), "pseudo_labels": len(found.pseudo_labels)}
        return Fitted(probabilities, softmax_scores(probabilities), found.model, details)


@plain_torch()
def self_train(
    data: Data, train_nodes: Tensor, *, val_nodes: Tensor | None = None, seed: int = 0, **settings: Any
) -> SelfTrained:
    """Train a GCN on few labels and on pseudo-labels with high p-values.

    The teachers are GCNs on features averaged over several hops. They are trained on the labels. Their juries give
    each class of each node a p-value. In each class the nodes with the highest product of probability and weight get a
    pseudo-label. The weight is a power of the mean p-value. The number of pseudo-labels of a class follows its share
    of the labels. Then the teachers are trained again, on labels and pseudo-labels, and all pseudo-labels are chosen
    again. By default each round has more pseudo-labels than the last. The final model is a GCN on the graph's own
    features. It is trained on the labels and on the last teachers' predictions for all other nodes.

    Few labels are not enough to choose the teachers' features well. If you have further labels, pass their nodes as
    ``val_nodes``. Each teacher then goes through the rounds alone, with its own features. The final model learns from
    the ensemble of teachers with the highest accuracy at the validation nodes. No model is trained on validation
    labels, but they choose the teachers, so the accuracy there is no longer an unbiased estimate.

    Args:
        data: the graph. Only the labels of ``train_nodes`` and ``val_nodes`` are used.
        train_nodes: the labelled nodes.
        val_nodes: the validation nodes. Passing them sets ``hops="validated"``, which needs them.
        seed: of all initial weights and of dropout.
        settings: those of :class:`SelfTraining`.
    """
    unknown = sorted(set(settings) - set(SelfTraining.__dataclass_fields__))
    if unknown:
        known = ", ".join(SelfTraining.__dataclass_fields__)
        raise SettingError(f"expected settings of self-training ({known}), got {', '.join(unknown)}; drop them")
    if val_nodes is not None:
        settings = {"hops": "validated"} | settings
    return run(data, train_nodes, SelfTraining(**settings), val_nodes=val_nodes, seed=seed)


def run(
    data: Data, train_nodes: Tensor, settings: SelfTraining, *, val_nodes: Tensor | None = None, seed: int
) -> SelfTrained:
    """Train the teachers in rounds, then train the final model on their predictions."""
    nodes = check_labels(data, train_nodes)
    # hide all other labels: the code below must see only given labels and pseudo-labels
    labels = torch.full((int(data.num_nodes),), -1)
    labels[nodes] = data.y[nodes].cpu()
    masked = with_labels(data, labels)
    if settings.hops != "validated":
        if val_nodes is not None:
            raise SettingError(f"expected hops='validated' with val_nodes, got {settings.hops!r}; drop one of the two")
        result = run_rounds(choose_teachers(masked, nodes, settings, seed=seed), nodes, settings, seed=seed)
        return train_student(masked, nodes, result, settings, seed=seed)
    held_out = check_validation(data, val_nodes, nodes, why="hops='validated' chooses teachers by them")

    def accuracy(outputs: Tensor) -> float:
        return float((outputs[held_out].argmax(dim=1) == data.y[held_out]).float().mean())

    teachers = train_teachers(masked, nodes, settings, seed=seed)
    results = [run_rounds([teacher], nodes, settings, seed=seed) for teacher in teachers]
    ensemble = select_ensemble(results, accuracy, max_teachers=settings.max_teachers)
    found = train_student(masked, nodes, ensemble, settings, seed=seed)
    return replace(found, validation_accuracy=accuracy(logits_of(found.model, data)))


def select_ensemble(
    results: list[TeacherResult], accuracy: Callable[[Tensor], float], *, max_teachers: int
) -> TeacherResult:
    """Add one teacher at a time to an ensemble, as long as the accuracy of the mean probabilities rises.

    Each step adds the teacher that gives the highest accuracy. A teacher can be added more than once. This is the
    ensemble selection of Caruana et al. (2004).
    """
    chosen: list[TeacherResult] = []
    total, best = torch.zeros_like(results[0].probabilities), -1.0
    while len(chosen) < max_teachers:
        scores = [accuracy(total + result.probabilities) for result in results]
        if max(scores) <= best:
            break
        best = max(scores)
        chosen.append(results[scores.index(best)])
        total = total + chosen[-1].probabilities
    views = tuple(view for result in chosen for view in result.views)
    return replace(chosen[0], probabilities=total / len(chosen), views=views)


# --- the parts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Teacher:
    """A GCN trained on the given labels and one view of the features, with its graph and its jury."""

    view: FeatureView
    graph: Data
    model: GCN
    jury: Jury

    def retrained(self, nodes: Tensor, pseudo: PseudoLabels, settings: SelfTraining, *, seed: int) -> Tensor:
        """Class probabilities of this teacher after training from scratch on labels and pseudo-labels, (N, C)."""
        epochs = settings.teacher_epochs
        model = fit_with_pseudo_labels(self.graph, nodes, pseudo, settings, seed=seed, epochs=epochs, dropout=0.0)
        return torch.softmax(logits_of(model, self.graph), dim=1)


@dataclass(frozen=True, eq=False)
class TeacherResult:
    """Mean class probabilities of some teachers after the last round, (N, C), and how the rounds went.

    In an ensemble, ``pseudo`` and ``history`` are those of the first teacher.
    """

    probabilities: Tensor
    pseudo: PseudoLabels
    history: list[dict[str, float]]
    views: tuple[FeatureView, ...]


def run_rounds(teachers: list[Teacher], nodes: Tensor, settings: SelfTraining, *, seed: int) -> TeacherResult:
    """Choose pseudo-labels and retrain the teachers on them, once per round."""
    s, labels = settings, teachers[0].graph.y
    shares = class_shares(labels[nodes], classes_of(teachers[0].graph), balance=s.balance)
    probabilities = mean_of([torch.softmax(logits_of(teacher.model, teacher.graph), dim=1) for teacher in teachers])
    p_values = torch.ones_like(probabilities)
    if s.judge == "jury":  # these juries rest on true labels only, because no pseudo-labels exist yet
        p_values = mean_of(
            [teacher.jury.verdict(diffusion=s.diffusion, advice=None).p_values.float() for teacher in teachers]
        )
    trust = len(nodes) / (len(nodes) + LABELS_PER_CLASS * len(shares))
    pseudo, history = NO_PSEUDO_LABELS, []
    for share in s.rounds:
        before, quota = pseudo, shares * min(share * len(labels), s.max_pseudo_labels)
        scored = score_labels(probabilities, p_values, trust=trust)
        pseudo = choose_pseudo_labels(scored, quota, nodes, weight=s.weight)
        history.append(
            {
                "pseudo_labels": len(pseudo),
                "changed": count_changes(before, pseudo),
                "mean_weight": float(pseudo.weights.mean()) if len(pseudo) else 0.0,
            }
        )
        probabilities = mean_of([teacher.retrained(nodes, pseudo, s, seed=seed) for teacher in teachers])
    return TeacherResult(probabilities, pseudo, history, tuple(teacher.view for teacher in teachers))


def train_student(
    data: Data, nodes: Tensor, result: TeacherResult, settings: SelfTraining, *, seed: int
) -> SelfTrained:
    """Train the final model on the graph's own features."""
    s, pseudo = settings, result.pseudo
    if s.distil:
        unlabelled = torch.ones(int(data.num_nodes), dtype=torch.bool)
        unlabelled[nodes] = False
        others = unlabelled.nonzero()[:, 0]
        pseudo = PseudoLabels(others, result.probabilities.argmax(dim=1)[others], torch.full((len(others),), s.weight))
    model = fit_with_pseudo_labels(data, nodes, pseudo, s, seed=seed, epochs=s.epochs, dropout=s.dropout)
    hops, components = zip(*((view.hops, view.components) for view in result.views))
    return SelfTrained(model, result.history, pseudo, result.probabilities, hops, components)


def train_teachers(data: Data, nodes: Tensor, settings: SelfTraining, *, seed: int) -> Iterator[Teacher]:
    """One teacher for each view of the features, trained when it is needed, because all views may not fit in memory."""
    s = settings
    for view, graph in feature_views(data, s.candidates, s.components if s.hops == "validated" else ()):
        model = fit_with_pseudo_labels(
            graph, nodes, NO_PSEUDO_LABELS, s, seed=seed, epochs=s.teacher_epochs, dropout=0.0
        )
        jury = Jury(model, graph, nodes, weight_decay=s.weight_decay)
        yield Teacher(view, graph, model, jury.fit() if s.hops == "auto" or s.judge == "jury" else jury)


def choose_teachers(data: Data, nodes: Tensor, settings: SelfTraining, *, seed: int) -> list[Teacher]:
    """The teachers for the requested hops. With ``hops="auto"``, the two with most hops that pass two tests.

    First, a teacher's training accuracy must be at least 0.9 times the best. It is lower where averages over many hops
    make nodes too similar. Second, its jurors' leave-one-out error must not be clearly worse than the smallest. It is
    clearly worse where edges carry no information about labels; then only the teacher with 0 hops passes.
    """
    teachers = list(train_teachers(data, nodes, settings, seed=seed))
    if settings.hops != "auto":
        return teachers
    labels = data.y[nodes]
    correct = [
        int((logits_of(teacher.model, teacher.graph)[nodes].argmax(dim=1) == labels).sum()) for teacher in teachers
    ]
    teachers = [t for t, count in zip(teachers, correct) if count >= MIN_TRAIN_ACCURACY * max(correct)]
    errors = [
        teacher.jury.verdict(nodes, diffusion=0, advice=None).loo_errors.double().square() for teacher in teachers
    ]
    return [teachers[place] for place in not_clearly_worse(torch.stack(errors))[-AUTO_TEACHERS:]]


def not_clearly_worse(errors: Tensor) -> list[int]:
    """The rows whose mean exceeds the smallest mean by at most two standard errors of the paired differences.

    The errors are squared, because the squared error is a proper score. Shapes: (candidates, n).
    """
    worse = errors - errors[errors.mean(dim=1).argmin()]
    slack = worse.std(dim=1) / errors.shape[1] ** 0.5 if errors.shape[1] > 1 else torch.zeros(len(errors))
    places: list[int] = (worse.mean(dim=1) <= STANDARD_ERRORS * slack).nonzero()[:, 0].tolist()
    return places


def mean_of(parts: list[Tensor]) -> Tensor:
    """The mean of the tensors."""
    return torch.stack(parts).mean(dim=0)


def fit_with_pseudo_labels(
    graph: Data, nodes: Tensor, pseudo: PseudoLabels, settings: SelfTraining, *, seed: int, epochs: int, dropout: float
) -> GCN:
    """A GCN trained on the graph's labels at ``nodes`` and on pseudo-labels."""
    labels = graph.y.clone()
    labels[pseudo.nodes] = pseudo.labels
    return fit_gcn(
        with_labels(graph, labels),
        torch.cat([nodes, pseudo.nodes]),
        Recipe(settings.hidden, epochs, settings.lr, settings.weight_decay, dropout),
        node_weights=torch.cat([torch.ones(len(nodes)), pseudo.weights]),
        seed=seed,
    )[0]


def with_labels(graph: Data, labels: Tensor) -> Data:
    """A copy of the graph with these labels and the same number of classes, even if a class has no label."""
    other = copy.copy(graph)
    other.num_classes = classes_of(graph)
    other.y = labels
    return other
