"""The engine of any model: automatic differentiation, and forward passes of many models by ``vmap``."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch_geometric.data import Data

from jurygcn.checks import all_finite
from jurygcn.data import check_graph, check_nodes, check_targets, known_classes, ordinary
from jurygcn.data.heterogeneous import layout_of
from jurygcn.derivatives import ClosedForm, DenseJacobian, Jacobian, autodiff
from jurygcn.engine.acceptance import check_outputs
from jurygcn.engine.elsewhere import OF_GRAPH, elsewhere, near_training, separable
from jurygcn.engine.expected import EgoDerivatives, Expected, NotSeparable, random_in_training
from jurygcn.engine.protocol import Predictor, SecondDerivative
from jurygcn.engine.refusals import check_devices, check_layers
from jurygcn.engine.sparse_sums import SAME, SparseGraphs
from jurygcn.engine.streamed import EgoStream
from jurygcn.engine.votes import LiftedPredictor
from jurygcn.engine.ways import Way, derivatives_of, kernel_passes_of, own_grams_of, toward_of, way_of, working_bytes
from jurygcn.errors import ModelError, SettingError
from jurygcn.graph.edited import Changes, edited_graph
from jurygcn.graph.fused import SparseProducts
from jurygcn.graph.neighbourhood import local_graph, num_hops
from jurygcn.graph.typed import local_view
from jurygcn.losses import Loss, loss_named
from jurygcn.models.calling import Forward, call, call_with
from jurygcn.models.copies import check_initialised, in_use, independent_copy
from jurygcn.models.receptive_field import ReceptiveField, Tangents
from jurygcn.models.weight_decay import decay_by_name

PROBES = 1  # random parameter vectors at which two ways to compute outputs are compared


class GenericEngine:
    """A trained model of any kind, its graph, its training nodes and its loss; see :class:`Engine`.

    The model is copied, put in eval mode and cast to ``dtype``; the caller's model is never changed. Frozen
    parameters (``requires_grad=False``) are constants: they are not part of theta.

    Shapes: N nodes, n training nodes, C outputs, P trainable parameters; theta (P,).
    """

    takes_sparse = False  # whether the model sums messages by one product, if it gets a sparse adjacency

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        train_nodes: Tensor | Sequence[int],
        *,
        loss: str = "cross_entropy",
        weight_decay: float | Mapping[str, float] = 0.0,
        forward: Forward | None = None,
        dtype: torch.dtype = torch.float64,
        masks: int | None = None,
    ) -> None:
        self.loss: Loss = loss_named(loss)
        self.masks = masks
        self.data = check_graph(data)
        y = check_targets(data)
        self.train_nodes = check_nodes(train_nodes, data, what="train_nodes")
        self.targets = self.loss.targets(y[self.train_nodes.to(y.device)])
        if not isinstance(model, nn.Module):
            raise ModelError(f"expected a trained torch.nn.Module, got {type(model).__name__}; pass the model itself")
        check_initialised(model)
        check_layers(model)
        check_devices(model, data)
        self.model = independent_copy(model).to(dtype).eval()
        self.source_dtype = vote_dtype(model)
        self.forward = forward
        self.dtype = dtype
        self.parameters = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ModelError(
                "expected trainable parameters, got none, so leaving a node out changes nothing; "
                "pass a trained model whose parameters have requires_grad=True"
            )
        self.weight_decay = weight_decay
        self.decay = self._decay_vector(weight_decay)
        if not all_finite(self.theta):
            raise ModelError(
                "expected finite model parameters, got NaN or infinity; train again with a lower learning rate"
            )
        self.num_outputs = self.check()

    @property
    def usual_decay(self) -> str:
        """Most models stop early or have dropout, so their effective weight decay is not the stated one."""
        return "effective"

    def on(self, terms: Tensor) -> GenericEngine:
        """The same objective over some of the training nodes (positions in ``train_nodes``)."""
        part = copy.copy(self)
        part._clear_cached("train_outputs", "_train_graph", "_stream", "_casts")
        part.train_nodes, part.targets = self.train_nodes[terms], self.targets[terms]
        return part

    def at(self, nodes: Tensor) -> GenericEngine:
        """The engine with any nodes in place of the training nodes; their targets are not known."""
        part = self.on(torch.zeros(len(nodes), dtype=torch.long))
        part.train_nodes, part.masks = nodes.to(self.train_nodes.device), 0
        return part

    def cast(self, dtype: torch.dtype) -> GenericEngine:
        """The same objective in another precision, made once."""
        if dtype == self.dtype:
            return self
        if dtype not in self._casts:
            part = copy.copy(self)
            part._clear_cached(*OF_GRAPH)
            part.dtype, part.model = dtype, independent_copy(self.model).to(dtype)
            part.parameters = {name: p.detach() for name, p in part.model.named_parameters() if p.requires_grad}
            part.decay = self.decay.to(dtype)
            self._casts[dtype] = part
        return self._casts[dtype]

    @cached_property
    def _casts(self) -> dict[torch.dtype, GenericEngine]:
        return {}

    def elsewhere(self, data: Data, nodes: Tensor, targets: Tensor, theta: Tensor | None = None) -> GenericEngine:
        """The model on another graph with other training nodes, and with the parameters ``theta`` if given."""
        return elsewhere(self, data, nodes, targets, theta)

    def edited(self, centres: Tensor, changes: Changes, *, most_rows: int) -> tuple[Data, Tensor] | None:
        """A graph with the neighbourhoods of ``centres`` after edits; None if they do not suffice or are too large."""
        hops = num_hops(self.model)
        return edited_graph(self.data, centres, hops, changes, most_rows=most_rows) if self.separable else None

    @cached_property
    def separable(self) -> bool:
        """Whether copies of neighbourhoods determine the outputs at their centres."""
        return separable(self)

    def _clear_cached(self, *names: str) -> None:
        """Drop cached properties that a copy must not share with its original."""
        for name in names:
            self.__dict__.pop(name, None)

    def local(self, nodes: Tensor) -> tuple[Data, Tensor]:
        """The part of the graph that determines the outputs at ``nodes``, and their positions in it.

        The part is the neighbourhood that messages can cross. The model is run on it, and if its outputs differ from
        those on the whole graph (global pooling, for example), the whole graph is returned.
        """
        whole = (self._inputs, nodes)
        if self.forward is not None or 2 * len(nodes) > int(self.data.num_nodes):
            return whole
        part = local_view if self.typed else local_graph
        graph, positions = part(self._inputs, nodes, num_hops(self.model))
        return (graph, positions) if self._suffices(graph, positions, nodes) else whole

    @torch.no_grad()
    def _suffices(self, graph: Data, positions: Tensor, nodes: Tensor) -> bool:
        """Whether the model gives the same outputs on a part of the graph.

        Tested at the trained parameters and at random ones, because a branch that uses the whole graph may be inactive
        at the trained parameters and active for a juror.
        """
        for theta, everywhere in self._probes:
            try:
                here = self.outputs(theta, positions, graph)
            except Exception:  # a model that has something for each node does not run on a part
                return False
            if not bool((everywhere[nodes] - here).abs().max() <= SAME[self.dtype] * everywhere.abs().max()):
                return False
        return True

    @cached_property
    def probed(self) -> list[Tensor]:
        """The trained and some random parameters, at which a way to compute outputs is compared with the model's."""
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(PROBES, self.num_parameters, generator=generator, dtype=torch.float64)
        scale = float(self.theta.double().square().mean().sqrt()) or 1.0
        return [self.theta, *(self.theta + scale * noise.to(self.theta))]

    @cached_property
    def _probes(self) -> list[tuple[Tensor, Tensor]]:
        """The trained and some random parameters, each with its outputs on the whole graph."""
        with torch.no_grad():
            others = [(theta, self.outputs(theta)) for theta in self.probed[1:]]
        return [(self.probed[0], self.trained_outputs), *others]

    # --- theta -----------------------------------------------------------------------------------------

    @property
    def typed(self) -> bool:
        """Whether the graph has several types of nodes."""
        return layout_of(self.data) is not None

    @property
    def num_train(self) -> int:
        """n, the number of training nodes."""
        return len(self.train_nodes)

    @property
    def num_parameters(self) -> int:
        """P, the number of trainable parameters."""
        return sum(p.numel() for p in self.parameters.values())

    @property
    def theta(self) -> Tensor:
        """The trained parameters as one vector, in the order of ``model.named_parameters()``."""
        return torch.cat([p.reshape(-1) for p in self.parameters.values()])

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Named parameters from flat ones; leading dimensions of ``theta`` (..., P) are kept."""
        pieces = theta.split([p.numel() for p in self.parameters.values()], dim=-1)
        return {
            name: piece.reshape((*theta.shape[:-1], *p.shape))
            for (name, p), piece in zip(self.parameters.items(), pieces)
        }

    @cached_property
    def _inputs(self) -> Data:
        """The graph in ordinary types, with floating tensors in our dtype; the caller's Data is not changed."""
        return ordinary(self.data, dtype=self.dtype)

    @cached_property
    def near(self) -> Data:
        """The neighbourhood of a few training nodes, on which short tests of the model are made."""
        return near_training(self)

    @cached_property
    def trained_outputs(self) -> Tensor:
        """Logits of all nodes at the trained parameters, (N, C); in the model's precision they are its own, exactly."""
        with torch.no_grad(), in_use:
            if self.dtype != self.source_dtype:
                return self.called(self.parameters, self._inputs)
            return call_with(self.parameters, self.model, self._inputs, self.forward)

    @cached_property
    def train_outputs(self) -> Tensor:
        """Logits of the training nodes at the trained parameters, (n, C)."""
        return self.trained_outputs[self.train_nodes]

    # --- functions of theta ----------------------------------------------------------------------------

    def outputs(self, theta: Tensor, nodes: Tensor | None = None, data: Data | None = None) -> Tensor:
        """Logits (N, C), or (m, C) at ``nodes``; ``data`` may be a subgraph that contains their receptive field."""
        graph = self._inputs if data is None else data
        with in_use:
            z = self.called(self.unflatten(theta), graph)
        return z if nodes is None else z[nodes]

    def summing(self, graph: Data) -> Data:
        """The graph with a sparse adjacency where the model takes it: it then sums messages without forming them.

        Not in training mode, in which a model may change its list of edges, and not inside a function transform, which
        cannot differentiate the entries of a sparse matrix.
        """
        usable = self.takes_sparse and not self.model.training and peek_interpreter_stack() is None
        return self._sparse.of(graph) if usable else graph

    @cached_property
    def _sparse(self) -> SparseGraphs:
        return SparseGraphs()

    def called(self, parameters: dict[str, Tensor], graph: Data) -> Tensor:
        """Logits of all nodes of ``graph`` with these parameters in place of the model's own, (N, C)."""
        with SparseProducts():
            return call_with(parameters, self.model, self.summing(graph), self.forward)

    def call(self, graph: Data) -> Tensor:
        """Logits of all nodes of ``graph`` by the model itself, in the mode it is in."""
        with SparseProducts():
            return call(self.model, self.summing(graph), self.forward)

    @cached_property
    def _train_graph(self) -> tuple[Data, Tensor]:
        """The part of the graph that determines the outputs at the training nodes, and their positions in it."""
        return self.local(self.train_nodes)

    def node_losses(self, theta: Tensor) -> Tensor:
        """r(i, y_i, theta) for every training node, (n,)."""
        graph, rows = self._train_graph
        return self.loss.node_losses(self.outputs(theta, rows, graph), self.targets)

    def risk(self, theta: Tensor) -> Tensor:
        """R(theta) with weight decay. Implements: Eq. (2)."""
        return self.node_losses(theta).mean() + 0.5 * (self.decay * theta**2).sum()

    # --- derivatives and predictions ----------------------------------------------------------------------

    def expected(self) -> Expected:
        """Outputs and Jacobian of the training nodes, in expectation over dropout."""
        return derivatives_of(self)

    @cached_property
    def _stream(self) -> EgoStream:
        """Batches of ego graphs; raises NotSeparable."""
        return EgoStream(self)

    def way(self) -> Way:
        """How ``expected`` will work: on ego graphs, on batches of them, or row by row."""
        return way_of(self)

    def working_bytes(self) -> float:
        """The memory of derivatives that are held at a time, estimated."""
        return working_bytes(self)

    def tangent_numbers(self, nodes: int) -> int:
        """The numbers that ``tangents`` needs for each direction: two copies of the outputs."""
        return 2 * nodes * self.num_outputs

    @cached_property
    def random_in_training(self) -> bool:
        """Whether the model has dropout, found by two passes in training mode."""
        return random_in_training(self)

    def jacobian(self) -> Jacobian:
        """Derivatives of the training nodes' logits in eval mode."""
        try:
            return EgoDerivatives(self).expected(0).jacobian
        except NotSeparable:
            return DenseJacobian(autodiff.jacobian_rows(self, self.theta, self.train_nodes))

    own_grams, toward, kernel_passes = own_grams_of, toward_of, kernel_passes_of

    def gradient(self) -> Tensor:
        """Gradient of the mean loss, (P,)."""
        with torch.enable_grad():
            theta = self.theta.requires_grad_(True)
            (slope,) = torch.autograd.grad(self.node_losses(theta).mean(), theta)
        return slope

    def node_gradients(self) -> Tensor:
        """Gradients of the training nodes' losses, (n, P)."""
        return autodiff.node_gradients(self, self.theta)

    def hessian(self) -> SecondDerivative:
        """The exact Hessian by automatic differentiation."""
        return autodiff.AutodiffHessian(self)

    def theorem_1(self) -> ClosedForm:
        """Raises SettingError: there is no closed form for this model."""
        raise SettingError(
            f"expected a jurygcn.GCN for curvature='printed', which is Theorem 1, got a {type(self.model).__name__}; "
            "choose 'ggn' or 'hessian'"
        )

    def predictor(self, nodes: Tensor, dtype: torch.dtype) -> Predictor:
        """Forward passes of many models at once, by ``vmap``."""
        return LiftedPredictor(self, nodes, dtype)

    def outputs_at(self, nodes: Tensor) -> Tensor:
        """Logits at the trained parameters in the caller's precision, from one pass for all nodes."""
        return self.cast(self.source_dtype).trained_outputs[nodes]

    def tangents(self, nodes: Tensor, directions: Tensor) -> Tangents:
        """Derivatives of the outputs along directions, by forward-mode differentiation."""
        try:
            along = LiftedPredictor(self, nodes, directions.dtype).along(directions)
        except autodiff.UNBATCHED:
            local = self.cast(directions.dtype)
            graph, rows = local.local(nodes)
            along = autodiff.outputs_along(partial(local.outputs, nodes=rows, data=graph), local.theta, directions)
        return Tangents(along.transpose(0, 1))

    def stacked_field(self, model: nn.Module) -> ReceptiveField | None:  # noqa: ARG002
        """Copies of an arbitrary model are trained one by one."""
        return None

    # --- checks ------------------------------------------------------------------------------------------

    def _decay_vector(self, weight_decay: float | Mapping[str, float]) -> Tensor:
        given = decay_by_name(self.model, weight_decay)
        return torch.cat([torch.full_like(p, given[name]).reshape(-1) for name, p in self.parameters.items()])

    def check(self) -> int:
        """Check that the model has one finite, deterministic prediction per node; return the number of outputs."""
        width = check_outputs(self)
        for part in self._casts.values():  # made by the check itself
            part.num_outputs = width
        _ = self._train_graph  # computed here, outside function transforms
        return width

    def check_width(self, width: int) -> None:
        """Raise ModelError unless there are as many outputs as classes or targets."""
        if self.loss.name == "cross_entropy":
            known = known_classes(self.data)
            needed = max(known, int(self.targets.max()) + 1)
            if width < needed or (known and width != known):
                raise ModelError(f"expected one model output per class ({needed}), got {width}; change the last layer")
        elif width != self.targets.shape[1]:
            raise ModelError(
                f"expected one model output per target ({self.targets.shape[1]}), got {width}; change the last layer"
            )


def vote_dtype(model: nn.Module) -> torch.dtype:
    """The precision in which a model's jurors vote: float64 if it has float64 parameters, else float32."""
    return torch.float64 if any(p.dtype == torch.float64 for p in model.parameters()) else torch.float32
