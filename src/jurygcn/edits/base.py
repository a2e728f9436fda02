"""The point that an edit starts from: a model on a graph, with its factorised curvature."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.curvature import GGN, GGNFactor
from jurygcn.diagnostics.grounds import why_untrusted
from jurygcn.edits.replaced import short_way
from jurygcn.engine import Engine
from jurygcn.errors import SettingError
from jurygcn.linalg import Prepared, Solver, choose

if TYPE_CHECKING:
    from jurygcn.jury import Jury


@dataclass(frozen=True, eq=False)
class Base:
    r"""A model with parameters theta on a graph, whose objective has the gradient F(theta).

    .. math:: F(\theta) = \frac1n \sum_i \nabla r_i(\theta) + \Lambda \theta - g_0

    with g_0 the gradient of the trained model on the original graph. So F is zero there, also for a model that stopped
    before the minimum. n stays the original number of labels, as in leaving one out.

    Attributes:
        engine: the model on the graph.
        curvature: the Gauss-Newton matrix there.
        prepared: its factorisation.
        count: n.
        carried: F, which earlier edits have left, (P,).
        moved: the parameters minus those of the trained model, (P,).
        first: the length of the first step of a sequence of edits, in the norm of its curvature; 0 before it.
        gradient: how far the trained model is from a minimum, see ``EditHealth``.
        solver, memory: how later curvatures are factorised.
        doubt: why estimates for this model are not trusted, see ``why_untrusted``; empty if they are.
    """

    engine: Engine
    curvature: GGN
    prepared: Prepared
    count: int
    carried: Tensor
    moved: Tensor
    first: float
    gradient: float
    solver: str | Solver
    memory: float
    doubt: str

    @cached_property
    def short_way(self) -> bool:
        """Whether changed curvatures are solved in the space of the rows that change."""
        return short_way(self.curvature, self.prepared)

    def after(self, data: Data, nodes: Tensor, theta: Tensor, carried: Tensor, first: float) -> Base:
        """The base of the next edit: other graph, labels and parameters, and the curvature made anew."""
        engine = self.engine.elsewhere(data, nodes, self.engine.loss.targets(data.y[nodes]), theta)
        found = engine.expected()
        curvature = GGN(
            GGNFactor(found.jacobian, engine.loss.root(found.outputs), self.count), self.curvature.diagonal, found
        )
        prepared = choose(self.solver, curvature, memory=self.memory).prepare(curvature)
        moved = self.moved + theta - self.engine.theta
        kept = (first, self.gradient, self.solver, self.memory, self.doubt)
        return Base(engine, curvature, prepared, self.count, carried, moved, *kept)


def base_of(jury: Jury) -> Base:
    """The trained model of a jury on its graph."""
    if jury.leave_out.curvature != "ggn":
        raise SettingError(
            f"expected curvature='ggn' for edits, got {jury.leave_out.curvature!r}; make the jury with "
            "leave_out='newton'"
        )
    curvature, engine = cast(GGN, jury.curvature), jury.engine
    if curvature.expected is not None and curvature.expected.masks:
        raise SettingError(
            "expected derivatives in eval mode for edits, got averages over dropout; make the jury with "
            "LeaveOut(decay='effective')"
        )
    nothing = torch.zeros_like(engine.theta)
    found = jury.factorised
    settings = (jury.leave_out.solver, jury.run.bytes, why_untrusted(jury))
    gradient = _gradient(engine, curvature)
    return Base(engine, curvature, found.prepared, engine.num_train, nothing, nothing, 0.0, gradient, *settings)


def _gradient(engine: Engine, curvature: GGN) -> float:
    """Length of the gradient of the objective over the lengths of its two parts, loss and weight decay."""
    residual = engine.loss.residual(engine.train_outputs, engine.targets)
    loss = curvature.factor.jacobian.pull(residual.unsqueeze(-1))[:, 0] / engine.num_train
    decay = engine.decay * engine.theta
    size = float(loss.norm() + decay.norm())
    return float((loss + decay).norm()) / size if size > 0 else 0.0


@torch.no_grad()
def predictions(engine: Engine, thetas: Tensor, nodes: Tensor) -> Tensor:
    """Predictions in the precision of derivatives, so that small effects are not rounding errors, (m, C, b)."""
    return engine.loss.predict(engine.predictor(nodes, engine.dtype).outputs(thetas.to(engine.dtype)), dim=1)
