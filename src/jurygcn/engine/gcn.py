"""The engine of the paper's GCN: closed-form derivatives, and forward passes of many models at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.derivatives import (
    ClosedForm,
    Jacobian,
    RowSpaceJacobian,
    TwoLayerJacobian,
    closed_form_jacobian,
    own_grams,
)
from jurygcn.engine.expected import Expected
from jurygcn.engine.generic import GenericEngine
from jurygcn.engine.protocol import Predictor, SecondDerivative, Toward
from jurygcn.engine.ways import Way, timed
from jurygcn.errors import ModelError
from jurygcn.graph.neighbourhood import local_graph, num_hops
from jurygcn.graph.propagation import graph_cache, is_everything
from jurygcn.models.gcn import GCN
from jurygcn.models.receptive_field import ReceptiveField, Tangents

# The outputs of one batch of models take at most BATCH_BYTES, which fits the processor's cache, where counting is
# fastest. A batch has at least FEW models.
BATCH_BYTES, FEW = 12_000_000, 8

# Columns multiplied by J at once: bounds the (n, C, k) array between J and its transpose.
COLUMNS = 256


class GCNEngine(GenericEngine):
    """A plain, fully trained :class:`jurygcn.GCN`; see :func:`jurygcn.models.gcn.is_plain`."""

    def check(self) -> int:
        """Check the widths only, because the formula is deterministic and returns a row per node."""
        takes, has = self._weights[0].shape[0], self.data.x.shape[1]
        self.check_width(self._weights[-1].shape[1])
        if takes != has:
            raise ModelError(
                f"expected a graph with the model's {takes} features, got {has}; use the graph it was trained on"
            )
        return int(self._weights[-1].shape[1])

    @property
    def usual_decay(self) -> str:
        """Without dropout neither decay agrees better with retraining on all graphs; the stated one is the paper's."""
        return "effective" if self._gcn.dropout > 0.0 else "stated"

    @property
    def _gcn(self) -> GCN:
        assert isinstance(self.model, GCN)
        return self.model

    @property
    def _weights(self) -> list[Tensor]:
        return [W.detach() for W in self._gcn.weights]

    def _clear_cached(self, *names: str) -> None:
        super()._clear_cached(*names, "train_field")

    def local(self, nodes: Tensor) -> tuple[Data, Tensor]:
        """The nodes' neighbourhood, which suffices for a GCN."""
        if 2 * len(nodes) > int(self.data.num_nodes):
            return self._inputs, nodes
        return local_graph(self._inputs, nodes, num_hops(self.model))

    @property
    def separable(self) -> bool:
        """Outputs of a GCN depend on neighbourhoods alone."""
        return True

    @property
    def _train_graph(self) -> tuple[Data, Tensor]:
        # This is called inside function transforms, whose tensors must not be cached, so it returns the whole graph.
        return self._inputs, self.train_nodes

    @cached_property
    def train_field(self) -> ReceptiveField:
        """The receptive field of the training nodes."""
        return ReceptiveField.of(self._gcn, self.data, self.train_nodes)

    @cached_property
    def train_outputs(self) -> Tensor:
        """Logits of the training nodes at the trained parameters, (n, C)."""
        with torch.no_grad():
            return self.train_field.logits(self._weights)

    def theorem_1(self) -> ClosedForm:
        """Proposition 2 and Theorem 1 at the trained parameters."""
        return ClosedForm(self.train_field, self._weights, lambda z: self.loss.residual(z, self.targets))

    def expected(self) -> Expected:
        """By Proposition 2; with dropout on ego graphs, as for any model."""
        if self._gcn.dropout > 0.0 and self.masks != 0:
            return super().expected()
        return Expected(self.train_outputs, self.jacobian(), 0, torch.zeros_like(self.decay))

    @cached_property
    def random_in_training(self) -> bool:
        """Whether the model has dropout."""
        return self._gcn.dropout > 0.0

    def way(self) -> Way:
        """Proposition 2, or as for any model if there is dropout."""
        if self._gcn.dropout > 0.0 and self.masks != 0:
            return super().way()
        forward = self._forward_seconds()
        return Way("whole", 0, forward, 2 * forward)

    def _forward_seconds(self) -> float:
        """The time of one of FEW forward passes that are stacked, as those of jurors are."""
        predictor = self.predictor(torch.arange(int(self.data.num_nodes)), self.source_dtype)
        theta = self.theta.to(self.source_dtype).expand(FEW, -1)
        return timed(lambda: predictor.outputs(theta)) / FEW

    def kernel_passes(self, rows: int) -> float:
        """With two layers all directions of a node take one pass, and own kernels few; with others as any model."""
        return float(self.num_train) if len(self._weights) == 2 else super().kernel_passes(rows)

    def working_bytes(self) -> float:
        """The factors of the Jacobian."""
        if self._gcn.dropout > 0.0 and self.masks != 0:
            return super().working_bytes()
        return 16.0 * self.num_train * self.num_parameters

    def tangent_numbers(self, nodes: int) -> int:
        """The outputs, or the hidden units before the last layer if they are fewer, and a copy."""
        last = self._weights[-1]
        return 2 * nodes * (min(last.shape) if len(self._weights) > 1 else last.shape[1])

    def jacobian(self) -> Jacobian:
        """The Jacobian by Proposition 2, in the cheapest form."""
        return closed_form_jacobian(self.theorem_1())

    def own_grams(self, nodes: Tensor, scale: Tensor) -> Tensor:
        """By Proposition 2; without rows of the Jacobian for two layers, if the scale is the same for all features."""
        first = scale[: self._weights[0].numel()].view(self._weights[0].shape)
        if len(self._weights) != 2 or not bool((first == first[0]).all()):
            return super().own_grams(nodes, scale)
        everything = is_everything(nodes, int(self.data.num_nodes))
        kept = graph_cache(self.data).whole if everything else None
        return own_grams(self.at(nodes).theorem_1(), scale, kept)

    def gradient(self) -> Tensor:
        """Gradient of the mean loss by Proposition 2, (P,)."""
        form = self.theorem_1()
        return form.pull_back(form.residual[None] / self.num_train)[0]

    def node_gradients(self) -> Tensor:
        """Gradients of the training nodes' losses by Proposition 2, (n, P)."""
        return self.theorem_1().node_gradients()

    def hessian(self) -> SecondDerivative:
        """Theorem 1 plus the Gauss-Newton term that it lacks (erratum E2)."""
        return GCNHessian(self)

    def predictor(self, nodes: Tensor, dtype: torch.dtype) -> Predictor:
        """All models of a batch by one dense and one sparse product per layer."""
        return StackedPredictor(self, nodes, dtype)

    def outputs_at(self, nodes: Tensor) -> Tensor:
        """Logits at the trained parameters in the caller's precision, on the nodes' receptive field."""
        theta = self.theta.to(self.source_dtype)
        with torch.no_grad():
            return self.predictor(nodes, self.source_dtype).outputs(theta[None])[:, :, 0]

    def tangents(self, nodes: Tensor, directions: Tensor) -> Tangents:
        """Derivatives of the logits along directions, in one forward sweep."""
        field = ReceptiveField.of(self._gcn, self.data, nodes, dtype=directions.dtype)
        weights = [W.to(directions.dtype) for W in self._weights]
        return field.tangents(weights, list(self.unflatten(directions).values()))

    def toward(self, jacobian: Jacobian, root: Tensor, scale: Tensor) -> Toward:
        """By Proposition 2 for two layers, where classes enter only through the last one."""
        if isinstance(jacobian, RowSpaceJacobian):
            jacobian = jacobian.expanded
        if isinstance(jacobian, TwoLayerJacobian):
            return TowardUnits(self, jacobian, root, scale)
        return super().toward(jacobian, root, scale)

    def stacked_field(self, model: nn.Module) -> ReceptiveField | None:
        """The training nodes' receptive field; copies with dropout are trained one by one."""
        assert isinstance(model, GCN)
        return ReceptiveField.of(model, self.data, self.train_nodes) if model.dropout == 0.0 else None


