"""Algorithm 2: the jury. Start reading here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from jurygcn.adding import check_full, check_groups, with_full
from jurygcn.ambient import plain_torch
from jurygcn.arrivals import on_new_graph
from jurygcn.assembling import assemble
from jurygcn.checks import check_choice, in_short
from jurygcn.choices import CHOSEN, Recipe
from jurygcn.conformal.advice import Advice, panel_of
from jurygcn.conformal.asked import Asked, Question
from jurygcn.conformal.claims import Agreement
from jurygcn.conformal.predictions import LeaveOneOutPredictions
from jurygcn.costs import LONG, Cost, check_fit, check_verdict, cost_of
from jurygcn.counting import advice_of, counter_of
from jurygcn.curvature import Curvature
from jurygcn.data import check_nodes, graph_of
from jurygcn.data.heterogeneous import why_no_neighbours
from jurygcn.diagnostics.accuracy import ExpectedAccuracy, expected_accuracy_of
from jurygcn.diagnostics.calibration import CalibratedModel, calibrated_model
from jurygcn.diagnostics.fidelity import Fidelity, fidelity_of
from jurygcn.diagnostics.grounds import grounds_of
from jurygcn.diagnostics.health import Health, health_of
from jurygcn.diagnostics.label_errors import LabelErrors, label_errors_of
from jurygcn.diagnostics.left_out import LeftOut, left_out_of
from jurygcn.display.words import as_html, as_line, jury_facts
from jurygcn.edits.edit import edit_of
from jurygcn.edits.forgetting import Forgotten, forget
from jurygcn.edits.influences import influence_on
from jurygcn.edits.what_if import WhatIf, what_if
from jurygcn.engine import Forward, engine_of
from jurygcn.engine.sources import Sources
from jurygcn.errors import SettingError
from jurygcn.finding import (
    about_drawn,
    curvature_of_jury,
    find_jurors,
    leave_one_out_of,
    origin_of,
    positions_of,
    resolved_votes,
)
from jurygcn.jury_storage import load_jury, save_jury
from jurygcn.leave_one_out.corrected import Correction
from jurygcn.leave_one_out.estimated import LeaveOneOut
from jurygcn.leave_one_out.jurors import CompressedJurors, Jurors
from jurygcn.leave_one_out.panel import Panel
from jurygcn.leave_one_out.retraining import Retraining
from jurygcn.models.weight_decay import WeightDecay, decay_by_name
from jurygcn.progress import announce, progress_bar
from jurygcn.settings import LeaveOut, Run, Votes
from jurygcn.verdict import Verdict

# The paper's weight decay, and this library's when it trains; assumed where none is stated and none can be estimated.
ASSUMED_DECAY = Recipe.weight_decay


class Jury:
    """Leave-one-out models of a trained GNN, without retraining, and their verdict on every node.

    Args:
        model: a trained ``torch.nn.Module``, called as ``model(data.x, data.edge_index)``; never changed.
        data: the graph, a PyG ``Data`` with x, edge_index and y, or a ``HeteroData``; then the model is called as
            ``model(data.x_dict, data.edge_index_dict)``, and the jury is about the nodes of ``node_type``.
        train_nodes: the nodes whose labels the model was trained on (indices or a mask); ``data.train_mask`` if none
            are given.
        node_type: the type of the nodes to judge in a ``HeteroData``; by default the only type with labels.
        loss: "cross_entropy" or "mse".
        weight_decay: the L2 that the model was trained with; it is part of the objective. The optimizer that trained
            the model, one number, or a mapping from names of parameters or modules to numbers (0 for all others). If it
            is not given, or for most models also where it is (``LeaveOut.decay``), the effective weight decay of each
            weight matrix is estimated from the trained model.
        forward: ``forward(model, data) -> logits`` for models that are called differently.
        chosen: how the labels were chosen: "random", "per class" (the same number from each class) or "actively";
            after active learning no coverage is claimed.
        drawn: those of the training nodes that were drawn at random, if others were chosen actively: only these have
            jurors, so that coverage can be claimed (``active.run(explore=...)`` draws them).
        retraining: how the model was trained, for leave_out="retrain" and for ``fidelity``.
        leave_out: how jurors are found: "newton", "influence" (the paper's), "retrain" (brute force), "printed" (the
            paper's formulas as printed), or a ``jurygcn.LeaveOut`` with the solver and other details.
        votes: how jurors vote: "exact", "linearized", "auto", or a ``jurygcn.Votes``.
        run: where the work runs: "serial", a number of processes, "dask://host:port", or a ``jurygcn.Run``, which
            also has the memory and the progress bar.
    """

    @plain_torch()
    def __init__(
        self,
        model: nn.Module,
        data: Data | HeteroData,
        train_nodes: Tensor | Sequence[int] | None = None,
        *,
        node_type: str | None = None,
        loss: str = "cross_entropy",
        weight_decay: WeightDecay | None = None,
        forward: Forward | None = None,
        chosen: str = "random",
        drawn: Tensor | Sequence[int] | None = None,
        retraining: Retraining | None = None,
        leave_out: str | LeaveOut = "newton",
        votes: str | Votes = "auto",
        run: int | str | Run | None = None,
    ) -> None:
        self.leave_out, self.votes, self.run = LeaveOut.of(leave_out), Votes.of(votes), Run.of(run)
        check_choice(chosen, "chosen", CHOSEN)
        graph = graph_of(data, node_type)
        if train_nodes is None:
            train_nodes = graph.get("train_mask")
            if train_nodes is None:
                raise SettingError("expected train_nodes, got none, and the graph has no train_mask; pass the nodes")
        self.decay_assumed = weight_decay is None
        decay = ASSUMED_DECAY if weight_decay is None else weight_decay
        if isinstance(decay, torch.optim.Optimizer):
            decay = decay_by_name(model, decay)
        self.engine = engine_of(
            *(model, graph, train_nodes),
            loss=loss,
            weight_decay=decay,
            forward=forward,
        )
        usual, stated = self.engine.usual_decay, not self.decay_assumed and bool((self.engine.decay > 0).any())
        self.leave_out = self.leave_out.resolved(usual=usual, stated=stated)
        self.engine.masks = self.leave_out.dropout_masks
        self._sources = Sources(model, data, self.engine)
        self.data, self.train_nodes, self.chosen = graph, self.engine.train_nodes, chosen
        self.node_type = self._sources.node_type
        self.recipe_given, self.retraining = retraining is not None, retraining or Retraining()
        self.drawn = drawn is not None
        self.positions = positions_of(self, drawn)
        self.votes = replace(self.votes, how=resolved_votes(self))
        self._jurors: Jurors | CompressedJurors | None = None
        self.correction: Correction | None = None
        self._agreement: Agreement | None = None
        self._advice: dict[int | str, Advice] = {}
        self._left_out: dict[str, LeftOut] = {}
        self._announced: set[bool] = set()
        self.grown = False

    # --- Algorithm 2 -----------------------------------------------------------------------------------

    @plain_torch()
    def fit(self) -> Jury:
        """Steps 1-6 of Algorithm 2: the leave-one-out parameters of all training nodes."""
        self._sources.check()
        check_fit(self)
        self._announce()
        with progress_bar("Finding the jurors", show=self.run.progress):
            self._jurors, self.correction = find_jurors(self)
        self._advice, self._left_out = {}, {}
        return self

    def _announce(self, *, full: bool = False, **settings: Any) -> None:
        """Say once what will be done and what it costs, if that is much; once more before labels are added."""
        fresh = self.run.progress and full not in self._announced
        if fresh and (expected := self.cost(full=full, **settings)).seconds > LONG:
            announce(expected.words)
        self._announced |= {full}

    @plain_torch()
    def cost(self, *, full: bool = False, advice: str | None = "auto", diffusion: int | str = "auto") -> Cost:
        """What ``fit`` and a verdict on all nodes with these settings will cost, estimated without doing the work."""
        with torch.enable_grad():
            return cost_of(self, full=full, advice=advice, diffusion=diffusion)

    @plain_torch()
    @torch.no_grad()
    def verdict(
        self,
        nodes: Tensor | Sequence[int] | None = None,
        *,
        alpha: float = 0.025,
        exact_ranks: bool | None = None,
        interval: str = "jackknife+",
        nonconformity: str = "lac",
        diffusion: int | str = "auto",
        advice: str | None = "auto",
        full: bool = False,
        groups: Tensor | Sequence[int] | None = None,
        new_data: Data | None = None,
        resume: str | Path | None = None,
    ) -> Verdict:
        """Steps 7-11 of Algorithm 2 for ``nodes`` (all by default): every juror votes, the votes are counted.

        Args:
            nodes: the nodes to judge.
            alpha: level of the interval [lower, upper].
            exact_ranks: exact integer ranks (infinite with fewer than 1/alpha - 1 labels) instead of interpolated
                quantiles; default: interpolated for classification, where the width ranks, exact for regression.
            interval: "jackknife+"; for regression also "jackknife" and "minmax".
            nonconformity: "lac" or "aps", the nonconformity score behind p-values and label sets.
            diffusion: average every juror's probabilities over closed neighbourhoods this many times before
                scoring labels; "auto" takes the one of 0, 1, 2 that jurors predict their own labels best with.
            advice: "auto" lets the jurors vote together with regressions on averaged features and on random walks,
                weighted by what they predict for left-out labels: smaller label sets, calibrated probabilities and a
                better score for errors. None leaves the model's jurors alone;
                "panel" leaves the regressions alone, with equal weights that no label chooses.
            full: also count for ``label_sets(method="full")``, which takes much longer (``cost(full=True)``).
                A regression has full conformal intervals with ``interval="full"``.
            groups: a whole number for every node of the graph, for ``label_sets(by="group")``.
            new_data: the graph with nodes and edges that arrived after training, the old nodes first; ``nodes`` are
                then nodes of it. Nothing is fitted again.
            resume: a folder to keep the counts in as they grow; the same call goes on from them after an interruption.

        Implements: Algorithm 2, Eqs. (6)-(8), Definition 1.
        """
        self._sources.check()
        here = self if new_data is None else on_new_graph(self, new_data)
        if advice not in ("auto", "panel", None):
            raise SettingError(f"expected advice to be 'auto', 'panel' or None, got {in_short(advice)}; choose one")
        if exact_ranks is None:
            exact_ranks = here.engine.loss.name == "mse"
        if adds := full or interval == "full":
            check_full(here, full=full, interval=interval, alone=advice == "panel")
        question = Question(alpha, exact_ranks, interval, nonconformity, diffusion)
        asked = Asked(here.engine, here.positions, here._check_asked(nodes), question, check_groups(groups, here.data))
        total = here.jurors.count
        check_verdict(here, asked, full=adds and advice != "panel")
        here._announce(full=adds and advice != "panel", advice=advice, diffusion=diffusion)
        with progress_bar("Counting votes", total=total, unit="jurors", show=here.run.progress) as advance:
            counter = counter_of(here, asked, advice, here._advice)
            counts = counter.count_all(parallel=here.run.parallel, resume=resume, advance=advance)
            found = assemble(counter, counts, grounds_of(here, question, advice if counter.advice else None))
        return with_full(here, counter, counts, found) if adds else found

    def advice(self, diffusion: int | str = "auto") -> Advice:
        """The members of the stacked jury and their weights, chosen once for each number of averages."""
        return advice_of(self, diffusion, self._advice)

    def _check_asked(self, nodes: Tensor | Sequence[int] | None) -> Tensor:
        return torch.arange(int(self.data.num_nodes)) if nodes is None else check_nodes(nodes, self.data, what="nodes")

    # --- what lies behind a verdict --------------------------------------------------------------------

    @property
    def jurors(self) -> Jurors | CompressedJurors:
        """The leave-one-out models; ``fit`` finds them."""
        if self._jurors is None:
            raise SettingError("Jury is not fitted. Call jury.fit() first.")
        return self._jurors

    @property
    def dropout_masks(self) -> int:
        """The draws of dropout that the jurors' derivatives are averages over; 0 for derivatives in eval mode."""
        return self.jurors.dropout_masks

    @property
    def agreement(self) -> Agreement | None:
        """What ``fidelity`` found about the jurors; None before."""
        return self._agreement

    @property
    def source_model(self) -> nn.Module:
        """The caller's model itself."""
        return self._sources.model

    @property
    def fitted(self) -> bool:
        """Whether ``fit`` has found the jurors."""
        return self._jurors is not None

    def __repr__(self) -> str:
        return as_line("Jury", jury_facts(self))

    def _repr_html_(self) -> str:
        return as_html("Jury", jury_facts(self))

    @cached_property
    @plain_torch()
    def curvature(self) -> Curvature:
        """The curvature operator, weight decay included; available before ``fit``."""
        return curvature_of_jury(self)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What else is to be known of verdicts on this graph, one sentence each."""
        return tuple(filter(None, [why_no_neighbours(self.data), about_drawn(self)]))

    @cached_property
    @plain_torch()
    def label_origin(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """What coverage is averaged over, what stands against any claim of it, and notes, as far as labels decide."""
        return origin_of(self)

    @cached_property
    def factorised(self) -> LeaveOneOut:
        """The curvature factorised, from which jurors follow."""
        return leave_one_out_of(self, self.curvature)

    @cached_property
    @plain_torch()
    def influences(self) -> Tensor:
        """The paper's influences H^-1 g_i of all training nodes, (n, P)."""
        self._sources.check()
        return self.factorised.influences().value.T

    @cached_property
    @plain_torch()
    def panel(self) -> Panel:
        """Regressions on averaged features and random walks, fitted to the same labels in closed form."""
        self._sources.check()
        return panel_of(self.engine)

    @plain_torch()
    def leave_one_out_predictions(self, nodes: Tensor | Sequence[int] | None = None) -> Tensor:
        """Predictions of every juror at ``nodes``, (n, m, C); asks for n x m x C numbers, so name few nodes."""
        self._sources.check()
        stream = LeaveOneOutPredictions(
            self.engine, self.jurors.steps, self._check_asked(nodes), memory=self.run.ballots
        )
        return torch.cat([votes.permute(2, 0, 1) for _, votes in stream])

    @plain_torch()
    def influence_on(self, node: int, of: str = "labels", *, check: int = 0) -> pd.DataFrame:
        """What drives a prediction: "labels", "edges", "nodes", "features"; the largest ``check`` are retrained too."""
        self._sources.check()
        return influence_on(self, node, of, check)

    @plain_torch()
    def what_if(self, nodes: Tensor | Sequence[int] | None = None, *, steps: int = 1, **edit: Any) -> WhatIf:
        """Predictions at ``nodes`` (all by default) after an edit of the graph or its labels, without retraining.

        Edits: ``remove_edges`` and ``add_edges`` (pairs of nodes; in an undirected graph both directions, unless
        ``undirected=False``), ``remove_nodes`` (with their edges and labels), ``change_features`` ({node: features})
        and ``change_labels`` ({node: label}; None takes a label away). ``steps`` is the number of Newton steps.
        """
        self._sources.check()
        return what_if(self, nodes, edit_of(self.engine, **edit), steps=steps)

    @plain_torch()
    def forget(self, nodes: Tensor | Sequence[int], **settings: Any) -> Forgotten:
        """A model that has unlearned ``nodes``; ``certify=True`` retrains one and compares them on a ``sample=``."""
        self._sources.check()
        return forget(self, nodes, **settings)

    @plain_torch()
    def health(self) -> Health:
        """Is the model converged, the curvature well conditioned, the solve accurate? With advice in words."""
        self._sources.check()
        return health_of(self)

    @plain_torch()
    def fidelity(self, k: int = 20, *, retraining: Retraining | None = None, seed: int = 0) -> Fidelity:
        """Retrain ``k`` jurors and report how well the estimated ones agree; later verdicts claim accordingly."""
        self._sources.check()
        found = fidelity_of(self, k, retraining or self.retraining, seed)
        self._agreement, self._advice, self._left_out = found.agreement, {}, {}
        return found

    # --- instead of a validation set -------------------------------------------------------------------

    @plain_torch()
    @torch.no_grad()
    def left_out(self, of: str = "model") -> LeftOut:
        """What the jurors of the model, or ``of="jury"`` of the stacked jury, predict for their own left-out labels."""
        self._sources.check()
        if of not in self._left_out:
            self._left_out[of] = left_out_of(self, of)
        return self._left_out[of]

    def expected_accuracy(self, *, of: str = "model", level: float = 0.95) -> ExpectedAccuracy:
        """How many nodes the model, or the stacked jury, is expected to predict right, without a validation set."""
        return expected_accuracy_of(self, of=of, level=level)

    def calibrate(self) -> CalibratedModel:
        """The model with a temperature that is fitted to left-out labels, as a module that wraps it."""
        return calibrated_model(self)

    def label_errors(self, *, threshold: float = 0.5) -> LabelErrors:
        """Training labels by how implausible jurors that never saw them find them; probable errors are flagged."""
        return label_errors_of(self, threshold=threshold)

    # --- keeping a jury --------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the jurors and the settings into the folder ``path`` (npz and json, no pickle)."""
        self._sources.check()
        return save_jury(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, data: Data | HeteroData, **settings: Any) -> Jury:
        """A jury saved before, with the model and graph it was made from."""
        return load_jury(cls, Path(path), model, data, **settings)
