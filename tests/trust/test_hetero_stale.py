"""Whatever is done to a HeteroData or its model between two calls: it is judged as it is, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from hetero_models import MODELS, PAPERS, VENUES, logits, made
from jurygcn import Jury
from jurygcn.errors import DataError, ModelError

NODES = torch.arange(0, PAPERS, 2)
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def new_relation(data: HeteroData) -> None:
    data["paper", "resembles", "paper"].edge_index = data[CITES].edge_index.flip(0)


def drop_relation(data: HeteroData) -> None:
    del data["venue", "shows", "paper"]


EDITS: dict[str, Callable[[HeteroData], object]] = {
    "papers in place": lambda data: data["paper"].x.mul_(3),
    "authors in place": lambda data: data["author"].x.mul_(3),
    "authors through .data": lambda data: data["author"].x.data.mul_(3),
    "venues through numpy": lambda data: data["venue"].x.numpy().__imul__(5),
    "one number through numpy": lambda data: data["author"].x.numpy().__setitem__((3, 2), 7.0),
    "authors replaced": lambda data: setattr(data["author"], "x", data["author"].x.flip(0)),
    "storage swapped": lambda data: setattr(data["author"].x, "data", data["author"].x.flip(0).contiguous()),
    "edges between types": lambda data: data[WRITES].edge_index.numpy().__setitem__(0, 0),
    "edges among papers": lambda data: data[CITES].edge_index.numpy().__setitem__(0, 3),
    "edges replaced": lambda data: setattr(data[WRITES], "edge_index", data[WRITES].edge_index[:, 5:]),
}
# Edits that change what the graph is, whether or not a model would run on it.
STRUCTURE: dict[str, Callable[[HeteroData], object]] = {
    "a new relation": new_relation,
    "a relation less": drop_relation,
    "more venues": lambda data: data["venue"].update({"num_nodes": VENUES + 1}),
    "a new attribute": lambda data: data[WRITES].update({"edge_attr": torch.ones(data[WRITES].edge_index.shape[1], 1)}),
    "a new type": lambda data: data["reader"].update({"x": torch.ones(2, 5, dtype=torch.float64)}),
}


def judged(model: nn.Module, data: HeteroData) -> Tensor:
    return Jury(model, data, NODES, node_type="paper").fit().verdict().outputs


def says(model: nn.Module, data: HeteroData) -> Tensor:
    return logits(model, copy.deepcopy(data)).softmax(dim=1).detach()


@pytest.mark.parametrize("kind", ["to_hetero sage", "rgcn"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_graph_is_judged_as_it_is(edit: str, kind: str):
    model, data = made(kind)
    before = judged(model, data)
    assert torch.allclose(before, says(model, data), atol=1e-6)
    EDITS[edit](data)
    assert not torch.allclose(says(model, data), before, atol=1e-4), "the edit must matter"
    assert torch.allclose(judged(model, data), says(model, data), atol=1e-6)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("edit", [*EDITS, *STRUCTURE])
def test_a_jury_of_a_graph_that_changed_is_refused(edit: str, kind: str):
    model, data = made(kind)
    change = EDITS.get(edit) or STRUCTURE[edit]
    jury = Jury(model, data, NODES, node_type="paper").fit()
    jury.verdict()
    change(data)
    for call in (jury.verdict, jury.fit):
        with pytest.raises(DataError, match="this jury was created from"):
            call()


def test_a_jury_of_a_graph_that_changed_is_not_fitted():
    model, data = made("hgt")
    jury = Jury(model, data, NODES, node_type="paper")
    EDITS["authors in place"](data)
    with pytest.raises(DataError, match="this jury was created from"):
        jury.fit()


def test_other_labels():
    model, data = made("hgt")
    jury = Jury(model, data, NODES, node_type="paper").fit()
    data["paper"].y[1] = 0  # nobody was trained on it
    jury.verdict()
    data["paper"].y.numpy()[2] = 1 - data["paper"].y.numpy()[2].clip(0, 1)
    with pytest.raises(DataError, match="got other labels"):
        jury.verdict()


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_was_trained_on(kind: str):
    model, data = made(kind)
    jury = Jury(model, data, NODES, node_type="paper").fit()
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 0.5
    with pytest.raises(ModelError, match="this jury was created from"):
        jury.verdict()


def test_everything_that_uses_the_graph_looks_at_it():
    model, data = made("hgt")
    jury = Jury(model, data, NODES, node_type="paper").fit()
    data["author"].x.numpy()[:] *= 2
    calls: list[Callable[[], object]] = [
        *(jury.fit, jury.verdict, jury.health, jury.leave_one_out_predictions),
        *(lambda: jury.influence_on(3), lambda: jury.fidelity(2), lambda: jury.influences),
        lambda: jury.save("nowhere"),
    ]
    for call in calls:
        with pytest.raises(DataError, match=r"got other `author\.x`"):
            call()


def test_everything_that_a_forward_function_may_read():
    model, data = made("hgt")
    data["author"].shift = torch.zeros(1)
    jury = Jury(model, data, NODES, node_type="paper", forward=logits).fit()
    data["author"].shift += 1
    with pytest.raises(DataError, match=r"got other `author\.shift`"):
        jury.verdict()
