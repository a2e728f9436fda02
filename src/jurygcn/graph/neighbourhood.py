"""The part of a graph that influences a set of nodes, for any message-passing model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import k_hop_subgraph

from jurygcn.data.contents import EDGE_VALUES

# Edges that are processed at once, to bound memory.
EDGES = 20_000_000


def num_hops(model: nn.Module) -> int:
    """The number of hops that messages travel: 1 per message-passing module, K for APPNP, SGConv and the like.

    The modules of the relations of a heterogeneous layer pass their messages at the same time.
    """
    weights = getattr(model, "weights", None)  # the paper's GCN shares one propagation between its layers
    return len(weights) if isinstance(weights, nn.ParameterList) else _hops(model, set())


def _hops(module: nn.Module, seen: set[nn.Module]) -> int:
    seen.add(module)
    own = 0
    if isinstance(module, MessagePassing):
        steps = getattr(module, "K", 1)
        own = steps if isinstance(steps, int) else 1
    children = [(name, _hops(child, seen)) for name, child in module.named_children() if child not in seen]
    relations = len(children) > 0 and all(len(name.split("__")) > 2 for name, _ in children)  # PyG's names of relations
    hops = [hops for _, hops in children]
    return own + (max(hops) if relations else sum(hops))


def local_graph(data: Data, nodes: Tensor, hops: int) -> tuple[Data, Tensor]:
    """The subgraph within ``hops`` + 1 of ``nodes`` and the nodes' positions in it.

    One hop more than messages travel, so that every node that sends a message keeps its full degree.
    """
    kept, edge_index, positions, edge_mask = k_hop_subgraph(
        nodes.to(data.edge_index.device),
        hops + 1,
        data.edge_index,
        relabel_nodes=True,
        num_nodes=data.num_nodes,
    )
    graph = Data(x=data.x[kept], edge_index=edge_index, num_nodes=len(kept))
    for key in EDGE_VALUES:
        if getattr(data, key, None) is not None:
            graph[key] = data[key][edge_mask]
    return graph, positions


def other_source_within(edge_index: Tensor, sources: Tensor, num_nodes: int, hops: int) -> Tensor:
    """True where a node has, within ``hops``, a source other than itself, (N,) bool.

    Keeps the smallest and the largest source that reaches each node. A source other than the node itself reaches it
    exactly if one of the two is not the node.
    """
    low = torch.full((num_nodes,), num_nodes, device=edge_index.device)
    high = torch.full((num_nodes,), -1, device=edge_index.device)
    low[sources] = high[sources] = sources.to(edge_index.device)
    for _ in range(hops):
        if bool((low < high).all()):  # two sources reach every node already
            break
        next_low, next_high, reached = low.clone(), high.clone(), high >= 0
        for senders, receivers in edge_index.long().split(EDGES, dim=1):
            active = reached[senders].nonzero().squeeze(1)  # other nodes have no source to pass on
            sender, receiver = senders[active], receivers[active]
            next_low.scatter_reduce_(0, receiver, low[sender], "amin")
            next_high.scatter_reduce_(0, receiver, high[sender], "amax")
        low, high = next_low, next_high
    itself = torch.arange(num_nodes, device=edge_index.device)
    return (high >= 0) & ((low != itself) | (high != itself))
