"""Self-training led by the jury: with few labels, the nodes it is sure of become labels too."""

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
from jurygcn.errors import SettingError
from jurygcn.jury import Jury
from jurygcn.models.gcn import GCN
from jurygcn.models.training import train
from jurygcn.self_training.averaged_features import Sight, looks
from jurygcn.self_training.pseudo_labels import NOTHING, PseudoLabels, believe, changes, choose, class_shares

# hops that jurors choose from, and that held-out labels do
HOPS = {"auto": (0, 2, 4, 8, 16), "validated": (0, 2, 4, 8, 16, 32, 64)}
TEACHERS = 2
CLEARLY = 2.0  # standard errors
LEARNT = 0.9  # share of the labels that the best teacher tells
JUDGES = ("jury", "confidence")
LABELS_PER_CLASS = 5  # from which on the jury's p-values are trusted more than not


@dataclass(frozen=True, eq=False)
class SelfTrained:
    """A model trained on labels and pseudo-labels.

    Attributes:
        model: the final GCN, on the graph's own features.
        history: per round, how many pseudo-labels there were, how many changed, and what the judge thought of them.
        pseudo_labels: those that the final model was trained on.
        teacher: probabilities of the last teachers, their mean, (N, C).
        hops: over how many hops each teacher's features were averaged.
        components: how many principal components of them each teacher saw; None where all features.
        right: share of the held-out labels that the model gets right, where those have chosen it.
    """

    model: GCN
    history: list[dict[str, float]] = field(repr=False)
    pseudo_labels: PseudoLabels = field(repr=False)
    teacher: Tensor = field(repr=False)
    hops: tuple[int, ...]
    components: tuple[int | None, ...]
    right: float | None = None


