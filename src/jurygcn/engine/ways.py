"""How an engine will take derivatives, and what that takes, without doing it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.derivatives.jacobian import TEMPORARY_NUMBERS
from jurygcn.engine.expected import (
    FEW_MASKS,
    MANY_ROWS,
    MASKS,
    EgoDerivatives,
    Expected,
    NotSeparable,
    expected_derivatives,
)
from jurygcn.engine.streamed import RowStream, streamed_derivatives
from jurygcn.engine.whole_graph import whole_graph_derivatives
from jurygcn.graph.ego import ego_graphs
from jurygcn.graph.neighbourhood import num_hops

if TYPE_CHECKING:
    from jurygcn.derivatives import Jacobian
    from jurygcn.engine.generic import GenericEngine
    from jurygcn.engine.protocol import Engine, Toward

# Numbers in the rows of a Jacobian that is held as a whole.
MOST_DENSE = 100_000_000

# A neighbourhood is large if it has more than this share of all nodes, on average over a sample of training nodes.
LARGE, SAMPLE = 0.25, 16

# A forward pass and a backward pass, in forward passes.
BACKWARD = 3.0

# Batches of derivatives and what is computed from them take at most about so many bytes.
MOST_BYTES = 1.5e9

# Directions that derivatives are taken along at a time.
DIRECTIONS = 96


@dataclass(frozen=True)
class Way:
    """How an engine will take derivatives of all training nodes.

    Attributes:
        kind: "whole" (held as a whole), "batches" (made batch by batch) or "rows" (row by row).
        masks: the draws of dropout that they are averages over.
        forward_seconds: the time of one forward pass on the whole graph, in the precision of the votes.
        pass_seconds: the estimated time of making all derivatives once.
        why_slow: why they are taken row by row; empty if they are not.
    """

    kind: str
    masks: int
    forward_seconds: float
    pass_seconds: float
    why_slow: str = ""


def derivatives_of(engine: GenericEngine) -> Expected:
    """Outputs and Jacobian of the training nodes: on ego graphs, on batches of them, or row by row."""
    try:
        return expected_derivatives(engine)
    except NotSeparable as reason:
        part, why = reason.part, str(reason)
    few = engine.num_train * engine.num_outputs * engine.num_parameters <= MOST_DENSE
    if few and sees_most(engine):
        return whole_graph_derivatives(engine, why, part)
    try:
        return streamed_derivatives(engine, engine._stream)
    except NotSeparable as reason:
        why = why if engine.typed else str(reason)
    if not few:
        return streamed_derivatives(engine, RowStream(engine), why)
    return whole_graph_derivatives(engine, why, part)


def sees_most(engine: GenericEngine) -> bool:
    """Whether a node's neighbourhood is a large part of the graph, so that copies of it save nothing."""
    if engine.typed or engine.forward is not None:
        return False
    sample = engine.train_nodes[torch.randperm(engine.num_train, generator=torch.Generator().manual_seed(0))[:SAMPLE]]
    graph = engine._inputs
    bare = Data(x=graph.x[:, :0], edge_index=graph.edge_index, num_nodes=graph.num_nodes)  # only rows are counted
    found = ego_graphs(bare, sample, num_hops(engine.model), most_rows=2**40)
    return found is not None and found.size > LARGE * len(sample) * int(engine.data.num_nodes)


def way_of(engine: GenericEngine) -> Way:
    """On ego graphs, on batches of them, or row by row."""
    forward = forward_seconds(engine)
    try:
        egos = EgoDerivatives(engine)
        drawn = engine.masks != 0 and egos.has_dropout()
        masks = (engine.masks or (MASKS if egos.egos.size <= MANY_ROWS else FEW_MASKS)) if drawn else 0
        share = egos.egos.size / int(engine.data.num_nodes)
        return Way("whole", masks, forward, BACKWARD * engine.num_outputs * max(1, masks) * forward * share)
    except NotSeparable as reason:
        why = str(reason)
    few = engine.num_train * engine.num_outputs * engine.num_parameters <= MOST_DENSE
    try:
        if few and sees_most(engine):
            raise NotSeparable(why)
        return Way("batches", engine._stream.masks, forward, engine._stream.pass_seconds())
    except NotSeparable as reason:
        rows = RowStream(engine)
        total = engine.num_train * engine.num_outputs * max(1, rows.masks)
        return Way("rows", rows.masks, forward, BACKWARD * total * forward, why if engine.typed else str(reason))


