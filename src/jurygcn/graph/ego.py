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


def ego_graphs(data: Data, centres: Tensor, hops: int, *, most_rows: int) -> EgoGraphs | None:
    """The neighbourhoods from which messages reach ``centres`` within ``hops``; None if they have too many rows.

    Nodes at distance ``hops`` keep their in-degree, which some layers normalise by: their in-edges come from one
    stand-in without features in each copy, because what those edges carry never arrives at the centre.
    """
    sources, targets = data.edge_index
    N, device = int(data.num_nodes), sources.device
    order = targets.argsort(stable=True)
    degree = torch.bincount(targets, minlength=N)
    first = torch.cat([degree.new_zeros(1), degree.cumsum(0)])

    def in_edges(nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The positions in ``order`` of all edges into ``nodes``, and which of the nodes each belongs to."""
        counts = degree[nodes]
        of = torch.repeat_interleave(torch.arange(len(nodes), device=device), counts)
        offset = torch.arange(len(of), device=device) - (counts.cumsum(0) - counts)[of]
        return first[nodes][of] + offset, of

    # A row is named by copy * (N + 1) + node, so that sorted names lie copy by copy; node N is the stand-in.
    width = N + 1
    frontier = torch.arange(len(centres), device=device) * width + centres.to(device)
    seen, inner = frontier, []
    for _ in range(hops):
        inner.append(frontier)
        places, of = in_edges(frontier % width)
        if len(seen) + len(places) > 4 * most_rows:
            return None
        reached = (frontier[of] // width * width + sources[order[places]]).unique()
        frontier = reached[~torch.isin(reached, seen)]
        seen = torch.cat([seen, frontier])
        if len(seen) > most_rows:
            return None
    boundary = frontier if hops else seen
    stand_ins = torch.arange(len(centres), device=device) * width + N
    rows = torch.cat([seen, stand_ins]).sort().values

    inside = torch.cat(inner) if inner else seen[:0]
    places, of = in_edges(inside % width)
    edges = order[places]
    from_row = inside[of] // width * width + sources[edges]
    boundary_places, boundary_of = in_edges(boundary % width)
    senders = torch.cat([from_row, boundary[boundary_of] // width * width + N])
    receivers = torch.cat([inside[of], boundary[boundary_of]])
    edge = torch.cat([edges, order[boundary_places]])

    nodes = rows % width
    graph = Data(
        x=torch.cat([data.x, data.x.new_zeros(1, *data.x.shape[1:])])[nodes],
        edge_index=torch.stack([torch.searchsorted(rows, senders), torch.searchsorted(rows, receivers)]),
        num_nodes=len(rows),
    )
    for key in EDGE_VALUES:
        if getattr(data, key, None) is not None:
            graph[key] = data[key][edge]
    own = torch.arange(len(centres), device=device) * width + centres.to(device)
    return EgoGraphs(graph, torch.searchsorted(rows, own), (EgoRows(rows // width, nodes, N),))
