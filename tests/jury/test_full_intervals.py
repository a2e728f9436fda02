"""Full conformal intervals of regressions: by a grid of refits, and by the ridge regression confidence machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from full_cases import NODES, full_rows, graph, refit
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.model_selection import LeaveOneOut
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, Jury, train
from jurygcn.conformal.full_intervals import ends
from jurygcn.leave_one_out.panel import RIDGES


def test_ends_by_a_grid():
    generator = torch.Generator().manual_seed(0)
    a, f = (3 * torch.randn(50, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    d = torch.rand(50, 1, generator=generator, dtype=torch.float64) * 1.8 - 0.9
    low, high = ends(a, d, f)
    grid = torch.linspace(-60, 60, 24_001, dtype=torch.float64)
    inside = (a - d * grid).abs() >= (grid - f).abs()
    for row in range(50):
        where = grid[inside[row]]
        if len(where) and float(low[row]) > -60 and float(high[row]) < 60:
            assert float(where[0]) == pytest.approx(float(low[row]), abs=0.006)
            assert float(where[-1]) == pytest.approx(float(high[row]), abs=0.006)
    low, high = ends(a[:1], torch.full((1, 1), 1.5), f[:1])
    assert float(low) == -torch.inf
    assert float(high) == torch.inf


def inside_by_refitting(residuals: Tensor, alpha: float) -> bool:
    """Whether the last member of a bag stays in the set: its residual among all of them."""
    rank = int((residuals[:-1] >= residuals[-1]).sum()) + 1
    return rank > int(alpha * len(residuals) + 1e-9)


@pytest.mark.parametrize("alone", [True, False])
def test_intervals_by_a_grid_of_refits(alone: bool):
    """Ends by refitting every bag on a grid of labels: the panel alone, and a linear GCN with squared loss."""
    data, alpha, n = graph(regression=True), 0.2, len(NODES)
    u, decay = 40, 2e-2
    if alone:
        model = GCN(8, 4, 1).double()
        train(model, data, NODES, epochs=30, loss="mse")
    else:
        model = GCN(8, 1, 1, num_layers=1).double()
        train(model, data, NODES, epochs=3000, lr=0.05, weight_decay=decay, loss="mse")
    jury = Jury(model, data, NODES, loss="mse", weight_decay=decay).fit()
    verdict = jury.verdict([u], alpha=alpha, interval="full", advice="panel" if alone else None)
    lower, upper = float(verdict.lower), float(verdict.upper)
    closed = torch.zeros(90, 90, dtype=torch.float64)
    closed[data.edge_index[1], data.edge_index[0]] = 1.0
    closed += torch.eye(90)
    scale = closed.sum(dim=1).rsqrt()
    linear = (scale[:, None] * closed * scale) @ data.x
    members = [(rows, ridge) for rows in full_rows(data) for ridge in RIDGES] if alone else [(linear, 0.0)]
    bag = [*NODES.tolist(), u]

    def residuals(y: float) -> Tensor:
        targets = torch.cat([data.y[NODES], torch.tensor([y], dtype=torch.float64)])[:, None]
        found = torch.zeros(len(bag), dtype=torch.float64)
        for k in range(len(bag)):
            others = [j for j in range(len(bag)) if j != k]
            rows = [(all_rows[[bag[j] for j in others]], ridge or n * decay / 2) for all_rows, ridge in members]
            said = [float(m[0][bag[k]] @ refit(r, targets[others], ridge)) for m, (r, ridge) in zip(members, rows)]
            found[k] = float(targets[k]) - sum(said) / len(said)
        return found.abs()

    span = upper - lower
    for y, expected in (
        (lower + 0.01 * span, True),
        (lower - 0.01 * span, False),
        (upper - 0.01 * span, True),
        (upper + 0.01 * span, False),
    ):
        assert inside_by_refitting(residuals(y), alpha) is expected
    assert verdict.claim().kind == ("promise" if alone else "target")


# --- the ridge regression confidence machine ------------------------------------------------------------


def deleted_residuals(data: Data, u: int) -> tuple[Tensor, Tensor]:
    """a and b of the residuals a + b y of the bag with (u, y), each by regressions on the other members; (n + 1,) each.

    From the hat matrix of the whole bag: the residual of member k without it is (y - H y)_k / (1 - H_kk).
    """
    bag = [*NODES.tolist(), u]
    known, added = torch.zeros(len(bag), 1, dtype=torch.float64), torch.zeros(len(bag), 1, dtype=torch.float64)
    known[:-1, 0], added[-1] = data.y[NODES], 1.0
    total = torch.zeros(len(bag), 2, dtype=torch.float64)
    members = [(rows[bag], ridge) for rows in full_rows(data) for ridge in RIDGES]
    for rows, ridge in members:
        gram = rows @ rows.T
        hat = gram @ torch.linalg.inv(gram + ridge * torch.eye(len(bag), dtype=torch.float64))
        both = torch.cat([known, added], dim=1)
        total += (both - hat @ both) / (1.0 - hat.diagonal())[:, None]
    found = total / len(members)
    return found[:, 0], found[:, 1]


def confidence_machine(a: Tensor, b: Tensor, alpha: float) -> tuple[float, float]:
    """The ends of {y : p(y) > alpha}, by all points where |a_i + b_i y| = |a_u + b_u y| and one point between each two.

    The algorithm of Nouretdinov, Melluish and Vovk (2001).
    """
    points = torch.cat([-(a[:-1] - a[-1]) / (b[:-1] - b[-1]), -(a[:-1] + a[-1]) / (b[:-1] + b[-1])])
    points = points[points.isfinite()].sort().values
    outside = torch.stack([points[0] - 1.0, points[-1] + 1.0])
    between = (points[1:] + points[:-1]) / 2

    def inside(at: Tensor, slack: float) -> Tensor:
        residuals = (a[:, None] + b[:, None] * at).abs()
        p = (residuals >= residuals[-1] - slack).double().mean(dim=0)
        return p > alpha + 1e-12

    assert not bool(inside(outside, 0.0).any())
    kept = torch.cat([points[inside(points, 1e-9)], between[inside(between, 0.0)]])
    return float(kept.min()), float(kept.max())


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.35])
def test_panel_intervals_equal_the_ridge_regression_confidence_machine(alpha: float):
    data = graph(regression=True)
    model = GCN(8, 4, 1).double()
    train(model, data, NODES, epochs=5, loss="mse")
    nodes = [1, 2, 40, 61, 88]
    jury = Jury(model, data, NODES, loss="mse", weight_decay=1e-2).fit()
    verdict = jury.verdict(nodes, alpha=alpha, interval="full", advice="panel")
    for place, u in enumerate(nodes):
        low, high = confidence_machine(*deleted_residuals(data, u), alpha)
        assert float(verdict.lower[place]) == pytest.approx(low, abs=1e-6)
        assert float(verdict.upper[place]) == pytest.approx(high, abs=1e-6)


# --- MAPIE ----------------------------------------------------------------------------------------------


class PanelOfMAPIE(RegressorMixin, BaseEstimator):
    """The mean of the panel's regressions, for scikit-learn: a row of X is the number of a node."""

    def __init__(self, views: list[Tensor]) -> None:
        self.views = views

    def fit(self, X: np.ndarray, y: np.ndarray) -> PanelOfMAPIE:
        nodes, targets = torch.from_numpy(X[:, 0]).long(), torch.from_numpy(y)[:, None]
        self.weights_ = [refit(rows[nodes], targets, ridge) for rows in self.views for ridge in RIDGES]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        nodes, views = torch.from_numpy(X[:, 0]).long(), [rows for rows in self.views for _ in RIDGES]
        said = [rows[nodes] @ weights for rows, weights in zip(views, self.weights_)]
        return torch.stack(said).mean(dim=0).squeeze(1).numpy()