def own_grams_of(engine: GenericEngine, nodes: Tensor, scale: Tensor) -> Tensor:
    """J_u diag(scale) J_u^T of any nodes, from the Jacobians of some at a time: (P,) -> (r, C, C)."""
    some = nodes.split(max(1, TEMPORARY_NUMBERS // (engine.num_outputs * engine.num_parameters)))
    return torch.cat([engine.at(part).jacobian().own_grams(scale) for part in some])


def along(engine: GenericEngine | Engine, nodes: Tensor, directions: Tensor) -> Tensor:
    """Derivatives of the outputs at some nodes along all directions, (k, P) -> (r, C, k)."""
    return torch.cat([engine.tangents(nodes, part).at(slice(None)) for part in directions.split(DIRECTIONS)], dim=2)


def toward_of(engine: GenericEngine, jacobian: Jacobian, root: Tensor, scale: Tensor) -> Toward:
    """J_u diag(scale) J_i^T L_i of any nodes, by derivatives along the rows of L_i^T J_i."""
    n, _, K = root.shape
    unit = torch.eye(n * K, dtype=root.dtype, device=root.device).view(n, K, n * K)
    rows = jacobian.pull(torch.bmm(root, unit)).mul_(scale[:, None])
    return Directions(engine, rows.to(engine.source_dtype).T.contiguous())


def kernel_passes_of(engine: GenericEngine, rows: int) -> float:
    """A forward derivative, two passes, for each direction, and all nodes' derivatives for own kernels."""
    way, parts = engine.way(), int(engine.data.num_nodes) / engine.num_train
    return 2.0 * rows + parts * way.pass_seconds / max(way.forward_seconds, 1e-9)


@dataclass(frozen=True, eq=False)
class Directions:
    """Derivatives along directions, (k, P), which can be asked for at any nodes."""

    engine: GenericEngine
    directions: Tensor

    @property
    def numbers(self) -> int:
        """The numbers that are held for each node."""
        return len(self.directions) * self.engine.num_outputs

    def __call__(self, nodes: Tensor) -> Derivatives:
        """At some nodes."""
        return Derivatives(along(self.engine, nodes, self.directions))


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Derivatives at some nodes, (r, C, k)."""

    found: Tensor

    def at(self, rows: Tensor | slice) -> Tensor:
        """Those of some of the nodes."""
        return self.found[rows]


def forward_seconds(engine: GenericEngine) -> float:
    """The time of one forward pass on the whole graph."""
    local = engine.cast(engine.source_dtype)
    return timed(lambda: local.outputs(local.theta))


def timed(work: Callable[[], object]) -> float:
    """The time of some work without derivatives: the first time warms up, and other work may interrupt the others."""
    taken = []
    with torch.no_grad():
        for _ in range(4):
            started = time.perf_counter()
            work()
            taken.append(time.perf_counter() - started)
    return min(taken[1:])


def working_bytes(engine: GenericEngine) -> float:
    """The memory of the derivatives that are held at a time, from mean sizes of neighbourhoods."""
    N, hops = int(engine.data.num_nodes), num_hops(engine.model)
    degree = torch.bincount(engine.data.edge_index[1].long(), minlength=N).double()
    first = float(degree.mean())
    further = float(degree.square().mean()) / max(first, 1e-9)  # of a neighbour
    seen = min(float(N), 1.0 + sum(first * further**hop for hop in range(hops)))
    widest = max((max(p.shape) for p in engine.parameters.values() if p.dim()), default=1)
    return min(MOST_BYTES, 24.0 * engine.num_train * seen * widest * engine.num_outputs)
