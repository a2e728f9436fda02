"""One node type of a HeteroData as a graph: what the view holds, and which graphs are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData

from hetero_models import NODES, PAPERS, VENUES, judged, library, made
from jurygcn import Jury
from jurygcn.data import as_data, check_graph
from jurygcn.data.heterogeneous import as_given, view_of
from jurygcn.errors import DataError, SettingError


def test_a_view_holds_the_whole_graph():
    data = library()
    data["venue"].num_nodes, data["author", "writes", "paper"].edge_attr = VENUES, torch.rand(20, 2)
    data["paper"].node_names, data.name, data.remark = [f"p{i}" for i in range(PAPERS)], "library", 3
    view = view_of(data, "paper")
    assert (view.num_nodes, view.name, view.node_names[2]) == (PAPERS, "library", "p2")
    assert view.x is data["paper"].x
    assert view.y is data["paper"].y
    assert view.edge_index is data["paper", "cites", "paper"].edge_index
    again = as_given(view)
    assert again.metadata() == data.metadata()
    assert again.to_dict().keys() == data.to_dict().keys()
    for ours, theirs in zip(again.stores, data.stores):
        assert dict(ours.items()).keys() == dict(theirs.items()).keys()
        assert all(ours[key] is theirs[key] for key in theirs.keys())  # noqa: SIM118


def test_names_that_collide_stay_apart():
    data = library()
    data["paper"]["edge_index"], data["paper"]["author.x"] = torch.ones(2), torch.zeros(3)
    data["paper.x"].x = torch.ones(2, 2)
    data["paper", "x", "author"].edge_index = torch.zeros(2, 1, dtype=torch.long)
    again = as_given(view_of(data, "paper"))
    for place, name in (("paper", "edge_index"), ("paper", "author.x"), ("author", "x"), ("paper.x", "x")):
        assert again[place][name] is data[place][name]


def test_edges_of_several_relations_count_once():
    data = library()
    cites = data["paper", "cites", "paper"].edge_index
    data["paper", "extends", "paper"].edge_index = torch.cat([cites[:, :3], torch.tensor([[0], [PAPERS - 1]])], dim=1)
    view = view_of(data, "paper")
    wanted = {*map(tuple, cites.T.tolist()), (0, PAPERS - 1)}
    assert set(map(tuple, view.edge_index.T.tolist())) == wanted
    assert view.edge_index.shape[1] == len(wanted)


@pytest.mark.parametrize(
    ("change", "settings", "words"),
    [
        (
            lambda d: d["author"].update({"y": torch.zeros(9)}),
            {"node_type": None},
            "choose one of paper, author, venue",
        ),
        (lambda d: d["paper"].pop("y"), {"node_type": None}, "labels `y` on none"),
        (lambda d: None, {"node_type": "reader"}, "one of paper, author, venue, got 'reader'"),
        (lambda d: d["venue"].pop("x"), {}, "num_nodes for node type 'venue'"),
        (lambda d: d["author"].x.__setitem__((2, 1), torch.nan), {}, "finite `x` of author"),
        (lambda d: d["author", "writes", "paper"].edge_index.__setitem__((0, 3), 9), {}, "ids 0..8 of author in row 0"),
        (
            lambda d: d["author", "writes", "paper"].edge_index.__setitem__((1, 3), -1),
            {},
            "of paper in row 1 .* got -1",
        ),
        (lambda d: d["author", "writes", "paper"].pop("edge_index"), {}, "relation author writes paper, got none"),
        (lambda d: d["author", "likes", "poem"].update({"edge_index": torch.zeros(2, 1).long()}), {}, "type 'poem'"),
        (lambda d: d["paper"].pop("y"), {}, "labels `y` as a tensor"),
    ],
)
def test_graphs_that_are_refused(change: Callable[[HeteroData], object], settings: dict[str, Any], words: str):
    model, data = made("hgt")
    change(data)
    with pytest.raises(DataError, match=words):
        judged(model, data, **settings)


def test_the_only_type_with_labels_and_its_mask():
    model, data = made("hgt")
    given = judged(model, data)
    data["paper"].train_mask = torch.zeros(PAPERS, dtype=torch.bool).index_fill(0, NODES, True)
    found = Jury(model, data, weight_decay=0.03).fit()
    assert found.node_type == "paper"
    assert torch.equal(found.train_nodes, NODES)
    assert torch.equal(found.verdict().p_values, given.verdict().p_values)


def test_a_node_type_needs_types():
    data = Data(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 0, 1]))
    with pytest.raises(SettingError, match="leave node_type out"):
        Jury(nn.Linear(2, 2), data, [0, 1], node_type="paper")


@pytest.mark.parametrize("function", [as_data, check_graph])
def test_where_one_type_is_needed_the_message_says_where_to_go(function: Callable[[Any], Any]):
    with pytest.raises(DataError, match=r"got HeteroData; pass it with node_type= to jurygcn\.Jury or jurygcn\.train"):
        function(library())