@dataclass(frozen=True)
class SelfTraining:
    """Settings of :func:`self_train`, and self-training as a method; only ``hops="validated"`` uses validation nodes.

    Attributes:
        rounds: share of the graph's nodes that have a pseudo-label after each round.
        most: pseudo-labels never become more than this.
        judge: "jury", or "confidence" for plain self-training with the same schedule.
        hops: each teacher sees features averaged over so many hops; "auto" has two teachers that look as far as their
            jurors' errors on their own left-out labels, and what they learn of their own labels, allow; "validated"
            has teachers that work alone, with 0 to 64 hops, and held-out labels call the best of them together.
        components: with "validated", there are also teachers that see so many principal components of the features.
        panel: with "validated", so many are called at most.
        diffusion: how often the jury's ballots are averaged over neighbourhoods, as in ``Jury.verdict``.
        balance: labels that every class seen is thought to have more than it has, when the classes' shares of the
            pseudo-labels are set.
        weight: of a pseudo-label that the judge has no doubt of.
        distil: the final model learns what the last teachers say of all nodes, instead of the last round's
            pseudo-labels only.
        hidden, lr, weight_decay: of teachers and model.
        teacher_epochs: teachers have no dropout, so that their juries are those of their own objectives.
        epochs, dropout: of the final model.
    """

    rounds: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    most: int = 2000
    judge: str = "jury"
    hops: int | tuple[int, ...] | str = "auto"
    components: tuple[int, ...] = (5, 10, 20)
    panel: int = 10
    diffusion: int | str = "auto"
    balance: float = 5.0
    weight: float = 1.0
    distil: bool = True
    hidden: int = 16
    lr: float = 0.01
    weight_decay: float = 5e-4
    teacher_epochs: int = 100
    epochs: int = 200
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if not self.rounds or not all(0 < share <= 1 for share in self.rounds):
            raise SettingError(f"expected rounds to be shares between 0 and 1, got {self.rounds}; change them")
        if self.judge not in JUDGES:
            raise SettingError(f"expected the judge to be one of {', '.join(JUDGES)}, got {self.judge!r}; choose one")
        if not self.candidates or not all(isinstance(k, int) and k >= 0 for k in self.candidates):
            raise SettingError(
                f"expected hops to be 'auto', 'validated' or numbers such as (8, 16), got {self.hops!r}; change them"
            )
        if not all(isinstance(count, int) and count >= 1 for count in (self.panel, *self.components)):
            raise SettingError(
                f"expected whole numbers of at least 1 as panel and components, got {self.panel} and "
                f"{self.components}; change them"
            )
        if not (self.balance >= 0 and self.weight > 0 and self.most >= 1):
            raise SettingError(
                f"expected balance of at least 0, weight above 0 and most of at least 1, got {self.balance}, "
                f"{self.weight} and {self.most}; change them"
            )

    @property
    def candidates(self) -> tuple[int, ...]:
        """Hops that are tried."""
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
    """Train a GCN on few labels and on what the jury is sure of.

    Two teachers, GCNs on features averaged over many hops, learn the labels, and their juries say how credible each
    label of each node is (the verdicts' p-values). In every class the nodes that all are surest of get a pseudo-label,
    as many as the class's share of the labels suggests, weighted by how credible the juries find it. The next teachers
    learn those as well and propose anew, with more pseudo-labels each round; none is kept that would not be given
    again. The final model is a plain GCN on the graph's own features, which learns what the last teachers say of all
    nodes.

    What teachers should look at is the hardest to know from few labels. Where more labels are at hand to be held out,
    they can say: pass their nodes as ``val_nodes``. Teachers then work alone, each with its own view of the features,
    and the final model learns from those that together get most of the held-out labels right. Nothing is trained on
    held-out labels, but what the model gets right there is no longer a fair estimate.

    Args:
        data: the graph; labels of other nodes than ``train_nodes`` and ``val_nodes`` are not looked at.
        train_nodes: the labelled nodes.
        val_nodes: nodes with held-out labels; the same as ``hops="validated"``, which needs them.
        seed: of all weights and of dropout.
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
    """The lesson of some teachers, and the model that learns it; held-out labels, if there are any, choose teachers."""
    nodes = check_labels(data, train_nodes)
    # what is not labelled must not be seen: from here on there are only given and pseudo-labels
    labels = torch.full((int(data.num_nodes),), -1)
    labels[nodes] = data.y[nodes].cpu()
    blind = relabelled(data, labels)
    if settings.hops != "validated":
        if val_nodes is not None:
            raise SettingError(f"expected hops='validated' with val_nodes, got {settings.hops!r}; drop one of the two")
        lesson = taught_by(teachers_views(blind, nodes, settings, seed=seed), nodes, settings, seed=seed)
        return graduate(blind, nodes, lesson, settings, seed=seed)
    held_out = check_validation(data, val_nodes, nodes, why="hops='validated' has them choose")

    def right(outputs: Tensor) -> float:
        return float((outputs[held_out].argmax(dim=1) == data.y[held_out]).float().mean())

    views = all_views(blind, nodes, settings, seed=seed)
    lessons = [taught_by([view], nodes, settings, seed=seed) for view in views]
    found = graduate(blind, nodes, called(lessons, right, most=settings.panel), settings, seed=seed)
    return replace(found, right=right(logits_of(found.model, data)))


def called(lessons: list[Lesson], right: Callable[[Tensor], float], *, most: int) -> Lesson:
    """Teachers are called one by one, each the one with whom the mean of all is right most often, while that grows.

    The ensemble selection of Caruana et al. (2004); some are called more than once.
    """
    panel: list[Lesson] = []
    said, best = torch.zeros_like(lessons[0].taught), -1.0
    while len(panel) < most:
        scores = [right(said + lesson.taught) for lesson in lessons]
        if max(scores) <= best:
            break
        best = max(scores)
        panel.append(lessons[scores.index(best)])
        said = said + panel[-1].taught
    sights = tuple(sight for lesson in panel for sight in lesson.sights)
    return replace(panel[0], taught=said / len(panel), sights=sights)


# --- the parts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View:
    """A graph with other features and no other labels than the given; the teacher that learnt them there, its jury."""

    sight: Sight
    graph: Data
    teacher: GCN
    jury: Jury

    def taught(self, nodes: Tensor, pseudo: PseudoLabels, settings: SelfTraining, *, seed: int) -> Tensor:
        """What the next teacher with this view, who learns pseudo-labels too, says of all nodes, (N, C)."""
        epochs = settings.teacher_epochs
        teacher = fit_gcn(self.graph, nodes, pseudo, settings, seed=seed, epochs=epochs, dropout=0.0)
        return torch.softmax(logits_of(teacher, self.graph), dim=1)


@dataclass(frozen=True, eq=False)
class Lesson:
    """What teachers say of all nodes after the last round, (N, C), and how the first of them came to it."""

    taught: Tensor
    pseudo: PseudoLabels
    history: list[dict[str, float]]
    sights: tuple[Sight, ...]


def taught_by(views: list[View], nodes: Tensor, settings: SelfTraining, *, seed: int) -> Lesson:
    """The rounds of self-training."""
    s, labels = settings, views[0].graph.y
    shares = class_shares(labels[nodes], classes_of(views[0].graph), balance=s.balance)
    taught = mean_of([torch.softmax(logits_of(view.teacher, view.graph), dim=1) for view in views])
    p_values = torch.ones_like(taught)
    if s.judge == "jury":  # before there are pseudo-labels: juries of what is known to be true
        p_values = mean_of([view.jury.verdict(diffusion=s.diffusion).p_values.float() for view in views])
    trust = len(nodes) / (len(nodes) + LABELS_PER_CLASS * len(shares))
    pseudo, history = NOTHING, []
    for share in s.rounds:
        before, quota = pseudo, shares * min(share * len(labels), s.most)
        pseudo = choose(believe(taught, p_values, trust=trust), quota, nodes, weight=s.weight)
        history.append(
            {
                "pseudo_labels": len(pseudo),
                "changed": changes(before, pseudo),
                "mean_weight": float(pseudo.weights.mean()) if len(pseudo) else 0.0,
            }
        )
        taught = mean_of([view.taught(nodes, pseudo, s, seed=seed) for view in views])
    return Lesson(taught, pseudo, history, tuple(view.sight for view in views))


def graduate(data: Data, nodes: Tensor, lesson: Lesson, settings: SelfTraining, *, seed: int) -> SelfTrained:
    """The final model, on the graph's own features."""
    s, pseudo = settings, lesson.pseudo
    if s.distil:
        rest = torch.ones(int(data.num_nodes), dtype=torch.bool)
        rest[nodes] = False
        others = rest.nonzero()[:, 0]
        pseudo = PseudoLabels(others, lesson.taught.argmax(dim=1)[others], torch.full((len(others),), s.weight))
    model = fit_gcn(data, nodes, pseudo, s, seed=seed, epochs=s.epochs, dropout=s.dropout)
    hops, components = zip(*((sight.hops, sight.components) for sight in lesson.sights))
    return SelfTrained(model, lesson.history, pseudo, lesson.taught, hops, components)


