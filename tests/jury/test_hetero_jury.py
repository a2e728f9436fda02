"""A jury of one node type of a HeteroData: what it takes, what it says in words, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HGTConv

from hetero_models import CLASSES, MODELS, PAPERS, VENUES, library, logits, made
from jurygcn import Jury, Retraining, train
from jurygcn.data import as_data, check_graph
from jurygcn.data.heterogeneous import as_given, view_of
from jurygcn.engine import engine_of
from jurygcn.errors import DataError, ModelError, SettingError
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.leave_one_out.retraining import retrained_parameters, without_node
from jurygcn.report import Report, report_on

NODES = torch.arange(0, PAPERS, 2)


def judged(model: nn.Module, data: HeteroData, **settings: Any) -> Jury:
    return Jury(model, data, NODES, **{"node_type": "paper", "weight_decay": 0.03, **settings}).fit()


# --- the view ---------------------------------------------------------------------------------------------------


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


# --- what is said in words ------------------------------------------------------------------------------------------


def test_without_relations_among_papers():
    model, data = made("hgt", cites=False)
    jury = judged(model, data, retraining=Retraining(epochs=5, processes=1))
    verdict, sentence = jury.verdict(), "No relation joins paper nodes with each other"
    assert verdict.diffusion == 0
    assert sentence in verdict.claim(0.2).words
    assert "number of averages was chosen" not in verdict.claim(0.2).words
    health = jury.health()
    assert any(sentence in remark for remark in health.remarks)
    assert not any(sentence in advice for advice in health.advice)
    assert "neighbour_doubt" not in verdict.to_frame()
    with pytest.raises(SettingError, match=f"expected diffusion=0 or 'auto', got 2. {sentence}"):
        jury.verdict(diffusion=2)
    with pytest.raises(SettingError, match="use ambiguity"):
        verdict.ranking("neighbour_doubt")
    retrained = Jury(model, data, torch.arange(12), weight_decay=0.03, leave_out="retrain", retraining=jury.retraining)
    claim = retrained.fit().verdict().claim(0.1)
    assert claim.kind == "promise"
    assert claim.words.endswith("so votes are not averaged over neighbours.")


def test_with_relations_among_papers():
    model, data = made("hgt")
    jury = judged(model, data)
    verdict = jury.verdict(diffusion=1)
    assert verdict.advice is None
    with pytest.raises(SettingError, match="without types of nodes"):
        _ = jury.panel
    assert jury.health().remarks == ()
    assert "No relation" not in verdict.claim(0.2).words
    assert "14 paper nodes" in repr(jury)


@pytest.mark.parametrize("cites", [True, False])
def test_the_report_is_about_the_papers(cites: bool, tmp_path: Path):
    model, data = made("hgt", cites=cites)
    data["paper"].node_names = [f"title {i}" for i in range(PAPERS)]
    jury = judged(model, data)
    report = report_on(jury, jury.verdict(), health=jury.health())
    page = Report.load(report.save(tmp_path / "report.json")).content
    assert page == report.content
    assert page["title"] == "Verdict on paper nodes"
    assert len(page["rows"]["node"]) == PAPERS
    assert set(page["rows"]["name"]) == set(data["paper"].node_names)
    assert any("those of type paper" in note for note in page["notes"])
    assert ("doubt" in page["rows"]) == cites
    assert ("doubt" in {column["key"] for column in page["columns"]}) == cites
    assert any("No relation joins" in said for part in page["checkup"] for said in part["said"]) != cites
    assert (len(page["edges"]["pairs"]) > 0) == cites
    degree = np.zeros(PAPERS, dtype=int)
    links = {("author", "writes", "paper"): 1, ("venue", "shows", "paper"): 1}  # each pair once, not both directions
    for relation, end in links.items():
        np.add.at(degree, data[relation].edge_index[end].numpy(), 1)
    if cites:
        pairs = {tuple(sorted(pair)) for pair in data["paper", "cites", "paper"].edge_index.T.tolist()}
        np.add.at(degree, np.array(sorted(pairs)).reshape(-1), 1)
    assert dict(zip(page["rows"]["node"], page["rows"]["degree"])) == dict(enumerate(degree.tolist()))


def test_labels_on_papers_with_other_degrees():
    """Degrees count the edges of all relations."""
    model, data = made("hgt", cites=False)
    writes = ("author", "writes", "paper")
    generator = torch.Generator().manual_seed(0)
    data["paper"].x = torch.rand(400, 5, generator=generator, dtype=torch.float64)
    data["paper"].y = torch.randint(0, CLASSES, (400,), generator=generator)
    much = torch.stack([torch.arange(900) % 9, torch.arange(900) % 40])
    data[writes].edge_index = torch.cat([torch.stack([torch.arange(400) % 9, torch.arange(400)]), much], dim=1)
    of_many = Jury(model, data, torch.arange(40), node_type="paper", weight_decay=0.03)
    at_random = Jury(model, data, torch.randperm(400, generator=generator)[:40], node_type="paper", weight_decay=0.03)
    assert any("other degrees" in words for words in of_many.label_origin[1])
    assert at_random.label_origin[1] == ()


@pytest.mark.parametrize(("kind", "hops"), [("to_hetero sage", 2), ("hgt", 1), ("hetero_conv", 2), ("rgcn", 2)])
def test_kinds_of_uncertainty_follow_all_relations(kind: str, hops: int):
    """Prop. 1, by walks along the edges of all relations, one hop per layer."""
    model, data = made(kind)
    assert num_hops(model) == hops
    few = torch.tensor([0, 5, 10])
    verdict = Jury(model, data, few, node_type="paper", weight_decay=0.03).fit().verdict()
    reached = {("paper", int(node)): {int(node)} for node in few}
    for _ in range(hops):
        grown = {key: set(value) for key, value in reached.items()}
        for (source, _, target), edge_index in data.edge_index_dict.items():
            for a, b in edge_index.T.tolist():
                grown.setdefault((target, b), set()).update(reached.get((source, a), set()))
        reached = grown
    near = [bool(reached.get(("paper", u), set()) - {u}) for u in range(PAPERS)]
    assert verdict.kinds == ["epistemic" if other else "aleatoric+epistemic" for other in near]
    assert len(set(near)) == 2, "the case must have both kinds"


def test_regression():
    model, data = made("hetero_conv")
    data["paper"].y = torch.randn(PAPERS, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    jury = judged(model, data, loss="mse")
    verdict = jury.verdict(alpha=0.2)
    torch.testing.assert_close(verdict.outputs, logits(model, data).detach())
    for k, u in ((0, 3), (4, 9)):
        moved = copy.deepcopy(model)
        with torch.no_grad():
            for p, step in zip(moved.parameters(), jury.jurors.steps[k].split([p.numel() for p in moved.parameters()])):
                p += step.view_as(p)
            vote = jury.leave_one_out_predictions([u])[k, 0]
            torch.testing.assert_close(vote, logits(moved, data)[u])
