"""Expected derivatives of many training nodes, for some of them at a time.

A weight that sees constants on the whole graph gets its products from there. The copies of the neighbourhoods then
need not contain what these constants were averaged from: for GraphSAGE one hop is enough instead of two.
"""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from jurygcn.derivatives.autodiff import derivative_rows
from jurygcn.derivatives.lifted import LiftedJacobian
from jurygcn.derivatives.streamed import Batches, StreamedJacobian
from jurygcn.derivatives.uses import Use, Uses
from jurygcn.engine.expected import (
    FEW_MASKS,
    EgoDerivatives,
    Expected,
    NotSeparable,
    squared_rows,
    training_mode,
)
from jurygcn.engine.whole_graph import MASKS
from jurygcn.graph.ego import ego_graphs
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.models.copies import in_use

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

# Nodes in a batch, numbers in the messages of their copies, and numbers in their dense rows: bounds of memory.
MOST_NODES, MOST_MESSAGES, MOST_ROWS = 1024, 30_000_000, 30_000_000

# Training nodes whose copies are compared with the whole graph, to find how many hops are needed.
SAMPLE = 32

# Batches draw dropout from different seeds, this far apart.
SEEDS_PER_BATCH = 1_000_003


@dataclass(frozen=True, eq=False)
class Seen:
    """What a weight sees on the whole graph and its products, with a row of zeros for the stand-in."""

    inputs: Tensor
    product: Tensor

    @classmethod
    def of(cls, use: Use) -> Seen:
        """From a use on the whole graph."""
        assert use.inputs is not None
        return cls(*(torch.cat([t.detach(), t.new_zeros(1, t.shape[1])]) for t in (use.inputs, use.output)))


class SeenUses(Uses):
    """Notes uses of parameters on copies of neighbourhoods, with constants and their products from the whole graph."""

    def __init__(
        self, parameters: Mapping[str, Tensor], owner: Tensor, seen: Mapping[str, Seen], nodes: Tensor
    ) -> None:
        super().__init__(parameters, [owner])
        self._seen, self._nodes, self._own = seen, nodes, owner

    def _weight(self, rows: Any, weight: Any, *, transposed: bool) -> Tensor | None:
        """Rows times a weight; rows of the whole graph where the weight sees constants there."""
        product = super()._weight(rows, weight, transposed=transposed)
        if product is None or self.found[-1].name not in self._seen or self.found[-1].owner is not self._own:
            return product
        use, seen = self.found[-1], self._seen[self.found[-1].name]
        use.inputs, use.output, use.constant = seen.inputs[self._nodes], seen.product[self._nodes], True
        return use.output.requires_grad_()


def whole_uses(engine: GenericEngine, seed: int | None, parameters: Mapping[str, Tensor]) -> dict[str, Use]:
    """The weights that see constants on the whole graph, and act once."""
    with in_use, torch.enable_grad(), training_mode(engine.model, seed), Uses(parameters) as uses:
        engine.call(engine._inputs)
    often = Counter(use.name for use in uses.found)
    constant = [use for use in uses.found if use.constant and use.inputs is not None]
    return {use.name: use for use in constant if often[use.name] == 1 and use.name not in uses.others}


class BatchDerivatives(EgoDerivatives):
    """Derivatives of one batch of training nodes; ``engine`` has these nodes only."""

    def __init__(self, stream: EgoStream, engine: GenericEngine, number: int) -> None:
        self.stream, self.engine, self.number = stream, engine, number
        found = ego_graphs(engine._inputs, engine.train_nodes, stream.hops, most_rows=2**40)
        assert found is not None
        self.egos = found
        self.parameters = stream.parameters
        there, first = engine.train_outputs, self._run(None)
        if not torch.allclose(first[0], there, rtol=1e-6, atol=1e-6 * float(there.abs().max())):
            raise NotSeparable("the output at a node depends on more than its neighbourhood")
        self._find_uses(first if stream.checked else None)

    def _whole_uses(self) -> dict[str, Use]:
        return self.stream.constant

    def _run(self, seed: int | None) -> tuple[Tensor, Uses]:
        model, egos = self.engine.model, self.egos
        drawn = None if seed is None else seed + SEEDS_PER_BATCH * (self.number + 1)
        (rows,) = egos.rows
        uses = SeenUses(self.parameters, rows.owner, self.stream.seen(seed), rows.nodes)
        with in_use, torch.enable_grad(), training_mode(model, drawn), uses:
            z = self.engine.call(egos.graph)[egos.centres]
        return z, uses

    def _noise(self, sums: Any, outputs: Tensor) -> Tensor:
        """As for all nodes at once, but before values below zero are cut off: batches are added first."""
        root = self.engine.loss.root(outputs)
        parts = [
            sums.squares[name] - squared_rows(root, sums.rows[name])
            if name in sums.squares
            else root.new_zeros(p.numel())
            for name, p in self.parameters.items()
        ]
        return torch.cat(parts)


