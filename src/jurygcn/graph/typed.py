"""Parts of a heterogeneous graph: neighbourhoods, and separate copies of them, along the edges of all relations.

All types are numbered as one graph. The parts are found there and then divided by type.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data.heterogeneous import as_given, layout_of, numbered, ranges, view_of
from jurygcn.data.validate import MASKS
from jurygcn.graph.ego import EgoGraphs, EgoRows, ego_graphs
from jurygcn.graph.neighbourhood import local_graph


def local_view(data: Data, nodes: Tensor, hops: int) -> tuple[Data, Tensor]:
    """The part of a view within ``hops`` + 1 of ``nodes``, and the nodes' positions in it."""
    part, positions = local_graph(numbered(data), nodes, hops)
    members = {name: _members(data, part.x[:, 0], name) for name in ranges(data)}
    own = members[_node_type(data)]
    return _divided(data, part.x[:, 0], part, members), torch.searchsorted(own, positions)


def typed_ego_graphs(data: Data, centres: Tensor, hops: int, *, most_rows: int) -> EgoGraphs | None:
    """Separate copies of the neighbourhoods of ``centres``, with the rows of each type in one tensor.

    Each copy has a stand-in of each type. Further stand-ins at the end make the numbers of rows differ between types,
    so that the rows of a tensor can be told from their number.
    """
    found = ego_graphs(numbered(data), centres, hops, most_rows=most_rows)
    if found is None:
        return None
    nodes, taken = found.rows[0].nodes, set(torch.bincount(found.graph.edge_type).tolist())
    last = torch.tensor([len(nodes) - 1], device=nodes.device)  # the stand-in of the last copy
    members, rows = {}, []
    for name, (start, count) in ranges(data).items():
        member = _members(data, nodes, name)
        while len(member) in taken:
            member = torch.cat([member, last])
        taken.add(len(member))
        members[name] = member
        local = torch.where(nodes[member] < start + count, nodes[member] - start, count)
        rows.append(EgoRows(found.rows[0].owner[member], local, count))
    centres_there = torch.searchsorted(members[_node_type(data)], found.centres)
    return replace(found, graph=_divided(data, nodes, found.graph, members), centres=centres_there, rows=tuple(rows))


def _node_type(data: Data) -> str:
    layout = layout_of(data)
    assert layout is not None
    return layout.node_type


def _members(data: Data, nodes: Tensor, name: str) -> Tensor:
    """Which of the rows are copies of nodes of a type, or stand-ins, in order."""
    start, count = ranges(data)[name]
    stand_in = sum(n for _, n in ranges(data).values())
    mine = (nodes >= start) & (nodes < start + count) | (nodes == stand_in)
    return mine.nonzero().squeeze(1)


def _divided(data: Data, nodes: Tensor, part: Data, members: dict[str, Tensor]) -> Data:
    """The view of a part of all nodes and edges; stand-ins have zeros for features.

    ``part`` has the edges between the rows, with their relation as `edge_type` and their place in it as `edge_attr`.
    """
    layout, whole = layout_of(data), as_given(data)
    assert layout is not None
    position = {}
    for name, (start, count) in ranges(data).items():
        member, store = members[name], whole[name]
        local = torch.where(nodes[member] < start + count, nodes[member] - start, count)
        for key, value in list(store.items()):
            if key in ("y", *MASKS):
                del store[key]
            elif isinstance(value, Tensor) and value.dim() and len(value) == count:
                store[key] = torch.cat([value, value.new_zeros(1, *value.shape[1:])])[local]
        store.num_nodes = len(member)
        position[name] = torch.empty_like(nodes)
        position[name][member] = torch.arange(len(member), device=nodes.device)
    for number, relation in enumerate(layout.relations):
        store, chosen = whole[relation], part.edge_type == number
        senders, receivers = part.edge_index[:, chosen]
        places = part.edge_attr[chosen]
        for key, value in list(store.items()):
            if isinstance(value, Tensor) and key != "edge_index" and store.is_edge_attr(key):
                store[key] = value[places]
        store.edge_index = torch.stack([position[relation[0]][senders], position[relation[2]][receivers]])
    return view_of(whole, layout.node_type)
