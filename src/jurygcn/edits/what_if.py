"""Predictions after an edit, without retraining."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.ambient import plain_torch
from jurygcn.checks import check_count
from jurygcn.data import check_nodes
from jurygcn.derivatives import Jacobian
from jurygcn.edits.base import Base, base_of, predictions
from jurygcn.edits.certificate import Certificate, certificate_of
from jurygcn.edits.edit import Edit, edit_of
from jurygcn.edits.steps import Objectives
from jurygcn.engine import Engine
from jurygcn.leave_one_out.retraining import Retraining
from jurygcn.models.copies import independent_copy
from jurygcn.verdict import Verdict

if TYPE_CHECKING:
    from jurygcn.jury import Jury

# Above this share of the way, what is left after the step is too much: the model should be trained again.
FAR = 0.5

# A model is at a minimum if its relative gradient is below AT_MINIMUM. Of another one, steps in all may be at most
# DRIFT times as long as the first: chosen on digits and synthetic, see docs/what_if.md.
AT_MINIMUM, DRIFT = 1e-3, 2.0
MOST_STEPS = 100

# How often a step that overshoots is halved, in a sequence of edits.
HALVINGS = 10


@dataclass(frozen=True)
class EditHealth:
    """How far the step after an edit can be trusted.

    Attributes:
        affected: training nodes whose loss changes, by their neighbourhood or by their label.
        step: length of the change of the parameters since training, relative to the parameters.
        remaining: length of the next Gauss-Newton step, which is not taken, relative to the whole change since
            training. Lengths are in the norm of the curvature. 0 means that another step would change nothing.
        drift: length of the change since training, relative to the first step of the sequence of edits.
        gradient: how far from a minimum training stopped: length of the gradient of the objective over the lengths of
            its two parts, loss and weight decay. 0 at a minimum.
        doubt: why estimates for this model are not trusted: batch normalisation, no weight decay, or what
            ``jury.fidelity()`` found; empty if they are.
    """

    affected: int
    step: float
    remaining: float
    drift: float
    gradient: float
    doubt: str = ""

    @property
    def retrain(self) -> bool:
        """Whether the steps are no longer an estimate of retraining, or no longer as good a one as the first was."""
        return not self.remaining <= FAR or self.drifted

    @property
    def drifted(self) -> bool:
        """Whether the errors of a model that is not at a minimum are likely beyond twice that of the first step."""
        return self.gradient > AT_MINIMUM and self.drift > DRIFT

    @property
    def words(self) -> str:
        """The result as a sentence."""
        nodes = "training node" if self.affected == 1 else "training nodes"
        said = (
            f"The edit changes the losses of {self.affected} {nodes} and moves the parameters by "
            f"{self.step:.2%} of their length; another step would move them by {self.remaining:.0%} of the way."
        )
        if self.drifted:
            said += (
                f" The model is not at a minimum, and all edits have moved it {self.drift:.1f} times as far as the "
                "first; errors grow with this distance."
            )
        if self.doubt:
            said += f" {self.doubt}"
        if self.retrain:
            return f"{said} Train the model again."
        if self.gradient > AT_MINIMUM:
            said += (
                f" Training stopped before a minimum (relative gradient {self.gradient:.2f}), so training again may "
                "change the model in ways that no step sees: certify() trains once and compares."
            )
        return said


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What would be predicted after an edit.

    Shapes: m nodes, C outputs; predictions are class probabilities, or outputs of a regression.

    Attributes:
        nodes: the nodes, (m,).
        before: predictions of the trained model, (m, C).
        direct: predictions of the same parameters on the edited graph, exact, (m, C); NaN for removed nodes.
        after: predictions on the edited graph after the Newton step, (m, C); NaN for removed nodes.
        step: the change of the parameters in this edit, (P,).
        data: the edited graph.
        train_nodes: the training nodes after the edit.
        health: how far the step can be trusted.
    """

    nodes: Tensor
    before: Tensor
    direct: Tensor
    after: Tensor
    step: Tensor = field(repr=False)
    data: Data = field(repr=False)
    train_nodes: Tensor = field(repr=False)
    health: EditHealth
    classify: bool
    _jury: Jury = field(repr=False)
    _base: Base = field(repr=False)
    _carried: Tensor = field(repr=False)
    _first: float = field(repr=False)

    @property
    def direct_effect(self) -> Tensor:
        """The change by message passing alone, with the old parameters, (m, C)."""
        return self.direct - self.before

    @property
    def parameter_effect(self) -> Tensor:
        """The change through the parameters, on the edited graph, (m, C)."""
        return self.after - self.direct

    @property
    def changed(self) -> Tensor:
        """The nodes whose predicted class changes (for a regression: whose prediction does)."""
        if not self.classify:
            return self.nodes[(self.after != self.before).any(dim=1)]
        there = ~self.after.isnan().any(dim=1)
        return self.nodes[there & (self.after.argmax(dim=1) != self.before.argmax(dim=1))]

    def to_frame(self) -> pd.DataFrame:
        """A row per node, the largest change first: value of the class predicted before, and its two changes."""
        rows = torch.arange(len(self.nodes))
        c = self.before.argmax(dim=1) if self.classify else torch.zeros_like(self.nodes)
        names = ("before", "direct_effect", "parameter_effect", "after")
        columns = {name: getattr(self, name)[rows, c].double().numpy() for name in names}
        frame = pd.DataFrame({"node": self.nodes.numpy(), **columns})
        if self.classify:
            gone = self.after.isnan().any(dim=1)
            frame.insert(1, "class_before", c.numpy())
            frame.insert(2, "class_after", torch.where(gone, -1, self.after.nan_to_num(-1.0).argmax(dim=1)).numpy())
        order = (frame["after"] - frame["before"]).abs().sort_values(ascending=False, kind="stable").index
        return frame.loc[order].reset_index(drop=True)

    @property
    def theta(self) -> Tensor:
        """The parameters after the edit, (P,) in float64."""
        return self._base.engine.theta + self.step

    def state_dict(self) -> dict[str, Tensor]:
        """The state of the model after the edit, in the model's own precision."""
        return {name: value.clone() for name, value in self.model().state_dict().items()}

    def model(self) -> nn.Module:
        """A copy of the model with the parameters after the edit."""
        return moved_model(self._base.engine, self.theta)

    @plain_torch()
    def then(self, nodes: Tensor | Sequence[int] | None = None, *, steps: int = 1, **edit: Any) -> WhatIf:
        """One more edit, of the graph and the parameters after this one; arguments as in ``Jury.what_if``.

        What earlier steps left of the gradient goes into the next step, so errors do not add up.
        """
        base = self._base.after(self.data, self.train_nodes, self.theta, self._carried, self._first)
        return what_if(self._jury, nodes, edit_of(base.engine, **edit), base=base, steps=steps)

    @plain_torch()
    def jury(self) -> Jury:
        """A fitted jury of the model after the edit on the edited graph, with the settings of this one.

        Where only labels that were drawn at random have jurors, these are the ones that are left.
        """
        old = self._jury
        drawn = old.train_nodes[old.positions] if old.drawn else self.train_nodes[:0]
        drawn = drawn[torch.isin(drawn, self.train_nodes)]
        made = type(old)(
            self.model(),
            self.data,
            self.train_nodes,
            loss=old.engine.loss.name,
            weight_decay=None if old.decay_assumed else old.engine.weight_decay,
            forward=old.engine.forward,
            chosen=old.chosen,
            drawn=drawn if len(drawn) else None,
            retraining=old.retraining,
            leave_out=old.leave_out,
            votes=old.votes,
            run=old.run,
        )
        return made.fit()

    @plain_torch()
    def certify(
        self, retraining: Retraining | None = None, *, sample: Tensor | Sequence[int] | None = None
    ) -> Certificate:
        """Train once more on the edited graph, and compare predictions on a sample of the nodes (all by default)."""
        return certificate_of(self._jury, self, retraining or self._jury.retraining, sample)

    def verdict(self, nodes: Tensor | Sequence[int] | None = None, **settings: Any) -> Verdict:
        """The verdict after the edit; arguments as in ``Jury.verdict``."""
        return self.jury().verdict(self.nodes if nodes is None else nodes, **settings)


