"""Heterogeneous graphs: one node type of a PyG `HeteroData`, seen as a PyG `Data`.

The view of a node type has its features, labels and masks under their usual names, and as edges those of all relations
that join the type with itself. All other tensors stand beside them as `author.x` or `author.writes.paper.edge_index`.
So checksums, casts and transfers to other processes treat them like any other tensor of a graph, and :func:`as_given`
puts the whole graph together again for the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from jurygcn.checks import all_finite
from jurygcn.data.validate import MASKS
from jurygcn.errors import DataError, SettingError

LAYOUT = "hetero_layout"  # the entry of a view that says where its tensors belong
COUNTS = "number of nodes"  # the entry with the number of nodes of each type

# Names that mean something else in a view, so that attributes of the node type cannot have them.
RESERVED = {"edge_index", "edge_weight", "edge_attr", "num_nodes", LAYOUT, COUNTS}
SHARED = ("name", "num_classes", "class_names")  # attributes of the whole graph that describe the node type as well

MOST_JOINED = 30_000_000  # numbers in the features of all types together

EdgeType = tuple[str, str, str]
Place = str | EdgeType | None  # a node type, a relation, or the whole graph


@dataclass(frozen=True)
class Layout:
    """Where the entries of a view belong.

    Attributes:
        node_type: the type that the view is of.
        node_types, relations: all types of nodes and edges, in the graph's order.
        entries: the place and the name of each entry.
    """

    node_type: str
    node_types: tuple[str, ...]
    relations: tuple[EdgeType, ...]
    entries: dict[str, tuple[Place, str]]

    @property
    def own_relations(self) -> tuple[EdgeType, ...]:
        """The relations that join the type with itself."""
        return tuple(r for r in self.relations if r[0] == r[2] == self.node_type)


def graph_of(data: Any, node_type: str | None) -> Any:
    """A `HeteroData` as the view of a node type; any other graph as it is.

    Without ``node_type`` it is the only type that has labels.
    """
    if isinstance(data, HeteroData):
        view = view_of(data, _chosen_type(data, node_type))
        _check_values(data)
        return view
    if node_type is not None and layout_of(data) is None:
        raise SettingError(
            f"expected a HeteroData with node_type={node_type!r}, got {type(data).__name__}; leave node_type out"
        )
    return data


def layout_of(data: Any) -> Layout | None:
    """The layout of a view; None for a graph with one type of nodes."""
    found: Layout | None = data.get(LAYOUT) if isinstance(data, Data) else None
    return found


def _chosen_type(data: HeteroData, node_type: str | None) -> str:
    types = data.node_types
    if node_type is None:
        with_labels = [name for name in types if data[name].get("y") is not None]
        if len(with_labels) == 1:
            return str(with_labels[0])
        found = f"labels `y` on {', '.join(with_labels)}" if with_labels else "labels `y` on none"
        raise DataError(
            f"expected node_type=, the type of the nodes to judge, got a HeteroData with {found}; choose one of "
            f"{', '.join(map(str, types))}"
        )
    if node_type not in types:
        raise DataError(f"expected node_type to be one of {', '.join(map(str, types))}, got {node_type!r}; choose one")
    return node_type


def view_of(data: HeteroData, node_type: str) -> Data:
    """The view of a node type; it shares all tensors with ``data``."""
    own = data[node_type]
    counts = [_count_nodes(data, name) for name in data.node_types]
    number = counts[data.node_types.index(node_type)]
    x = own.get("x")
    usable = isinstance(x, Tensor) and x.dim() == 2 and x.layout == torch.strided
    view = Data(num_nodes=number)
    entries: dict[str, tuple[Place, str]] = {}
    for place, name, value in _attributes(data):
        plain = (place == node_type and name not in RESERVED and (name != "x" or usable)) or (
            place is None and name in SHARED and name not in own
        )
        key = name if plain else f"{'.'.join([place] if isinstance(place, str) else place or ['graph'])}.{name}"
        while key in view or key in RESERVED:
            key += "'"
        view[key] = value
        entries[key] = (place, name)
    layout = Layout(node_type, tuple(data.node_types), tuple(data.edge_types), entries)
    edges = [_edges_of(data, relation) for relation in layout.own_relations]
    # one relation keeps its tensor, so that what is remembered of the graph is found again
    device = next((v.device for v in view.values() if isinstance(v, Tensor)), torch.device("cpu"))
    view.edge_index = edges[0] if len(edges) == 1 else _joined(edges, device)
    if not usable:
        view.x = torch.zeros(number, 1, device=device)
    view[COUNTS] = torch.tensor(counts)
    view[LAYOUT] = layout
    return view


def _attributes(data: HeteroData) -> Iterator[tuple[Place, str, Any]]:
    """The place, name and value of all attributes."""
    for store in data.stores:
        place = getattr(store, "_key", None)
        yield from ((place, str(name), value) for name, value in store.items() if value is not None)


def _count_nodes(data: HeteroData, name: str) -> int:
    store = data[name]
    sizes = [len(v) for k, v in store.items() if isinstance(v, Tensor) and v.dim() and k in ("x", "y", *MASKS)]
    if store.get("num_nodes") is None and not sizes:
        raise DataError(
            f"expected features `x` or num_nodes for node type {name!r}, got neither; set data[{name!r}].num_nodes"
        )
    return int(store.num_nodes) if store.get("num_nodes") is not None else sizes[0]


def _edges_of(data: HeteroData, relation: EdgeType) -> Tensor:
    edge_index = data[relation].get("edge_index")
    whole = isinstance(edge_index, Tensor) and edge_index.layout == torch.strided
    if not whole or edge_index.dim() != 2 or len(edge_index) != 2 or edge_index.is_floating_point():
        raise DataError(
            f"expected `edge_index` as an integer tensor (2, edges) for the relation {' '.join(relation)}, got "
            f"{_seen(edge_index)}; pass the graph before T.ToSparseTensor, with edges as pairs"
        )
    found: Tensor = edge_index
    return found


def _joined(edges: list[Tensor], device: torch.device) -> Tensor:
    """Every edge of several relations once, (2, E)."""
    none = torch.empty(2, 0, dtype=torch.long, device=device)
    joined: Tensor = torch.cat([none, *(edge_index.long() for edge_index in edges)], dim=1).unique(dim=1)
    return joined


def _seen(value: Any) -> str:
    return "none" if value is None else f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}"


def _check_values(data: HeteroData) -> None:
    """Raise DataError for features or edge attributes that are not finite, and for edges to nodes that do not exist."""
    for place, name, value in _attributes(data):
        is_input = isinstance(value, Tensor) and name in ("x", "edge_weight", "edge_attr")
        if is_input and value.is_floating_point() and value.layout == torch.strided and not all_finite(value):
            where = place if isinstance(place, str) else " ".join(place or ())
            raise DataError(f"expected finite `{name}` of {where}, got NaN or infinity; fill or drop them")
    for relation in data.edge_types:
        edge_index = _edges_of(data, relation)
        for end, (name, ids) in enumerate(zip(relation[::2], edge_index)):
            if name not in data.node_types:
                raise DataError(
                    f"expected nodes of type {name!r}, which the relation {' '.join(relation)} joins, got none; set "
                    f"data[{name!r}].x or data[{name!r}].num_nodes"
                )
            count = _count_nodes(data, name)
            if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= count):
                wrong = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
                raise DataError(
                    f"expected ids 0..{count - 1} of {name} in row {end} of `edge_index` of {' '.join(relation)}, got "
                    f"{wrong}; number the nodes of each type from 0"
                )


# --- what the rest of the library asks of a view ----------------------------------------------------------------


def as_given(data: Data) -> Data | HeteroData:
    """The whole graph in the caller's form: a view as a `HeteroData` with its tensors, any other graph as it is."""
    layout = layout_of(data)
    if layout is None:
        return data
    whole = HeteroData()
    for kind in (*layout.node_types, *layout.relations):
        _ = whole[kind]  # creates the store, in the graph's order
    for key, (place, name) in layout.entries.items():
        if place is None:
            setattr(whole, name, data[key])
        else:
            whole[place][name] = data[key]
    return whole


