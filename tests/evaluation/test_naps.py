"""NAPS: weights against dense matrices, sets against loops over nodes, labels that it may not read."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from jurygcn.baselines.naps import naps_sets, nearby_weights
from jurygcn.conformal.scores import aps_scores
from jurygcn.data import synthetic
from jurygcn.errors import DataError, SettingError
from jurygcn.evaluation import set_coverage

DATA = synthetic(num_nodes=80, num_edges=150, num_features=4, num_classes=4, seed=2)
CALIBRATION = torch.randperm(80, generator=torch.Generator().manual_seed(0))[:40]
PI = torch.softmax(torch.randn(80, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64), dim=1)


def dense_weights(second_hop: float) -> Tensor:
    A = torch.zeros(80, 80, dtype=torch.float64)
    A[DATA.edge_index[1], DATA.edge_index[0]] = 1.0
    near, far = A > 0, A @ A > 0
    weights = torch.where(near, 1.0, torch.where(far, second_hop, 0.0)).double()
    weights.fill_diagonal_(0.0)
    return weights[:, CALIBRATION]


@pytest.mark.parametrize("second_hop", [1.0, 0.5, 0.0])
def test_weights_against_dense_matrices(second_hop: float):
    found = nearby_weights(DATA.edge_index, CALIBRATION, num_nodes=80, second_hop=second_hop)
    assert found.equal(dense_weights(second_hop))
    assert 0 < int((found > 0).sum()) < found.numel()


@pytest.mark.parametrize("second_hop", [1.0, 0.5])
@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_sets_against_a_loop_over_nodes(second_hop: float, alpha: float):
    scores, weights = aps_scores(PI), dense_weights(second_hop)
    own = scores[CALIBRATION, DATA.y[CALIBRATION]]
    found = naps_sets(PI, DATA.y, CALIBRATION, DATA.edge_index, alpha=alpha, second_hop=second_hop)
    everything = 0
    for u in range(80):
        share = weights[u] / (weights[u].sum() + 1)
        enough = [q for q in own.tolist() if float(share[own <= q].sum()) >= 1 - alpha - 1e-9]
        bound = min(enough, default=math.inf)
        everything += bound == math.inf
        assert found[u].tolist() == [s <= bound + 1e-12 for s in scores[u].tolist()], u
    assert 0 < everything < 80, "some nodes have enough labels near them, some have not"


def test_it_reads_only_the_labels_of_calibration_nodes():
    other = DATA.y.clone()
    rest = torch.ones(80).bool()
    rest[CALIBRATION] = False
    other[rest] = (other[rest] + 1) % 4
    given = (CALIBRATION, DATA.edge_index)
    assert naps_sets(PI, DATA.y, *given, alpha=0.3).equal(naps_sets(PI, other, *given, alpha=0.3))


def test_draws_come_from_the_generator():
    one, same, other = (
        naps_sets(PI, DATA.y, CALIBRATION, DATA.edge_index, alpha=0.3, generator=torch.Generator().manual_seed(s))
        for s in (0, 0, 1)
    )
    assert one.equal(same)
    assert not one.equal(other)


def test_coverage_is_what_was_asked_for():
    """On a complete graph all weights are equal, and NAPS is split conformal prediction with APS."""
    nodes = torch.arange(120)
    edges = torch.cartesian_prod(nodes, nodes).T
    edges = edges[:, edges[0] != edges[1]]
    covered = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        pi = torch.softmax(2 * torch.randn(120, 4, generator=generator, dtype=torch.float64), dim=1)
        truth = torch.multinomial(pi, 1, generator=generator)[:, 0]
        sets = naps_sets(pi, truth, nodes[:49], edges, alpha=0.2, generator=generator)
        covered.append(set_coverage(sets[49:], truth[49:]))
    assert sum(covered) / len(covered) == pytest.approx(0.8, abs=0.03)


def test_refusals():
    with pytest.raises(SettingError, match="second_hop between 0 and 1"):
        naps_sets(PI, DATA.y, CALIBRATION, DATA.edge_index, second_hop=2)
    with pytest.raises(DataError, match="at least one calibration node"):
        naps_sets(PI, DATA.y, CALIBRATION[:0], DATA.edge_index)
