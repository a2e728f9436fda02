"""Which model: candidates ranked by what they predict for left-out labels, without a validation set.

Jurors predict left-out labels of candidates that are trained once. Candidates that can be trained again may also be
trained once more for each fold of the labels, without these labels.

The expected accuracy is that of :mod:`jurygcn.diagnostics.accuracy`, with the panel's probabilities in place of the
stacked jury's. The panel knows no model, so its probabilities are the same for all candidates.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from jurygcn.candidates import (
    Candidate,
    Graph,
    Trained,
    called,
    is_fitted,
    named_candidates,
    predictions_in_folds,
    trained,
    training_runs,
)
from jurygcn.checks import check_choice, in_short
from jurygcn.choices import LEFT_OUT_BY, RANKED_BY, Recipe
from jurygcn.costs import LONG
from jurygcn.data import check_nodes, graph_of
from jurygcn.data.contents import contents
from jurygcn.data.heterogeneous import layout_of
from jurygcn.diagnostics.calibration import fit_scale
from jurygcn.diagnostics.left_out import LeftOut, logits_of_others, panel_probabilities
from jurygcn.errors import SettingError
from jurygcn.experiments.cells import Cells
from jurygcn.io.fingerprints import fingerprint
from jurygcn.jury import Jury
from jurygcn.losses import FLOOR
from jurygcn.models.training import fit_gcn
from jurygcn.progress import announce, progress_bar
from jurygcn.settings import LeaveOut, Run

# How much of the correction by left-out labels is applied to the expected accuracy. Retrained models have no bias, so
# all of it is. Jurors of candidates that memorise their labels look too good, so more of it favours these; none of it
# would leave the ranking to the panel. Chosen on digits, synthetic graphs, webkb_texas and us_county_election.
CORRECTED = {"folds": 1.0, "jurors": 0.1}
HIGH = ("expected_accuracy", "accuracy")  # measures of which more is better
TOLD_APART = 2.0  # standard errors of a paired difference above which two candidates count as different


@dataclass(frozen=True, eq=False)
class Selection:
    """Candidates from best to worst.

    Attributes:
        table: a row per candidate: ``candidate``; ``expected_accuracy`` at nodes without a label; ``log_loss``,
            ``calibrated_log_loss`` and ``accuracy`` of left-out labels; ``difference``, how much worse it is than the
            best by the measure that ranks, with the standard ``error`` of that paired difference; ``tied``, whether it
            cannot be told apart from the best; ``seconds`` of training and of its jury.
        by: the measure that ranks.
        leave_out: how labels were left out: "folds" or "jurors".
        folds: the number of folds; 0 for jurors.
        n: the number of left-out labels.
    """

    table: pd.DataFrame = field(repr=False)
    by: str
    leave_out: str
    folds: int
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
            f"{self.best} is best of {len(self.table):,} by {self.by.replace('_', ' ')}, from {self.n:,} labels left "
            f"out {f'in {self.folds} folds' if self.folds else 'by jurors'} ({score[self.by]:.3f})."
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
        return called(chosen, self.data, self.train_nodes, self.best)[0]


def select(
    candidates: Mapping[str, Candidate] | Sequence[Recipe],
    data: Data | HeteroData,
    train_nodes: Tensor | Sequence[int] | None = None,
    *,
    by: str = RANKED_BY[0],
    leave_out: str = LEFT_OUT_BY[0],
    folds: int = 5,
    seed: int = 0,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Selection:
    """Rank candidates by what they predict for left-out labels.

    Args:
        candidates: by name, or recipes, which then get names. A candidate is a trained model; a pair of a trained model
            and its optimizer or weight decay; a ``Recipe`` of a GCN, which is trained here; or a function of the graph
            and the training nodes that returns a model or such a pair, and learns only the labels of these nodes.
        data: the graph.
        train_nodes: the labelled nodes that the candidates are trained on; ``data.train_mask`` by default.
        by: "expected_accuracy", from left-out labels and nodes without a label, which needs labels that were drawn at
            random; "log_loss" of left-out labels; "calibrated_log_loss", after a temperature that is fitted to them,
            which compares what models know and not how confident they are; or "accuracy" of left-out labels.
        leave_out: "jurors" estimates the models without one label each, without training; "folds" trains each candidate
            once more for every fold of the labels, without these labels, if it is a recipe or a function.
        folds: the number of folds.
        seed: of the folds, and of the training of recipes.
        resume: a folder for the results of recipes; the same call goes on from them after an interruption.
        progress: show a bar, and say beforehand what a long selection will cost.
    """
    if by not in RANKED_BY:
        raise SettingError(f"expected by to be one of {', '.join(RANKED_BY)}, got {in_short(by)}; choose one")
    named = named_candidates(candidates)
    graph = graph_of(data, None)
    if layout_of(graph) is not None and any(isinstance(candidate, Recipe) for candidate in named.values()):
        raise SettingError("expected models or functions for a HeteroData, got a Recipe of a GCN; leave it out")
    nodes = graph.get("train_mask") if train_nodes is None else train_nodes
    if nodes is None:
        raise SettingError("expected train_nodes, got none, and the graph has no train_mask; pass the nodes")
    nodes = check_nodes(nodes, graph, what="train_nodes")
    how = _LeftOutBy.of(leave_out, folds, named, len(nodes))
    runs = training_runs(named)
    kept = None if resume is None else _store(Path(resume), graph, nodes, seed, how)
    found: dict[str, dict[str, Any]] = {}
    known = _Known()
    with progress_bar("Trying candidates", total=len(runs), unit="candidates", show=progress) as advance:
        for position, run in enumerate(runs):
            started = time.perf_counter()
            found |= _measured(run, data, nodes, seed, kept, known, how)
            _say_cost(progress and position == 0, time.perf_counter() - started, runs, how)
            advance(1)
    table = _ranked(found, list(named), by)
    return Selection(table, by, how.name, how.folds, len(nodes), named, data, nodes, seed)


@dataclass(frozen=True)
class _LeftOutBy:
    """How labels are left out."""

    name: str
    folds: int

    @staticmethod
    def of(name: str, folds: int, named: Mapping[str, Candidate], n: int) -> _LeftOutBy:
        check_choice(name, "leave_out", LEFT_OUT_BY)
        if not isinstance(folds, int) or folds < 2:
            raise SettingError(f"expected at least 2 folds, got {in_short(folds)}; give a whole number from 2 on")
        fitted = [candidate_name for candidate_name, candidate in named.items() if is_fitted(candidate)]
        if name == "jurors":
            return _LeftOutBy("jurors", 0)
        if fitted:
            raise SettingError(
                f"expected recipes and functions for leave_out='folds', got the trained model {fitted[0]!r}, which "
                "cannot be trained again; use leave_out='jurors'"
            )
        if n < 2:
            raise SettingError(f"expected at least 2 labels for folds, got {n}; use leave_out='jurors'")
        return _LeftOutBy("folds", min(folds, n))


def _store(folder: Path, graph: Data, nodes: Tensor, seed: int, how: _LeftOutBy) -> Cells:
    parts = {name: value.hex() for name, value in contents(graph).items()}
    stamp = fingerprint(
        {
            **{"graph": str(sorted(parts.items())), "nodes": nodes, "y": graph.y[nodes], "seed": seed, "by": RANKED_BY},
            **asdict(how),
        }
    )
    return Cells("selection", lambda _: stamp, folder=folder)


def _say_cost(wanted: bool, seconds: float, runs: Sequence[Mapping[str, Candidate]], how: _LeftOutBy) -> None:
    rest = seconds * (len(runs) - 1)
    if wanted and rest > LONG:
        count, times = sum(map(len, runs)), f", each {how.folds + 1} times" if how.folds else ""
        announce(f"{count:,} candidates in {len(runs):,} trainings{times}: about {rest:.0f} s more, by the first.")


def _measured(
    run: Mapping[str, Candidate],
    data: Graph,
    nodes: Tensor,
    seed: int,
    kept: Cells | None,
    known: _Known,
    how: _LeftOutBy,
) -> dict[str, dict[str, Any]]:
    """Losses and hits of the candidates of one training run; those of recipes are kept."""
    recipes = {name: candidate for name, candidate in run.items() if isinstance(candidate, Recipe)}
    if kept is None or not recipes:
        return _found(run, data, nodes, seed, known, how)
    names = {recipe.epochs: name for name, recipe in recipes.items()}
    cell = {**asdict(recipes[names[max(names)]]), "at": sorted(names)}

    def measure(**_: Any) -> dict[str, Any]:
        rows = _found(run, data, nodes, seed, known, how)
        return {"found": {str(epochs): rows[name] for epochs, name in names.items()}}

    kept.measure([cell], measure)
    (row,) = kept.rows([cell])
    return {name: row["found"][str(recipe.epochs)] for name, recipe in recipes.items()}


def _found(
    run: Mapping[str, Candidate], data: Graph, nodes: Tensor, seed: int, known: _Known, how: _LeftOutBy
) -> dict[str, dict[str, Any]]:
    """The same, trained here."""
    models, started = trained(run, data, nodes, seed), time.perf_counter()
    own, shared = {}, 0.0
    if how.folds:
        own = predictions_in_folds(run, data, nodes, folds=how.folds, seed=seed)
        shared = (time.perf_counter() - started) / len(run)
    return {name: _row(one, data, nodes, known, own.get(name), shared) for name, one in models.items()}


def _row(one: Trained, data: Graph, nodes: Tensor, known: _Known, own: Tensor | None, seconds: float) -> dict[str, Any]:
    """Losses and hits of one candidate; ``own`` are its predictions in folds, (n, C), else its jurors predict."""
    started = time.perf_counter()
    how = LeaveOut(decay="effective")
    jury = Jury(one.model, data, nodes, weight_decay=one.decay, leave_out=how, votes="exact", run=Run(progress=False))
    labels = jury.engine.targets[jury.positions].cpu()
    found = jury.fit().left_out() if own is None else LeftOut(nodes, labels, own)
    z = found.probabilities.clamp_min(FLOOR).log()
    scale, _ = fit_scale(z, labels, with_bias=False)
    calibrated = torch.log_softmax(scale * z, dim=1).gather(1, labels[:, None]).squeeze(1)
    return {
        **_expected(jury, found, known, CORRECTED["jurors" if own is None else "folds"]),
        "calibrated_log_loss": (-calibrated).tolist(),
        "log_loss": (-found.own.clamp_min(FLOOR).log()).tolist(),
        "accuracy": (found.probabilities.argmax(dim=1) == labels).double().tolist(),
        "seconds": [one.seconds, seconds + time.perf_counter() - started],
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
def _expected(jury: Jury, found: LeftOut, known: _Known, applied: float) -> dict[str, list[float]]:
    """The expected accuracy as a mean over labels, as it is applied and with the whole correction."""
    classes = found.probabilities.argmax(dim=1)
    right, panel, logits = (classes == found.labels).double(), known.of(jury), logits_of_others(jury)
    if panel is None or logits is None:
        return {"expected_accuracy": right.tolist(), "corrected": right.tolist()}
    left_out, stacked = panel
    gaps = right - left_out.gather(1, classes[:, None]).squeeze(1)
    mean = stacked.gather(1, logits.argmax(dim=1)[:, None]).mean()
    return {"expected_accuracy": (mean + applied * gaps).tolist(), "corrected": (mean + gaps).tolist()}


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