def model_inputs(data: Data) -> list[str]:
    """The entries of a view that a model may read: all tensors but labels and masks. None of any other graph."""
    layout = layout_of(data)
    if layout is None:
        return []
    read = [key for key, (_, name) in layout.entries.items() if name not in ("y", *MASKS)]
    return [key for key in (*read, COUNTS) if isinstance(data[key], Tensor)]


def ranges(data: Data) -> dict[str, tuple[int, int]]:
    """The first number and the count of each type's nodes, where all types are numbered as one; the view's first."""
    layout = layout_of(data)
    assert layout is not None
    counts = dict(zip(layout.node_types, data[COUNTS].tolist()))
    found, start = {}, 0
    for name in sorted(counts, key=lambda name: name != layout.node_type):
        found[name] = (start, counts[name])
        start += counts[name]
    return found


def numbered(data: Data) -> Data:
    """All types of a view as one graph: `x` has each node's number, `edge_type` the relation, `edge_attr` its edge."""
    layout, starts = layout_of(data), ranges(data)
    assert layout is not None
    keys = {place: key for key, (place, name) in layout.entries.items() if name == "edge_index"}
    pairs = [data[keys[relation]].long() for relation in layout.relations]
    shifted = [
        torch.stack([senders + starts[relation[0]][0], receivers + starts[relation[2]][0]])
        for relation, (senders, receivers) in zip(layout.relations, pairs)
    ]
    device = data.edge_index.device
    none, sizes = torch.empty(2, 0, dtype=torch.long, device=device), [edges.shape[1] for edges in pairs]
    number = torch.arange(sum(count for _, count in starts.values()), device=device)
    return Data(
        x=number[:, None],
        edge_index=torch.cat([none, *shifted], dim=1),
        edge_type=torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device).long()),
        edge_attr=torch.cat([none[0], *(torch.arange(size, device=device) for size in sizes)]),
        num_nodes=len(number),
    )


