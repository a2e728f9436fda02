"""Which model: candidates ranked by what their jurors predict for left-out labels, without a validation set.

Candidates that are recipes and differ only in the number of epochs share one training run. Each candidate is trained
once, on all labels; choosing by retraining would train it once more for every label.

The expected accuracy is that of :mod:`jurygcn.diagnostics.accuracy`, with the panel's probabilities in place of the
stacked jury's. The panel knows no model, so its probabilities are the same for all candidates.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from jurygcn.checks import in_short
from jurygcn.choices import RANKED_BY, Recipe
from jurygcn.data import check_nodes, graph_of
from jurygcn.data.contents import contents
from jurygcn.data.heterogeneous import layout_of
from jurygcn.diagnostics.calibration import fit_scale
from jurygcn.diagnostics.left_out import LeftOut, logits_of_others, panel_probabilities
from jurygcn.errors import ModelError, SettingError
from jurygcn.experiments.cells import Cells
from jurygcn.io.fingerprints import fingerprint
from jurygcn.jury import Jury
from jurygcn.losses import FLOOR
from jurygcn.models.training import fit_gcn, new_gcn, train
from jurygcn.models.weight_decay import WeightDecay
from jurygcn.progress import announce, progress_bar
from jurygcn.settings import LeaveOut, Run

Fitted = nn.Module | tuple[nn.Module, WeightDecay]
Candidate = Fitted | Recipe | Callable[[Any, Tensor], Fitted]

# How much of the correction by the candidate's own jurors is applied to its expected accuracy. Jurors of candidates
# that memorise their labels look too good, so more of it favours these; none of it would leave the ranking to the
# panel. Chosen on digits, synthetic graphs and webkb_texas.
CORRECTED = 0.1
HIGH = ("expected_accuracy", "accuracy")  # measures of which more is better
TOLD_APART = 2.0  # standard errors of a paired difference above which two candidates count as different
LONG = 5.0  # work that is estimated to take longer is announced, in seconds


@dataclass(frozen=True, eq=False)
class Selection:
    """Candidates from best to worst.

    Attributes:
        table: a row per candidate: ``candidate``; ``expected_accuracy`` at nodes without a label; ``log_loss``,
            ``calibrated_log_loss`` and ``accuracy`` of left-out labels; ``difference``, how much worse it is than the
            best by the measure that ranks, with the standard ``error`` of that paired difference; ``tied``, whether it
            cannot be told apart from the best; ``seconds`` of training and of its jury.
        by: the measure that ranks.
        n: the number of left-out labels.
    """

    table: pd.DataFrame = field(repr=False)
    by: str
    n: int
    candidates: Mapping[str, Candidate] = field(repr=False)
    data: Data | HeteroData = field(repr=False)
    train_nodes: Tensor = field(repr=False)
    seed: int = 0

    @property
    def best(self) -> str:
        """The name of the best candidate."""
        return str(self.table["candidate"].iloc[0])

    @property
    def tied(self) -> list[str]:
        """The names of the candidates that cannot be told apart from the best."""
        return [str(name) for name in self.table.loc[self.table["tied"], "candidate"][1:]]

    @property
    def words(self) -> str:
        """The result in sentences."""
        score = self.table.iloc[0]
        said = (
            f"{self.best} is best of {len(self.table):,} by {self.by.replace('_', ' ')}, from {self.n:,} left-out "
            f"labels ({score[self.by]:.3f})."
        )
        if len(self.table) == 1:
            return said
        if not self.tied:
            return f"{said} All others are worse by more than {TOLD_APART:g} standard errors."
        rest = len(self.tied)
        listed = ", ".join(self.tied[:5]) + (f" and {rest - 5} more" if rest > 5 else "")
        return f"{said} These labels cannot tell it apart from {listed}."

    def fit(self) -> nn.Module:
        """The best candidate's trained model; recipes and functions are trained again, in the same way."""
        chosen = self.candidates[self.best]
        if isinstance(chosen, Recipe):
            return fit_gcn(graph_of(self.data, None), self.train_nodes, chosen, seed=self.seed)[0]
        return _called(chosen, self.data, self.train_nodes, self.best)[0]


