"""The closed forms of the GCN, and the neighbourhoods of any model, only where they are what the model computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_models import F, made, says
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from jurygcn import GCN, Jury, LeaveOut, train
from jurygcn.errors import ModelError
from jurygcn.graph.propagation import Propagation
from jurygcn.models.gcn import Propagate


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Halfway(Propagate):
    def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
        return 0.5 * super().message(x_j, norm)


class Subclass(GCN):
    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        return 0.5 * super().forward(x, edge_index, edge_weight)


def forward_hook(model: GCN) -> None:
    model.register_forward_hook(lambda module, given, out: 0.5 * out)


def forward_pre_hook(model: GCN) -> None:
    model.register_forward_pre_hook(lambda module, given: (2 * given[0], *given[1:]))


def hook_of_a_submodule(model: GCN) -> None:
    model.propagate.register_forward_hook(lambda module, given, out: out + 0.1)


def message_hook(model: GCN) -> None:
    model.propagate.register_message_forward_hook(lambda module, given, out: 0.5 * out)


def propagate_hook(model: GCN) -> None:
    model.propagate.register_propagate_forward_hook(lambda module, given, out: 0.5 * out)


def aggregation_replaced(model: GCN) -> None:
    model.propagate = Propagate()
    model.propagate.aggr_module = __import__("torch_geometric.nn", fromlist=["x"]).MeanAggregation()


def submodule_replaced(model: GCN) -> None:
    model.propagate = Halfway()


def method_replaced(model: GCN) -> None:
    own = model.propagate.forward
    model.propagate.forward = lambda *given, **named: 0.5 * own(*given, **named)  # type: ignore[method-assign]


def forward_replaced(model: GCN) -> None:
    own = model.forward
    model.forward = lambda x, edge_index, edge_weight=None: 0.5 * own(x, edge_index, edge_weight)  # type: ignore[method-assign]


def parametrized(model: GCN) -> None:
    parametrize.register_parametrization(model.weights, "0", Doubled())


CHANGES: dict[str, Callable[[GCN], None]] = {
    "forward hook": forward_hook,
    "forward pre-hook": forward_pre_hook,
    "hook of a submodule": hook_of_a_submodule,
    "message hook": message_hook,
    "propagate hook": propagate_hook,
    "aggregation replaced": aggregation_replaced,
    "submodule replaced": submodule_replaced,
    "method replaced": method_replaced,
    "parametrized": parametrized,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_gcn_with_something_added_is_judged_with_it(change: str):
    data = made(dtype=torch.float64)
    torch.manual_seed(3)
    model = GCN(F, 8, 3).double().eval()
    plain = says(model, data)
    CHANGES[change](model)
    assert not torch.allclose(says(model, data), plain, atol=1e-3), "the change must matter"
    verdict = Jury(model, data, torch.arange(8)).fit().verdict(advice=None)
    assert torch.allclose(verdict.outputs, says(model, data), atol=1e-9)


def test_a_forward_that_uses_another_model_is_refused():
    """A closure keeps the parameters of the model it was made from, which no juror can move."""
    model = GCN(F, 8, 3).double().eval()
    forward_replaced(model)
    with pytest.raises(ModelError, match="that depend on the model's parameters"):
        Jury(model, made(dtype=torch.float64), torch.arange(8))


def test_a_subclass_is_judged_as_itself():
    data = made(dtype=torch.float64)
    model = Subclass(F, 4, 3).double().eval()
    assert torch.allclose(
        Jury(model, data, torch.arange(8)).fit().verdict(advice=None).outputs, says(model, data), atol=1e-9
    )


def test_a_global_hook_is_seen():
    data = made(dtype=torch.float64)
    model = GCN(F, 4, 3).double().eval()
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, given, out: 0.5 * out if isinstance(module, GCN) else None
    )
    try:
        expected = says(model, data)
        assert torch.allclose(
            Jury(model, data, torch.arange(8)).fit().verdict(advice=None).outputs, expected, atol=1e-9
        )
    finally:
        handle.remove()


def test_training_goes_through_the_hooks():
    data = made()
    models = []
    for hooked in (False, True):
        model = GCN(F, 4, 3)
        if hooked:
            model.register_forward_hook(lambda module, given, out: 3.0 * out)
        train(model, data, torch.arange(8), epochs=5)
        models.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.allclose(*models, atol=1e-3)


@pytest.mark.parametrize("how", ["weight_norm", "prune"])
def test_weights_of_layers_that_are_computed_from_others(how: str):
    """PyG's layers with weight normalisation or pruning: jurors move what was trained."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = GCNConv(F, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.second(torch.relu(self.first(x, edge_index)))

    data = made(dtype=torch.float64)
    torch.manual_seed(0)
    model = Two().double().eval()
    if how == "prune":
        prune.l1_unstructured(model.second, "weight", amount=0.5)
    else:
        parametrizations.weight_norm(model.second)
    verdict = Jury(model, data, torch.arange(8)).fit().verdict(advice=None)
    assert torch.allclose(verdict.outputs, says(model, data), atol=1e-9)