def moved_model(engine: Engine, theta: Tensor) -> nn.Module:
    """A copy of an engine's model with other parameters, in the caller's precision."""
    model = independent_copy(engine.model).to(engine.source_dtype)
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in engine.unflatten(theta).items():
            named[name].copy_(value)
    return model


def what_if(
    jury: Jury,
    nodes: Tensor | Sequence[int] | None,
    edit: Edit | Callable[[Base], Edit],
    *,
    base: Base | None = None,
    steps: int = 1,
) -> WhatIf:
    """Predictions after an edit of ``base``, by default of the jury's own graph."""
    check_count(steps, "steps", most=MOST_STEPS)
    start = base_of(jury) if base is None else base
    edit = edit if isinstance(edit, Edit) else edit(start)
    engine = start.engine
    graph = edit.applied(engine.data)
    asked = torch.arange(int(graph.num_nodes)) if nodes is None else check_nodes(nodes, graph, what="nodes")
    after = edit.labelled(engine.train_nodes)
    walk = Walk(start, edit, graph, after, steps)
    before = predictions(engine, engine.theta[None], asked)[:, :, 0]
    thetas = torch.stack([engine.theta, engine.theta + walk.step])
    direct, moved = predictions(walk.there, thetas, asked).unbind(dim=2) if not walk.still else (before, before)
    removed = torch.isin(asked, edit.gone)
    if bool(removed.any()):
        direct, moved = (part.masked_fill(removed[:, None], torch.nan) for part in (direct, moved))
    classify = engine.loss.name == "cross_entropy"
    kept = (jury, start, walk.left, walk.first)
    return WhatIf(asked, before, direct, moved, walk.step, graph, after, walk.health, classify, *kept)


