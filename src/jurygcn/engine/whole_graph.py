"""Derivatives of models whose outputs depend on too much of the graph to be told apart by node: output by output.

One backward pass per output ends at the products of the weights with their rows. The weights' own derivatives are one
product outside of it, sparse where the rows are, so that no backward pass costs one number per feature and node. Where
the class enters through single units (:class:`UnitJacobian`), one backward pass per node is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data import ordinary
from jurygcn.data.heterogeneous import all_edges
from jurygcn.derivatives.autodiff import UNBATCHED, derivative_rows, outputs_along
from jurygcn.derivatives.jacobian import DenseJacobian
from jurygcn.derivatives.lifted import sparse_if_worth, times
from jurygcn.derivatives.units import UnitJacobian, Units
from jurygcn.derivatives.uses import Use, Uses
from jurygcn.engine.expected import Expected, training_mode
from jurygcn.models.copies import in_use

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

# Draws of dropout, unless the caller says otherwise: each costs as much as all derivatives.
MASKS = 2

# Nodes whose derivatives are taken for every class, to see how classes enter.
SAMPLE = 4

# Slopes of a unit differ between classes by factors if the rest has less than this share of their sum of squares.
NEGLIGIBLE = 1e-13

# Derivatives along a random direction, from units and by forward differentiation, are equal up to this share.
SAME_DERIVATIVE = 1e-6

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
    units = None if masks else unit_jacobian(engine, graph, rows)
    if units is not None:
        return Expected(engine.train_outputs, units, 0, torch.zeros_like(theta), why)
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


@dataclass(frozen=True, eq=False)
class Tracked:
    """One run of a model in which every parameter's uses were noted, and the way back from its outputs.

    Attributes:
        z: the outputs, (n, C).
        uses: the uses.
        inputs: the transposed rows of each use, sparse if that is worth it; None for elementwise parameters.
    """

    z: Tensor
    uses: list[Use]
    inputs: list[Any]

    def rows(self, outputs: Tensor) -> Iterator[tuple[Tensor, list[Tensor | None]]]:
        """Some positions in ``outputs`` (m,) at a time, with the derivatives by each use, (s, numel)."""
        noted = [use.output for use in self.uses]
        at_once = max(1, SLOPES // sum(output.numel() for output in noted))
        for some in torch.arange(len(outputs), device=outputs.device).split(at_once):
            slopes = _slopes(outputs, noted, some)
            parts = zip(self.uses, self.inputs, slopes, strict=True)
            yield some, [None if slope is None else _rows_of(use, given, slope) for use, given, slope in parts]


def track(source: GenericEngine, graph: Data, nodes: Tensor, seed: int | None) -> Tracked | None:
    """Run the model; None if a parameter acts in a way that is not noted."""
    parameters = {name: p for name, p in source.model.named_parameters() if p.requires_grad}
    with torch.enable_grad(), training_mode(source.model, seed), Uses(parameters) as uses:
        z = source.call(graph)[nodes]
    back = torch.autograd.grad(z.sum(), list(parameters.values()), retain_graph=True, allow_unused=True)
    if uses.others or any(grad is not None for grad in back) or not uses.found:
        return None
    inputs = [None if use.inputs is None else sparse_if_worth(use.inputs.T.contiguous()) for use in uses.found]
    return Tracked(z, uses.found, inputs)


def tracked_rows(engine: GenericEngine, graph: Data, nodes: Tensor, seed: int | None) -> Tensor | None:
    """The derivatives of all outputs at ``nodes``, (n, C, P); None if a parameter acts in a way that is not noted."""
    n, C = len(nodes), engine.num_outputs
    numbers = n * C * engine.num_parameters
    source = engine if numbers <= MANY_NUMBERS else engine.cast(engine.source_dtype)
    if source is not engine:
        graph = ordinary(graph, dtype=source.dtype)
    found = track(source, graph, nodes, seed)
    if found is None:
        return None
    spans = _spans(source)
    out = torch.zeros(n * C, engine.num_parameters, dtype=source.dtype, device=found.z.device)
    for some, parts in found.rows(found.z.reshape(-1)):
        for use, part in zip(found.uses, parts, strict=True):
            if part is not None:
                out[some, spans[use.name]] += part
    return out.view(n, C, -1)


def unit_jacobian(engine: GenericEngine, graph: Data, nodes: Tensor) -> UnitJacobian | None:
    """The Jacobian by units, from one backward pass per node; None where classes enter in another way.

    The factors of the classes come from a few nodes. All nodes' derivatives of one combination of their outputs give
    the rest. The result is compared with a derivative along a random direction.
    """
    n, C = len(nodes), engine.num_outputs
    with in_use:
        found = track(engine, graph, nodes, None)
    if found is None or C < 3 or len({use.name for use in found.uses}) < len(found.uses):
        return None
    generator = torch.Generator().manual_seed(0)
    few = torch.randperm(n, generator=generator)[:SAMPLE]
    signs = torch.randint(0, 2, (C,), generator=generator) * 2 - 1
    mixed = (signs * (1 + torch.rand(C, generator=generator, dtype=torch.float64))).to(found.z)
    factors = _factors(found, few)
    if factors is None:
        return None
    rows = {use.name: found.z.new_zeros(n, engine.parameters[use.name].numel()) for use in found.uses}
    for some, parts in found.rows(found.z @ mixed):
        for use, part in zip(found.uses, parts, strict=True):
            if part is not None:
                rows[use.name][some] = part
    uses = {use.name: use for use in found.uses}
    by_parameter = []
    for name, p in engine.parameters.items():
        at = uses.get(name)
        h = p.numel() if at is None or at.inputs is None else p.shape[0 if at.transposed else 1]
        B = factors.get(name, found.z.new_zeros(h, C))
        units = Units(at is not None and at.transposed, found.z.new_zeros(h, n, p.numel() // max(1, h)), B)
        if name in rows:
            scale = (B @ mixed)[:, None, None]
            units = replace(units, T=units.by_unit(rows[name].T).mT / torch.where(scale == 0, 1.0, scale))
        by_parameter.append(units)
    jacobian = UnitJacobian(by_parameter)
    return jacobian if _holds(engine, jacobian, graph, nodes) else None


def _factors(found: Tracked, few: Tensor) -> dict[str, Tensor] | None:
    """B of every parameter from the slopes of a few nodes, (h, C) each; None where they have no such form."""
    noted, C = [use.output for use in found.uses], found.z.shape[1]
    slopes = _slopes(found.z[few].reshape(-1), noted, torch.arange(len(few) * C))
    factors = {}
    for use, slope in zip(found.uses, slopes, strict=True):
        if slope is None:
            continue
        by_class = slope.view(len(few), C, slope.shape[1], -1)
        products = torch.einsum("icrq,idrq->qcd", by_class, by_class)
        values, vectors = torch.linalg.eigh(products)
        if bool((values[:, :-1].sum(dim=1) > NEGLIGIBLE * values.sum(dim=1)).any()):
            return None
        factors[use.name] = vectors[:, :, -1] * (values[:, -1:] > 0)
    return factors


def _holds(engine: GenericEngine, jacobian: UnitJacobian, graph: Data, nodes: Tensor) -> bool:
    """Whether the Jacobian times a random direction is the derivative along it."""
    theta = engine.theta
    along = torch.randn(1, len(theta), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(theta)
    wanted = outputs_along(lambda t: engine.outputs(t, nodes, graph), theta, along)[0]
    found = jacobian.push(along.T)[:, :, 0]
    return bool((found - wanted).abs().max() <= SAME_DERIVATIVE * wanted.abs().max())


def _spans(engine: GenericEngine) -> dict[str, slice]:
    """The place of every parameter in theta."""
    start, spans = 0, {}
    for name, p in engine.parameters.items():
        spans[name] = slice(start, start + p.numel())
        start += p.numel()
    return spans


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
