"""Closed forms of Dirichlet expectations against sampling, PyTorch's distributions and numerical integration."""

from __future__ import annotations

import pytest
import torch
from scipy import integrate, special
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from jurygcn.baselines import dirichlet

ALPHA = torch.tensor([[1.0, 1.0, 1.0], [5.0, 2.0, 1.5], [1.2, 30.0, 4.0], [0.7, 1.1, 2.0]], dtype=torch.float64)
Y = torch.tensor([0, 2, 1, 1])


def drawn(alpha: Tensor, count: int = 200_000) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    gammas = torch._standard_gamma(alpha.expand(count, *alpha.shape).contiguous(), generator=generator)
    return gammas / gammas.sum(dim=-1, keepdim=True)


def test_squared_error_is_the_mean_over_samples():
    truth = torch.nn.functional.one_hot(Y, 3)
    sampled = ((drawn(ALPHA) - truth) ** 2).sum(dim=-1).mean(dim=0)
    torch.testing.assert_close(dirichlet.squared_error(ALPHA, Y), sampled, rtol=0, atol=5e-3)


def test_cross_entropy_is_the_mean_over_samples():
    p = drawn(ALPHA)
    sampled = -p[:, torch.arange(4), Y].log().mean(dim=0)
    torch.testing.assert_close(dirichlet.cross_entropy(ALPHA, Y), sampled, rtol=0, atol=2e-2)


@pytest.mark.parametrize(("a", "b"), [(2.0, 3.0), (0.8, 1.5), (6.0, 1.2)])
def test_two_classes_by_numerical_integration(a: float, b: float):
    alpha, y = torch.tensor([[a, b]], dtype=torch.float64), torch.tensor([0])

    def density(p: float) -> float:
        return p ** (a - 1) * (1 - p) ** (b - 1) / special.beta(a, b)

    def mean(f) -> float:
        return integrate.quad(lambda p: f(p) * density(p), 0, 1, limit=200)[0]

    assert float(dirichlet.cross_entropy(alpha, y)) == pytest.approx(mean(lambda p: -special.log1p(p - 1)), abs=1e-6)
    assert float(dirichlet.squared_error(alpha, y)) == pytest.approx(mean(lambda p: 2 * (1 - p) ** 2), abs=1e-6)
    entropy = -integrate.quad(lambda p: special.xlogy(density(p), density(p)), 0, 1, limit=200)[0]
    assert float(dirichlet.entropy(alpha)) == pytest.approx(entropy, abs=1e-5)


def test_divergence_and_entropy_equal_pytorch():
    prior = ALPHA.flip(0) + 0.5
    torch.testing.assert_close(dirichlet.divergence(ALPHA, prior), kl_divergence(Dirichlet(ALPHA), Dirichlet(prior)))
    torch.testing.assert_close(dirichlet.entropy(ALPHA), Dirichlet(ALPHA).entropy())
    assert torch.equal(dirichlet.divergence(ALPHA, ALPHA), torch.zeros(4, dtype=torch.float64))


def test_entropy_survives_huge_evidence_in_float32():
    alpha = torch.tensor([[1.0, 1e12, 3e12]], requires_grad=True)
    value = dirichlet.entropy(alpha)
    value.sum().backward()
    assert bool(torch.isfinite(value).all())
    assert alpha.grad is not None
    # two large classes: about normal with variance p(1 - p)/S, times the exponential of the empty class
    assert float(value.detach()) < -30
    assert bool((alpha.grad[0, 1:].abs() < 1e-11).all()), "hardly any slope where evidence is settled"


def test_vacuity_and_dissonance_by_hand():
    nothing, one_sided, torn = torch.tensor([[1.0, 1, 1], [31, 1, 1], [16, 16, 1]], dtype=torch.float64)
    assert float(dirichlet.vacuity(nothing)) == 1.0
    assert float(dirichlet.vacuity(one_sided)) == pytest.approx(3 / 33)
    for alpha, expected in ((nothing, 0.0), (one_sided, 0.0), (torn, 2 * 15 / 33)):
        assert float(dirichlet.dissonance(alpha)) == pytest.approx(expected)
    # evidence 6 and 2: balance 1 - 4/8, weighted by all belief
    assert float(dirichlet.dissonance(torch.tensor([7.0, 3, 1], dtype=torch.float64))) == pytest.approx(0.5 * 8 / 11)


def test_spread_splits_the_entropy():
    agree = torch.tensor([[[0.5, 0.5]], [[0.5, 0.5]]])
    quarrel = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    ln2 = torch.tensor([0.5, 0.5]).log().abs()[:1]
    for probabilities, expected in ((agree, (ln2, torch.zeros(1))), (quarrel, (torch.zeros(1), ln2))):
        torch.testing.assert_close(dirichlet.split_entropy(probabilities), expected)
