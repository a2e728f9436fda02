"""A jury of one node type of a HeteroData: which models it takes and refuses, retraining, storage, processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HGTConv

from hetero_models import CLASSES, MODELS, NODES, PAPERS, VENUES, judged, library, logits, made
from jurygcn import Jury, Retraining, train
from jurygcn.data.heterogeneous import as_given, view_of
from jurygcn.engine import engine_of
from jurygcn.errors import DataError, ModelError, SettingError
from jurygcn.leave_one_out.retraining import retrained_parameters, without_node

# --- how models are called --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_of_the_callers_is_changed(kind: str):
    model, data = made(kind)
    state, before = copy.deepcopy(model.state_dict()), copy.deepcopy(data)
    model.train()
    judged(model, data).verdict()
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert data.to_dict().keys() == before.to_dict().keys()
    for ours, theirs in zip(data.stores, before.stores):
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs.keys())  # noqa: SIM118


@pytest.mark.parametrize("kind", MODELS)
def test_single_precision_and_other_integers(kind: str):
    model, data = made(kind, dtype=torch.float32)
    wanted = judged(model, data).verdict()
    for relation in data.edge_types:
        data[relation].edge_index = data[relation].edge_index.int()
    found = judged(model, data).verdict()
    assert found.outputs.dtype == torch.float32
    assert torch.equal(found.p_values, wanted.p_values)
    for relation in data.edge_types:
        data[relation].edge_index = data[relation].edge_index.long()
    torch.testing.assert_close(found.outputs, logits(model, data).softmax(dim=1).detach())


class WithAttributes(nn.Module):
    """Takes edge attributes by relation."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.relations = data.edge_types
        convolutions = {r: gnn.GATConv((-1, -1), CLASSES, edge_dim=2, add_self_loops=False) for r in self.relations}
        self.conv = gnn.HeteroConv(convolutions)

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any) -> Any:
        return self.conv(x_dict, edge_index_dict, edge_attr_dict)


def test_edge_attributes_are_handed_on():
    data = library()
    generator = torch.Generator().manual_seed(3)
    for relation in data.edge_types:
        edges = data[relation].edge_index.shape[1]
        data[relation].edge_attr = torch.rand(edges, 2, generator=generator, dtype=torch.float64)
    model = WithAttributes(data).double()
    wanted = model(data.x_dict, data.edge_index_dict, data.edge_attr_dict)["paper"].softmax(dim=1).detach()
    jury = judged(model, data)
    torch.testing.assert_close(jury.verdict().outputs, wanted)
    data["author", "writes", "paper"].edge_attr[3, 1] += 1.0
    with pytest.raises(DataError, match=r"other `author\.writes\.paper\.edge_attr`"):
        jury.verdict()


@pytest.mark.parametrize("kind", ["to_hetero sage", "hgt"])
def test_a_forward_function_gets_the_whole_graph(kind: str):
    model, data = made(kind)
    wanted = judged(model, data).verdict()
    found = judged(model, data, forward=logits)
    assert torch.equal(found.verdict().p_values, wanted.p_values)
    train(model, data, NODES, node_type="paper", forward=logits, epochs=2)
    with pytest.raises(ModelError, match="this jury was created from"):
        found.verdict()


