"""Every method through the one interface, and the post-hoc ones by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_graphs import communities, parts
from torch import Tensor
from torch.nn import functional

from jurygcn import learning
from jurygcn.baselines.cagcn import Factors, margins
from jurygcn.baselines.classifier import logits_of
from jurygcn.baselines.gats import Temperatures
from jurygcn.baselines.gebm import gebm_energy
from jurygcn.baselines.gnnsafe import propagated_energy
from jurygcn.baselines.posthoc import best_temperature
from jurygcn.baselines.sampling import dropout_samples
from jurygcn.errors import DataError, SettingError
from jurygcn.graph.propagation import normalized_adjacency
from jurygcn.models import GCN

DATA = communities(noise=0.6)
TRAIN, VAL, TEST = parts(DATA, labels=15)
FEWER = {
    "sgnn": {"epochs": 150, "samples": 10},
    "gat": {"patience": 60},
    "gpn": {"patience": 20},
    "mc-dropout": {"samples": 10},
    "ensemble": {"members": 3},
    "cagcn": {"epochs": 60},
    "gats": {"epochs": 60},
    "self-train": {"rounds": (0.1, 0.3), "hops": 2},
    "self-train-validated": {"rounds": (0.1, 0.3), "teacher_epochs": 60, "components": (5,), "max_teachers": 4},
}
USE_VALIDATION = ("gat", "gpn", "temperature", "cagcn", "gats", "self-train-validated")
FITTED: dict[str, learning.Fitted] = {}


def quick(name: str) -> learning.Method:
    return dataclasses.replace(learning.METHODS[name](None), **FEWER.get(name, {}))


def fitted(name: str) -> learning.Fitted:
    if name not in FITTED:
        FITTED[name] = quick(name).fit(DATA, TRAIN, val_nodes=VAL, seed=1)
    return FITTED[name]


@pytest.mark.parametrize("name", learning.METHODS)
def test_one_interface(name: str):
    found = fitted(name)
    p = found.predict_proba()
    assert p.shape == (150, 3)
    torch.testing.assert_close(p.sum(dim=1), torch.ones(150), rtol=0, atol=1e-5)
    assert torch.equal(found.predict(TEST), p[TEST].argmax(dim=1))
    for kind, score in found.uncertainties.items():
        assert score.shape == (150,)
        assert bool(torch.isfinite(score).all()), kind
        assert torch.equal(found.uncertainty(kind, nodes=TEST), score[TEST])
    assert torch.equal(found.uncertainty(), next(iter(found.uncertainties.values())))
    assert not found.model.training
    with pytest.raises(SettingError, match="uncertainties"):
        found.uncertainty("nonsense")


@pytest.mark.parametrize("name", learning.METHODS)
def test_every_method_learns(name: str):
    correct = (fitted(name).predict(TEST) == DATA.y[TEST]).float().mean()
    assert float(correct) > 0.6, "a third would be chance"


@pytest.mark.parametrize("name", learning.METHODS)
def test_the_seed_decides_everything(name: str):
    first = fitted(name).probabilities
    with torch.random.fork_rng():
        torch.manual_seed(99)  # what others draw must not matter
        assert torch.equal(quick(name).fit(DATA, TRAIN, val_nodes=VAL, seed=1).probabilities, first)
    assert not torch.equal(quick(name).fit(DATA, TRAIN, val_nodes=VAL, seed=2).probabilities, first)


@pytest.mark.parametrize("name", [name for name in learning.METHODS if name not in USE_VALIDATION])
def test_labels_outside_training_are_not_looked_at(name: str):
    hidden = DATA.clone()
    hidden.y = torch.full_like(DATA.y, 0)
    hidden.y[TRAIN] = DATA.y[TRAIN]
    blind = quick(name).fit(hidden, TRAIN, seed=1)
    assert torch.equal(blind.probabilities, fitted(name).probabilities)


@pytest.mark.parametrize("name", USE_VALIDATION)
def test_no_labels_but_those_and_validation_are_looked_at(name: str):
    hidden = DATA.clone()
    hidden.y = torch.full_like(DATA.y, 0)
    hidden.y[TRAIN], hidden.y[VAL] = DATA.y[TRAIN], DATA.y[VAL]
    blind = quick(name).fit(hidden, TRAIN, val_nodes=VAL, seed=1)
    assert torch.equal(blind.probabilities, fitted(name).probabilities)


@pytest.mark.parametrize("name", USE_VALIDATION)
def test_validation_nodes_are_asked_for(name: str):
    with pytest.raises(SettingError, match="val_nodes"):
        quick(name).fit(DATA, TRAIN, seed=0)
    with pytest.raises(SettingError, match="in both"):
        quick(name).fit(DATA, TRAIN, val_nodes=TRAIN[:2], seed=0)


def test_bad_training_nodes_are_refused():
    with pytest.raises(DataError, match="expected at least one node"):
        learning.GCNClassifier().fit(DATA, torch.zeros(0, dtype=torch.long))
    unlabelled = DATA.clone()
    unlabelled.y = DATA.y.clone()
    unlabelled.y[TRAIN[0]] = -1
    with pytest.raises(DataError, match=f"node {int(TRAIN[0])}"):
        learning.GCNClassifier().fit(unlabelled, TRAIN)
    real = DATA.clone()
    real.y = torch.rand(150)
    with pytest.raises(DataError, match="regression"):
        learning.self_train(real, TRAIN)


# --- post-hoc ---------------------------------------------------------------------------------------------------------


def test_temperature_is_the_best_of_a_grid():
    generator = torch.Generator().manual_seed(0)
    logits, y = 6 * torch.randn(80, 3, generator=generator), torch.randint(3, (80,), generator=generator)
    logits[torch.arange(80), y] += 4
    found = best_temperature(logits, y)
    grid = torch.linspace(0.2, 20, 2000)
    losses = torch.stack([functional.cross_entropy(logits / T, y) for T in grid])
    assert found == pytest.approx(float(grid[losses.argmin()]), rel=0.02)


def test_temperature_keeps_the_predictions():
    plain = learning.GCNClassifier().fit(DATA, TRAIN, seed=1)
    warm = fitted("temperature")
    assert torch.equal(plain.predict(), warm.predict())
    T = warm.details["temperature"]
    torch.testing.assert_close(warm.probabilities, torch.softmax(logits_of(plain.model, DATA) / T, dim=1))


def test_energy_is_minus_logsumexp():
    found = fitted("energy")
    torch.testing.assert_close(found.uncertainty(), -torch.logsumexp(logits_of(found.model, DATA), dim=1))


def test_laplace_has_the_hessian_of_the_last_layer():
    """The precision by autodiff of n times the engine, the variances node by node, the probabilities by hand."""
    found = fitted("laplace")
    first, last = (weight.detach().double() for weight in found.model.weights)
    A = torch.from_numpy(normalized_adjacency(DATA).toarray()).double()
    x = A @ torch.relu(A @ DATA.x.double() @ first)
    n, decay = len(TRAIN), 5e-4

    def objective(W: Tensor) -> Tensor:
        loss = functional.cross_entropy(x[TRAIN] @ W.view_as(last), DATA.y[TRAIN], reduction="sum")
        return loss + n * decay / 2 * W.square().sum()

    covariance = torch.linalg.inv(torch.autograd.functional.hessian(objective, last.flatten()))
    for u in (0, 7, 149):
        J = torch.kron(x[u][None], torch.eye(3, dtype=torch.float64))  # of W^T x_u
        v = (J @ covariance @ J.T).diagonal()
        assert float(found.uncertainty("epistemic")[u]) == pytest.approx(float(v.sum()), rel=1e-4)
        expected = torch.softmax(x[u] @ last / (1 + torch.pi / 8 * v).sqrt(), dim=0)
        torch.testing.assert_close(found.probabilities[u].double(), expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(SettingError, match="prior"):
        learning.Laplace(learning.WELL_TRAINED_GCN).fit(DATA, TRAIN)


def test_an_ensemble_is_the_mean_of_its_members():
    models = [learning.GCNClassifier().fit(DATA, TRAIN, seed=1 + 10_007 * k).probabilities for k in range(3)]
    torch.testing.assert_close(fitted("ensemble").probabilities, torch.stack(models).mean(dim=0))


def test_dropout_samples_vary_around_the_model():
    model = GCN(12, 8, 3, num_layers=1, dropout=0.5)
    drawn = dropout_samples(model, DATA, samples=3000, seed=0)
    assert float(drawn.std(dim=0).mean()) > 0
    torch.testing.assert_close(drawn.mean(dim=0), logits_of(model, DATA), rtol=0, atol=0.05)
    assert torch.equal(drawn[:2], dropout_samples(model, DATA, samples=2, seed=0))


@pytest.mark.parametrize(
    ("method", "word"),
    [
        (learning.MCDropout(samples=1), "samples"),
        (learning.MCDropout(learning.GCNClassifier(dropout=0.0)), "dropout"),
        (learning.DeepEnsemble(members=1), "members"),
    ],
)
def test_nothing_to_average_is_refused(method: learning.Method, word: str):
    with pytest.raises(SettingError, match=word):
        method.fit(DATA, TRAIN)


def test_gebm_by_its_definition():
    """Gaussians of the labelled nodes by torch's distributions, ranges by sorted lists, diffusion by a dense matrix."""
    generator = torch.Generator().manual_seed(0)
    N, nodes, labels = 40, torch.arange(9), torch.tensor([0, 0, 0, 2, 2, 2, 2, 0, 2])  # class 1 has no label
    (hidden, logits), (h, z) = (
        (torch.rand(N, 4, generator=generator).double(), torch.randn(N, 3, generator=generator).double())
        for _ in range(2)
    )
    edges = torch.randint(0, N - 2, (2, 60), generator=generator)  # the last two nodes have no neighbours
    closed = torch.eye(N, dtype=torch.float64)
    for a, b in edges.T.tolist():
        closed[b, a] += a != b
    step = 0.5 * torch.eye(N, dtype=torch.float64) + 0.5 * closed / closed.sum(dim=1, keepdim=True)
    evidence = []
    for c in (0, 2):
        own = hidden[nodes][labels == c]
        normal = torch.distributions.MultivariateNormal(own.mean(dim=0), torch.diag(own.var(dim=0, unbiased=False)))

        def distance(x: torch.Tensor, normal: torch.distributions.MultivariateNormal = normal) -> torch.Tensor:
            return -2 * (normal.log_prob(x) - normal.log_prob(normal.mean))

        (near, far), (low, high) = (
            (values[1], values[38]) for values in (sorted(distance(hidden).tolist()), sorted(logits[:, c].tolist()))
        )
        evidence.append(z[:, c] - ((distance(h) - near) / (far - near) * (high - low) + low))
    f, P = torch.stack(evidence, dim=1), torch.linalg.matrix_power(step, 10)
    energy = -f.logsumexp(dim=1)
    expected = energy + P @ energy - (P @ f).logsumexp(dim=1)
    torch.testing.assert_close(gebm_energy((hidden, logits), (h, z), nodes, labels, edges), expected)
    found = fitted("energy").uncertainty("gebm")
    assert found.isfinite().all()


