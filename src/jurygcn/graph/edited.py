"""Many edits of one graph as one graph, in which what an edit does not change is shared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data.contents import EDGE_VALUES
from jurygcn.graph.ego import InEdges, ranges, rows_of


@dataclass(frozen=True, eq=False)
class Changes:
    """Several edits of a graph.

    Shapes: n centres; k edges or nodes; the first row of each array says which edit an entry belongs to.

    Attributes:
        count: the number of edits.
        edit: the edit of each centre, (n,).
        touched: edit and node of each node whose in-edges, degree or features change, (2, k).
        removed: edit and position of each removed edge, (2, k).
        added: edit, source and target of each added edge, whose weight is 1, (3, k).
        changed: edit and node of each changed row of features, (2, k).
        rows: the new features, (k, F).
    """

    count: int
    edit: Tensor
    touched: Tensor
    removed: Tensor
    added: Tensor
    changed: Tensor
    rows: Tensor


class _Named:
    """Rows of the common graph. Their names are edit * (N + 1) + node.

    Node N is the stand-in of everything farther away. What no edit changes is named after the edit number ``count``.
    """

    def __init__(self, data: Data, changes: Changes, hops: int) -> None:
        self.N, self.E, self.hops = int(data.num_nodes), data.edge_index.shape[1], hops
        self.width, self.changes, self.incoming = self.N + 1, changes, InEdges(data)
        self.removed = (changes.removed[0] * self.E + changes.removed[1]).sort().values
        self.added, order = (changes.added[0] * self.width + changes.added[2]).sort()
        self.added_edge = self.E + order
        self.sources = torch.cat([self.incoming.sources, changes.added[1]])
        self.near, self.distance = self._within(data)

    def _within(self, data: Data) -> tuple[Tensor, Tensor]:
        """The names of the nodes that each edit reaches, sorted, and their distances from what it touches."""
        outgoing = InEdges(Data(edge_index=data.edge_index.flip(0), num_nodes=self.N))
        found = [(self.changes.touched[0] * self.width + self.changes.touched[1]).unique()]
        seen = found[0]
        for _ in range(self.hops):
            edges, of = outgoing.of(found[-1] % self.width)
            names = (found[-1][of] // self.width * self.width + outgoing.sources[edges]).unique()
            found.append(names[~among(names, seen)])
            seen = torch.cat([seen, found[-1]]).sort().values
        near, order = torch.cat(found).sort()
        steps = torch.tensor([len(names) for names in found], device=near.device)
        return near, torch.repeat_interleave(torch.arange(len(found), device=near.device), steps)[order]

    def of(self, edit: Tensor, nodes: Tensor, depth: int) -> Tensor:
        """The names of nodes whose values after ``hops - depth`` layers are needed: the edit's own if these differ."""
        names = edit * self.width + nodes
        if not len(self.near):
            return self.changes.count * self.width + nodes
        place = torch.searchsorted(self.near, names).clamp_max(len(self.near) - 1)
        differs = (self.near[place] == names) & (self.distance[place] <= self.hops - depth)
        return torch.where(differs, names, self.changes.count * self.width + nodes)

    def edges(self, names: Tensor) -> tuple[Tensor, Tensor]:
        """The edges into rows after the edits, and which of the rows each belongs to; added edges come after E."""
        nodes, edit = names % self.width, names // self.width
        edges, of = self.incoming.of(nodes)
        kept = ~among(edit[of] * self.E + edges, self.removed)
        start, stop = torch.searchsorted(self.added, names), torch.searchsorted(self.added, names, right=True)
        more, more_of = ranges(start, stop - start)
        return torch.cat([edges[kept], self.added_edge[more]]), torch.cat([of[kept], more_of])

    def features(self, x: Tensor, names: Tensor) -> Tensor:
        """The features of rows, zero for the stand-in."""
        rows = rows_of(x, names % self.width)
        if self.changes.changed.shape[1]:
            known, order = (self.changes.changed[0] * self.width + self.changes.changed[1]).sort()
            place = torch.searchsorted(known, names).clamp_max(len(known) - 1)
            hit = known[place] == names
            rows[hit] = self.changes.rows.to(x)[order[place[hit]]]
        return rows


def among(values: Tensor, known: Tensor) -> Tensor:
    """Whether values are among sorted known ones."""
    if not len(known):
        return torch.zeros_like(values, dtype=torch.bool)
    return known[torch.searchsorted(known, values).clamp_max(len(known) - 1)] == values


def edited_graph(
    data: Data, centres: Tensor, hops: int, changes: Changes, *, most_rows: int
) -> tuple[Data, Tensor] | None:
    """A graph in which the neighbourhood of each centre is as its edit leaves it, and the rows of the centres.

    None if it has more than ``most_rows`` rows. A node has one row for every edit that changes what it passes on, and
    one row that all others share: after l layers its values differ only if the edit touches something within l hops of
    it. Nodes at distance ``hops`` from a centre keep their in-degree, which some layers normalise by: their in-edges
    come from one stand-in without features, because what those edges carry never arrives.
    """
    named = _Named(data, changes, hops)
    stand_in = changes.count * named.width + named.N
    own = named.of(changes.edit, centres, 0)
    frontier = seen = own.unique()
    senders, receivers, kinds = [], [], []
    for depth in range(1, hops + 1):
        edges, of = named.edges(frontier)
        if len(seen) + len(edges) > 4 * most_rows:
            return None
        names = named.of(frontier[of] // named.width, named.sources[edges], depth)
        senders.append(names)
        receivers.append(frontier[of])
        kinds.append(edges)
        reached = names.unique()
        frontier = reached[~among(reached, seen)]
        seen = torch.cat([seen, frontier]).sort().values
        if len(seen) > most_rows:
            return None
    edges, of = named.edges(frontier)
    senders.append(torch.full_like(edges, stand_in))
    receivers.append(frontier[of])
    kinds.append(edges)
    rows = torch.cat([seen, torch.tensor([stand_in], device=seen.device)]).unique()
    ends = torch.stack([torch.cat(senders), torch.cat(receivers)])
    graph = Data(x=named.features(data.x, rows), edge_index=torch.searchsorted(rows, ends), num_nodes=len(rows))
    for key in EDGE_VALUES:
        if getattr(data, key, None) is not None:
            value = data[key]
            every = torch.cat([value, value.new_ones(changes.added.shape[1], *value.shape[1:])])
            graph[key] = every[torch.cat(kinds)]
    return graph, torch.searchsorted(rows, own)
