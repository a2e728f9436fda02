"""Derivatives by automatic differentiation (``torch.func``) for any model; batched over many vectors.

Some models cannot be batched: they call ``torch.sparse.mm``, or decide by numbers that depend on their parameters. For
those the same numbers come one by one from plain autograd.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jacrev, jvp, vjp, vmap

from jurygcn.models.copies import in_use
from jurygcn.objective import Objective

# How many vectors travel through the graph together: bounds memory, not the result.
CHUNK = 32

# What torch raises for a model that it cannot batch; a warning, where the caller has made errors of warnings.
UNBATCHED = (RuntimeError, Warning)


def node_gradients(objective: Objective, theta: Tensor) -> Tensor:
    """Gradients of the training nodes' losses, (n, P)."""
    return _rows(objective.node_losses, theta)


def jacobian_rows(objective: Objective, theta: Tensor, nodes: Tensor) -> Tensor:
    """Derivatives of the logits of ``nodes``, (m, C, P)."""
    graph, rows = objective.local(nodes)
    return _rows(lambda t: objective.outputs(t, rows, graph), theta)


def hessian_product(objective: Objective, theta: Tensor, block: Tensor, terms: Tensor | None = None) -> Tensor:
    """Exact Hessian of the mean loss (without weight decay) times k vectors, (P, k) -> (P, k)."""
    gradient = grad(lambda t: _mean_loss(objective, t, terms))
    try:
        return _columns(lambda v: jvp(gradient, (theta,), (v,))[1], block)
    except UNBATCHED:
        with torch.enable_grad():
            at = theta.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad(_mean_loss(objective, at, terms), at, create_graph=True)
            return _backward_each(block.T @ slope, at).T


def ggn_product(objective: Objective, theta: Tensor, block: Tensor) -> Tensor:
    r"""Gauss-Newton matrix :math:`\frac1n \sum_i J_i^T S_i J_i` times k vectors, (P, k) -> (P, k)."""
    graph, rows = objective.local(objective.train_nodes)

    def outputs(t: Tensor) -> Tensor:
        return objective.outputs(t, rows, graph)

    z, pull = vjp(outputs, theta)[:2]
    root = objective.loss.root(z.detach())

    def product(v: Tensor) -> Tensor:
        dz = jvp(outputs, (theta,), (v,))[1]
        weighted = (root @ (root.transpose(1, 2) @ dz.unsqueeze(-1))).squeeze(-1)
        pulled: Tensor = pull(weighted / objective.num_train)[0]
        return pulled

    return _columns(product, block)


def outputs_of_many(function: Callable[[Tensor], Tensor], thetas: Tensor) -> Tensor:
    """A function of the parameters at b of them: (b, P) -> (..., b)."""
    try:
        batched: Tensor = vmap(function, out_dims=-1)(thetas)
    except UNBATCHED:
        batched = torch.stack([function(theta) for theta in thetas], dim=-1)
    return batched


def outputs_along(function: Callable[[Tensor], Tensor], theta: Tensor, directions: Tensor) -> Tensor:
    """Derivatives of a function of the parameters along k directions: (k, P) -> (k, ...)."""
    try:
        with in_use:  # torch counts the levels of jvp for the process, not for each thread
            along: Tensor = vmap(lambda v: jvp(function, (theta,), (v,))[1], chunk_size=CHUNK)(directions)
    except UNBATCHED:
        along = torch.tensordot(directions, _rows(function, theta), dims=([1], [-1]))
    return along


def _mean_loss(objective: Objective, theta: Tensor, terms: Tensor | None) -> Tensor:
    losses = objective.node_losses(theta)
    return (losses if terms is None else losses[terms]).mean()


def _rows(function: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
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
    with in_use:  # the function takes a jvp, too
        out: Tensor = vmap(function, in_dims=1, out_dims=1, chunk_size=CHUNK)(block)
    return out.detach()