class Careless(nn.Module):
    """Writes its hidden layer into the dictionary that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> Tensor:
        x_dict["paper"] = torch.tanh(self.first(x_dict["paper"]))
        return self.last(x_dict["paper"])


class Plain(Careless):
    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> Tensor:
        return self.last(torch.tanh(self.first(x_dict["paper"])))


def test_a_model_that_writes_into_its_dictionaries():
    data = library()
    verdicts = []
    for build in (Careless, Plain):
        torch.manual_seed(0)
        model = build().double()
        train(model, data, NODES, node_type="paper", epochs=20)
        verdicts.append(judged(model, data).verdict())
    assert torch.equal(verdicts[0].p_values, verdicts[1].p_values)
    torch.testing.assert_close(verdicts[0].outputs, verdicts[1].outputs)


class Embedded(nn.Module):
    """Learns the features of papers, which have none."""

    def __init__(self) -> None:
        super().__init__()
        self.papers, self.conv = nn.Embedding(PAPERS, 4), gnn.SAGEConv((-1, -1), CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        assert "paper" not in x_dict
        return self.conv((x_dict["author"], self.papers.weight), edge_index_dict["author", "writes", "paper"])


def test_papers_without_features():
    data = library()
    del data["paper"].x
    model = Embedded().double()
    model(data.x_dict, data.edge_index_dict)
    jury = judged(model, data)
    wanted = model(data.x_dict, data.edge_index_dict).softmax(dim=1).detach()
    torch.testing.assert_close(jury.verdict().outputs, wanted)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda d: MODELS["to_hetero sage"](d), "lazy ones that were never run"),
        (lambda d: HGTConv(-1, 3, d.metadata()), "lazy ones that were never run"),
        (
            lambda d: gnn.HeteroConv({("paper", "at", "venue"): gnn.SAGEConv((5, 3), 3)}),
            "outputs for paper nodes, got .* venue",
        ),
        (lambda d: nn.Linear(5, 3), r"expected model\(data\.x_dict, data\.edge_index_dict\) to run"),
        (
            lambda d: (d["venue"].update({"num_nodes": VENUES, "x": None}), MODELS["rgcn"](d))[1],
            "none on venue; add them",
        ),
    ],
)
def test_models_that_are_refused(model: Callable[[HeteroData], nn.Module], words: str):
    data = library()
    with pytest.raises(ModelError, match=words) as refused:
        judged(model(data).double(), data)
    assert "\n" not in str(refused.value)


def test_training_refuses_lazy_layers_too():
    data = library()
    with pytest.raises(ModelError, match="call the model once on the graph"):
        train(MODELS["to_hetero sage"](data), data, NODES, node_type="paper")


# --- retraining, storage, other processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_retraining_without_the_label(kind: str):
    """By the library's loop, in other processes, and by hand."""
    model, data = made(kind)
    settings = {"epochs": 15, "seed": 3, "lr": 0.02}
    engine = engine_of(model, view_of(data, "paper"), NODES, weight_decay=0.03)
    rows = [retrained_parameters(engine, Retraining(**settings, processes=p), [1, 4]) for p in (1, 2)]
    torch.testing.assert_close(rows[0], rows[1])
    for row, left_out in zip(rows[0], (1, 4)):
        juror = copy.deepcopy(model)
        weights = torch.ones(len(NODES)).index_fill(0, torch.tensor([left_out]), 0.0)
        train(juror, data, NODES, node_type="paper", weight_decay=0.03, node_weights=weights, **settings)
        torch.testing.assert_close(row, torch.cat([p.detach().reshape(-1) for p in juror.parameters()]))


def test_retraining_without_the_node():
    model, data = made("hetero_conv")
    node, view = int(NODES[1]), view_of(data, "paper")
    data["author", "writes", "paper"].edge_attr = torch.rand(data["author", "writes", "paper"].edge_index.shape[1])
    cut = as_given(without_node(view_of(data, "paper"), node))
    for relation in data.edge_types:
        old, new = data[relation].edge_index.T.tolist(), cut[relation].edge_index.T.tolist()
        assert new == [
            ends for ends in old if not any(e == node and kind == "paper" for e, kind in zip(ends, relation[::2]))
        ]
    writes = data["author", "writes", "paper"]
    kept = writes.edge_index[1] != node
    assert torch.equal(cut["author", "writes", "paper"].edge_attr, writes.edge_attr[kept])
    assert torch.equal(cut["paper"].x, data["paper"].x)
    engine = engine_of(model, view, NODES, weight_decay=0.03)
    recipe = {"epochs": 15, "seed": 3, "processes": 1}
    removed = retrained_parameters(engine, Retraining(**recipe, remove="node"), [1])[0]
    kept_in = retrained_parameters(engine, Retraining(**recipe), [1])[0]
    assert (removed - kept_in).norm() > 1e-3


@pytest.mark.parametrize("kind", MODELS)
def test_votes_counted_in_other_processes(kind: str):
    model, data = made(kind)
    wanted = judged(model, data).verdict()
    assert torch.equal(judged(model, data, run=2).verdict().p_values, wanted.p_values)


@pytest.mark.parametrize("kind", MODELS)
def test_saved_and_loaded(kind: str, tmp_path: Path):
    model, data = made(kind)
    jury = judged(model, data)
    jury.save(tmp_path / "jury")
    again = Jury.load(tmp_path / "jury", model, data)
    assert again.node_type == "paper"
    assert torch.equal(again.verdict().p_values, jury.verdict().p_values)
    data["author"].x[0, 0] += 1e-9
    with pytest.raises(DataError, match=r"saved for other `author\.x`"):
        Jury.load(tmp_path / "jury", model, data)
    with pytest.raises(SettingError, match="expected a HeteroData"):
        Jury.load(tmp_path / "jury", model, Data(x=data["paper"].x))
