"""Whatever is done to the data or the model between two calls: a verdict is about them as they are, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from small_models import F, made, model_of, says
from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn import GCN, Jury, train
from jurygcn.active.graph_statistics import GraphStatistics
from jurygcn.errors import DataError, ModelError


def judged(model: nn.Module, data: Data) -> Tensor:
    return Jury(model, data, torch.arange(8)).fit().verdict().outputs


def transpose(data: Data) -> None:
    data.x = data.x.t()


def reverse_edges_in_numpy(data: Data) -> None:
    data.edge_index.numpy()[:, :6] = data.edge_index.numpy()[:, 6:12]


def weights_in_numpy(data: Data) -> None:
    data.edge_weight.numpy()[:] *= torch.linspace(0.1, 3.0, len(data.edge_weight)).numpy()


def drop_weights(data: Data) -> None:
    del data.edge_weight


EDITS: dict[str, Callable[[Data], object]] = {
    "in place": lambda data: data.x.mul_(5),
    "through .data": lambda data: data.x.data.mul_(5),
    "through numpy": lambda data: data.x.numpy().__imul__(5),
    "one number through numpy": lambda data: data.x.numpy().__setitem__((3, 4), 7.0),
    "rows swapped through numpy": lambda data: data.x.numpy().__setitem__([0, 1], data.x.numpy()[[1, 0]]),
    "transposed": transpose,
    "replaced": lambda data: setattr(data, "x", data.x.flip(0)),
    "storage swapped": lambda data: setattr(data.x, "data", data.x.flip(0).contiguous()),
    "edges through numpy": reverse_edges_in_numpy,
    "weights through numpy": weights_in_numpy,
    "weights dropped": drop_weights,
}


@pytest.mark.parametrize("kind", ["gcn", "edge_weights"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_graph_is_judged_as_it_is(edit: str, kind: str):
    data = made(weights=True)
    model = model_of(kind, data)
    before = judged(model, data)
    assert torch.allclose(before, says(model, data), atol=1e-5)
    EDITS[edit](data)
    assert not torch.allclose(says(model, data), before, atol=1e-3), "the edit must matter"
    assert torch.allclose(judged(model, data), says(model, data), atol=1e-5)


@pytest.mark.parametrize("kind", ["gcn", "edge_weights", "sage"])
@pytest.mark.parametrize("edit", EDITS)
def test_a_jury_of_a_graph_that_changed_is_refused(edit: str, kind: str):
    data = made(weights=True)
    model = model_of(kind, data)
    for when in ("before fit", "after fit"):
        graph = copy.deepcopy(data)
        jury = Jury(model, graph, torch.arange(8))
        if when == "after fit":
            jury.fit().verdict()
        EDITS[edit](graph)
        if kind == "sage" and "weights" in edit:  # not asked for by the model, but part of the graph
            continue
        with pytest.raises(DataError, match="this jury was created from"):
            jury.fit().verdict() if when == "before fit" else jury.verdict()


def test_other_labels_after_fit_are_refused():
    data = made()
    jury = Jury(model_of("gcn", data), data, torch.arange(8)).fit()
    data.y[10] = 0  # nobody was trained on it
    jury.verdict()
    data.y.numpy()[3] = 1 - data.y.numpy()[3].clip(0, 1)
    with pytest.raises(DataError, match=r"this jury was created from, got other labels"):
        jury.verdict()


@pytest.mark.parametrize("kind", ["gcn", "batch_norm"])
def test_a_model_that_was_trained_on_is_refused(kind: str):
    data = made()
    model = model_of(kind, data)
    jury = Jury(model, data, torch.arange(8)).fit()
    model.train()  # the mode does not matter
    jury.verdict()
    with torch.no_grad():
        next(model.parameters()).numpy().flat[0] += 0.5
    with pytest.raises(ModelError, match="this jury was created from"):
        jury.verdict()
    with pytest.raises(ModelError, match="this jury was created from"):
        jury.influence_on(3)


def test_everything_that_uses_the_graph_looks_at_it():
    data = made()
    jury = Jury(model_of("gcn", data), data, torch.arange(8)).fit()
    data.x.numpy()[:] *= 2
    calls: list[Callable[[], object]] = [
        jury.fit,
        jury.verdict,
        jury.health,
        jury.leave_one_out_predictions,
        lambda: jury.influence_on(3),
        lambda: jury.fidelity(2),
        lambda: jury.influences,
        lambda: jury.panel,
        lambda: jury.save("nowhere"),
    ]
    for call in calls:
        with pytest.raises(DataError, match="this jury was created from"):
            call()


def test_features_made_anew_in_a_function_are_never_those_before():
    """Freed memory is used again: the same address, shape and version with other numbers."""
    data = made(nodes=300)
    model = model_of("gcn", data)

    def shifted(seed: int) -> bool:
        graph = copy.copy(data)
        graph.x = torch.rand(300, F, generator=torch.Generator().manual_seed(seed)) * (1 + seed)
        return torch.allclose(judged(model, graph), says(model, graph), atol=1e-5)

    assert [seed for seed in range(20) if not shifted(seed)] == []


def test_copies_that_share_their_edges():
    data, model = made(), model_of("gcn", made())
    other = copy.copy(data)
    other.x = data.x.flip(1)
    for graph in (data, other, data, other):
        assert torch.allclose(judged(model, graph), says(model, graph), atol=1e-5)


def test_training_sees_the_graph_as_it_is():
    def trained(data: Data) -> Tensor:
        model = GCN(F, 4, 3)
        train(model, data, torch.arange(8), epochs=5)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    data = made()
    trained(data)
    data.x.numpy()[:] *= 3
    assert torch.equal(trained(data), trained(copy.deepcopy(data)))
    data.x.numpy()[2, 2] = float("nan")
    with pytest.raises(DataError, match="node 2"):
        trained(data)


def test_facts_of_a_graph_are_of_the_graph_as_it_is():
    data = made()
    GraphStatistics.of(data).propagated  # noqa: B018 (computed and remembered)
    data.x.numpy()[:] = data.x.numpy()[::-1].copy()
    data.edge_index.numpy()[:, :4] = data.edge_index.numpy()[:, 4:8]
    statistics, fresh = GraphStatistics.of(data), GraphStatistics.of(copy.deepcopy(data))
    assert (statistics.propagated == fresh.propagated).all()
    assert (statistics.degree == fresh.degree).all()


def test_threads_that_edit_their_own_copies():
    model = model_of("gcn", made())
    base = made(nodes=60)

    def run(seed: int) -> bool:
        graph = copy.copy(base)
        graph.x = torch.rand(60, F, generator=torch.Generator().manual_seed(seed))
        ok = True
        for _ in range(5):
            graph.x.data.mul_(1.5)
            ok &= torch.allclose(judged(model, graph), says(model, graph), atol=1e-5)
        return ok

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


def test_an_unchanged_graph_is_propagated_once(monkeypatch: pytest.MonkeyPatch):
    from jurygcn.models import receptive_field

    calls = []
    compute = receptive_field.Propagation._compute
    monkeypatch.setattr(receptive_field.Propagation, "_compute", staticmethod(lambda d: calls.append(d) or compute(d)))
    data, model = made(nodes=40), model_of("gcn", made())
    for _ in range(3):
        judged(model, data)
    assert len(calls) == 1
