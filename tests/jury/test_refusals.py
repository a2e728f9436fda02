"""What cannot be judged is refused, in one sentence that says what to do."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from cases import graph
from jurygcn import Jury, train
from jurygcn.errors import DataError, ModelError


class OfGraphs(nn.Module):
    """One row for the whole graph, or one number."""

    def __init__(self, *, scalar: bool = False) -> None:
        super().__init__()
        self.conv, self.scalar = gnn.GCNConv(4, 3), scalar

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        pooled = gnn.global_mean_pool(self.conv(x, edge_index), None)
        return pooled.sum() if self.scalar else pooled


class OfBatches(OfGraphs):
    """One row for each graph of a batch."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return gnn.global_mean_pool(self.conv(x, edge_index), torch.arange(len(x)) // 6)


class OfEdges(nn.Module):
    """A score for every edge."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = gnn.GCNConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.conv(x, edge_index)
        return z[edge_index[0]] * z[edge_index[1]]


class OfPairs(OfEdges):
    """A score for some pairs of nodes."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index)[:5]


class Several(OfEdges):
    """Logits and an embedding."""

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        z = self.conv(x, edge_index)
        return z, z


class Normed(nn.Module):
    """Two layers around a normalisation."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.norm, self.last = gnn.GCNConv(4, 6), norm, gnn.GCNConv(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x, edge_index))), edge_index)


class Random(nn.Module):
    """Draws in eval mode too."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.conv, self.how = gnn.GCNConv(4, 3), how

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.how == "dropout":
            x = functional.dropout(x, 0.5)
        if self.how == "noise":
            x = x + torch.randn_like(x)
        if self.how == "edges":
            edge_index = edge_index[:, torch.rand(edge_index.shape[1]) < 0.5]
        return self.conv(x, edge_index)


def two_graphs() -> Data:
    data = graph("two_block")
    data.batch = torch.arange(12) // 6
    return data


def pairs() -> Data:
    data = graph("two_block")
    data.edge_label_index = data.edge_index[:, :5]
    return data


REFUSED = {
    "a graph": (OfGraphs(), graph("two_block"), r"per node \(12\), got 1; .* one row per graph: pass forward="),
    "a number": (OfGraphs(scalar=True), graph("two_block"), r"got 1; .* one row per graph"),
    "graphs of a batch": (OfBatches(), two_graphs(), r"got 2; .* one row per graph"),
    "edges": (OfEdges(), graph("two_block"), r"got \d+; .* one row per edge: make the edges nodes"),
    "pairs": (OfPairs(), pairs(), r"got 5; .* one row per edge"),
    "some nodes": (OfPairs(), graph("two_block"), r"got 5; pass forward=lambda"),
    "several results": (Several(), graph("two_block"), "got tuple; pass forward=lambda .* picks the logits"),
    "no running statistics": (
        Normed(nn.BatchNorm1d(6, track_running_stats=False)),
        graph("two_block"),
        r"running statistics, got none in norm .*train with track_running_stats=True",
    ),
    "no running statistics in PyG": (
        Normed(gnn.BatchNorm(6, track_running_stats=False)),
        graph("two_block"),
        r"running statistics, got none in norm\.module",
    ),
    **{
        f"random {how}": (Random(how), graph("two_block"), "two forward passes")
        for how in ("dropout", "noise", "edges")
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_judged(case: str):
    model, data, words = REFUSED[case]
    before = data.to_dict().keys()
    with pytest.raises(ModelError, match=words) as refused:
        Jury(model.double(), data, [0, 1, 2, 3])
    assert not re.search(r"[^.]\. ", str(refused.value)), "one sentence"
    assert data.to_dict().keys() == before


def test_a_forward_function_helps():
    """What the sentences say to do."""
    data = graph("two_block")
    for model in (OfGraphs().double(), Several().double()):
        jury = Jury(model, data, [0, 1, 2, 3], forward=lambda m, d: m.conv(d.x, d.edge_index)).fit()
        torch.testing.assert_close(jury.verdict().outputs, model.conv(data.x, data.edge_index).softmax(dim=1).detach())
    with pytest.raises(ModelError, match="one row per graph"):
        Jury(OfGraphs().double(), data, [0, 1, 2, 3], forward=lambda m, d: m(d.x, d.edge_index))


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(6), gnn.BatchNorm(6), gnn.LayerNorm(6), gnn.GraphNorm(6), gnn.InstanceNorm(6)], ids=repr
)
def test_other_normalisations_are_judged(norm: nn.Module):
    data, model = graph("two_block"), Normed(norm).double().eval()
    verdict = Jury(model, data, [0, 1, 2, 3], weight_decay=0.1).fit().verdict()
    torch.testing.assert_close(verdict.outputs, model(data.x, data.edge_index).softmax(dim=1).detach())


def test_lazy_layers_that_were_never_run():
    data = graph("two_block")
    with pytest.raises(ModelError, match="lazy ones that were never run"):
        Jury(gnn.SAGEConv(-1, 3), data, [0, 1, 2, 3])
    model = gnn.SAGEConv(-1, 3).double()
    model(data.x, data.edge_index)
    train(model, data, torch.arange(4), epochs=3)
    assert len(Jury(model, data, [0, 1, 2, 3], weight_decay=0.1).fit().verdict()) == 12


# --- relations of a graph with one type -------------------------------------------------------------------------------


class Relational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = gnn.RGCNConv(4, 5, 3), gnn.RGCNConv(5, 3, 3)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x, edge_index, edge_type)), edge_index, edge_type)


def test_types_of_edges_are_handed_on():
    data = graph("two_block")
    data.edge_type = torch.arange(data.edge_index.shape[1]) % 3
    torch.manual_seed(0)
    model = Relational().double()
    jury = Jury(model, data, [0, 1, 2, 3], weight_decay=0.1).fit()
    told = Jury(
        *(model, data, [0, 1, 2, 3]), weight_decay=0.1, forward=lambda m, d: m(d.x, d.edge_index, d.edge_type)
    ).fit()
    torch.testing.assert_close(jury.jurors.steps, told.jurors.steps)
    for nodes in (None, [5]):  # all nodes, and a neighbourhood alone
        ours, theirs = jury.verdict(nodes), told.verdict(nodes)
        assert torch.equal(ours.p_values, theirs.p_values)
        torch.testing.assert_close(ours.outputs, theirs.outputs)
    data.edge_type[0] += 1
    with pytest.raises(DataError, match="got other edge types"):
        jury.verdict()


class Tied(nn.Module):
    """One linear layer, on the features and on its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.tied, self.last = nn.Linear(4, 4), gnn.GCNConv(4, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(torch.tanh(self.tied(torch.tanh(self.tied(x)))), edge_index)


def test_a_layer_that_sees_constants_and_others():
    data = graph("two_block")
    torch.manual_seed(0)
    jury = Jury(Tied().double(), data, [0, 1, 2, 3], weight_decay=0.1).fit()
    thetas = jury.engine.theta + jury.jurors.steps
    by_hand = torch.stack([jury.engine.outputs(theta).softmax(dim=1) for theta in thetas])
    torch.testing.assert_close(jury.leave_one_out_predictions(), by_hand)