def test_gnnsafe_against_a_loop():
    """Half its own energy, half its neighbours' mean, twice; without neighbours its own; no self-loops."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 2, 3]])
    energy = torch.tensor([-1.0, -2.0, -4.0, -8.0, -16.0])
    around = {0: [1], 1: [0, 2], 2: [1], 3: [], 4: []}
    expected = energy.tolist()
    for _ in range(2):
        old = list(expected)
        expected = [
            0.5 * old[u] + 0.5 * sum(old[v] for v in near) / len(near) if near else old[u] for u, near in around.items()
        ]
    torch.testing.assert_close(propagated_energy(energy, edges), torch.tensor(expected))
    found = fitted("energy")
    torch.testing.assert_close(
        found.uncertainty("gnnsafe"), propagated_energy(found.uncertainty("energy"), DATA.edge_index)
    )
    assert next(iter(found.uncertainties)) == "energy"


def test_cagcn_by_hand():
    """Factors multiply logits, so predictions stay; they follow the formula; the margin loss is the paper's."""
    found = fitted("cagcn")
    base, _ = quick("cagcn").network.train(DATA, TRAIN, seed=1)
    torch.testing.assert_close(logits_of(found.model, DATA), logits_of(base, DATA))
    assert torch.equal(found.predict(), logits_of(base, DATA).argmax(dim=1))
    factors = Factors(3, 4, 0.5).eval()
    z, A = torch.randn(150, 3, generator=torch.Generator().manual_seed(0)), normalized_adjacency(DATA)
    h = torch.relu(torch.from_numpy(A.toarray()).float() @ z @ factors.first.lin.weight.T + factors.first.bias)
    raw = torch.from_numpy(A.toarray()).float() @ h @ factors.second.lin.weight.T + factors.second.bias
    torch.testing.assert_close(factors(z, DATA.edge_index), (raw.exp() + 1.1).log(), rtol=1e-4, atol=1e-5)
    p = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])
    torch.testing.assert_close(margins(p, torch.tensor([0, 2])), torch.tensor([0.7, 0.2]))
    assert margins(torch.ones(2, 1), torch.tensor([0, 0])).tolist() == [0.0, 0.0]  # one class alone


