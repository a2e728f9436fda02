"""Algorithm 2: the jury. Start reading here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.curvature import Curvature, curvature_of
from jurygcn.errors import SettingError
from jurygcn.jackknife.ballots import Ballots
from jurygcn.jackknife.checkup import Fidelity, Health, fidelity_of, health_of
from jurygcn.jackknife.diffusion import Diffusion, take
from jurygcn.jackknife.explain import influence_on
from jurygcn.jackknife.intervals import check_alpha, loo_errors
from jurygcn.jackknife.jurors import LEAVE_OUT, Jurors, LeaveOneOut
from jurygcn.jackknife.retrain import Retraining, retrained_parameters
from jurygcn.jackknife.storage import load_jury, save_jury
from jurygcn.jackknife.tally import Interval, LabelCounts, Own, Spread, score_named
from jurygcn.jackknife.verdict import Verdict
from jurygcn.linalg import Solver
from jurygcn.models.neighbourhood import num_hops, other_source_within
from jurygcn.models.receptive_field import is_everything
from jurygcn.objective import Forward, Objective, check_nodes


class Jury:
    """Leave-one-out models of a trained GNN, without retraining, and their verdict on every node.

    Args:
        model: a trained ``torch.nn.Module``, called as ``model(data.x, data.edge_index)``; never changed.
        data: the graph, a PyG ``Data`` with x, edge_index and y.
        train_nodes: the nodes whose labels the model was trained on (indices or a mask).
        loss: "cross_entropy" or "mse".
        weight_decay: the L2 the model was trained with; it is part of the objective. One number, or one per
            parameter name.
        curvature: "ggn" (default), "hessian" or "printed".
        solver: "auto", "dual", "direct", "cg", "minres", "neumann", or a solver object with settings.
        leave_out: "newton" (default), "influence" (the paper), or "retrain" (brute force, as ``retraining`` says).
        damping: added to the curvature's diagonal; zero unless you ask.
        as_printed: the paper's formulas as printed (errata E1, E2, E3); implies influence jurors and Theorem 1.
        forward: ``forward(model, data) -> logits`` for models that are called differently.
        memory: how much the ballots of one batch of jurors may take.
        retraining: how the model was trained, for leave_out="retrain" and for ``fidelity``.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        train_nodes: Tensor | Sequence[int],
        *,
        loss: str = "cross_entropy",
        weight_decay: float | Mapping[str, float] = 5e-4,
        curvature: str = "ggn",
        solver: str | Solver = "auto",
        leave_out: str = "newton",
        damping: float = 0.0,
        as_printed: bool = False,
        forward: Forward | None = None,
        memory: str = "1GB",
        retraining: Retraining | None = None,
    ) -> None:
        if leave_out not in LEAVE_OUT:
            raise SettingError(f"Unknown leave_out {leave_out!r}: choose one of {', '.join(LEAVE_OUT)}.")
        self.objective = Objective(model, data, train_nodes, loss=loss, weight_decay=weight_decay, forward=forward)
        self.data, self.train_nodes = data, self.objective.train_nodes
        self.solver, self.damping, self.memory, self.as_printed = solver, damping, memory, as_printed
        self.leave_out = "influence" if as_printed else leave_out
        self.retraining = retraining or Retraining()
        self._curvature_kind = "printed" if as_printed else curvature
        self._jurors: Jurors | None = None

    # --- Algorithm 2 -----------------------------------------------------------------------------------

    def fit(self) -> Jury:
        """Steps 1-6 of Algorithm 2: the leave-one-out parameters of all training nodes."""
        if self.leave_out == "newton":
            self._jurors = self._leave_one_out.newton_jurors()
        elif self.leave_out == "retrain":
            steps = retrained_parameters(self.objective, self.retraining) - self.objective.theta
            self._jurors = Jurors(steps, "retrain", "none", "every juror was retrained", 0.0, self.retraining.epochs)
        else:
            self._jurors = self._leave_one_out.influence_jurors(as_printed=self.as_printed)
        return self

    @torch.no_grad()
    def verdict(
        self,
        nodes: Tensor | Sequence[int] | None = None,
        *,
        alpha: float = 0.025,
        exact: bool | None = None,
        interval: str = "jackknife+",
        score: str = "lac",
        diffusion: int | str = "auto",
    ) -> Verdict:
        """Steps 7-11 of Algorithm 2 for ``nodes`` (all by default): every juror votes, the votes are counted.

        Args:
            nodes: the nodes to judge.
            alpha: level of the interval [lower, upper].
            exact: exact integer ranks (infinite with fewer than 1/alpha - 1 labels) instead of interpolated
                quantiles; default: interpolated for classification, where the width ranks, exact for regression.
            interval: "jackknife+"; for regression also "jackknife" and "minmax".
            score: "lac" or "aps", the nonconformity score behind p-values and label sets.
            diffusion: average every juror's probabilities over closed neighbourhoods this many times before
                scoring labels; "auto" takes the one of 0, 1, 2 that jurors predict their own labels best with.

        Implements: Algorithm 2, Eqs. (6)-(8), Definition 1.
        """
        asked = self._asked(nodes)
        n, m = self.objective.num_train, len(asked)
        classify = self.objective.loss.name == "cross_entropy"
        base, where = torch.cat([asked, self.train_nodes]).unique(return_inverse=True)
        at_train = where[m:]  # positions among the nodes that are voted on; None for asked means all of them
        at_asked = None if is_everything(asked, int(self.data.num_nodes)) else where[:m]
        smoothing = Diffusion(self.data, base, diffusion if classify else 0)
        ballots = Ballots(self.objective, self.jurors.steps, smoothing.reach, memory=self.memory)

        prediction = take(smoothing(ballots.predictions(self.objective.theta[None]))[0], at_asked)[:, :, 0]
        bounds = Interval(interval, check_alpha(alpha), n, exact=not classify if exact is None else exact)
        labels = {k: LabelCounts(score_named(score)) for k in smoothing.candidates}
        spread = Spread(prediction)
        for jurors, votes in ballots:  # step 7: f_{-i}(u) and f_{-i}(i) for every juror i of the batch
            own = self._own(asked, jurors)
            voted = smoothing(votes)
            at_own = {k: v[at_train[jurors], :, torch.arange(len(jurors))] for k, v in voted.items()}
            voted = {k: take(v, at_asked) for k, v in voted.items()}
            bounds.add(self._quantity(voted[0]), self._errors(at_own[0], jurors), own)  # steps 8-10, Eqs. (6)-(7)
            spread.add(voted[0], own)
            for k, counts in labels.items() if classify else ():
                counts.add(voted[k], at_own[k], self.objective.targets[jurors], own)

        everyone = self._own(asked, torch.arange(n))
        speakers = n - torch.zeros(m, dtype=torch.long).index_fill_(0, everyone.node, 1)
        lower, upper = bounds.bounds(self._quantity(prediction), speakers, everyone)
        best = max(labels, key=lambda k: labels[k].log_score) if classify else 0
        return Verdict(
            nodes=asked,
            prediction=prediction,
            lower=lower.squeeze(1),
            upper=upper.squeeze(1),
            jurors=speakers,
            kinds=self._kinds(asked),
            loo_errors=torch.cat(bounds.errors).squeeze(1),
            loo_variance=spread.variance(speakers),
            label_flips=spread.flips / speakers.clamp_min(1),
            neighbour_doubt=self._neighbour_doubt(asked, prediction) if classify else torch.empty(0),
            alpha=alpha,
            diffusion=best,
            label_counts=labels[best].counts if classify else None,
            names=getattr(self.data, "class_names", None),
        )

    def _quantity(self, predictions: Tensor) -> Tensor:
        """What is put in an interval: the norm of the class probabilities, or the outputs, (m, C, *) -> (m, K, *)."""
        if self.objective.loss.name == "mse":
            return predictions
        return predictions.square().sum(dim=1, keepdim=True).sqrt_()

    def _errors(self, at_own: Tensor, jurors: Tensor) -> Tensor:
        """Leave-one-out errors of some jurors, (b, C) -> (b, K). Implements: Eq. (6)."""
        y = self.objective.targets[jurors]
        if self.objective.loss.name == "mse":
            return (y.to(at_own.dtype) - at_own).abs()
        return loo_errors(functional.one_hot(y, at_own.shape[1]).to(at_own.dtype), at_own)[:, None]

    def _neighbour_doubt(self, asked: Tensor, prediction: Tensor) -> Tensor:
        """One minus the predicted class's share of the model's probabilities within two hops, (m,)."""
        around = Diffusion(self.data, asked, 2)
        everyone = Ballots(self.objective, self.jurors.steps, around.reach, memory=self.memory)
        share = around(everyone.predictions(self.objective.theta[None]))[2][:, :, 0]
        return 1.0 - share.gather(1, prediction.argmax(dim=1, keepdim=True)).squeeze(1)

    def _own(self, asked: Tensor, jurors: Tensor) -> Own:
        """Which of these jurors are among the asked nodes, and where."""
        order = asked.argsort()
        mine = self.train_nodes[jurors]
        found = torch.searchsorted(asked[order], mine).clamp_max(len(asked) - 1)
        node = order[found]
        hit = asked[node] == mine
        return Own(hit.nonzero().squeeze(1), node[hit])

    def _kinds(self, asked: Tensor) -> list[str]:
        """Which uncertainty the width measures at each node. Implements: Prop. 1 and its remark."""
        near = other_source_within(
            self.data.edge_index, self.train_nodes, int(self.data.num_nodes), num_hops(self.objective.model)
        )
        return ["epistemic" if close else "aleatoric+epistemic" for close in near[asked].tolist()]

    def _asked(self, nodes: Tensor | Sequence[int] | None) -> Tensor:
        if nodes is None:
            return torch.arange(int(self.data.num_nodes))
        return check_nodes(nodes, self.data, what="nodes")

    # --- what lies behind a verdict --------------------------------------------------------------------

    @property
    def jurors(self) -> Jurors:
        """The leave-one-out models; ``fit`` finds them."""
        if self._jurors is None:
            raise SettingError("This jury has not been convened yet: call jury.fit() first.")
        return self._jurors

    @cached_property
    def curvature(self) -> Curvature:
        """The curvature operator, weight decay included; available before ``fit``."""
        return curvature_of(self.objective, self._curvature_kind, damping=self.damping)

    @cached_property
    def _leave_one_out(self) -> LeaveOneOut:
        return LeaveOneOut(self.objective, self.curvature, self.solver)

    @cached_property
    def influences(self) -> Tensor:
        """The paper's influences H^-1 g_i of all training nodes, (n, P)."""
        return self._leave_one_out.influences().value.T

    def ballots(self, nodes: Tensor | Sequence[int] | None = None) -> Tensor:
        """Predictions of every juror at ``nodes``, (n, m, C); asks for n x m x C numbers, so name few nodes."""
        stream = Ballots(self.objective, self.jurors.steps, self._asked(nodes), memory=self.memory)
        return torch.cat([votes.permute(2, 0, 1) for _, votes in stream])

    def influence_on(self, node: int) -> pd.DataFrame:
        """The training nodes that drive the prediction of ``node``, most influential first, signed."""
        return influence_on(self, node)

    def health(self) -> Health:
        """Is the model converged, the curvature well conditioned, the solve accurate? With advice in words."""
        return health_of(self)

    def fidelity(self, k: int = 20, *, retraining: Retraining | None = None, seed: int = 0) -> Fidelity:
        """Retrain ``k`` jurors and report how well the estimated ones agree with them."""
        return fidelity_of(self, k, retraining or self.retraining, seed)

    # --- keeping a jury --------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write the jurors and the settings into the folder ``path`` (npz and json, no pickle)."""
        return save_jury(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, data: Data, **settings: Any) -> Jury:
        """A jury saved before, with the model and graph it was made from."""
        return load_jury(cls, Path(path), model, data, **settings)
