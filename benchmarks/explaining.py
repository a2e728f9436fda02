"""Explanations beside GNNExplainer and integrated gradients, by PyG's metrics: a part of `what_if.py`."""

from __future__ import annotations

import copy
import math
import random
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset
from torch_geometric.datasets.graph_generator import BAGraph
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer, fidelity, unfaithfulness
from torch_geometric.nn import GCNConv

from jurygcn import Jury, load_dataset, train
from jurygcn.edits.explainer import JuryExplainer

DECAY = 5e-4


class PyGGCN(nn.Module):
    """Kipf's GCN with PyG's layers, as people write it."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = GCNConv(features, 16), GCNConv(16, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes."""
        return self.last(torch.relu(self.first(x, edge_index)), edge_index)


def usual_loop(data: Data, nodes: Tensor, epochs: int) -> float:
    """CPU seconds of the usual training loop on the whole graph."""
    model = PyGGCN(data.x.shape[1], int(data.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=DECAY)
    started = time.process_time()
    for _ in range(epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes]).backward()
        optimizer.step()
    return time.process_time() - started


class Deep(nn.Module):
    """Three layers for BA-shapes, whose motifs are three hops wide."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GCNConv(features, 20), GCNConv(20, 20), GCNConv(20, classes)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits of all nodes."""
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, edge_index))
        return self.layers[-1](x, edge_index)


def shapes() -> Data:
    """BA-shapes: a Barabasi-Albert graph of 300 nodes with 80 houses; features are the degree."""
    torch.manual_seed(0)
    random.seed(0)  # PyG's generators use the global state
    np.random.seed(0)  # noqa: NPY002
    graph = ExplainerDataset(BAGraph(300, 5), motif_generator="house", num_motifs=80)[0]
    degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes).float()
    x = torch.stack([torch.ones_like(degree), degree / degree.max(), (degree + 1).log()], dim=1)
    return Data(x=x, edge_index=graph.edge_index, y=graph.y, edge_mask=graph.edge_mask, num_nodes=graph.num_nodes)


def explained(cell: dict[str, Any]) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    if cell["graph"] == "cora":
        data = load_dataset("cora")
        nodes, model = data.train_mask.nonzero()[:, 0], PyGGCN(data.x.shape[1], 7)
        asked = data.test_mask.nonzero()[:, 0]
        train(model, data, nodes, epochs=200, weight_decay=DECAY, seed=0)
    else:
        data = shapes()
        order = torch.randperm(data.num_nodes, generator=generator)
        nodes, model = order[: int(0.8 * data.num_nodes)].sort().values, Deep(3, int(data.y.max()) + 1)
        asked = (data.y > 0).nonzero()[:, 0]
        train(model, data, nodes, epochs=1500, lr=0.01, weight_decay=1e-4, seed=0)
    with torch.no_grad():
        accuracy = float((model(data.x, data.edge_index).argmax(dim=1) == data.y)[asked].double().mean())
    asked = asked[torch.randperm(len(asked), generator=generator)[: cell["nodes"]]]
    graph = Data(x=data.x, edge_index=data.edge_index, y=data.y, num_nodes=data.num_nodes)
    jury = Jury(model, graph, nodes, weight_decay=DECAY if cell["graph"] == "cora" else 1e-4)
    algorithms = {
        "jury, together": lambda: JuryExplainer(jury),
        "jury, direct": lambda: JuryExplainer(jury, effect="direct"),
        "jury, both": lambda: JuryExplainer(jury, effect="both"),
        "GNNExplainer": lambda: GNNExplainer(epochs=200),
        "integrated gradients": lambda: CaptumExplainer("IntegratedGradients"),
    }
    if cell["graph"] != "cora":  # three hops reach most of the graph: thousands of edits for each node
        del algorithms["jury, both"]
    rows = {}
    for name in cell.get("methods", list(algorithms)):
        make = algorithms[name]
        explainer = Explainer(
            copy.deepcopy(model),  # algorithms leave traces in a model
            algorithm=make(),
            explanation_type="model",
            edge_mask_type="object",
            model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
            threshold_config={"threshold_type": "topk_hard", "value": cell["top"]},  # kept edges count fully
        )
        plus, minus, unfaithful, hits, cpu = [], [], [], [], 0.0
        torch.manual_seed(0)
        for node in asked.tolist():
            started = time.process_time()
            explanation = explainer(data.x, data.edge_index, index=node)
            cpu += time.process_time() - started
            a, b = fidelity(explainer, explanation)
            plus.append(a)
            minus.append(b)
            unfaithful.append(float(unfaithfulness(explainer, explanation)))
            if "edge_mask" in data:
                top = explanation.edge_mask > 0
                hits.append(float(data.edge_mask[top].mean()) if bool(top.any()) else math.nan)
        rows[name] = {
            "fidelity_plus": float(np.mean(plus)),
            "fidelity_minus": float(np.mean(minus)),
            "unfaithfulness": float(np.mean(unfaithful)),
            "seconds": cpu / len(asked),
            "in_motif": float(np.nanmean(hits)) if hits else None,
        }
    return {"methods": rows, "accuracy": accuracy}
