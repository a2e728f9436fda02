"""Labels that were not drawn at random are found out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attached_graphs import degree_of, drawn, heavy_tailed, jury_on
from scipy.stats import mannwhitneyu
from torch_geometric.data import Data

from jurygcn import GCN, Jury, train
from jurygcn.conformal.claims import balance_chance, degree_chance


def test_labels_chosen_by_degree_are_found_out():
    data = heavy_tailed()
    hubs = degree_of(data).argsort(descending=True)[:40]
    jury = jury_on(data, hubs)
    verdict = jury.verdict(advice=None)
    claim = verdict.claim(0.1)
    assert claim.kind == "none"
    assert "other degrees" in claim.reasons[0]
    assert claim.words.startswith("No coverage is claimed. The labelled nodes have other degrees")
    assert claim.reasons[0] in jury.health().advice
    assert repr(verdict).startswith("Verdict(caution: no coverage is claimed.")
    leaves = degree_of(data).argsort()[:40]
    assert jury_on(data, leaves).verdict(advice=None).claim().coverage is None


def test_few_random_draws_are_accused():
    """The two tests of exchangeability accuse random labels as seldom as they say: here never in 400 draws."""
    data = heavy_tailed()
    degree = degree_of(data).numpy()
    chances = np.array([degree_chance(degree, drawn(data, 40, seed).numpy()) for seed in range(400)])
    assert (chances < 1e-4).sum() == 0
    assert 0.005 <= (chances < 0.05).mean() <= 0.1  # and it is a test: one in twenty is below 0.05
    balanced = [balance_chance(torch.bincount(data.y[drawn(data, 30, seed)])) for seed in range(400)]
    assert min(balanced) > 1e-4


@pytest.mark.parametrize("size", [2, 5, 20])
def test_degrees_that_say_nothing(size: int):
    regular = np.full(size, 3)
    assert degree_chance(regular, np.arange(1)) == 1.0
    assert degree_chance(np.arange(size), np.arange(size)) == 1.0  # everything is labelled


def test_degree_chance_is_the_rank_sum_test():
    random = np.random.default_rng(0)
    compared = 0
    for size in random.integers(5, 300, 60):
        degree = random.poisson(random.uniform(0.5, 8.0), size)
        nodes = random.choice(size, random.integers(1, size), replace=False)
        if degree.min() < degree.max():
            theirs = mannwhitneyu(degree[nodes], np.delete(degree, nodes), method="asymptotic").pvalue
            assert degree_chance(degree, nodes) == pytest.approx(theirs, rel=1e-9)
            compared += 1
    assert compared > 50


def test_balance_by_counting():
    """n! / (k!)^C / C^n against all ways to deal the labels."""
    ways = np.stack(np.meshgrid(*[range(3)] * 6, indexing="ij")).reshape(6, -1).T
    equal = np.mean([(np.bincount(way, minlength=3) == 2).all() for way in ways])
    assert balance_chance(torch.tensor([2, 2, 2])) == pytest.approx(equal)
    assert balance_chance(torch.tensor([2, 3, 1])) == 1.0
    assert balance_chance(torch.tensor([5])) == pytest.approx(1.0)


@pytest.mark.parametrize("classes", [3, 7])
def test_labels_drawn_class_by_class_are_found_out(classes: int):
    """20 for each class, on any graph: the same claim about the average over classes."""
    data = heavy_tailed()
    many = Data(x=data.x, edge_index=data.edge_index, y=torch.arange(300) % classes, num_classes=classes)
    nodes = torch.cat([(many.y == c).nonzero()[:, 0][:: 300 // classes // 20][:20] for c in range(classes)])
    model = GCN(4, 4, classes)
    train(model, many, nodes, epochs=5)
    claim = Jury(model, many, nodes, weight_decay=5e-4).fit().verdict(advice=None).claim()
    assert (claim.kind, claim.over) == ("target", "classes")
    assert "exactly 20 labels" in claim.words
    assert "on average over classes" in claim.words