class EgoStream:
    """Batches of training nodes on copies of their neighbourhoods.

    Raises:
        NotSeparable: the fast way does not apply.
    """

    def __init__(self, engine: GenericEngine) -> None:
        if engine.forward is not None:
            raise NotSeparable("the model is called through forward=, which may look at the whole graph")
        if engine.typed:
            raise NotSeparable("the training nodes see too much of a graph with several types of nodes")
        self._prepare(engine)
        self.checked = False  # whether a second run of some copies gave the same: the model does not change its inputs
        self.hops = self._needed_hops()
        self.masks = self._masks()
        if self.masks and engine.dtype != engine.source_dtype:  # averages need no more digits than the model has
            self._prepare(engine.cast(engine.source_dtype))
        self.terms = list(torch.arange(engine.num_train).split(self._nodes_per_batch()))
        self.checked = True

    def _prepare(self, engine: GenericEngine) -> None:
        _ = engine._inputs, engine.train_outputs  # cached before batches copy the engine
        self.engine = engine
        with in_use:  # while another thread calls the model, its parameters are others
            self.parameters = {n: p for n, p in engine.model.named_parameters() if p.requires_grad}
        self.constant = whole_uses(engine, None, self.parameters)
        self._seen: dict[int | None, dict[str, Seen]] = {}

    def seen(self, seed: int | None) -> dict[str, Seen]:
        """What the constant weights see and give on the whole graph, with dropout drawn from ``seed``."""
        if seed not in self._seen:
            uses = self.constant if seed is None else whole_uses(self.engine, seed, self.parameters)
            self._seen[seed] = {name: Seen.of(use) for name, use in uses.items() if name in self.constant}
        return self._seen[seed]

    def _sample(self) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randperm(self.engine.num_train, generator=generator)[:SAMPLE].sort().values

    def _needed_hops(self) -> int:
        """The smallest number of hops with which copies give the outputs of the whole graph."""
        most, problem = num_hops(self.engine.model), NotSeparable("there are no training nodes")
        for hops in range(most + 1):
            self.hops = hops
            try:
                self._check(self.batch(self._sample(), 0))
            except NotSeparable as reason:
                problem = reason
            else:
                return hops
        raise problem

    def _check(self, batch: BatchDerivatives) -> None:
        """Refuse copies that give other outputs than the whole graph, at the trained or at random parameters."""
        engine, egos = self.engine, batch.egos
        for theta, everywhere in engine._probes:
            moved = {name: value.detach().requires_grad_() for name, value in engine.unflatten(theta).items()}
            with in_use, torch.enable_grad():
                with Uses(moved) as uses:
                    engine.called(moved, engine._inputs)
                seen = {use.name: Seen.of(use) for use in uses.found if use.name in self.constant}
                (rows,) = egos.rows
                with SeenUses(moved, rows.owner, seen, rows.nodes):
                    z = engine.called(moved, egos.graph)
            here, there = z.detach().reshape(len(z), -1)[egos.centres], everywhere[batch.engine.train_nodes]
            if not bool((here - there).abs().max() <= 1e-6 * everywhere.abs().max()):
                raise NotSeparable("the output at a node depends on more than its neighbourhood")

    def _masks(self) -> int:
        if self.engine.masks == 0 or not self.batch(self._sample(), 0).has_dropout():
            return 0
        return self.engine.masks or FEW_MASKS

    def _nodes_per_batch(self) -> int:
        """As many nodes as keep their messages and their dense rows within bounds; the same for every budget."""
        engine, sample = self.engine, self._sample()
        found = ego_graphs(engine._inputs, engine.train_nodes[sample], self.hops, most_rows=2**40)
        assert found is not None
        widest = max((max(p.shape) for p in self.parameters.values() if p.dim()), default=1)
        messages = (int(found.graph.num_edges) + found.size) * widest // len(sample)
        dense = sum(p.numel() for name, p in self.parameters.items() if name not in self.constant)
        rows = engine.num_outputs * dense + 2 * engine.num_parameters
        return max(1, min(MOST_NODES, MOST_MESSAGES // max(1, messages), MOST_ROWS // rows))

    def batch(self, terms: Tensor, number: int) -> BatchDerivatives:
        """The derivatives of some training nodes (positions)."""
        part = self.engine.on(terms)
        part.__dict__["train_outputs"] = self.engine.train_outputs[terms]
        return BatchDerivatives(self, part, number)

    def expected(self, number: int) -> Expected:
        """Outputs and Jacobian of one batch."""
        return self.batch(self.terms[number], number).expected(self.masks)

    def pass_seconds(self) -> float:
        """The estimated time of all batches, from a sample."""
        sample = self._sample()
        started = time.perf_counter()
        self.batch(sample, 0).expected(self.masks)
        return (time.perf_counter() - started) * self.engine.num_train / len(sample)


class RowStream:
    """Batches of training nodes, with one backward pass for each output of each node: slow, for any model."""

    def __init__(self, engine: GenericEngine) -> None:
        self.engine = engine
        _ = engine.train_outputs
        self.masks = 0 if engine.masks == 0 or not engine.random_in_training else engine.masks or MASKS
        size = max(1, min(MOST_NODES, MOST_ROWS // (engine.num_outputs * engine.num_parameters)))
        self.terms = list(torch.arange(engine.num_train).split(size))

    def _outputs(self, theta: Tensor, seed: int | None, terms: Tensor | None = None) -> Tensor:
        graph, rows = self.engine._train_graph
        with training_mode(self.engine.model, seed):  # seeded here, so that every call draws the same mask
            return self.engine.outputs(theta, rows if terms is None else rows[terms], graph)

    def expected(self, number: int) -> Expected:
        """Outputs and Jacobian of one batch."""
        engine, terms = self.engine, self.terms[number]
        seeds: list[int | None] = list(range(self.masks)) if self.masks else [None]
        predictions = torch.zeros_like(engine.train_outputs[terms])
        total = engine.theta.new_zeros(len(terms), engine.num_outputs, engine.num_parameters)
        for seed in seeds:
            with in_use:  # the model is in training mode meanwhile
                with torch.no_grad():
                    predictions += engine.loss.predict(self._outputs(engine.theta, seed, terms)) / len(seeds)
                total += derivative_rows(partial(self._outputs, seed=seed, terms=terms), engine.theta) / len(seeds)
        outputs = engine.loss.outputs(predictions) if self.masks else engine.train_outputs[terms]
        everything = torch.arange(engine.num_parameters)
        return Expected(outputs, LiftedJacobian([], total, everything), self.masks, torch.zeros_like(engine.theta))


def streamed_derivatives(engine: GenericEngine, stream: EgoStream | RowStream, why_slow: str = "") -> Expected:
    """Outputs of all training nodes, and a Jacobian that is made batch by batch."""
    outputs, noise = engine.train_outputs, torch.zeros_like(engine.theta)
    if stream.masks:
        rows = []
        for number in range(len(stream.terms)):
            part = stream.expected(number)
            rows.append(part.outputs.to(engine.dtype))
            noise += part.noise.to(engine.dtype) * (len(part.outputs) / engine.num_train)
        outputs = torch.cat(rows)
    jacobian = StreamedJacobian(
        _batches(stream),
        torch.arange(engine.num_train),
        (engine.num_outputs, engine.num_parameters),
        engine.dtype,
    )
    return Expected(outputs, jacobian, stream.masks, noise.clamp_min_(0.0), why_slow)


def _batches(stream: EgoStream | RowStream) -> Batches:
    sizes = [len(terms) for terms in stream.terms]
    return Batches(partial(_jacobian, stream), sizes, None if stream.masks else partial(_only, stream))


def _only(stream: EgoStream | RowStream, positions: Tensor) -> Batches:
    """Batches of some of the training nodes of a stream, as large as before."""
    part = copy.copy(stream)
    part.terms = list(torch.cat(stream.terms)[positions].split(len(stream.terms[0])))
    return _batches(part)


def _jacobian(stream: EgoStream | RowStream, number: int) -> LiftedJacobian:
    found = stream.expected(number).jacobian
    assert isinstance(found, LiftedJacobian)
    return found
