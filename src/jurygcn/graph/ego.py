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


class InEdges:
    """The edges into nodes, found by the nodes."""

    def __init__(self, data: Data) -> None:
        self.sources, targets = data.edge_index
        self.order = targets.argsort(stable=True)
        self.degree = torch.bincount(targets, minlength=int(data.num_nodes))
        self.first = torch.cat([self.degree.new_zeros(1), self.degree.cumsum(0)])

    def of(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The edges into nodes, and which of the nodes each belongs to."""
        places, of = ranges(self.first[nodes], self.degree[nodes])
        return self.order[places], of


def ranges(start: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers start, start + 1, ... of each range, and which range each belongs to."""
    of = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    offset = torch.arange(len(of), device=counts.device) - (counts.cumsum(0) - counts)[of]
    return start[of] + offset, of


def rows_of(x: Tensor, nodes: Tensor) -> Tensor:
    """The features of nodes, (R, F); zero for the stand-in, whose number is that of nodes."""
    rows: Tensor = x[nodes.clamp_max(len(x) - 1)]
    rows[nodes == len(x)] = 0
    return rows


def ego_graphs(data: Data, centres: Tensor, hops: int, *, most_rows: int) -> EgoGraphs | None:
    """The neighbourhoods from which messages reach ``centres`` within ``hops``; None if they have too many rows.

    Nodes at distance ``hops`` keep their in-degree, which some layers normalise by: their in-edges come from one
    stand-in without features in each copy, because what those edges carry never arrives at the centre.
    """
    # A row is named by copy * (N + 1) + node, so that sorted names lie copy by copy; node N is the stand-in.
    incoming, device = InEdges(data), data.edge_index.device
    N, width = int(data.num_nodes), int(data.num_nodes) + 1
    copies = torch.arange(len(centres), device=device)
    own = copies * width + centres.to(device)
    frontier, seen, inner = own, own, []
    for _ in range(hops):
        inner.append(frontier)
        edges, of = incoming.of(frontier % width)
        if len(seen) + len(edges) > 4 * most_rows:
            return None
        reached = (frontier[of] // width * width + incoming.sources[edges]).unique()
        frontier = reached[~torch.isin(reached, seen)]
        seen = torch.cat([seen, frontier])
        if len(seen) > most_rows:
            return None
    boundary = frontier if hops else seen
    rows = torch.cat([seen, copies * width + N]).sort().values

    inside = torch.cat(inner) if inner else seen[:0]
    edges, of = incoming.of(inside % width)
    from_row = inside[of] // width * width + incoming.sources[edges]
    boundary_edges, boundary_of = incoming.of(boundary % width)
    senders = torch.cat([from_row, boundary[boundary_of] // width * width + N])
    receivers = torch.cat([inside[of], boundary[boundary_of]])
    graph = Data(
        x=rows_of(data.x, rows % width),
        edge_index=torch.stack([torch.searchsorted(rows, senders), torch.searchsorted(rows, receivers)]),
        num_nodes=len(rows),
    )
    for key in EDGE_VALUES:
        if getattr(data, key, None) is not None:
            graph[key] = data[key][torch.cat([edges, boundary_edges])]
    return EgoGraphs(graph, torch.searchsorted(rows, own), (EgoRows(rows // width, rows % width, N),))
