"""Labelling tasks for people: written as CSV or for Label Studio, and the answers read back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.active.labels import (
    class_words,
    has_column,
    parse_labels,
    parse_origins,
    read_labels,
    read_origins,
    rows_of,
)
from jurygcn.active.loop import check_choice
from jurygcn.active.registry import STRATEGIES, find_strategy
from jurygcn.active.scene import Scene, Strategy, hide_labels
from jurygcn.annotators import Agreement, agreement
from jurygcn.choices import Recipe
from jurygcn.data.names import Names
from jurygcn.errors import DataError
from jurygcn.io import label_studio
from jurygcn.io.spreadsheet import as_csv
from jurygcn.models.training import fit_gcn

COLUMNS = ("node", "name", "label", "score", "prediction", "probability", "reason", "neighbours", "chosen")


@dataclass(frozen=True)
class Task:
    """One node to label.

    Attributes:
        node, name: the node.
        score: the strategy's score. Scores can be compared within one batch only.
        prediction, probability: the model's most probable class; empty and 0 before the first label.
        reason: why this node was chosen, in words.
        neighbours: the labels of its labelled neighbours, in words.
        chosen: "random" if the strategy draws nodes at random, else "actively": then nothing is claimed about coverage.
    """

    node: int
    name: str
    score: float
    prediction: str
    probability: float
    reason: str
    neighbours: str
    chosen: str = "actively"


def next_tasks(
    data: Data,
    labels: Mapping[int, int],
    strategy: str | Strategy = "jury-design",
    *,
    batch: int = 20,
    candidates: Tensor | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
) -> list[Task]:
    """The nodes to label next, given the labels so far.

    Args:
        data: the graph. Its labels are not used.
        labels: the class of each labelled node.
        strategy: a name of ``STRATEGIES``, or a function from a ``Scene`` to a ``Choice``.
        batch: the number of nodes to choose.
        candidates: the nodes to choose from; by default all nodes without a label.
        recipe: how the GCN is trained on the labels.
        seed: of the model and the strategy.
    """
    name, chooser = find_strategy(strategy)
    scene = scene_of(data, labels, batch=batch, candidates=candidates, recipe=recipe or Recipe(), seed=seed)
    choice = chooser(scene)
    check_choice(choice, scene)
    names = Names.of_nodes(data)
    return [_task(int(node), float(score), name, scene, names) for node, score in zip(choice.nodes, choice.scores)]


def scene_of(
    data: Data,
    labels: Mapping[int, int],
    *,
    batch: int,
    candidates: Tensor | None,
    recipe: Recipe,
    seed: int,
    pending: Tensor | None = None,
) -> Scene:
    """The scene with these labels and a GCN trained on them. By default every other node is a candidate."""
    nodes = torch.tensor(list(labels), dtype=torch.long)
    classes = torch.tensor(list(labels.values()), dtype=torch.long)
    everything = torch.arange(int(data.num_nodes)) if candidates is None else candidates.sort().values
    seen = hide_labels(data, nodes, classes)
    return Scene.of(
        data,
        nodes,
        classes,
        candidates=everything[~torch.isin(everything, nodes)],
        batch=batch,
        model=fit_gcn(seen, nodes, recipe, seed=seed)[0] if len(nodes) else None,
        weight_decay=recipe.weight_decay,
        generator=np.random.default_rng([seed, len(nodes)]),
        queried=len(nodes),
        total=len(nodes) + batch,
        pending=torch.empty(0, dtype=torch.long) if pending is None else pending,
    )


def reason_for(strategy: str, score: float) -> str:
    """Why the strategy chose a node with this score, in words."""
    return STRATEGIES[strategy].reason.format(score=score) if strategy in STRATEGIES else f"chosen by {strategy}"


def _task(node: int, score: float, strategy: str, scene: Scene, names: Names) -> Task:
    words = class_words(scene.data)
    why = reason_for(strategy, score)
    prediction, probability, view = "", 0.0, "; without labels there is no prediction yet"
    if scene.model is not None:
        chances = scene.probabilities[node]
        order = np.argsort(-chances, kind="stable")
        prediction, probability = words[order[0]], float(chances[order[0]])
        view = (
            f"; the model predicts {prediction} ({probability:.0%}), then {words[order[1]]} ({chances[order[1]]:.0%})"
        )
    around = scene.statistics.adjacency[node].indices
    known = [int(v) for v in np.sort(around) if int(scene.data.y[v]) >= 0]
    listed = ", ".join(f"{names.text(v)} {words[int(scene.data.y[v])]}" for v in known) or "none labelled"
    return Task(
        node=node,
        name=str(node) if names.names is None else names.names[node],
        score=score,
        prediction=prediction,
        probability=probability,
        reason=why + view,
        neighbours=f"{listed} (of {len(around)})",
        chosen="random" if strategy == "random" else "actively",
    )


# --- writing --------------------------------------------------------------------------------------------------


def tasks_csv(tasks: Sequence[Task]) -> str:
    """The tasks as CSV with an empty column for the label. ``read_answers`` reads the completed table."""
    rows = [{**asdict(task), "label": ""} for task in tasks]
    return as_csv(COLUMNS, ([row[column] for column in COLUMNS] for row in rows))


def label_studio_tasks(tasks: Sequence[Task], *, version: str = "jurygcn") -> list[dict[str, Any]]:
    """The tasks in Label Studio's import format, with the model's prediction."""
    made = []
    for task in tasks:
        text = f"{task.name} (node {task.node}): {task.reason}. Labelled neighbours: {task.neighbours}."
        entry = label_studio.task(asdict(task), text)
        if task.prediction:
            result = [label_studio.choice(task.prediction)]
            entry["predictions"] = [{"model_version": version, "score": task.probability, "result": result}]
        made.append(entry)
    return made


def label_studio_config(data: Data) -> str:
    """The labelling interface for these tasks, to paste into a Label Studio project."""
    return label_studio.config(class_words(data))


# --- reading --------------------------------------------------------------------------------------------------


def read_answers(path: Path, data: Data) -> dict[int, int]:
    """The class of each node, from a CSV with the columns node and label or a Label Studio export (JSON or JSON-MIN).

    Tasks without an answer are skipped. Two different answers for one node are refused.
    """
    if path.suffix.lower() != ".json":
        nodes, labels = read_labels(path, data)
    else:
        nodes, labels = parse_labels(
            label_studio.answers_of(label_studio.read_export(path), path.name), data, path.name
        )
    return dict(zip(nodes.tolist(), labels.tolist()))


def read_agreement(path: Path, data: Data) -> Agreement | None:
    """What several annotators agree on, from a CSV with the columns node, annotator and label; None without annotators.

    Lines without a label are skipped; an annotator that answers twice for a node is counted twice.
    """
    if path.suffix.lower() == ".json" or not has_column(path, "annotator"):
        return None
    nodes, classes, answers = Names.of_nodes(data), Names.of_classes(data), []
    for line, row in rows_of(path):
        if not row["label"].strip():
            continue
        try:
            node = nodes.position(row["node"], row.get("name"))
            answers.append((node, row["annotator"].strip(), classes.position(row["label"])))
        except DataError as error:
            raise DataError(f"{path.name}, line {line}: {error}") from None
    return agreement(answers, int(data.num_classes)) if answers else None


def read_answer_origins(path: Path, data: Data) -> dict[int, str]:
    """How the nodes of ``read_answers`` were chosen, as far as the file says: tasks of ``active next`` do."""
    if path.suffix.lower() != ".json":
        return read_origins(path, data)
    tasks = [task.get("data", task) for task in label_studio.read_export(path) if isinstance(task, dict)]
    given = (
        (about.get("node"), about.get("name"), about.get("chosen"), f"task {k}") for k, about in enumerate(tasks, 1)
    )
    return parse_origins(given, data, path.name)
