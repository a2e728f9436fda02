"""Derivatives of models whose outputs depend on too much of the graph to be told apart by node: output by output.

One backward pass per output ends at the products of the weights with their rows. The weights' own derivatives are one
product outside of it, sparse where the rows are, so that no backward pass costs one number per feature and node.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data import ordinary
from jurygcn.data.heterogeneous import all_edges
from jurygcn.derivatives.autodiff import UNBATCHED, derivative_rows
from jurygcn.derivatives.jacobian import DenseJacobian
from jurygcn.derivatives.lifted import sparse_if_worth, times
from jurygcn.derivatives.uses import Use, Uses
from jurygcn.engine.expected import Expected, training_mode
from jurygcn.graph.fused import SparseProducts, with_sparse_adjacency
from jurygcn.models.copies import in_use

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

# Draws of dropout, unless the caller says otherwise: each costs as much as all derivatives.
MASKS = 2

# Slopes of this many numbers are held at once.
SLOPES = 20_000_000

# Outputs with and without sparse sums of messages are equal up to this share of the largest, by rounding.
SAME = 1e-5

# Rows with more numbers than this are kept in the model's own precision.
MANY_NUMBERS = 50_000_000


def whole_graph_derivatives(engine: GenericEngine, why: str, part: tuple[Data, Tensor] | None = None) -> Expected:
    """Outputs and Jacobian on the part of the graph that determines the training nodes' outputs.

    ``part`` is another such graph, with the training nodes' rows in it; the one with fewer edges is taken.
    """
    known = [engine._train_graph] if part is None else [engine._train_graph, part]
    graph, rows = min(known, key=lambda found: all_edges(found[0])[0].shape[1])

    def outputs(theta: Tensor, seed: int | None) -> Tensor:
        with training_mode(engine.model, seed):  # seeded here, so that every call draws the same mask
            return engine.outputs(theta, rows, graph)

    theta = engine.theta
    masks = 0 if engine.masks == 0 or not engine.random_in_training else engine.masks or MASKS
    seeds: list[int | None] = list(range(masks)) if masks else [None]
    predictions = torch.zeros_like(engine.train_outputs)
    total: Tensor | None = None
    for seed in seeds:
        with in_use:  # the model is in training mode meanwhile
            with torch.no_grad():
                predictions += engine.loss.predict(outputs(theta, seed)) / len(seeds)
            found = tracked_rows(engine, graph, rows, seed)
            if found is None:
                found = derivative_rows(partial(outputs, seed=seed), theta)
            total = found / len(seeds) if total is None else total.add_(found, alpha=1.0 / len(seeds))
    assert total is not None
    expected = engine.loss.outputs(predictions) if masks else engine.train_outputs
    return Expected(expected, DenseJacobian(total), masks, torch.zeros_like(theta), why)


def tracked_rows(engine: GenericEngine, graph: Data, nodes: Tensor, seed: int | None) -> Tensor | None:
    """The derivatives of all outputs at ``nodes``, (n, C, P); None if a parameter acts in a way that is not noted."""
    n, C = len(nodes), engine.num_outputs
    numbers = n * C * engine.num_parameters
    source = engine if numbers <= MANY_NUMBERS else engine.cast(engine.source_dtype)
    if source is not engine:
        graph = ordinary(graph, dtype=source.dtype)
    parameters = {name: p for name, p in source.model.named_parameters() if p.requires_grad}
    graph = with_sparse_sums(source, graph)
    with torch.enable_grad(), training_mode(source.model, seed), SparseProducts(), Uses(parameters) as uses:
        z = source.call(graph)[nodes].reshape(-1)
    back = torch.autograd.grad(z.sum(), list(parameters.values()), retain_graph=True, allow_unused=True)
    if uses.others or any(grad is not None for grad in back) or not uses.found:
        return None
    outputs = [use.output for use in uses.found]
    inputs = [None if use.inputs is None else sparse_if_worth(use.inputs.T.contiguous()) for use in uses.found]
    starts, spans = 0, {}
    for name, p in parameters.items():
        spans[name] = slice(starts, starts + p.numel())
        starts = spans[name].stop
    out = torch.zeros(n * C, engine.num_parameters, dtype=source.dtype, device=z.device)
    at_once = max(1, SLOPES // sum(output.numel() for output in outputs))
    for some in torch.arange(n * C, device=z.device).split(at_once):
        slopes = _slopes(z, outputs, some)
        for use, given, slope in zip(uses.found, inputs, slopes, strict=True):
            if slope is not None:
                out[some, spans[use.name]] += _rows_of(use, given, slope)
    return out.view(n, C, -1)


def with_sparse_sums(engine: GenericEngine, graph: Data) -> Data:
    """The graph with a sparse adjacency, whose backward passes are faster, if the model then gives the same outputs."""
    if engine.typed or engine.forward is not None or graph.get("edge_attr") is not None:
        return graph
    try:
        fused = with_sparse_adjacency(graph)
        with torch.no_grad():
            wanted = engine.call(graph)
            with SparseProducts(strict=True):
                found = engine.call(fused)
    except Exception:  # the model takes edges only as a list
        return graph
    return fused if bool((found - wanted).abs().max() <= SAME * wanted.abs().max()) else graph


def _slopes(z: Tensor, outputs: list[Tensor], some: Tensor) -> list[Tensor | None]:
    """Derivatives of some entries of z with respect to the noted tensors, (s, R, ...) each."""
    unit = torch.zeros(len(some), len(z), dtype=z.dtype, device=z.device)
    unit[torch.arange(len(some), device=z.device), some] = 1.0
    try:
        return list(torch.autograd.grad(z, outputs, unit, retain_graph=True, allow_unused=True, is_grads_batched=True))
    except UNBATCHED:
        rows = [torch.autograd.grad(z, outputs, row, retain_graph=True, allow_unused=True) for row in unit]
        return [None if parts[0] is None else torch.stack(parts) for parts in zip(*rows, strict=True)]


def _rows_of(use: Use, inputs: Any, slope: Tensor) -> Tensor:
    """The derivatives with respect to the parameter, (s, R, ...) -> (s, numel)."""
    s = len(slope)
    if use.inputs is None:
        return slope.sum(dim=1).reshape(s, -1)
    R, h = slope.shape[1:]
    product = times(inputs, slope.permute(1, 0, 2).reshape(R, s * h)).view(-1, s, h)
    return (product.permute(1, 2, 0) if use.transposed else product.permute(1, 0, 2)).reshape(s, -1)
