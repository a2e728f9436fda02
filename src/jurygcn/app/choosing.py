"""One round in the worker: train on the labels so far, ask the jury, choose the next nodes."""

from __future__ import annotations

import time

import torch
from torch_geometric.data import Data

from jurygcn.active.asking import DOUBTFUL
from jurygcn.active.labels import class_words
from jurygcn.active.loop import check_choice
from jurygcn.active.registry import STRATEGIES
from jurygcn.active.scene import Scene
from jurygcn.active.tasks import reason_for, scene_of
from jurygcn.app.rounds import Doubtful, Job, Round, View
from jurygcn.app.scheduling import Chosen
from jurygcn.app.store import Point
from jurygcn.choices import Recipe
from jurygcn.errors import JuryError
from jurygcn.jury import Jury

STRATEGY = "jury-design"
ALPHA = 0.1
LEVEL = 0.9  # of the band
MOST_DOUBTFUL = 20


def play(data: Data, job: Job, *, seed: int = 0) -> Round:
    """The result of a job. If the model or its jury fails, the choice is made without them, with a note."""
    started = time.perf_counter()
    try:
        found = _play(data, job, seed)
    except JuryError as error:
        if not job.train:
            raise
        found = _play(data, Job(job.labels, job.pending, job.candidates, job.size, train=False), seed)
        found = Round(found.labels, found.choices, note=f"The model could not be used: {error}")
    seconds = time.perf_counter() - started
    return Round(found.labels, found.choices, found.view, found.point, found.doubtful, found.note, seconds)


def _play(data: Data, job: Job, seed: int) -> Round:
    train = job.train and len(job.labels) > 0
    known = torch.tensor(job.pending if train else [*job.labels, *job.pending], dtype=torch.long)
    candidates = torch.from_numpy(job.candidates)
    size = min(job.size, len(candidates))
    scene = scene_of(
        data,
        job.labels if train else {},
        batch=max(1, size),
        candidates=candidates if size else None,
        recipe=Recipe(),
        seed=seed,
        pending=known,
    )
    choices = _choices(scene) if size else []
    if not train:
        return Round(len(job.labels), choices)
    jury = scene.jury()
    return Round(len(job.labels), choices, view_of(jury), estimated_accuracy(jury), doubtful_labels(jury))


def _choices(scene: Scene) -> list[Chosen]:
    choice = STRATEGIES[STRATEGY].choose(scene)
    check_choice(choice, scene)
    pairs = zip(choice.nodes.tolist(), choice.scores.tolist())
    return [Chosen(node, reason_for(STRATEGY, score)) for node, score in pairs]


def view_of(jury: Jury) -> View:
    """Predictions of the model and label sets of the jury at all nodes."""
    verdict = jury.verdict()
    best = verdict.outputs.max(dim=1)
    return View(
        predictions=best.indices.to(torch.int16).numpy(),
        probabilities=best.values.float().numpy(),
        sets=verdict.label_sets(ALPHA).numpy(),
        p_values=verdict.p_values.float().numpy(),
    )


def estimated_accuracy(jury: Jury) -> Point:
    """The expected accuracy, with its interval."""
    found = jury.expected_accuracy(level=LEVEL)
    return Point(found.n, found.accuracy, *found.interval)


def doubtful_labels(jury: Jury) -> list[Doubtful]:
    """The labels that are probably wrong, as the jurors without them say; most suspicious first."""
    table = jury.label_errors(threshold=DOUBTFUL).table
    numbers = {name: c for c, name in enumerate(class_words(jury.data))}
    flagged = table[table["flagged"]].head(MOST_DOUBTFUL)
    rows = zip(flagged["node"], flagged["label"], flagged["suggested"], flagged["probability"])
    return [Doubtful(int(v), numbers[given], numbers[other], float(p)) for v, given, other, p in rows]
