"""A jury on a heterogeneous graph: which field is a paper from, given its authors, its venue and what it cites?

The graph is synthetic. Three kinds of PyG models judge the same papers: GraphSAGE by ``to_hetero``, HGTConv, and one
GATConv or SAGEConv per relation in a HeteroConv. The model's jurors vote alone, and together with regressions that see
papers, authors and venues as one graph (the default).
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

import jurygcn
from jurygcn.data import random_labels
from jurygcn.evaluation import accuracy, error_auroc, mean_set_size, set_coverage

FIELDS = ["biology", "chemistry", "physics", "statistics"]
PAPERS, AUTHORS, VENUES, WORDS, HIDDEN = 600, 400, 16, 24, 16
DECAY, EPOCHS = 5e-3, 150


def library(seed: int = 0) -> HeteroData:
    """Papers with authors, a venue and citations; all of them mostly within a field, none of them always."""
    generator = torch.Generator().manual_seed(seed)
    field = {
        kind: torch.randint(0, 4, (n,), generator=generator) for kind, n in (("paper", PAPERS), ("author", AUTHORS))
    }
    field["venue"] = torch.arange(VENUES) % 4

    def partners(kind: str, of: Tensor, loyalty: float) -> Tensor:
        """For each field in ``of`` a random node, with probability ``loyalty`` from the same field."""
        chances = torch.where(of[:, None] == field[kind], loyalty, (1 - loyalty) / 3)
        return torch.multinomial(chances, 1, generator=generator).squeeze(1)

    def linked(target: str, times: int, loyalty: float) -> Tensor:
        papers = torch.randint(0, PAPERS, (times * PAPERS,), generator=generator)
        return torch.stack([papers, partners(target, field["paper"][papers], loyalty)]).unique(dim=1)

    data = HeteroData()
    topics = torch.randn(4, WORDS, generator=generator)
    for kind, words in (("paper", 0.25), ("author", 0.1)):
        noise = torch.randn(len(field[kind]), WORDS, generator=generator)
        data[kind].x = words * topics[field[kind]] + noise
    data["venue"].x = torch.eye(VENUES)
    data["paper"].y, data["paper"].class_names, data["paper"].num_classes = field["paper"], FIELDS, len(FIELDS)
    everyone = torch.arange(PAPERS)
    data["paper", "written_by", "author"].edge_index = linked("author", 2, 0.75)
    data["paper", "at", "venue"].edge_index = torch.stack([everyone, partners("venue", field["paper"], 0.6)])
    cites = linked("paper", 2, 0.8)
    data["paper", "cites", "paper"].edge_index = cites[:, cites[0] != cites[1]]
    return ToUndirected()(data)


class HGT(nn.Module):
    """A layer of attention with weights for each type of nodes and edges."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.first = nn.ModuleDict({kind: gnn.Linear(-1, HIDDEN) for kind in data.node_types})
        self.conv, self.last = gnn.HGTConv(HIDDEN, HIDDEN, data.metadata(), heads=2), nn.Linear(HIDDEN, len(FIELDS))

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        """Logits of all papers."""
        hidden = {kind: torch.tanh(self.first[kind](x)) for kind, x in x_dict.items()}
        return self.last(self.conv(hidden, edge_index_dict)["paper"])


class Relations(nn.Module):
    """Two layers, each with a convolution of its own for every relation."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()

        def convolution(relation: tuple[str, str, str], width: int) -> nn.Module:
            inside = relation[0] == relation[2]
            return gnn.GATConv((-1, -1), width, add_self_loops=False) if inside else gnn.SAGEConv((-1, -1), width)

        widths = (HIDDEN, len(FIELDS))
        self.layers = nn.ModuleList(gnn.HeteroConv({r: convolution(r, w) for r in data.edge_types}) for w in widths)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> dict[str, Tensor]:
        """Logits of all nodes, by type."""
        hidden = {kind: torch.tanh(x) for kind, x in self.layers[0](x_dict, edge_index_dict).items()}
        return self.layers[1](hidden, edge_index_dict)


def main() -> None:
    """Train the models on the fields of 80 papers and judge all others."""
    data = library()
    train_nodes = random_labels(torch.arange(PAPERS), 80, seed=0)
    test = torch.ones(PAPERS, dtype=torch.bool).index_fill(0, train_nodes, False).nonzero().squeeze(1)
    truth = data["paper"].y[test]
    sage = gnn.GraphSAGE((-1, -1), HIDDEN, num_layers=2, out_channels=len(FIELDS), act="tanh")
    models = {"to_hetero(SAGE)": gnn.to_hetero(sage, data.metadata()), "HGT": HGT(data), "HeteroConv": Relations(data)}

    print(f"{'model':<16}{'accuracy':>9}{'jurors':>9}{'coverage':>9}{'labels/set':>11}{'AUROC':>7}", end="")
    print(f"{'train s':>9}{'jury s':>8}")
    for name, model in models.items():
        with torch.no_grad():
            model(data.x_dict, data.edge_index_dict)  # lazy layers learn their sizes
        run = jurygcn.train(model, data, train_nodes, node_type="paper", epochs=EPOCHS, weight_decay=DECAY)
        started = time.perf_counter()
        jury = jurygcn.Jury(model, data, train_nodes, node_type="paper", weight_decay=DECAY).fit()
        verdict = jury.verdict(test)
        seconds = time.perf_counter() - started
        wrong = verdict.predicted_class != truth
        for words, found in (("alone", jury.verdict(test, advice=None)), ("advised", verdict)):
            sets = found.label_sets(alpha=0.1)
            print(f"{name:<16}{accuracy(found.predicted_class, truth):>9.1%}{words:>9}", end="")
            print(f"{set_coverage(sets, truth):>9.1%}{mean_set_size(sets):>11.2f}", end="")
            print(f"{error_auroc(found.uncertainty(), wrong):>7.3f}{run.seconds:>9.1f}{seconds:>8.1f}")

    print(f"\nLabel sets of {name}: {verdict.claim(0.1).words}")
    print("\nThe papers that it is least sure of, and the label that matters most to each:")
    frame = verdict.to_frame(alpha=0.1).set_index("node")
    for node in verdict.ranking()[:5].tolist():
        row, first = frame.loc[node], jury.influence_on(node).iloc[0]
        side = "for" if first["support"] > 0 else "against"
        print(
            f"paper {node}: {FIELDS[row['predicted_class']]} ({row['probability']:.2f}), possible: {row['label_set']}; "
            f"paper {int(first['train_node'])} ({FIELDS[int(first['label'])]}) speaks {side} it"
        )


if __name__ == "__main__":
    main()
