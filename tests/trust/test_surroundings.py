"""What a caller's code stands in: autocast, inference mode, defaults, threads. The verdict is the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import pytest
import torch
from model_kinds import KINDS, Layers
from test_degenerate_uses import hurried
from torch import nn
from torch_geometric import nn as gnn
from torch_geometric.data import Data

from cases import graph
from jurygcn import GCN, Jury, Verdict, train
from jurygcn.bandit import Play, play_bandit
from jurygcn.errors import ModelError
from jurygcn.learning import METHODS
from jurygcn.settings import Run

NODES = [0, 1, 2, 3, 4, 5, 6, 7]


def small() -> Data:
    data = graph("two_block")
    data.x, data.edge_weight = data.x.float(), None
    return data


def built(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return GCN(4, 8, 3) if name == "gcn" else Layers(gnn.GCNConv(4, 8), gnn.GCNConv(8, 3))


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@contextmanager
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_half": lambda: torch.autocast("cpu", dtype=torch.float16),
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
    "default_dtype": default_dtype,
    "default_device_meta": lambda: torch.device("meta"),
    "default_device_cpu": lambda: torch.device("cpu"),
    "deterministic": deterministic,
    "warnings_are_errors": warnings_are_errors,
    "two_threads": two_threads,
}


def everything(model: nn.Module, data: Data, mode: str) -> tuple[Verdict, list[torch.Tensor]]:
    """A verdict, and whatever else a jury says in numbers."""
    jury = Jury(model, data, NODES, weight_decay=1e-2, votes=mode).fit()
    verdict = jury.verdict()
    health, driven = jury.health(), jury.influence_on(9)
    return verdict, [
        jury.leave_one_out_predictions([9, 2]),
        jury.influences,
        jury.curvature.to_dense(),
        torch.as_tensor([health.relative_gradient, *health.eigenvalues], device="cpu"),
        torch.as_tensor(driven["support"].tolist(), device="cpu"),
    ]


@cache
def everything_plainly(name: str, mode: str) -> tuple[Verdict, list[torch.Tensor]]:
    return everything(built(name), small(), mode)


def assert_same(ours: Verdict, theirs: Verdict) -> None:
    for name in ("p_values", "nodes", "num_jurors", "confidence"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("outputs", "lower", "upper", "loo_errors", "loo_variance", "neighbour_doubt", "jury_outputs"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-6)
        assert not getattr(ours, name).is_inference(), name


@pytest.mark.parametrize("mode", ["exact", "linearized"])
@pytest.mark.parametrize("name", ["gcn", "any_model"])
@pytest.mark.parametrize("where", SURROUNDINGS)
def test_a_verdict_does_not_depend_on_its_surroundings(where: str, name: str, mode: str):
    plain, numbers = everything_plainly(name, mode)
    model, data = built(name), small()
    with SURROUNDINGS[where]():
        verdict, others = everything(model, data, mode)
    assert_same(verdict, plain)
    for ours, theirs in zip(others, numbers):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, check_dtype=where != "default_dtype")


@pytest.mark.parametrize("name", ["gcn", "any_model"])
@pytest.mark.parametrize("where", SURROUNDINGS)
def test_training_does_not_depend_on_its_surroundings(where: str, name: str):
    plain, model, data = built(name), built(name), small()
    nodes = torch.tensor(NODES)
    train(plain, small(), nodes, epochs=5)
    with SURROUNDINGS[where]():
        train(model, data, nodes, epochs=5)
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gcn", "any_model"])
def test_what_was_made_under_inference_mode_is_judged(name: str):
    """Model, features, edges, labels and node list: all are inference tensors."""
    plain, _ = everything_plainly(name, "exact")
    with torch.inference_mode():
        model, data, nodes = built(name), small(), torch.tensor(NODES)
    assert data.x.is_inference()
    verdict = Jury(model, data, nodes, weight_decay=1e-2).fit().verdict()
    assert_same(verdict, plain)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("name", ["gcn", "any_model"])
def test_features_made_under_inference_mode_are_learned_from(name: str, dropout: float):
    models = [built(name) for _ in range(2)]
    if name == "gcn":
        models = [GCN(4, 8, 3, dropout=dropout) for _ in range(2)]
    with torch.inference_mode():
        data, nodes = small(), torch.tensor(NODES)
    train(models[0], data, nodes, epochs=3)
    train(models[1], small(), torch.tensor(NODES), epochs=3)
    for ours, theirs in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(ours, theirs)


def test_a_model_made_under_inference_mode_cannot_be_trained():
    with torch.inference_mode():
        model = built("gcn")
    with pytest.raises(ModelError, match="inference_mode"):
        train(model, small(), torch.tensor(NODES), epochs=1)


def test_the_callers_modes_are_as_they_were():
    model, data = built("gcn"), small()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        Jury(model, data, NODES).fit().verdict()
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    with torch.device("meta"):
        Jury(model, data, NODES).fit()
        assert torch.empty(0).device.type == "meta"


@pytest.mark.parametrize("kind", ["gcn_2", "gcn_frozen", "gcnconv", "pruned", "sparse_mm"])
@pytest.mark.parametrize("mode", ["exact", "linearized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_several_threads_ask_at_once(kind: str, mode: str, dtype: torch.dtype):
    """One jury asked by all, and juries of their own on the same model."""
    torch.manual_seed(0)
    model, data = KINDS[kind].build(4, 3).to(dtype), small()
    data.x = data.x.to(dtype)
    settings = {"weight_decay": 1e-2, "votes": mode, "run": Run(memory="1KB")}
    shared = Jury(model, data, NODES, **settings).fit()
    plain = shared.verdict()

    def ask(turn: int) -> Verdict:
        jury = shared if turn % 2 else Jury(model, data, NODES, **settings).fit()
        return jury.verdict()

    with ThreadPoolExecutor(6) as threads:
        for verdict in threads.map(ask, range(12)):
            assert_same(verdict, plain)


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_model_makes_the_jury_warn(kind: str):
    """Where warnings are errors there is still a verdict."""
    torch.manual_seed(0)
    data, model = small(), KINDS[kind].build(4, 3)
    for mode in ("exact", "linearized"):
        with warnings_are_errors():
            jury = Jury(model, data, NODES, weight_decay=0.05, votes=mode, forward=KINDS[kind].forward).fit()
            strict = jury.verdict([0, 9])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            jury = Jury(model, data, NODES, weight_decay=0.05, votes=mode, forward=KINDS[kind].forward).fit()
            torch.testing.assert_close(strict.lower, jury.verdict([0, 9]).lower)


# --- what else is built on juries and training -------------------------------------------------------------------


def learned(name: str, data: Data) -> torch.Tensor:
    method = hurried(METHODS[name](None))
    fitted = method.fit(data, torch.tensor(NODES[:6], device="cpu"), val_nodes=torch.tensor([8, 9, 10], device="cpu"))
    return fitted.probabilities


@pytest.mark.parametrize("where", ["autocast", "inference_mode", "default_device_meta"])
@pytest.mark.parametrize("name", ["gcn", "laplace", "reweight"])
def test_methods_do_not_depend_on_their_surroundings(name: str, where: str):
    plain, data = learned(name, small()), small()
    with SURROUNDINGS[where]():
        found = learned(name, data)
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["autocast", "inference_mode", "default_device_meta"])
def test_games_do_not_depend_on_their_surroundings(where: str):
    data, means = small(), torch.linspace(0.1, 0.9, 12)
    play = Play(plays=30, batch=10, epochs=5, alpha=0.2)
    plain = play_bandit(data, means, play=play)
    with SURROUNDINGS[where]():
        game = play_bandit(data, means, play=play)
    assert game.arms.tolist() == plain.arms.tolist()
