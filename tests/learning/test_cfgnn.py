"""CF-GNN against PyG's layers, sets made by hand, and a training loop of its own."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

from jurygcn.baselines import cfgnn
from jurygcn.baselines.cfgnn import CFGNN, Correction, halves, mean_size
from jurygcn.baselines.classifier import logits_of
from jurygcn.baselines.networks import GCNClassifier
from jurygcn.data import load_dataset, synthetic
from jurygcn.errors import SettingError
from jurygcn.evaluation import mean_set_size, set_coverage, split_conformal
from jurygcn.graph.propagation import Propagation

ALPHA = 0.1
SMALL = CFGNN(hidden=6, layers=2, lr=0.02, size_weight=0.5, softness=0.2, target=0.5, epochs=40, first=15, dropout=0.0)


@pytest.fixture(scope="module")
def data() -> Data:
    data = synthetic(num_nodes=150, num_edges=500, num_features=5, num_classes=4, seed=3)
    data.x = data.x.double()
    return data


@pytest.fixture(scope="module")
def pi(data: Data) -> Tensor:
    noise = torch.randn(150, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.softmax(noise + 1.5 * torch.eye(4, dtype=torch.float64)[data.y], dim=1)


def parts() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    drawn = torch.randperm(150, generator=torch.Generator().manual_seed(1))
    return drawn[:30], drawn[30:55], drawn[55:80], drawn[80:]


class Peer(nn.Module):
    """The same network from PyG's layers, on the whole graph, with the weights of ours."""

    def __init__(self, ours: Correction, edge_index: Tensor) -> None:
        super().__init__()
        self.edge_index, self.convs = edge_index, nn.ModuleList()
        for layer in ours.layers:
            a, b = layer.W.shape
            conv = (GATConv if ours.attention else GCNConv)(a, b).double()
            conv.lin.weight.data = layer.W.detach().T.clone()
            conv.bias.data = layer.bias.detach().clone()
            if ours.attention:
                conv.att_src.data = layer.ends.detach()[:, 0].view(1, 1, -1).clone()
                conv.att_dst.data = layer.ends.detach()[:, 1].view(1, 1, -1).clone()
            self.convs.append(conv)

    def forward(self, x: Tensor) -> Tensor:
        for position, conv in enumerate(self.convs):
            x = conv(x.relu() if position else x, self.edge_index)
        return x


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_network_against_pyg(data: Data, pi: Tensor, attention: bool, layers: int):
    model = Correction(4, hidden=6, layers=layers, attention=attention, dropout=0.5).double().eval()
    for layer in model.layers:
        nn.init.normal_(layer.bias)
    expected = Peer(model, data.edge_index)(pi)
    adjacency = Propagation.of(data).adjacency
    for nodes in (torch.arange(150), torch.tensor([7]), torch.tensor([90, 3, 41])):
        torch.testing.assert_close(model.outputs_at(pi, adjacency, nodes)(), expected[nodes])
    model.train()
    dropped = model.outputs_at(pi, adjacency, torch.arange(150))
    assert not dropped().equal(dropped()), "training has dropout"


def test_soft_size_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], dtype=torch.float64)
    own = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)[torch.randperm(19)]  # rank 2 of 19: 0.1
    found = CFGNN(softness=0.05, target=1.0).soft_size(p, own, alpha=0.1)
    sizes = [sum(1 / (1 + np.exp(-(v - 0.1) / 0.05)) for v in row) for row in p.tolist()]
    assert float(found) == pytest.approx(np.mean([max(size - 1, 0) for size in sizes]))
    few = CFGNN(softness=0.05, target=1.0).soft_size(p, own[:3], alpha=0.1)
    sizes = [sum(1 / (1 + np.exp(-(v - float(own[:3].min())) / 0.05)) for v in row) for row in p.tolist()]
    assert float(few) == pytest.approx(np.mean([max(size - 1, 0) for size in sizes])), "too few: the smallest"


@pytest.mark.parametrize(("count", "alpha"), [(41, 0.1), (40, 0.2), (7, 0.1)])
def test_the_size_that_chooses_the_epoch(data: Data, pi: Tensor, count: int, alpha: float):
    """The authors' APS: sums of sorted probabilities, a rank in a sorted list, the mean over divisions."""
    p, y = pi[:count].numpy(), data.y[:count].numpy()
    order = p.argsort(axis=1)[:, ::-1]
    upto = np.take_along_axis(np.take_along_axis(p, order, axis=1).cumsum(axis=1), order.argsort(axis=1), axis=1)
    sizes = []
    for calibration, rest in zip(*halves(count, seed=5)):
        assert sorted([*calibration.tolist(), *rest.tolist()]) == list(range(count))
        n = len(calibration)
        rank = min(int(np.ceil((n + 1) * (1 - alpha))), n)
        bound = np.sort(upto[calibration, y[calibration]])[rank - 1]
        sizes.append((upto[rest] <= bound + 1e-12).sum() / len(rest))
    assert mean_size(pi[:count], data.y[:count], halves(count, seed=5), alpha=alpha) == pytest.approx(np.mean(sizes))


