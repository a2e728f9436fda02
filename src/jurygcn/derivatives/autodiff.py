"""Derivatives by automatic differentiation (``torch.func``) for any model; batched over many vectors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.func import grad, jacrev, jvp, vjp, vmap

from jurygcn.objective import Objective

# How many vectors travel through the graph together: bounds memory, not the result.
CHUNK = 32


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
    return _columns(lambda v: jvp(gradient, (theta,), (v,))[1], block)


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


def _mean_loss(objective: Objective, theta: Tensor, terms: Tensor | None) -> Tensor:
    losses = objective.node_losses(theta)
    return (losses if terms is None else losses[terms]).mean()


def _rows(function: Callable[[Tensor], Tensor], theta: Tensor) -> Tensor:
    rows: Tensor = jacrev(function, chunk_size=CHUNK)(theta)
    return rows.detach()


def _columns(function: Callable[[Tensor], Tensor], block: Tensor) -> Tensor:
    out: Tensor = vmap(function, in_dims=1, out_dims=1, chunk_size=CHUNK)(block)
    return out.detach()