def all_views(data: Data, nodes: Tensor, settings: SelfTraining, *, seed: int) -> Iterator[View]:
    """The views that there are, each with a teacher; one at a time, for together they may be large."""
    s = settings
    for sight, graph in looks(data, s.candidates, s.components if s.hops == "validated" else ()):
        teacher = fit_gcn(graph, nodes, NOTHING, s, seed=seed, epochs=s.teacher_epochs, dropout=0.0)
        jury = Jury(teacher, graph, nodes, weight_decay=s.weight_decay)
        yield View(sight, graph, teacher, jury.fit() if s.hops == "auto" or s.judge == "jury" else jury)


def teachers_views(data: Data, nodes: Tensor, settings: SelfTraining, *, seed: int) -> list[View]:
    """The views that teachers have.

    The jurors choose: the views that reach farthest, of those with which they predict their own left-out labels not
    clearly worse than with the best. Where edges say nothing of labels, those reach no farther than the node itself.
    Where far neighbourhoods look alike, teachers cannot even tell the labels they learn: such views are left out.
    """
    views = list(all_views(data, nodes, settings, seed=seed))
    if settings.hops != "auto":
        return views
    labels = data.y[nodes]
    right = [int((logits_of(view.teacher, view.graph)[nodes].argmax(dim=1) == labels).sum()) for view in views]
    views = [view for view, count in zip(views, right) if count >= LEARNT * max(right)]
    errors = [view.jury.verdict(nodes, diffusion=0).loo_errors.double().square() for view in views]
    return [views[place] for place in not_clearly_worse(torch.stack(errors))[-TEACHERS:]]


def not_clearly_worse(errors: Tensor) -> list[int]:
    """The rows whose mean is within two standard errors, of the paired differences, of the smallest.

    Squared errors are a proper score. Shapes: (candidates, n).
    """
    worse = errors - errors[errors.mean(dim=1).argmin()]
    slack = worse.std(dim=1) / errors.shape[1] ** 0.5 if errors.shape[1] > 1 else torch.zeros(len(errors))
    places: list[int] = (worse.mean(dim=1) <= CLEARLY * slack).nonzero()[:, 0].tolist()
    return places


def mean_of(parts: list[Tensor]) -> Tensor:
    """Their mean."""
    return torch.stack(parts).mean(dim=0)


def fit_gcn(
    graph: Data, nodes: Tensor, pseudo: PseudoLabels, settings: SelfTraining, *, seed: int, epochs: int, dropout: float
) -> GCN:
    """A GCN trained on the graph's labels at ``nodes`` and on pseudo-labels."""
    labels = graph.y.clone()
    labels[pseudo.nodes] = pseudo.labels
    model = GCN(graph.x.shape[1], settings.hidden, classes_of(graph), dropout=dropout)
    train(
        model,
        relabelled(graph, labels),
        torch.cat([nodes, pseudo.nodes]),
        epochs=epochs,
        lr=settings.lr,
        weight_decay=settings.weight_decay,
        node_weights=torch.cat([torch.ones(len(nodes)), pseudo.weights]),
        seed=seed,
    )
    return model


def relabelled(graph: Data, labels: Tensor) -> Data:
    """The same graph with these labels, which need not show all classes."""
    other = copy.copy(graph)
    other.num_classes = classes_of(graph)
    other.y = labels
    return other
