"""The neighbourhoods of many nodes as one graph of separate parts: one forward pass serves all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data.contents import EDGE_VALUES


@dataclass(frozen=True, eq=False)
class EgoRows:
    """The rows of all copies that lie in one tensor: all of them, or those of a type of nodes.

    Attributes:
        owner: the copy that each row belongs to, ascending, (R,).
        nodes: the node that each row is a copy of, (R,); ``count`` for the stand-in of everything farther away.
        count: the number of nodes in the whole graph.
    """

    owner: Tensor
    nodes: Tensor
    count: int


@dataclass(frozen=True, eq=False)
class EgoGraphs:
    """A copy of the neighbourhood of each centre; the copies share no node and no edge.

    The output at a centre depends on the rows of its own copy alone. So one backward pass through the sum over all
    centres gives the derivatives of each of them, in its own rows.

    Shapes: R rows in all copies, n centres.

    Attributes:
        graph: the copies, with the features and edge attributes of the nodes and edges they are copies of.
        centres: the rows of the n centres, (n,).
        rows: what the rows are copies of, for each type of nodes.
    """

    graph: Data
    centres: Tensor
    rows: tuple[EgoRows, ...]

    @property
    def size(self) -> int:
        """The number of rows in all copies."""
        return sum(len(rows.nodes) for rows in self.rows)

    def rows_of(self, owner: Tensor) -> EgoRows | None:
        """The rows that ``owner`` is the owner of; None if it is of something else."""
        return next((rows for rows in self.rows if rows.owner is owner), None)


@dataclass(frozen=True, eq=False)
class Changes:
    """Several edits of a graph. Centres with the same edit share one copy.

    Shapes: n centres; k edges or nodes; the first row of each array says which edit an entry belongs to.

    Attributes:
        edit: the edit of each centre, (n,).
        removed: edit and position of each removed edge, (2, k).
        added: edit, source and target of each added edge, whose weight is 1, (3, k).
        changed: edit and node of each changed row of features, (2, k).
        rows: the new features, (k, F).
    """

    edit: Tensor
    removed: Tensor
    added: Tensor
    changed: Tensor
    rows: Tensor


class _InEdges:
    """The edges into the rows of copies, with the edits of each copy.

    A row is named by copy * (N + 1) + node, so that sorted names lie copy by copy; node N is the stand-in.
    """

    def __init__(self, data: Data, changes: Changes | None) -> None:
        sources, targets = data.edge_index
        self.N, self.E, self.width = int(data.num_nodes), len(sources), int(data.num_nodes) + 1
        self.order = targets.argsort(stable=True)
        self.degree = torch.bincount(targets, minlength=self.N)
        self.first = torch.cat([self.degree.new_zeros(1), self.degree.cumsum(0)])
        self.sources, self.changes = sources, changes
        if changes is not None:
            self.removed = changes.removed[0] * self.E + changes.removed[1]
            self.added, order = (changes.added[0] * self.N + changes.added[2]).sort()
            self.added_edge = self.E + order
            self.sources = torch.cat([sources, changes.added[1]])

    def of(self, names: Tensor) -> tuple[Tensor, Tensor]:
        """The edges into the rows with these names, and which of the names each belongs to."""
        nodes = names % self.width
        places, of = _ranges(self.first[nodes], self.degree[nodes])
        edges = self.order[places]
        if self.changes is None:
            return edges, of
        edit = names // self.width
        kept = ~torch.isin(edit[of] * self.E + edges, self.removed)
        keys = edit * self.N + nodes
        start, stop = torch.searchsorted(self.added, keys), torch.searchsorted(self.added, keys, right=True)
        more, more_of = _ranges(start, stop - start)
        return torch.cat([edges[kept], self.added_edge[more]]), torch.cat([of[kept], more_of])

    def features(self, x: Tensor, names: Tensor) -> Tensor:
        """The features of rows, zero for stand-ins."""
        nodes = names % self.width
        rows = torch.cat([x, x.new_zeros(1, *x.shape[1:])])[nodes]
        if self.changes is not None and self.changes.changed.shape[1]:
            known, order = (self.changes.changed[0] * self.width + self.changes.changed[1]).sort()
            place = torch.searchsorted(known, names).clamp_max(len(known) - 1)
            hit = known[place] == names
            rows[hit] = self.changes.rows.to(x)[order[place[hit]]]
        return rows

    def values(self, value: Tensor, edges: Tensor) -> Tensor:
        """The entries of edges; those of added edges are 1."""
        if self.changes is None:
            return value[edges]
        return torch.cat([value, value.new_ones(self.changes.added.shape[1], *value.shape[1:])])[edges]


def _ranges(start: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers start, start + 1, ... of each range, and which range each belongs to."""
    of = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    offset = torch.arange(len(of), device=counts.device) - (counts.cumsum(0) - counts)[of]
    return start[of] + offset, of


def ego_graphs(
    data: Data, centres: Tensor, hops: int, *, most_rows: int, changes: Changes | None = None
) -> EgoGraphs | None:
    """The neighbourhoods from which messages reach ``centres`` within ``hops``; None if they have too many rows.

    Nodes at distance ``hops`` keep their in-degree, which some layers normalise by: their in-edges come from one
    stand-in without features in each copy, because what those edges carry never arrives at the centre. With
    ``changes`` each copy is a part of an edited graph.
    """
    incoming, device = _InEdges(data, changes), data.edge_index.device
    N, width = incoming.N, incoming.width
    copy = torch.arange(len(centres), device=device) if changes is None else changes.edit.to(device)
    own = copy * width + centres.to(device)
    frontier, seen, inner = own, own, []
    for _ in range(hops):
        inner.append(frontier)
        edges, of = incoming.of(frontier)
        if len(seen) + len(edges) > 4 * most_rows:
            return None
        reached = (frontier[of] // width * width + incoming.sources[edges]).unique()
        frontier = reached[~torch.isin(reached, seen)]
        seen = torch.cat([seen, frontier])
        if len(seen) > most_rows:
            return None
    boundary = frontier if hops else seen
    stand_ins = copy.unique() * width + N
    rows = torch.cat([seen, stand_ins]).sort().values

    inside = torch.cat(inner) if inner else seen[:0]
    edges, of = incoming.of(inside)
    from_row = inside[of] // width * width + incoming.sources[edges]
    boundary_edges, boundary_of = incoming.of(boundary)
    senders = torch.cat([from_row, boundary[boundary_of] // width * width + N])
    receivers = torch.cat([inside[of], boundary[boundary_of]])
    graph = Data(
        x=incoming.features(data.x, rows),
        edge_index=torch.stack([torch.searchsorted(rows, senders), torch.searchsorted(rows, receivers)]),
        num_nodes=len(rows),
    )
    for key in EDGE_VALUES:
        if getattr(data, key, None) is not None:
            graph[key] = incoming.values(data[key], torch.cat([edges, boundary_edges]))
    return EgoGraphs(graph, torch.searchsorted(rows, own), (EgoRows(rows // width, rows % width, N),))