def all_edges(data: Data) -> tuple[Tensor, int]:
    """The edges between all nodes of all types, and the number of these nodes; those of the view's type come first.

    Shapes: (2, E). Node i of the view's type has number i.
    """
    graph = data if layout_of(data) is None else numbered(data)
    return graph.edge_index, int(graph.num_nodes)


def one_graph(data: Data) -> Data:
    """A graph with one type of nodes as it is; of a view all types as one graph, in which the view's type comes first.

    Edges go both ways. The features of each type stand in columns of their own, so that an average over neighbours has
    the means of each type that a node meets. If that is too large, it is the view alone.
    """
    layout = layout_of(data)
    if layout is None:
        return data
    keys = {place: key for key, (place, name) in layout.entries.items() if name == "x"}
    counts = {layout.node_type: int(data.num_nodes)}
    counts |= {name: count for name, (_, count) in ranges(data).items() if name != layout.node_type}
    blocks = [data[keys[name]] if name in keys else None for name in counts]
    blocks = [x if isinstance(x, Tensor) and x.dim() == 2 and x.layout == torch.strided else None for x in blocks]
    total, width = sum(counts.values()), max(1, sum(x.shape[1] for x in blocks if x is not None))
    if total * width > MOST_JOINED:
        return Data(x=data.x, edge_index=data.edge_index, num_nodes=data.num_nodes)
    joined = torch.zeros(total, width, dtype=data.x.dtype, device=data.x.device)
    row = column = 0
    for x, count in zip(blocks, counts.values()):
        if x is not None:
            joined[row : row + count, column : column + x.shape[1]] = x.to(joined)
            column += x.shape[1]
        row += count
    edges = numbered(data).edge_index
    return Data(x=joined, edge_index=torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1), num_nodes=total)


def first_row(data: Data) -> int:
    """Where the nodes of a view's type begin in ``to_homogeneous()`` of the whole graph."""
    layout = layout_of(data)
    assert layout is not None
    return int(data[COUNTS][: layout.node_types.index(layout.node_type)].sum())


def why_no_neighbours(data: Data) -> str:
    """Why nodes have no neighbours to average over, in a sentence; empty if a relation joins the type with itself."""
    layout = layout_of(data)
    if layout is None or layout.own_relations:
        return ""
    return f"No relation joins {layout.node_type} nodes with each other, so votes are not averaged over neighbours."


def without_node_of_type(data: Data, node: int) -> Data:
    """A view without the edges of one of its nodes, in all relations; the node itself stays."""
    layout, whole = layout_of(data), as_given(data)
    assert layout is not None
    for relation in layout.relations:
        edge_index = whole[relation].edge_index
        kept = torch.ones(edge_index.shape[1], dtype=torch.bool, device=edge_index.device)
        for name, ids in zip(relation[::2], edge_index):
            if name == layout.node_type:
                kept &= ids != node
        store = whole[relation]
        for key, value in list(store.items()):
            if isinstance(value, Tensor) and key != "edge_index" and store.is_edge_attr(key):
                store[key] = value[kept]
        store.edge_index = edge_index[:, kept]
    return view_of(whole, layout.node_type)