def select(
    candidates: Mapping[str, Candidate] | Sequence[Recipe],
    data: Data | HeteroData,
    train_nodes: Tensor | Sequence[int] | None = None,
    *,
    by: str = RANKED_BY[0],
    seed: int = 0,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Selection:
    """Rank candidates by what jurors predict for their own left-out labels.

    Args:
        candidates: by name, or recipes, which then get names. A candidate is a trained model; a pair of a trained model
            and its optimizer or weight decay; a ``Recipe`` of a GCN, which is trained here; or a function of the graph
            and the training nodes that returns a model or such a pair.
        data: the graph.
        train_nodes: the labelled nodes that the candidates are trained on; ``data.train_mask`` by default.
        by: "expected_accuracy", from left-out labels and nodes without a label, which needs labels that were drawn at
            random; "log_loss" of left-out labels; "calibrated_log_loss", after a temperature that is fitted to them,
            which compares what models know and not how confident they are; or "accuracy" of left-out labels.
        seed: of the training of recipes.
        resume: a folder for the results of recipes; the same call goes on from them after an interruption.
        progress: show a bar, and say beforehand what a long selection will cost.
    """
    if by not in RANKED_BY:
        raise SettingError(f"expected by to be one of {', '.join(RANKED_BY)}, got {in_short(by)}; choose one")
    named = _named(candidates)
    graph = graph_of(data, None)
    if layout_of(graph) is not None and any(isinstance(candidate, Recipe) for candidate in named.values()):
        raise SettingError("expected models or functions for a HeteroData, got a Recipe of a GCN; leave it out")
    nodes = graph.get("train_mask") if train_nodes is None else train_nodes
    if nodes is None:
        raise SettingError("expected train_nodes, got none, and the graph has no train_mask; pass the nodes")
    nodes = check_nodes(nodes, graph, what="train_nodes")
    runs = _runs(named)
    kept = None if resume is None else _store(Path(resume), graph, nodes, seed)
    found: dict[str, dict[str, Any]] = {}
    known = _Known()
    with progress_bar("Trying candidates", total=len(runs), unit="trainings", show=progress) as advance:
        for position, names in enumerate(runs):
            started = time.perf_counter()
            found |= _measured(names, named, data, nodes, seed, kept, known)
            _say_cost(progress and position == 0, time.perf_counter() - started, runs)
            advance(1)
    return Selection(_ranked(found, list(named), by), by, len(nodes), named, data, nodes, seed)


def _named(candidates: Mapping[str, Candidate] | Sequence[Recipe]) -> dict[str, Candidate]:
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
        pair = isinstance(candidate, tuple) and len(candidate) == 2 and isinstance(candidate[0], nn.Module)
        if not (isinstance(candidate, nn.Module | Recipe) or pair or callable(candidate)):
            raise SettingError(
                f"expected candidate {name!r} to be a model, a pair of a model and its optimizer, a Recipe or a "
                f"function, got {in_short(candidate)}; change it"
            )
    return named


def recipe_names(recipes: Sequence[Recipe]) -> list[str]:
    """Names from the settings in which the recipes differ."""
    varied = [f.name for f in fields(Recipe) if len({getattr(r, f.name) for r in recipes}) > 1]
    shown = varied or ["hidden", "epochs"]
    return [", ".join(f"{name.replace('_', ' ')} {getattr(r, name):g}" for name in shown) for r in recipes]


def _runs(named: Mapping[str, Candidate]) -> list[list[str]]:
    """Names in groups that one training run serves."""
    groups: dict[Any, list[str]] = {}
    for name, candidate in named.items():
        key = replace(candidate, epochs=1) if isinstance(candidate, Recipe) else name
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _store(folder: Path, graph: Data, nodes: Tensor, seed: int) -> Cells:
    parts = {name: value.hex() for name, value in contents(graph).items()}
    stamp = fingerprint(
        {"graph": str(sorted(parts.items())), "nodes": nodes, "y": graph.y[nodes], "seed": seed, "by": RANKED_BY}
    )
    return Cells("selection", lambda _: stamp, folder=folder)


def _say_cost(wanted: bool, seconds: float, runs: list[list[str]]) -> None:
    rest = seconds * (len(runs) - 1)
    if wanted and rest > LONG:
        count = sum(map(len, runs))
        announce(f"{count:,} candidates in {len(runs):,} trainings: about {rest:.0f} s more, by the first.")


def _measured(
    names: list[str],
    named: Mapping[str, Candidate],
    data: Data | HeteroData,
    nodes: Tensor,
    seed: int,
    kept: Cells | None,
    known: _Known,
) -> dict[str, dict[str, Any]]:
    """Losses and hits of the candidates of one training run."""
    recipes = {name: c for name in names if isinstance(c := named[name], Recipe)}
    if not recipes:
        return {names[0]: _of_candidate(named[names[0]], data, nodes, names[0], known)}
    epochs = sorted({recipe.epochs for recipe in recipes.values()})
    shared = replace(recipes[names[0]], epochs=epochs[-1])
    cell = {**asdict(shared), "at": epochs}

    def run(**_: Any) -> dict[str, Any]:
        return {"found": {str(at): row for at, row in _along(shared, epochs, data, nodes, seed, known)}}

    if kept is None:
        rows = run()["found"]
    else:
        kept.measure([cell], run)
        (row,) = kept.rows([cell])
        rows = row["found"]
    return {name: rows[str(recipe.epochs)] for name, recipe in recipes.items()}


def _along(
    recipe: Recipe, epochs: list[int], data: Data | HeteroData, nodes: Tensor, seed: int, known: _Known
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Results at several epochs of one training run."""
    graph, started = graph_of(data, None), time.perf_counter()
    model = new_gcn(graph, recipe)
    models: dict[int, tuple[nn.Module, float]] = {}

    def keep(epoch: int) -> None:
        if epoch in epochs:
            models[epoch] = (copy.deepcopy(model).eval(), time.perf_counter() - started)

    r = recipe
    train(model, graph, nodes, epochs=r.epochs, lr=r.lr, weight_decay=r.weight_decay, seed=seed, after_epoch=keep)
    for epoch, (trained, seconds) in models.items():
        yield epoch, _left_out_row(trained, recipe.weight_decay, data, nodes, known, seconds)


def _of_candidate(
    candidate: Candidate, data: Data | HeteroData, nodes: Tensor, name: str, known: _Known
) -> dict[str, Any]:
    started = time.perf_counter()
    model, decay = _called(candidate, data, nodes, name)
    return _left_out_row(model, decay, data, nodes, known, time.perf_counter() - started)


def _called(
    candidate: Candidate, data: Data | HeteroData, nodes: Tensor, name: str
) -> tuple[nn.Module, WeightDecay | None]:
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


def _left_out_row(
    model: nn.Module,
    decay: WeightDecay | None,
    data: Data | HeteroData,
    nodes: Tensor,
    known: _Known,
    seconds: float,
) -> dict[str, Any]:
    started = time.perf_counter()
    how = LeaveOut(decay="effective")
    jury = Jury(model, data, nodes, weight_decay=decay, leave_out=how, votes="exact", run=Run(progress=False)).fit()
    found = jury.left_out()
    z = found.probabilities.clamp_min(FLOOR).log()
    scale, _ = fit_scale(z, found.labels, with_bias=False)
    calibrated = torch.log_softmax(scale * z, dim=1).gather(1, found.labels[:, None]).squeeze(1)
    return {
        **_expected(jury, found, known),
        "calibrated_log_loss": (-calibrated).tolist(),
        "log_loss": (-found.own.clamp_min(FLOOR).log()).tolist(),
        "accuracy": (found.probabilities.argmax(dim=1) == found.labels).double().tolist(),
        "seconds": [seconds, time.perf_counter() - started],
    }


class _Known:
    """The panel's probabilities, which are the same for all candidates; found with the first jury."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, ...], tuple[Tensor, Tensor] | None] = {}

    def of(self, jury: Jury) -> tuple[Tensor, Tensor] | None:
        key = tuple(jury.positions.tolist())
        if key not in self._found:
            self._found[key] = panel_probabilities(jury)
        return self._found[key]


@torch.no_grad()
def _expected(jury: Jury, found: LeftOut, known: _Known) -> dict[str, list[float]]:
    """The expected accuracy as a mean over labels, as it is applied and with the whole correction."""
    classes = found.probabilities.argmax(dim=1)
    right, panel, logits = (classes == found.labels).double(), known.of(jury), logits_of_others(jury)
    if panel is None or logits is None:
        return {"expected_accuracy": right.tolist(), "corrected": right.tolist()}
    left_out, stacked = panel
    gaps = right - left_out.gather(1, classes[:, None]).squeeze(1)
    mean = stacked.gather(1, logits.argmax(dim=1)[:, None]).mean()
    return {"expected_accuracy": (mean + CORRECTED * gaps).tolist(), "corrected": (mean + gaps).tolist()}


def _ranked(found: Mapping[str, dict[str, Any]], names: list[str], by: str) -> pd.DataFrame:
    """The table, with paired differences to the best.

    The expected accuracy has the standard error of the whole correction, and the part that is not applied adds to it.
    """
    sign = -1.0 if by in HIGH else 1.0
    worse = sign * np.array([found[name][by] for name in names])  # (k, n), low is good
    order = worse.mean(axis=1).argsort(kind="stable")
    differences, n = (worse - worse[order[0]]).mean(axis=1), worse.shape[1]
    paired = sign * np.array([found[name]["corrected"] for name in names]) if by == RANKED_BY[0] else worse
    paired = paired - paired[order[0]]
    error = paired.std(axis=1, ddof=1) / n**0.5 if n > 1 else np.full(len(names), np.inf)
    errors = np.hypot(error, paired.mean(axis=1) - differences)
    table = pd.DataFrame(
        {
            "candidate": names,
            **{measure: [float(np.mean(found[name][measure])) for name in names] for measure in RANKED_BY},
            "difference": differences,
            "error": errors,
            "tied": differences <= TOLD_APART * errors,
            "seconds": [sum(found[name]["seconds"]) for name in names],
        }
    )
    ranked: pd.DataFrame = table.iloc[order].reset_index(drop=True)
    return ranked