def test_panel_intervals_beside_mapie():
    """Jackknife+ intervals of the panel are MAPIE's; the full ones are about as wide, and promise more."""
    mapie = pytest.importorskip("mapie.regression")
    data, alpha = graph(regression=True), 0.2
    model = GCN(8, 4, 1).double()
    train(model, data, NODES, epochs=5, loss="mse")
    jury = Jury(model, data, NODES, loss="mse", weight_decay=1e-2).fit()
    others = (~torch.isin(torch.arange(90), NODES)).nonzero()
    theirs = mapie.CrossConformalRegressor(
        PanelOfMAPIE(full_rows(data)), confidence_level=1 - alpha, method="plus", cv=LeaveOneOut()
    )
    theirs.fit_conformalize(NODES[:, None].double().numpy(), data.y[NODES].numpy())
    _, bounds = theirs.predict_interval(others.double().numpy(), aggregate_point_predictions=None)
    plus, full = (
        jury.verdict(others.squeeze(1), alpha=alpha, interval=interval, advice="panel")
        for interval in ("jackknife+", "full")
    )
    np.testing.assert_allclose(torch.stack([plus.lower, plus.upper], dim=-1).view(-1, 2), bounds[:, :, 0], atol=1e-5)
    assert float((full.upper - full.lower).mean()) == pytest.approx(
        float((bounds[:, 1] - bounds[:, 0]).mean()), rel=0.1
    )
    assert (full.claim().coverage, plus.claim().coverage) == (pytest.approx(1 - alpha), pytest.approx(1 - 2 * alpha))
