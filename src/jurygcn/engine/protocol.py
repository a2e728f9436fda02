"""The protocol of an engine: the interface of a model on a graph for the rest of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.derivatives import ClosedForm, Jacobian
from jurygcn.engine.expected import Expected
from jurygcn.engine.ways import Way
from jurygcn.graph.edited import Changes
from jurygcn.losses import Loss
from jurygcn.models.receptive_field import ReceptiveField, Tangents


class Predictor(Protocol):
    """Outputs of many parameter vectors at fixed nodes.

    Attributes:
        numbers: how many numbers one parameter vector needs in memory at a time.
        most: the number of parameter vectors above which a batch gains no speed.
    """

    numbers: int
    most: int

    def outputs(self, thetas: Tensor, around: Tensor | None = None) -> Tensor:
        """Logits, or outputs of a regression: (b, P) -> (m, C, b); parameter vectors come last.

        With ``around``, (P,), they are steps from there.
        """


class SecondDerivative(Protocol):
    """A P x P matrix of second derivatives that need not be formed."""

    def product(self, block: Tensor) -> Tensor:
        """The matrix times a block: (P, k) -> (P, k)."""

    def matrix(self) -> Tensor:
        """The matrix itself, (P, P)."""


class Along(Protocol):
    """Derivatives of the outputs at some nodes along k directions."""

    def at(self, rows: Tensor | slice) -> Tensor:
        """Those of some of the nodes, (r, C, k)."""


class Toward(Protocol):
    """Products of Jacobian rows of any nodes with those of all training nodes."""

    @property
    def numbers(self) -> int:
        """The numbers that are held for each node."""

    def __call__(self, nodes: Tensor) -> Along:
        """J_u diag(scale) J_i^T L_i, (r, C, nK), in the caller's precision."""


class Engine(Protocol):
    r"""One trained model on one graph, as functions of its flat parameter vector theta.

    .. math:: R(\theta) = \frac1n \sum_{i} r(i, y_i, \theta) + \frac12 \sum_p \lambda_p \theta_p^2

    Code outside this package does not depend on the kind of model. A new family of models is a new implementation.

    Shapes: N nodes, n training nodes, m queried nodes, C outputs, P trainable parameters.

    Attributes:
        model: a private copy in eval mode and in ``dtype``.
        data: a snapshot of the graph.
        train_nodes, targets: the training nodes, (n,), and their targets.
        parameters: the trainable parameters by name; frozen ones are constants.
        theta: the trainable parameters as one vector, (P,).
        decay: the weight decay of each parameter, (P,).
        weight_decay: the weight decay as the caller gave it.
        dtype: the precision of derivatives and solves.
        source_dtype: the precision of the caller's model, in which jurors vote.
        train_outputs: logits of the training nodes at theta, (n, C).
        masks: the draws of dropout that derivatives are averaged over; 0 for eval mode, None for the usual number.
    """

    model: nn.Module
    data: Data
    train_nodes: Tensor
    targets: Tensor
    loss: Loss
    parameters: dict[str, Tensor]
    decay: Tensor
    weight_decay: float | Mapping[str, float]
    forward: Any
    dtype: torch.dtype
    source_dtype: torch.dtype
    num_outputs: int
    masks: int | None

    @property
    def usual_decay(self) -> str:
        """Which weight decay fits models of this kind as they are usually trained: "effective" or "stated"."""

    @property
    def num_train(self) -> int:
        """n."""

    @property
    def num_parameters(self) -> int:
        """P."""

    @property
    def theta(self) -> Tensor:
        """The trained parameters, (P,)."""

    @property
    def train_outputs(self) -> Tensor:
        """Logits of the training nodes at the trained parameters, (n, C)."""

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Named parameters from flat ones; leading dimensions are kept."""

    def on(self, terms: Tensor) -> Engine:
        """The engine with the losses of some training nodes only (positions)."""

    def at(self, nodes: Tensor) -> Engine:
        """The engine with any nodes in place of the training nodes, for their derivatives in eval mode; targets are
        not known."""

    def cast(self, dtype: torch.dtype) -> Engine:
        """The engine in another precision."""

    def elsewhere(self, data: Data, nodes: Tensor, targets: Tensor, theta: Tensor | None = None) -> Engine:
        """The model on another graph with other training nodes, and with the parameters ``theta`` if given."""

    @property
    def separable(self) -> bool:
        """Whether copies of neighbourhoods determine the outputs at their centres."""

    def edited(self, centres: Tensor, changes: Changes, *, most_rows: int) -> tuple[Data, Tensor] | None:
        """A graph with the neighbourhoods of ``centres`` after edits; None if they do not suffice or are too large."""

    def expected(self) -> Expected:
        """Outputs and Jacobian of the training nodes, in expectation over dropout if the model has any."""

    @property
    def random_in_training(self) -> bool:
        """Whether passes in training mode differ, because the model has dropout."""

    def way(self) -> Way:
        """How ``expected`` will work and what that takes, without doing it."""

    def kernel_passes(self, rows: int) -> float:
        """Forward passes that ``toward``, for so many directions, and ``own_grams`` of all nodes take as long as."""

    def working_bytes(self) -> float:
        """The memory of derivatives that are held at a time, estimated."""

    def tangent_numbers(self, nodes: int) -> int:
        """The numbers that ``tangents`` needs for each direction at so many nodes."""

    def jacobian(self) -> Jacobian:
        """Derivatives of the training nodes' logits, in the cheapest form that the model allows."""

    def own_grams(self, nodes: Tensor, scale: Tensor) -> Tensor:
        """J_u diag(scale) J_u^T of any nodes in eval mode: (P,) -> (r, C, C)."""

    def gradient(self) -> Tensor:
        """Gradient of the mean loss, without weight decay, (P,)."""

    def node_gradients(self) -> Tensor:
        """Gradients of the training nodes' losses, (n, P)."""

    def hessian(self) -> SecondDerivative:
        """The exact Hessian of the mean loss, without weight decay."""

    def theorem_1(self) -> ClosedForm:
        """The paper's closed forms; raises SettingError for models without them."""

    def predictor(self, nodes: Tensor, dtype: torch.dtype) -> Predictor:
        """Outputs of many parameter vectors at ``nodes``."""

    def outputs_at(self, nodes: Tensor) -> Tensor:
        """Logits at the trained parameters in the caller's precision, (m, C)."""

    def tangents(self, nodes: Tensor, directions: Tensor) -> Tangents:
        """Derivatives of the outputs at ``nodes`` along directions (k, P), in the directions' precision."""

    def toward(self, jacobian: Jacobian, root: Tensor, scale: Tensor) -> Toward:
        """J_u diag(scale) J_i^T L_i of any nodes u: L (n, C, K), (P,)."""

    def stacked_field(self, model: nn.Module) -> ReceptiveField | None:
        """The receptive field on which many copies of the model can be trained at once; None if they cannot."""
