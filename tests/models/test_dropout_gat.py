"""Dropout on the receptive field, the attention network, and the loop's stopping rule."""

from __future__ import annotations

import pytest
import scipy.sparse as sp
import torch
from torch import nn
from torch_geometric.nn import GATConv

from cases import GRAPHS, graph
from jurygcn.baselines.gat import GAT
from jurygcn.errors import SettingError
from jurygcn.models import GCN, ReceptiveField
from jurygcn.models.dropout_field import DropoutField, DroppingFeatures, drop
from jurygcn.models.training import Stopping, descend, outputs_at


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.6])
def test_drop_keeps_the_mean_and_the_rate(rate: float):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        values = drop(torch.ones(400, 501), rate)
    assert float((values == 0).float().mean()) == pytest.approx(rate, abs=0.005)
    assert float(values.mean()) == pytest.approx(1.0, abs=0.01)
    # entries drawn from one random number are independent of each other
    lanes = (values.flatten()[: 4 * 50_000].view(-1, 4) == 0).float()
    if rate:
        assert float(torch.corrcoef(lanes.T).fill_diagonal_(0).abs().max()) < 0.02


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("sparse", [True, False])
def test_without_dropping_the_field_is_the_model(name: str, sparse: bool):
    data = graph(name)
    if sparse:
        data.x = torch.where(torch.rand(data.x.shape, generator=torch.Generator().manual_seed(0)) < 0.2, data.x, 0.0)
    model = GCN(4, 3, 3, num_layers=3, dropout=0.5).double().eval()
    nodes = torch.tensor([4, 1])
    field = DropoutField(ReceptiveField.of(model, data, nodes), data.x, 0.0)
    weights = list(model.weights)
    torch.testing.assert_close(field.logits(weights), model(data.x, data.edge_index)[nodes])
    grads = torch.autograd.grad(field.logits(weights).square().sum(), weights)
    expected = torch.autograd.grad(model(data.x, data.edge_index)[nodes].square().sum(), weights)
    torch.testing.assert_close(grads, expected)


def test_dropping_features_have_the_derivative_of_what_was_kept():
    x = torch.tensor([[0.0, 2.0, 0, 0, 0], [1.0, 0, 0, 3.0, 0], [0, 0, 0, 0, 0]], dtype=torch.float64)
    dropping = DroppingFeatures(sp.csr_matrix(x.numpy()), dtype=torch.float64, device=torch.device("cpu"))
    W = torch.eye(5, dtype=torch.float64, requires_grad=True)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        out = dropping.product(W, 0.5)  # W is the identity: this is the matrix after dropout
    assert set(out.detach().flatten().tolist()) <= {0.0, 4.0, 2.0, 6.0}
    (grad,) = torch.autograd.grad(out.sum(), W)
    torch.testing.assert_close(grad, out.detach().T.sum(dim=1, keepdim=True).expand(5, 5))


def test_training_mode_differs_and_averages_to_eval_mode():
    data = graph("two_block")
    model = GCN(4, 3, 3, num_layers=1, dropout=0.5).double()
    outputs = outputs_at(model, data, torch.arange(12))
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        model.train()
        mean = torch.stack([outputs() for _ in range(4000)]).mean(dim=0)
        assert not torch.equal(outputs(), outputs())
        model.eval()
        torch.testing.assert_close(outputs(), model(data.x, data.edge_index))
    torch.testing.assert_close(mean, outputs(), rtol=0, atol=0.15)


# --- attention ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRAPHS)
def test_attention_equals_pyg(name: str):
    data = graph(name)
    model = GAT(4, 3, hidden=2, heads=3, out_heads=2).double().eval()
    first, second = GATConv(4, 2, heads=3).double(), GATConv(6, 3, heads=2, concat=False).double()
    for theirs, ours in ((first, model.first), (second, model.second)):
        state = {
            "lin.weight": ours.W.T,
            "att_src": ours.sending[None],
            "att_dst": ours.receiving[None],
            "bias": ours.bias + 0.1,
        }
        nn.Module.load_state_dict(theirs, state)
        with torch.no_grad():
            ours.bias += 0.1
    expected = second(torch.nn.functional.elu(first(data.x, data.edge_index)), data.edge_index)
    torch.testing.assert_close(model(data.x, data.edge_index), expected)
    nodes = torch.tensor([3, 0])
    torch.testing.assert_close(model.outputs_at(data, nodes)(), expected[nodes])


# --- stopping -------------------------------------------------------------------------------------------------------


class Counter(nn.Module):
    """Its parameter grows by about the learning rate per epoch, so that an epoch can be told from it."""

    def __init__(self) -> None:
        super().__init__()
        self.t = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.t)


def stop(measures: list[tuple[float, ...]], patience: int) -> tuple[int, int, float]:
    model, told = Counter(), iter(measures)
    training = descend(
        model, lambda _: -model.t, epochs=len(measures), lr=1.0, stopping=Stopping(lambda: next(told), patience)
    )
    return training.epochs, training.best_epoch, float(model.t)


def test_one_measure_stops_after_patience_and_keeps_the_best():
    epochs, best, t = stop([(3.0,), (2.0,), (2.5,), (2.0,), (4.0,), (4.0,), (4.0,)], patience=2)
    assert (epochs, best) == (6, 4)
    assert t == pytest.approx(4.0, abs=1e-3), "the parameters of the best epoch are back"


def test_two_measures_keep_when_both_are_best_and_wait_while_one_is():
    values = [(3.0, 0.5), (2.0, 0.6), (2.5, 0.5), (2.6, 0.4), (1.9, 0.4), (2.0, 0.5), (2.0, 0.5), (2.0, 0.5)]
    epochs, best, _ = stop(values, patience=2)
    assert (epochs, best) == (7, 5)


def test_the_loop_refuses_what_it_cannot_do():
    model = Counter()
    with pytest.raises(SettingError, match="epochs"):
        descend(model, lambda _: model.t, epochs=0, lr=0.1)
    with pytest.raises(SettingError, match="lr"):
        descend(model, lambda _: model.t, epochs=1, lr=0.0)
