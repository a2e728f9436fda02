"""Which model: candidates chosen by left-out labels, by held-out labels and by 500 validation labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise, product
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from free_validation_models import UNDERFIT, probabilities, train_variants, variant_names
from free_validation_summary import LABELS
from jurygcn import Recipe, select
from jurygcn.candidates import Candidate, recipe_names, trained, training_runs
from jurygcn.data import paper_split, random_labels
from jurygcn.evaluation import accuracy, nll
from jurygcn.selection import Selection
from protocol import graph

GRID = [
    Recipe(hidden=16, weight_decay=decay, dropout=dropout, layers=layers, epochs=epochs)
    for decay, dropout, layers, epochs in product((5e-5, 5e-4, 5e-3), (0.0, 0.5), (1, 2), (50, 100, 200))
]

Pair = tuple[nn.Module, Any]  # a model and its weight decay


class Variants:
    """PyG candidates as functions for ``select``; all of them are trained together, once for the same nodes."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.seen: dict[tuple[int, ...], dict[str, Pair]] = {}

    def candidates(self) -> dict[str, Callable[[Data, Tensor], Pair]]:
        """A function for each."""
        return {name: lambda data, nodes, name=name: self.on(data, nodes)[name] for name in variant_names()}

    def on(self, data: Data, nodes: Tensor) -> dict[str, Pair]:
        """All candidates, trained on the labels of these nodes."""
        key = tuple(nodes.tolist())
        if key not in self.seen:
            self.seen[key] = train_variants(data, nodes, self.seed)
        return self.seen[key]


def trained_on(named: Mapping[str, Candidate], data: Data, nodes: Tensor, seed: int) -> dict[str, Pair]:
    """All candidates, trained on the labels of these nodes."""
    models = {name: one for run in training_runs(named) for name, one in trained(run, data, nodes, seed).items()}
    return {name: (one.model, one.decay) for name, one in models.items()}


def candidates(name: str, kind: str, seed: int) -> Mapping[str, Candidate]:
    if kind == "PyG":
        return Variants(seed).candidates()
    recipes = [replace(recipe, lr=UNDERFIT.get(name, recipe.lr)) for recipe in GRID]
    return dict(zip(recipe_names(recipes), recipes))


def measure_selection(name: str, seed: int, kind: str = "GCN") -> dict[str, Any]:
    data, named = graph(name), candidates(name, kind, seed)
    split = paper_split(data, seed=seed)
    nodes = random_labels(split.pool, LABELS, seed=seed)
    clock = [time.process_time()]
    models = trained_on(named, data, nodes, seed)
    clock.append(time.process_time())
    by_jurors = select(models, data, nodes)
    clock.append(time.process_time())
    by_folds = select(named, data, nodes, leave_out="folds", seed=seed)
    clock.append(time.process_time())
    order = nodes[torch.randperm(LABELS, generator=torch.Generator().manual_seed(seed))]
    third, rest = order[: LABELS // 3], order[LABELS // 3 :].sort().values
    held = scores(trained_on(named, data, rest, seed), data, third)
    clock.append(time.process_time())
    training, jurors, folds, holding = (float(b - a) for a, b in pairwise(clock))
    valid, tested = scores(models, data, split.val), scores(models, data, split.test)
    chosen = {
        **chosen_by(by_folds, "folds"),
        **chosen_by(by_jurors, "jury"),
        "500 validation labels": max(valid, key=lambda words: valid[words]),
        "a third held out": max(held, key=lambda words: held[words]),
        "a third held out, log loss": max(held, key=lambda words: held[words][1]),
        "best": max(tested, key=lambda words: tested[words][0]),
    }
    result = {words: tested[name_of][0] for words, name_of in chosen.items()}
    result["mean of all"] = mean(right for right, _ in tested.values())
    # The folds share trainings with what was trained before where candidates are PyG's.
    folds += training if kind == "PyG" else 0.0
    seconds = {"jury": training + jurors, "folds": folds, "a third held out": training + holding}
    return {
        "accuracy": result,
        "cost": {words: spent / training for words, spent in seconds.items()},
        "tied": {"jury": len(by_jurors.tied), "folds": len(by_folds.tied)},
    }


def chosen_by(found: Selection, who: str) -> dict[str, str]:
    """The choice by the measure of the selection, and by each measure of left-out labels alone."""
    by = found.table.set_index("candidate")
    return {
        who: found.best,
        f"{who}, log loss": str(by["log_loss"].idxmin()),
        f"{who}, calibrated": str(by["calibrated_log_loss"].idxmin()),
        f"{who}, accuracy": str(by["accuracy"].idxmax()),
    }


def scores(models: Mapping[str, Pair], data: Data, nodes: Tensor) -> dict[str, tuple[float, float]]:
    """The accuracy of each model at these nodes, and its mean log-probability, which decides between equal ones."""
    found = {}
    for name, (model, _) in models.items():
        pi = probabilities(model, data)[nodes]
        found[name] = accuracy(pi.argmax(dim=1), data.y[nodes]), -nll(pi, data.y[nodes])
    return found
