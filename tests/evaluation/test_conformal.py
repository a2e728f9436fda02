"""Split conformal scores against loops, and coverage itself."""

from __future__ import annotations

import math

import pytest
import torch

from jurygcn.conformal.scores import aps_scores, lac_scores
from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import set_coverage, split_conformal
from jurygcn.evaluation.conformal import conformal_threshold, tuned_diffusion
from jurygcn.evaluation.graph_scores import diffuse_scores, navigated_scores, penalised_scores, similar_nodes


def sample(m: int = 30, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pi = torch.softmax(2 * torch.randn(m, classes, generator=generator, dtype=torch.float64), dim=1)
    return pi, torch.multinomial(pi, 1, generator=generator)[:, 0]


def test_aps_against_a_loop():
    pi, _ = sample()
    pi = torch.cat([pi, torch.tensor([[0.25] * 4, [0.4, 0.4, 0.1, 0.1]], dtype=torch.float64)])
    draws = torch.rand(len(pi), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for given in (None, draws):
        scores = aps_scores(pi, given)
        for u in range(len(pi)):
            for y in range(4):
                above = sum(float(p) for p in pi[u] if p > pi[u, y])
                equal = sum(float(p) for p in pi[u] if p == pi[u, y])
                part = 1.0 if given is None else float(given[u])
                assert 1 + float(scores[u, y]) == pytest.approx(above + part * equal)


def test_split_conformal_has_the_jurys_ties():
    """A calibration node sets the threshold; a node that differs from it in the last digit has the same set."""
    pi = torch.tensor([[0.5, 0.3, 0.2]]).repeat(3, 1)
    pi[1, 1] -= 2**-25  # one unit in the last place
    for score in ("lac", "aps"):
        sets = split_conformal(pi, torch.tensor([1, 1, 1]), torch.tensor([0]), alpha=0.5, score=score)
        assert sets.tolist() == [[True, True, False]] * 3


def test_daps_against_a_loop():
    pi, _ = sample(5)
    edges = torch.tensor([[0, 1, 1, 2, 0, 2], [1, 0, 2, 1, 2, 0]])  # nodes 3 and 4 have no neighbours
    scores = lac_scores(pi)
    found = diffuse_scores(scores, edges, mixing=0.3)
    for u in range(5):
        around = [v for v, w in edges.T.tolist() if w == u]
        for y in range(4):
            own = float(scores[u, y])
            mixed = 0.7 * own + 0.3 * sum(float(scores[v, y]) for v in around) / len(around) if around else own
            assert float(found[u, y]) == pytest.approx(mixed)


@pytest.mark.parametrize(("m", "alpha", "rank"), [(100, 0.1, 91), (9, 0.1, 9), (15, 0.1, 15), (30, 0.2, 25)])
def test_threshold_takes_the_exact_rank(m, alpha, rank):
    scores = torch.randperm(m, generator=torch.Generator().manual_seed(0)).double() + 1
    assert float(conformal_threshold(scores, alpha=alpha)) == rank


def test_too_few_labels_rule_nothing_out():
    assert math.isinf(conformal_threshold(torch.rand(8), alpha=0.1))
    pi, truth = sample()
    assert split_conformal(pi, truth, torch.arange(8), alpha=0.1).all()


@pytest.mark.parametrize("score", ["lac", "aps", "daps"])
def test_coverage_is_what_was_asked_for(score):
    covered = []
    ring = torch.arange(200)
    edges = torch.stack([torch.cat([ring, ring.roll(1)]), torch.cat([ring.roll(1), ring])])
    for seed in range(40):
        pi, truth = sample(200, seed=seed)
        draw = torch.Generator().manual_seed(seed)
        sets = split_conformal(pi, truth, torch.arange(49), alpha=0.2, score=score, edge_index=edges, generator=draw)
        assert not sets.all()
        covered.append(set_coverage(sets[49:], truth[49:]))
    assert sum(covered) / len(covered) == pytest.approx(0.8, abs=0.03)  # 40 of 50 ranks: exactly 0.8 on average


def test_draws_come_from_the_generator():
    pi, truth = sample()
    one, same, other = (
        split_conformal(pi, truth, torch.arange(15), score="aps", generator=torch.Generator().manual_seed(s))
        for s in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_refusals():
    pi, truth = sample()
    with pytest.raises(SettingError, match="lac, aps, raps, daps, snaps"):
        split_conformal(pi, truth, torch.arange(3), score="margin")
    with pytest.raises(SettingError, match="edge_index"):
        split_conformal(pi, truth, torch.arange(3), score="daps")
    with pytest.raises(DataError, match="at least one calibration node"):
        split_conformal(pi, truth, torch.arange(0))
    with pytest.raises(SettingError, match="mixing between 0 and 1"):
        diffuse_scores(pi, torch.tensor([[0], [1]]), mixing=2)


def test_raps_by_hand():
    """Ranks above 5 cost 0.01 each; with at most 5 classes nothing is added."""
    pi = torch.softmax(torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    base = aps_scores(pi)
    found = penalised_scores(base, pi)
    for u in range(6):
        order = sorted(range(8), key=lambda c: -float(pi[u, c]))
        for rank, label in enumerate(order, start=1):
            expected = float(base[u, label]) + 0.01 * max(0, rank - 5)
            assert float(found[u, label]) == pytest.approx(expected)
    few = pi[:, :4]
    assert penalised_scores(aps_scores(few), few).equal(aps_scores(few))


def test_similar_nodes_by_hand():
    """Cosines of which features are there, the best two others, weights that add to 1."""
    x = torch.tensor([[1.0, 2, 0, 0], [3, 0, 0, 0], [1, 1, 5, 0], [0, 0, 0, 0], [0, 4, 1, 0]])
    found = similar_nodes(x, count=2).toarray()
    there = (x != 0).double()
    for u in range(5):
        cosine = [
            0.0
            if v == u or not there[v].any() or not there[u].any()
            else float(there[u] @ there[v] / (there[u].norm() * there[v].norm()))
            for v in range(5)
        ]
        best = sorted(range(5), key=lambda v: -cosine[v])[:2]
        total = sum(cosine[v] for v in best)
        for v in range(5):
            expected = cosine[v] / total if v in best and total > 0 else 0.0
            assert found[u, v] == pytest.approx(expected), (u, v)


def test_snaps_by_hand():
    scores = torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])  # nodes 3 and 4 have no neighbours
    x = torch.tensor([[1.0, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 1]])  # node 3 is similar to none
    similar = similar_nodes(x)
    found = navigated_scores(scores, edges, similar)
    weights = torch.from_numpy(similar.toarray())
    around = {0: [1], 1: [0, 2], 2: [1], 3: [3], 4: [4]}
    for u in range(5):
        alike = weights[u] @ scores if weights[u].any() else scores[u]
        expected = (scores[u] + scores[around[u]].mean(dim=0) + alike) / 3
        torch.testing.assert_close(found[u], expected)
    with pytest.raises(SettingError, match="expected similar for score='snaps'"):
        split_conformal(scores, torch.zeros(5).long(), torch.tensor([0, 1]), score="snaps", edge_index=edges)


def test_tuned_daps_takes_the_mixing_with_the_smallest_sets():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(0, 3, (60,), generator=generator)
    pi = torch.softmax(2 * torch.eye(3)[truth].double() + torch.randn(60, 3, generator=generator), dim=1)
    ring = torch.arange(60)
    edges = torch.stack([torch.cat([ring, (ring + 1) % 60]), torch.cat([(ring + 1) % 60, ring])])
    tuning, calibration = torch.arange(20), torch.arange(20, 40)
    scores = aps_scores(pi)
    sizes = {}
    for k in range(20):
        mixed = diffuse_scores(scores, edges, mixing=0.05 * k)
        bound = conformal_threshold(mixed[tuning, truth[tuning]], alpha=0.2)
        sizes[k] = int((mixed[tuning] <= bound + 1e-12).sum())
    best = diffuse_scores(scores, edges, mixing=0.05 * min(sizes, key=lambda k: (sizes[k], k)))
    bound = conformal_threshold(best[calibration, truth[calibration]], alpha=0.2)
    found = tuned_diffusion(pi, truth, tuning, calibration, alpha=0.2, edge_index=edges)
    assert len({*sizes.values()}) > 1
    assert found.equal(best <= bound + 1e-12)
