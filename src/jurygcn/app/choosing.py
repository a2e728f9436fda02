"""One round in the worker: train on the labels so far, ask the jury, choose the next nodes."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from jurygcn.active.loop import check_choice
from jurygcn.active.registry import STRATEGIES
from jurygcn.active.scene import Scene
from jurygcn.active.tasks import reason_for, scene_of
from jurygcn.app.rounds import Doubtful, Job, Round, View
from jurygcn.app.scheduling import Chosen
from jurygcn.app.store import Point
from jurygcn.conformal.advice import own_predictions
from jurygcn.errors import JuryError
from jurygcn.jury import Jury
from jurygcn.models.training import Recipe

STRATEGY = "jury-design"
ALPHA = 0.1
NORMAL = 1.645  # the 95 % quantile of the normal distribution, for a band of 90 %
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
    """The share of labels that the jurors without them predict, with Wilson's interval of 90 %."""
    right = left_out(jury).argmax(axis=1) == jury.data.y[jury.train_nodes[jury.positions]].numpy()
    n, share = len(right), float(right.mean())
    middle = (share + NORMAL**2 / (2 * n)) / (1 + NORMAL**2 / n)
    half = NORMAL * math.sqrt(share * (1 - share) / n + NORMAL**2 / (4 * n**2)) / (1 + NORMAL**2 / n)
    return Point(n, share, max(0.0, middle - half), min(1.0, middle + half))


def doubtful_labels(jury: Jury) -> list[Doubtful]:
    """The labels to which the jurors without them give another class, least probable first."""
    predicted, nodes = left_out(jury), jury.train_nodes[jury.positions].numpy()
    labels = jury.data.y[torch.from_numpy(nodes)].numpy()
    chances = predicted[np.arange(len(nodes)), labels]
    order = [k for k in np.argsort(chances, kind="stable") if predicted[k].argmax() != labels[k]]
    return [
        Doubtful(int(nodes[k]), int(labels[k]), int(predicted[k].argmax()), float(chances[k]))
        for k in order[:MOST_DOUBTFUL]
    ]


def left_out(jury: Jury) -> NDArray[np.float64]:
    """What every juror predicts at its own node, (n, C)."""
    nodes = jury.train_nodes[jury.positions]
    own = own_predictions(jury.engine, jury.jurors.steps, nodes, diffusion=0, memory=jury.run.ballots)
    return np.asarray(own[0].double().cpu())
