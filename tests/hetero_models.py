"""Small heterogeneous graphs of papers, authors and venues, and models of the kinds that PyG has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import HeteroData

from jurygcn import Jury

PAPERS, AUTHORS, VENUES, CLASSES = 14, 9, 3, 3
FEATURES = {"paper": 5, "author": 4, "venue": 3}
NODES = torch.arange(0, PAPERS, 2)  # with labels


def judged(model: nn.Module, data: HeteroData, **settings: Any) -> Jury:
    """A fitted jury of the papers."""
    return Jury(model, data, NODES, **{"node_type": "paper", "weight_decay": 0.03, **settings}).fit()


def library(
    *, cites: bool = True, one_width: bool = False, times: int = 1, dtype: torch.dtype = torch.float64
) -> HeteroData:
    """Authors write papers, papers appear at venues and, with ``cites``, cite each other; labels on papers.

    Every node has ``times`` the usual number of features, with ``one_width`` as many as papers.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = {"paper": PAPERS, "author": AUTHORS, "venue": VENUES}
    data = HeteroData()
    for kind, count in sizes.items():
        width = times * FEATURES["paper" if one_width else kind]
        data[kind].x = torch.randn(count, width, generator=generator, dtype=torch.float64).to(dtype)
    data["paper"].y = torch.arange(PAPERS) % CLASSES

    def pairs(source: str, target: str, edges: int) -> Tensor:
        ends = [torch.randint(0, sizes[kind], (edges,), generator=generator) for kind in (source, target)]
        return torch.stack(ends).unique(dim=1)

    written, venue = pairs("author", "paper", 20), torch.arange(PAPERS) % VENUES
    data["author", "writes", "paper"].edge_index = written
    data["paper", "written_by", "author"].edge_index = written.flip(0)
    data["paper", "at", "venue"].edge_index = torch.stack([torch.arange(PAPERS), venue])
    data["venue", "shows", "paper"].edge_index = torch.stack([venue, torch.arange(PAPERS)])
    if cites:
        cited = pairs("paper", "paper", 18)
        data["paper", "cites", "paper"].edge_index = cited[:, cited[0] != cited[1]]
    return data


class HGT(nn.Module):
    """Heterogeneous graph transformer: one layer of attention between linear maps."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.first = nn.ModuleDict({kind: gnn.Linear(-1, 4) for kind in data.node_types})
        self.conv, self.last = gnn.HGTConv(4, 4, data.metadata(), heads=2), nn.Linear(4, CLASSES)

    def forward(self, x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[Any, Tensor]) -> Tensor:
        hidden = {kind: torch.tanh(self.first[kind](x)) for kind, x in x_dict.items()}
        return self.last(self.conv(hidden, edge_index_dict)["paper"])


class Convolutions(nn.Module):
    """Two layers with a convolution of its own for each relation; returns a dictionary."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            gnn.HeteroConv({relation: self._convolution(relation, width) for relation in data.edge_types}, aggr="sum")
            for width in (4, CLASSES)
        )

    @staticmethod
    def _convolution(relation: tuple[str, str, str], width: int) -> nn.Module:
        if relation[0] == relation[2]:
            return gnn.GATConv((-1, -1), width, add_self_loops=False)
        return gnn.SAGEConv((-1, -1), width)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Mapping[Any, Tensor]) -> dict[str, Tensor]:
        for layer in self.layers[:-1]:
            x_dict = {kind: torch.tanh(x) for kind, x in layer(x_dict, edge_index_dict).items()}
        return self.layers[-1](x_dict, edge_index_dict)


class RGCN(nn.Module):
    """Relational convolutions on all types as one graph."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        relations, width = len(data.edge_types), data["paper"].x.shape[1]
        self.first, self.second = gnn.RGCNConv(width, 4, relations), gnn.RGCNConv(4, CLASSES, relations)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x, edge_index, edge_type)), edge_index, edge_type)


def sage(data: HeteroData) -> nn.Module:
    return gnn.to_hetero(gnn.GraphSAGE((-1, -1), 4, num_layers=2, out_channels=CLASSES, act="tanh"), data.metadata())


MODELS: dict[str, Callable[[HeteroData], nn.Module]] = {
    "to_hetero sage": sage,
    "hgt": HGT,
    "hetero_conv": Convolutions,
    "rgcn": RGCN,
}


def logits(model: nn.Module, data: HeteroData) -> Tensor:
    """What a user would write to get the logits of all papers."""
    if isinstance(model, RGCN):
        joined = data.to_homogeneous()
        return model(joined.x, joined.edge_index, joined.edge_type)[joined.node_type == data.node_types.index("paper")]
    found = model(data.x_dict, data.edge_index_dict)
    return found if isinstance(found, Tensor) else found["paper"]


def made(
    kind: str, *, cites: bool = True, times: int = 1, dtype: torch.dtype = torch.float64
) -> tuple[nn.Module, HeteroData]:
    """A model whose lazy layers know their sizes, and its graph."""
    data = library(cites=cites, one_width=kind == "rgcn", times=times, dtype=dtype)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = MODELS[kind](data).to(dtype)
        with torch.no_grad():
            logits(model, data)
    return model.eval(), data


def converge(
    model: nn.Module, data: HeteroData, train_nodes: Tensor, node_weights: Tensor, *, decay: float = 0.03
) -> None:
    """Minimise the weighted mean loss with L2 by L-BFGS, from the model's own parameters on."""
    parameters = list(model.parameters())
    optimizer = torch.optim.LBFGS(
        parameters,
        max_iter=1000,
        history_size=60,
        tolerance_grad=1e-9,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    targets = data["paper"].y[train_nodes]

    def objective() -> Tensor:
        optimizer.zero_grad()
        losses = nn.functional.cross_entropy(logits(model, data)[train_nodes], targets, reduction="none")
        penalty = 0.5 * decay * sum(p.square().sum() for p in parameters)
        value = (losses * node_weights).mean() + penalty
        value.backward()
        return value

    optimizer.step(objective)
