"""Any GNN can have a jury: estimated jurors of five architectures against retrained ones.

Every model is trained on 60 random labels of a graph (digits: 1,797 nodes, 10 classes; synthetic: 1,800 nodes, 5
classes, noisier; Cora), in float64, to a gradient norm below 1e-3. Then 20 jurors go on from there to their own
minimum, each without its node (a warm start: a cold one may end in another minimum altogether). Where an activation
has a kink, minima lie on kinks and no gradient vanishes: so hidden units are ELUs, and GAT appears twice, with the
LeakyReLU of its attention and with a smooth function of the same shape; the paper's GCN keeps its ReLU. The synthetic
graph and Cora were added, and APPNP's ReLU and GAT's attention smoothed, after the first results on digits: read all
rows together.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as gnn
from torch_geometric.data import Data
from torch_geometric.utils import softmax

from harness import RESULTS, options, save, table
from jurygcn import GCN, Jury, Retraining, load_dataset, train
from jurygcn.data import paper_split, random_labels, synthetic
from jurygcn.diagnostics.fidelity import compare_jurors
from jurygcn.graph.neighbourhood import local_graph, num_hops
from jurygcn.leave_one_out.retraining import retrained_parameters

GRAPHS = ("digits", "synthetic", "cora")
DECAY, HIDDEN, JURORS, ITERATIONS = 1e-3, 16, 20, 300
# (learning rate, epochs) of Adam after L-BFGS: falling steps settle at the kinks of ReLUs, where L-BFGS gives up
TAIL = ((1e-3, 100), (1e-4, 100), (1e-5, 100))


class TwoLayers(nn.Module):
    """Two message-passing layers with a smooth activation between."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.second(functional.elu(self.first(x, edge_index)), edge_index)


class SmoothGATConv(gnn.GATConv):
    """GAT whose attention has log(1 + e^x) where LeakyReLU has max(x, 0): the same slopes far from zero, no kink."""

    def edge_update(self, alpha_j: Tensor, alpha_i: Tensor, index: Tensor, ptr: Tensor | None, dim_size: int) -> Tensor:
        """Attention coefficients."""
        x = alpha_j + alpha_i
        slope = self.negative_slope
        return softmax(slope * x + (1 - slope) * functional.softplus(x), index, ptr, dim_size)


class PredictThenPropagate(nn.Module):
    """An MLP followed by personalised PageRank propagation (APPNP)."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(F, HIDDEN), nn.Linear(HIDDEN, C)
        self.propagate = gnn.APPNP(K=10, alpha=0.1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.propagate(self.second(functional.elu(self.first(x))), edge_index)


class SimplifiedGCN(nn.Module):
    """SGC with the weights before the propagation: the same function as after it, and less work."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.linear = nn.Linear(F, C)
        self.propagate = gnn.APPNP(K=2, alpha=0.0)  # no teleport: just two hops

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.propagate(functional.linear(x, self.linear.weight), edge_index) + self.linear.bias


def mlp(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, HIDDEN), nn.ELU(), nn.Linear(HIDDEN, b))