class TowardUnits:
    r"""Products of Jacobian rows of a two-layer GCN, from those of its units.

    .. math::
        (J_u D J_i^T)_{cd} = \sum_q W^{(2)}_{qc} (T_{qu} D_q T_{qi}^T) W^{(2)}_{qd}
        + \delta_{cd} \sum_q (\hat A E)_{uq} D_{qc} (\hat A E)_{iq}
    """

    def __init__(self, engine: GCNEngine, jacobian: TwoLayerJacobian, root: Tensor, scale: Tensor) -> None:
        (h, n, F), (_, C, K), self.engine = jacobian.T.shape, root.shape, engine
        self.shape, self.numbers = (n, C, K), n * min(h, C * K)
        first, last = scale[: F * h].view(F, h), scale[F * h :].view(h, C)
        mixing = jacobian.W2.unsqueeze(2) * (jacobian.W2 @ root).unsqueeze(2)  # (n, h, C, K)
        corner = torch.einsum("iq,qc,ick->qcik", jacobian.AE, last, root)
        given = (jacobian.T.permute(1, 2, 0) * first, mixing.flatten(2), corner.flatten(1))
        self.directions, self.mixing, self.corner = (part.to(engine.source_dtype) for part in given)

    def __call__(self, nodes: Tensor) -> AlongUnits:
        """At some nodes."""
        engine, dtype = self.engine, self.directions.dtype
        field = ReceptiveField.of(engine._gcn, engine.data, nodes, dtype=dtype)
        weights = [W.to(dtype) for W in engine._weights]
        return AlongUnits(self, *field.unit_tangents(weights, self.directions, self.mixing))


