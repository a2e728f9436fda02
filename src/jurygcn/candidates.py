"""What a selection chooses among, how it is trained, and its predictions of labels that are left out in folds.

Candidates that are recipes and differ only in the number of epochs share one training run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from jurygcn.checks import in_short
from jurygcn.choices import Recipe
from jurygcn.data import graph_of
from jurygcn.data.heterogeneous import layout_of
from jurygcn.engine import engine_of
from jurygcn.errors import ModelError, SettingError
from jurygcn.models.training import new_gcn, train
from jurygcn.models.weight_decay import WeightDecay

Fitted = nn.Module | tuple[nn.Module, WeightDecay]
Candidate = Fitted | Recipe | Callable[[Any, Tensor], Fitted]
Graph: TypeAlias = Data | HeteroData


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained candidate, its weight decay if that is stated, and the seconds of its training."""

    model: nn.Module
    decay: WeightDecay | None
    seconds: float


def named_candidates(candidates: Mapping[str, Candidate] | Sequence[Recipe]) -> dict[str, Candidate]:
    """The candidates by name; recipes get names."""
    if isinstance(candidates, Mapping):
        named = {str(name): candidate for name, candidate in candidates.items()}
    else:
        listed = list(candidates)
        if not all(isinstance(recipe, Recipe) for recipe in listed):
            raise SettingError("expected recipes, or a mapping from names to candidates, got other values; name them")
        named = dict(zip(recipe_names(listed), listed))
    if not named:
        raise SettingError("expected at least one candidate, got none; pass some")
    for name, candidate in named.items():
        if not (isinstance(candidate, Recipe) or is_fitted(candidate) or callable(candidate)):
            raise SettingError(
                f"expected candidate {name!r} to be a model, a pair of a model and its optimizer, a Recipe or a "
                f"function, got {in_short(candidate)}; change it"
            )
    return named


def is_fitted(candidate: Candidate) -> bool:
    """Whether it is a trained model, which cannot be trained again."""
    pair = isinstance(candidate, tuple) and len(candidate) == 2 and isinstance(candidate[0], nn.Module)
    return pair or isinstance(candidate, nn.Module)


def recipe_names(recipes: Sequence[Recipe]) -> list[str]:
    """Names from the settings in which the recipes differ."""
    varied = [f.name for f in fields(Recipe) if len({getattr(r, f.name) for r in recipes}) > 1]
    shown = varied or ["hidden", "epochs"]
    return [", ".join(f"{name.replace('_', ' ')} {getattr(r, name):g}" for name in shown) for r in recipes]


def training_runs(named: Mapping[str, Candidate]) -> list[dict[str, Candidate]]:
    """The candidates in groups that one training run serves."""
    groups: dict[Any, dict[str, Candidate]] = {}
    for name, candidate in named.items():
        key = replace(candidate, epochs=1) if isinstance(candidate, Recipe) else name
        groups.setdefault(key, {})[name] = candidate
    return list(groups.values())


def trained(run: Mapping[str, Candidate], data: Graph, nodes: Tensor, seed: int) -> dict[str, Trained]:
    """The candidates of one run, trained on the labels of these nodes."""
    recipes = {name: candidate for name, candidate in run.items() if isinstance(candidate, Recipe)}
    if recipes:
        return dict(_along(recipes, graph_of(data, None), nodes, seed))
    ((name, candidate),) = run.items()
    started = time.perf_counter()
    model, decay = called(candidate, data, nodes, name)
    return {name: Trained(model, decay, time.perf_counter() - started)}


def _along(recipes: Mapping[str, Recipe], graph: Data, nodes: Tensor, seed: int) -> Iterator[tuple[str, Trained]]:
    """Recipes that differ in epochs, from one training run."""
    started, models = time.perf_counter(), {}
    at = {recipe.epochs for recipe in recipes.values()}
    r = next(iter(recipes.values()))
    model = new_gcn(graph, r)

    def keep(epoch: int) -> None:
        if epoch in at:
            models[epoch] = Trained(copy.deepcopy(model).eval(), r.weight_decay, time.perf_counter() - started)

    train(model, graph, nodes, epochs=max(at), lr=r.lr, weight_decay=r.weight_decay, seed=seed, after_epoch=keep)
    for name, recipe in recipes.items():
        yield name, models[recipe.epochs]


def called(candidate: Candidate, data: Graph, nodes: Tensor, name: str) -> tuple[nn.Module, WeightDecay | None]:
    """The trained model of a candidate, and its weight decay if that is stated."""
    given: Any = candidate
    if not isinstance(given, nn.Module | tuple):
        given = given(data, nodes)
    model, decay = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"expected candidate {name!r} to return a model, or a model and its optimizer, got {in_short(given)}; "
            "change it"
        )
    return model.eval() if model.training and model is not candidate else model, decay


def predictions_in_folds(
    run: Mapping[str, Candidate], data: Graph, nodes: Tensor, *, folds: int, seed: int
) -> dict[str, Tensor]:
    """Probabilities of each node by a model that is trained without the labels of its fold, (n, C) for each candidate.

    The folds are random, and the same for all candidates.
    """
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))
    found: dict[str, Tensor] = {}
    for k in range(folds):
        own, rest = order[k::folds], order[torch.arange(len(order)) % folds != k].sort().values
        seen = _with_mask(data, nodes[rest])
        graph = graph_of(seen, None)
        for name, one in trained(run, seen, nodes[rest], seed).items():
            engine = engine_of(one.model, graph, nodes[rest])
            with torch.no_grad():
                predicted = engine.loss.predict(engine.outputs_at(nodes[own])).double().cpu()
            found.setdefault(name, predicted.new_zeros(len(nodes), predicted.shape[1]))[own] = predicted
    return found


def _with_mask(data: Graph, nodes: Tensor) -> Graph:
    """The graph with a train_mask of these nodes, if it has one: functions must not read the labels of the fold."""
    seen, graph = copy.copy(data), graph_of(data, None)
    mask = graph.get("train_mask")
    if mask is None or mask.dim() != 1:
        return seen
    layout = layout_of(graph)
    place = seen if layout is None or isinstance(seen, Data) else seen[layout.node_type]
    place.train_mask = torch.zeros_like(mask, dtype=torch.bool).index_fill(0, nodes.to(mask.device), True)
    return seen