def test_gats_by_hand():
    """The temperature of one node by loops over its neighbours."""
    module = Temperatures(DATA, TRAIN, 3, heads=2, start=1.0)
    with torch.no_grad():
        module.near.copy_(torch.tensor([0.7, 1.4]))
        module.smoothing.fill_(0.5)
    z = torch.randn(150, 3, generator=torch.Generator().manual_seed(0))
    T = module(z).detach()
    p = torch.softmax(z, dim=1).amax(dim=1)
    trained = set(TRAIN.tolist())
    near = {b for a, b in DATA.edge_index.T.tolist() if a in trained and a != b} - trained

    def gamma(u: int) -> float:
        return 0.7 if u in trained else 1.4 if u in near else 1.0

    for v in (int(TRAIN[0]), sorted(near)[0], 149):
        around = [v, *(a for a, b in DATA.edge_index.T.tolist() if b == v and a != v)]
        scores = torch.tensor([float(z[v] @ z[u]) / gamma(v) / gamma(u) for u in around])
        a = torch.softmax(functional.leaky_relu(scores, 0.2), dim=0)
        summed = torch.zeros(2)
        for weight, u in zip(a, around):
            row = ((z[u] - z[u].min()) / (z[u].max() - z[u].min())).sort().values
            summed += weight * gamma(u) * (row @ module.tau.detach())
        gap = sum(float(p[v] - p[u]) for u in around) / len(around)
        torch.testing.assert_close(T[v, 0], functional.softplus(summed + 0.5 * gap).mean() + 1.0, rtol=1e-4, atol=1e-5)
    assert torch.equal(fitted("gats").predict(), logits_of(fitted("gats").model, DATA).argmax(dim=1))