@dataclass(frozen=True, eq=False)
class AlongUnits:
    """Products with the rows of some nodes. Shapes: units (n, m, h) or (n, m, CK), carried (m, h)."""

    toward: TowardUnits
    units: Tensor
    carried: Tensor

    def at(self, rows: Tensor | slice) -> Tensor:
        """Those of some of the nodes, (r, C, nK)."""
        units, (n, C, K), mixing = self.units[:, rows], self.toward.shape, self.toward.mixing
        first = units if units.shape[2] == mixing.shape[2] else torch.bmm(units, mixing)  # (n, r, C K)
        out = (self.carried[rows] @ self.toward.corner).view(-1, C, n, K)
        out += first.view(n, -1, C, K).permute(1, 2, 0, 3)
        return out.flatten(2)


class GCNHessian:
    """The exact Hessian of the mean loss."""

    def __init__(self, engine: GCNEngine) -> None:
        self.form = engine.theorem_1()
        self.jacobian = closed_form_jacobian(self.form)
        self.root = engine.loss.root(engine.train_outputs) / engine.num_train**0.5  # (n, C, K)

    def product(self, block: Tensor) -> Tensor:
        """(P, k) -> (P, k)."""
        J, root = self.jacobian, self.root
        parts = [J.pull(root @ (root.mT @ J.push(part))) for part in block.split(COLUMNS, dim=1)]
        return self.form.hessian_product(block) + torch.cat(parts, dim=1)

    def matrix(self) -> Tensor:
        """(P, P)."""
        return self.jacobian.curvature(self.root) + self.form.hessian_matrix()


class StackedPredictor:
    """Logits of many GCNs at ``nodes``."""

    def __init__(self, engine: GCNEngine, nodes: Tensor, dtype: torch.dtype) -> None:
        self.engine = engine
        self.field = ReceptiveField.of(engine._gcn, engine.data, nodes, dtype=dtype)
        widths: Sequence[int] = [W.shape[1] for W in engine._weights]
        outputs = len(nodes) * engine.num_outputs
        # Hidden rows and two copies of them, a few copies of the outputs, and the parameters.
        self.numbers = 3 * sum(self.field.hidden_sizes(widths)) + 9 * outputs + engine.num_parameters
        self.most = max(FEW, BATCH_BYTES // (dtype.itemsize * outputs))

    def outputs(self, thetas: Tensor, around: Tensor | None = None) -> Tensor:
        """(b, P) -> (m, C, b); with ``around``, (P,), they are steps from there."""
        center = None if around is None else list(self.engine.unflatten(around).values())
        return self.field.stacked_logits(list(self.engine.unflatten(thetas).values()), center)
