"""Derivatives by automatic differentiation (``torch.func``) for any model, batched over many vectors.

Some models cannot be batched: they call ``torch.sparse.mm``, or branch on values that depend on their parameters.
For these, plain autograd computes the same derivatives one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vmap
from torch_geometric.data import Data

from jurygcn.models.copies import in_use

# Vectors in one batch; affects memory, not the result.
CHUNK = 32

# What torch raises for a model that it cannot batch; a Warning if the caller turns warnings into errors.
UNBATCHED = (RuntimeError, Warning)


class Differentiable(Protocol):
    """A model on a graph as a function of its flat parameters."""

    @property
    def theta(self) -> Tensor:
        """The trained parameters, (P,)."""

    def node_losses(self, theta: Tensor) -> Tensor:
        """The losses of the training nodes, (n,)."""

    def outputs(self, theta: Tensor, nodes: Tensor | None = None, data: Data | None = None) -> Tensor:
        """The logits at ``nodes``, (m, C)."""

    def local(self, nodes: Tensor) -> tuple[Data, Tensor]:
        """The part of the graph that determines the outputs at ``nodes``, and their positions in it."""


def node_gradients(model: Differentiable, theta: Tensor) -> Tensor:
    """Gradients of the training nodes' losses, (n, P)."""
    return derivative_rows(model.node_losses, theta)


def jacobian_rows(model: Differentiable, theta: Tensor, nodes: Tensor) -> Tensor:
    """Derivatives of the logits of ``nodes``, (m, C, P)."""
    graph, rows = model.local(nodes)
    return derivative_rows(lambda t: model.outputs(t, rows, graph), theta)


def hessian_product(model: Differentiable, theta: Tensor, block: Tensor, terms: Tensor | None = None) -> Tensor:
    """Exact Hessian of the mean loss (without weight decay) times k vectors, (P, k) -> (P, k)."""
    gradient = grad(lambda t: _mean_loss(model, t, terms))
    try:
        return _columns(lambda v: jvp(gradient, (theta,), (v,))[1], block)
    except UNBATCHED:
        with torch.enable_grad():
            at = theta.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(_mean_loss(model, at, terms), at, create_graph=True)
            return _backward_each(block.T @ slope, at).T


def outputs_along(
    function: Callable[[Tensor], Tensor], theta: Tensor, directions: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """Derivatives of a function of the parameters along k directions, ``chunk`` at a time: (k, P) -> (k, ...)."""
    try:
        with in_use:  # torch's count of nested jvp levels is global, not per thread
            along: Tensor = vmap(lambda v: jvp(function, (theta,), (v,))[1], chunk_size=chunk)(directions)
    except UNBATCHED:
        along = torch.tensordot(directions, derivative_rows(function, theta), dims=([1], [-1]))
    return along


def _mean_loss(model: Differentiable, theta: Tensor, terms: Tensor | None) -> Tensor:
    losses = model.node_losses(theta)
    return (losses if terms is None else losses[terms]).mean()


def derivative_rows(function: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    """The derivatives of all outputs of a function, one row each: (..., P)."""
    try:
        rows: Tensor = jacrev(function, chunk_size=CHUNK)(theta)
    except UNBATCHED:
        with torch.enable_grad():
            at = theta.detach().requires_grad_(True)
            rows = _backward_each(function(at), at)
    return rows.detach()


def _backward_each(values: Tensor, theta: Tensor) -> Tensor:
    """Gradients of the values, one backward pass each: (...), (P,) -> (..., P)."""
    rows = [torch.autograd.grad(value, theta, retain_graph=True)[0] for value in values.reshape(-1)]
    return torch.stack(rows).view(*values.shape, len(theta))


def _columns(function: Callable[[Tensor], Tensor], block: Tensor) -> Tensor:
    with in_use:  # the function calls jvp
        out: Tensor = vmap(function, in_dims=1, out_dims=1, chunk_size=CHUNK)(block)
    return out.detach()


class AutodiffHessian:
    """The exact Hessian of the mean loss."""

    def __init__(self, model: Differentiable) -> None:
        self.model = model

    def product(self, block: Tensor) -> Tensor:
        """(P, k) -> (P, k)."""
        return hessian_product(self.model, self.model.theta, block)

    def matrix(self) -> Tensor:
        """(P, P)."""
        theta = self.model.theta
        return self.product(torch.eye(len(theta), dtype=theta.dtype, device=theta.device))