# --- neighbourhoods -----------------------------------------------------------------------------------------


class GlobalBranch(nn.Module):
    """A convolution, and the mean over all nodes behind a gate that is shut."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.near, self.far = GCNConv(F, 3), nn.Linear(F, 3)
        self.gate = nn.Parameter(torch.tensor([gate]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.near(x, edge_index) + self.gate * self.far(x.mean(dim=0, keepdim=True))


def chain(nodes: int) -> Data:
    """A long path, so that few labels see little of the graph."""
    step = torch.arange(nodes - 1)
    edge_index = torch.stack([torch.cat([step, step + 1]), torch.cat([step + 1, step])])
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(nodes, F, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=edge_index, y=torch.arange(nodes) % 3)


@pytest.mark.parametrize("scale", [1.0, 1e-9])
@pytest.mark.parametrize("gate", [0.0, 1e-9, 1.0])
def test_a_global_branch_is_found_whatever_its_gate(gate: float, scale: float):
    data = chain(80)
    data.x = data.x * scale
    torch.manual_seed(0)
    model = GlobalBranch(gate).double().eval()
    labelled = torch.arange(0, 10)
    settings = {"weight_decay": 1e-2, "leave_out": LeaveOut(decay="stated")}  # untrained: it has no effective decay
    jury = Jury(model, data, labelled, **settings).fit()
    whole = Jury(model, data, labelled, forward=lambda m, d: m(d.x, d.edge_index), **settings).fit()
    assert torch.allclose(
        jury.jurors.steps, whole.jurors.steps, rtol=1e-6, atol=1e-9 * float(whole.jurors.steps.abs().max())
    )


def test_a_local_model_is_still_found_local():
    data = chain(80)
    torch.manual_seed(0)
    jury = Jury(GCNConv(F, 3).double().eval(), data, torch.arange(0, 10))
    graph, _ = jury.engine.local(jury.train_nodes)
    assert int(graph.num_nodes) < 20


# --- self-loops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("diffusion", [0, 1, 2, "auto"])
def test_a_self_loop_of_weight_zero(diffusion: int | str):
    """Its node still is in its own closed neighbourhood, and its votes are its own."""
    data = chain(40)
    loops = torch.tensor([[25, 39, 4], [25, 39, 4]])
    data.edge_weight = torch.cat([torch.ones(data.edge_index.shape[1]), torch.zeros(3)]).double()
    data.edge_index = torch.cat([data.edge_index, loops], dim=1)
    torch.manual_seed(0)
    model = GCN(F, 8, 3).double().eval()
    jury = Jury(model, data, torch.arange(8)).fit()
    everyone = jury.verdict(diffusion=diffusion, advice=None)
    assert torch.allclose(everyone.outputs, says(model, data), atol=1e-9)
    for node in (4, 25, 39):
        alone = jury.verdict([node], diffusion=everyone.diffusion, advice=None)
        assert torch.allclose(alone.outputs[0], everyone.outputs[node])
        assert alone.label_counts is not None
        assert everyone.label_counts is not None
        assert torch.equal(alone.label_counts[0], everyone.label_counts[node])


def test_closed_neighbourhoods_hold_their_node():
    data = Data(x=torch.rand(3, 2), edge_index=torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]]))
    data.edge_weight = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    averaging = Propagation.of(data).averaging.toarray()
    assert averaging.tolist() == [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