@pytest.mark.parametrize("attention", [True, False])
def test_training_against_a_loop_of_its_own(data: Data, pi: Tensor, attention: bool, monkeypatch: pytest.MonkeyPatch):
    """PyG's layers on the whole graph, the loss from its formula, the best of all epochs kept."""
    train, tuning, choosing, _ = parts()
    started: list[Peer] = []

    def remembered(model: Correction, *args: object, **kwargs: object) -> object:
        torch.manual_seed(0)
        for layer in model.layers:
            layer.reset_parameters()
        started.append(Peer(model, data.edge_index))
        return real(model, *args, **kwargs, warm_start=True)

    real = cfgnn.descend
    monkeypatch.setattr(cfgnn, "descend", remembered)
    settings = replace(SMALL, attention=attention)
    given = {"train": train, "tuning": tuning, "choosing": [choosing], "alpha": ALPHA, "seed": 4}
    found = settings.correct(pi, data.y, Propagation.of(data).adjacency, **given)[0]

    peer, y = started[0], data.y
    optimizer = torch.optim.Adam(peer.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    sized, calibrating = tuning[: len(tuning) // 2], tuning[len(tuning) // 2 :]
    smallest, best, sizes = np.inf, None, []
    for epoch in range(1, settings.epochs + 1):
        optimizer.zero_grad()
        z = peer(pi)
        loss = nn.functional.cross_entropy(z[train], y[train])
        if epoch > settings.first:
            p = torch.softmax(z, dim=1)
            own = p[calibrating, y[calibrating]].sort().values
            bound = own[int(np.floor(ALPHA * (len(own) + 1))) - 1]
            soft = torch.sigmoid((p[sized] - bound) / settings.softness).sum(dim=1)
            loss = loss + settings.size_weight * (soft - settings.target).clamp_min(0).mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            p = torch.softmax(peer(pi), dim=1)
        size = mean_size(p[choosing], y[choosing], halves(len(choosing), seed=4), alpha=ALPHA)
        sizes.append(size)
        if size < smallest:
            smallest, best = size, copy.deepcopy(p)
    assert np.argmin(sizes) + 1 < settings.epochs, "the best epoch is not the last"
    torch.testing.assert_close(found, best, atol=1e-7, rtol=1e-6)


def test_labels_that_it_reads(data: Data, pi: Tensor):
    """Those of calibration and test nodes have no influence, all others have; the seed decides the rest."""
    train, tuning, choosing, rest = parts()
    adjacency = Propagation.of(data).adjacency
    given = {"train": train, "tuning": tuning, "choosing": [choosing, tuning], "alpha": ALPHA}
    settings = replace(SMALL, dropout=0.5)

    def corrected(y: Tensor, seed: int = 0) -> list[Tensor]:
        return settings.correct(pi, y, adjacency, **given, seed=seed)

    first, second = corrected(data.y)
    for nodes, changes in ((rest, False), (train, True), (tuning, True)):
        y = data.y.clone()
        y[nodes] = (y[nodes] + 1) % 4
        assert all(a.equal(b) is not changes for a, b in zip((first, second), corrected(y)))
    y = data.y.clone()
    y[choosing] = (y[choosing] + 1) % 4
    assert corrected(y)[1].equal(second), "labels that choose one epoch do not touch the other"
    assert all(a.equal(b) for a, b in zip((first, second), corrected(data.y)))
    assert not corrected(data.y, seed=1)[0].equal(first)


def test_settings_and_refusals(data: Data, pi: Tensor):
    assert CFGNN.preset("cora") == CFGNN(True, 2, 64, 1e-4, 1.0, 1.0, 0.1)
    assert CFGNN.preset("citeseer").layers == 3
    assert CFGNN.preset("pubmed").lr == 0.1
    assert CFGNN.preset(None) == CFGNN()
    with pytest.raises(SettingError, match="expected a preset"):
        CFGNN.preset("mars")
    train, tuning, choosing, _ = parts()
    with pytest.raises(SettingError, match="at least 2 tuning labels"):
        SMALL.correct(
            pi,
            data.y,
            Propagation.of(data).adjacency,
            train=train,
            tuning=tuning[:1],
            choosing=[choosing],
            alpha=ALPHA,
        )


@pytest.mark.slow
@pytest.mark.data
def test_sets_become_smaller_with_as_many_labels_as_its_authors_have():
    """A fifth of Cora trains, a tenth chooses the epoch, 474 labels each train the correction and calibrate."""
    data = load_dataset("cora")
    drawn = torch.randperm(2708, generator=torch.Generator().manual_seed(0))
    train, choosing, tuning, calibration, test = drawn.split([541, 271, 474, 474, 948])
    model, _ = GCNClassifier(epochs=200).train(data, train, seed=0)
    before = torch.softmax(logits_of(model, data), dim=1)
    given = {"train": train, "tuning": tuning, "choosing": [choosing], "alpha": ALPHA}
    after = CFGNN.preset("cora").correct(before, data.y, Propagation.of(data).adjacency, **given)[0]
    sets = [split_conformal(p, data.y, calibration, alpha=ALPHA, score="aps")[test] for p in (before, after)]
    assert all(0.85 < set_coverage(some, data.y[test]) < 0.95 for some in sets)
    assert mean_set_size(sets[1]) < 0.8 * mean_set_size(sets[0])