MODELS = {
    "GCN (the paper's)": lambda F, C: GCN(F, HIDDEN, C),
    "GAT": lambda F, C: TwoLayers(gnn.GATConv(F, HIDDEN // 2, heads=2), gnn.GATConv(HIDDEN, C)),
    "GAT, smooth attention": lambda F, C: TwoLayers(SmoothGATConv(F, HIDDEN // 2, heads=2), SmoothGATConv(HIDDEN, C)),
    "GraphSAGE": lambda F, C: TwoLayers(gnn.SAGEConv(F, HIDDEN), gnn.SAGEConv(HIDDEN, C)),
    "GIN": lambda F, C: TwoLayers(gnn.GINConv(mlp(F, HIDDEN)), gnn.GINConv(mlp(HIDDEN, C))),
    "APPNP": PredictThenPropagate,
    "SGC": SimplifiedGCN,
}


def to_the_minimum(model: nn.Module, data: Data, nodes: Tensor, weights: Tensor) -> None:
    """From the current parameters down: L-BFGS, then Adam with falling steps, on what the nodes see of the graph."""
    torch.set_num_threads(1)
    data, nodes = seen_by(model, data, nodes)
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=ITERATIONS, history_size=30, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def objective() -> Tensor:
        optimizer.zero_grad()
        losses = functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes], reduction="none")
        value = (losses * weights).mean() + 0.5 * DECAY * sum((p**2).sum() for p in model.parameters())
        value.backward()
        return value

    optimizer.step(objective)
    for lr, epochs in TAIL:
        train(model, data, nodes, epochs=epochs, lr=lr, weight_decay=DECAY, node_weights=weights, warm_start=True)


def seen_by(model: nn.Module, data: Data, nodes: Tensor) -> tuple[Data, Tensor]:
    """The part of the graph that determines the outputs at ``nodes``, and their positions in it."""
    part, positions = local_graph(data, nodes, num_hops(model))
    part.y = torch.zeros(part.num_nodes, dtype=data.y.dtype).index_put_((positions,), data.y[nodes])
    return part, positions


def graph(name: str) -> Data:
    sizes = {"num_nodes": 1800, "num_edges": 9000, "num_features": 32, "num_classes": 5}
    data = synthetic(**sizes, seed=0) if name == "synthetic" else load_dataset(name)
    data.x = data.x.double()
    return data


def measure(name: str, graph_name: str, jurors: int) -> dict[str, object]:
    data = graph(graph_name)
    split = paper_split(data, seed=0)
    labels, test = random_labels(split.pool, 60, seed=0), split.test
    model = MODELS[name](data.num_features, int(data.num_classes)).double()
    train(model, data, labels, epochs=300, weight_decay=DECAY)
    to_the_minimum(model, data, labels, torch.ones(len(labels)))
    row: dict[str, object] = {"graph": graph_name, "model": name}
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:jurors]
    jury = Jury(model, data, labels, weight_decay=DECAY)
    retrained = retrained_parameters(jury.engine, Retraining(fit=to_the_minimum, processes=1), chosen.tolist())
    for kind in ("influence", "newton"):
        jury = Jury(model, data, labels, weight_decay=DECAY, leave_out=kind).fit()
        fidelity = compare_jurors(jury, chosen, retrained)
        row[f"{kind}_correlation"] = fidelity.correlation
        row[f"{kind}_error"], row["retrained_error"] = fidelity.loo_error
    row["gradient"] = jury.health().gradient
    row["accuracy"] = float((jury.verdict(test, advice=None).predicted_class == data.y[test]).double().mean())
    return row


def finished_rows() -> dict[tuple[str, str], dict[str, object]]:
    """Rows of an earlier run, so that its retraining is not repeated; delete the file to start anew."""
    path = RESULTS / "any_gnn.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return {(row["graph"], row["model"]): row for row in rows}


def main() -> None:
    chosen = options(__doc__)
    todo = [("digits", "SGC")] if chosen.quick else [(g, name) for g in GRAPHS for name in MODELS]
    finished = {} if chosen.quick else finished_rows()
    rows = []
    for graph_name, name in todo:
        row = finished.get((graph_name, name))
        rows.append(row or measure(name, graph_name, 6 if chosen.quick else JURORS))
        print(rows[-1], flush=True)
        keep(rows, quick=chosen.quick)  # a row may take half an hour
    table(
        "Jurors of any GNN against retraining, 60 labels",
        ["model", "accuracy", "gradient norm", "influence corr.", "newton corr.", "newton err", "retrained err"],
        [
            [
                f"{row['graph']}, {row['model']}",
                f"{row['accuracy']:.3f}",
                f"{row['gradient']:.1e}",
                *(f"{row[key]:.3f}" for key in ("influence_correlation", "newton_correlation")),
                *(f"{row[key]:.3f}" for key in ("newton_error", "retrained_error")),
            ]
            for row in rows
        ],
    )
    print(keep(rows, quick=chosen.quick))


def keep(rows: list[dict[str, object]], *, quick: bool) -> object:
    return save("any_gnn", rows, quick=quick, weight_decay=DECAY, tail=TAIL)


if __name__ == "__main__":
    main()