class Walk:
    """The Newton steps after one edit, and what they leave of the gradient."""

    def __init__(self, base: Base, edit: Edit, graph: Data, nodes: Tensor, steps: int) -> None:
        self.base, self.graph, self.nodes = base, graph, nodes
        self.objectives = Objectives(base, [edit])
        self.still = edit.empty and not bool(base.carried.any())
        self.affected = self.objectives.affected
        self.step = self.start = torch.zeros_like(base.engine.theta)
        self.left, self.next = torch.zeros_like(self.step), torch.zeros_like(self.step)
        if not self.affected and not bool(base.carried.any()):
            return
        self.left = self.start = self.objectives.gradient()[:, 0]
        for _ in range(steps):
            self._take(self.next if bool(self.next.any()) else self.objectives.steps()[0])

    def _take(self, step: Tensor) -> None:
        """Take a step; after earlier edits half of it, and so on, while the step that remains is longer than it.

        The first edit of a sequence is one whole step, as in ``influence_on``, which takes many edits at once.
        """
        before, length = self.step, self._length(step)
        for _ in range(HALVINGS + 1 if self.base.first > 0 else 1):
            self.step = before + step
            self.left = self._gradient()
            self.next = -self.objectives.solve(self.left[:, None])[:, 0]
            if self._length(self.next) <= length:
                return
            step = step / 2

    @cached_property
    def targets(self) -> Tensor:
        """The targets of the training nodes after the edit."""
        loss = self.base.engine.loss
        return loss.targets(self.graph.y[self.nodes])

    def _gradient(self) -> Tensor:
        r"""F on the edited graph after the step, (P,), with the Jacobian J' from before the step.

        .. math:: F' + F + \frac1n \sum_i J_i'^T \left(e_i(\theta + \delta) - e_i(\theta)\right) + \Lambda \delta

        It leaves out the change of J', as the Gauss-Newton matrix does. Of a GCN the full gradient is no guide: the
        exact Hessian is indefinite, and steps along it lead away from the retrained model.
        """
        base, loss = self.base, self.base.engine.loss
        thetas = torch.stack([base.engine.theta, base.engine.theta + self.step])
        outputs = self.there.predictor(self.nodes, base.engine.dtype).outputs(thetas).detach()
        before, after = (loss.residual(z, self.targets) for z in outputs.unbind(dim=2))
        pulled = self.jacobian.pull((after - before).unsqueeze(-1))[:, 0] / base.count
        return self.start + pulled + base.curvature.diagonal * self.step

    @cached_property
    def there(self) -> Engine:
        """The model on the edited graph."""
        return self.base.engine.elsewhere(self.graph, self.nodes, self.targets)

    @cached_property
    def jacobian(self) -> Jacobian:
        """Derivatives of all training nodes on the edited graph, at the old parameters."""
        return self.there.expected().jacobian

    @cached_property
    def whole(self) -> float:
        """The length of the change of the parameters since training."""
        return self._length(self.base.moved + self.step)

    @property
    def first(self) -> float:
        """The length of the first step of the sequence of edits."""
        return self.base.first if self.base.first > 0 else self.whole

    @property
    def health(self) -> EditHealth:
        """The lengths of the steps."""
        size = float(self.base.engine.theta.norm())
        step = float((self.base.moved + self.step).norm()) / size if size > 0 else 0.0
        remaining = self._length(self.next) / self.whole if self.whole > 0 else 0.0
        drift = self.whole / self.first if self.first > 0 else 0.0
        return EditHealth(self.affected, step, remaining, drift, self.base.gradient, self.base.doubt)

    def _length(self, step: Tensor) -> float:
        product = self.base.curvature.matmul(step[:, None]) + self.objectives.correction(step[:, None])
        return math.sqrt(max(0.0, float(step @ product[:, 0])))
