"""The ridge panel against refitting by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, Jury, train
from jurygcn.data import synthetic
from jurygcn.diagnostics.ridge_panel import HOPS, RIDGES, SHARPNESS, fit_ridge_panel, ridge_fits
from jurygcn.errors import SettingError

NODES = torch.arange(0, 60, 3)


def graph(**settings: float) -> Data:
    return synthetic(num_nodes=90, num_edges=240, num_features=8, num_classes=3, seed=1, **settings)


def plain_views(data: Data) -> list[Tensor]:
    """By definition: dense means over closed neighbourhoods, rows of equal length, centred, of mean length 1."""
    N = int(data.num_nodes)
    closed = torch.eye(N, dtype=torch.float64)
    closed[data.edge_index[1], data.edge_index[0]] = 1.0
    mean = closed / closed.sum(dim=1, keepdim=True)
    made = []
    for hops in HOPS:
        x = torch.linalg.matrix_power(mean, hops) @ data.x.double()
        x = x / x.norm(dim=1, keepdim=True)
        x = x - x.mean(dim=0)
        made.append(x / x.norm(dim=1).mean())
    return made


def fitted(design: Tensor, targets: Tensor, ridge: float) -> Tensor:
    return torch.linalg.solve(design.T @ design + ridge * torch.eye(design.shape[1]), design.T @ targets)


@pytest.mark.parametrize(("n", "D"), [(12, 5), (7, 20)])
def test_jurors_of_a_ridge_regression_are_exact(n: int, D: int):
    generator = torch.Generator().manual_seed(0)
    design, targets = (torch.randn(n, k, generator=generator, dtype=torch.float64) for k in (D, 3))
    for ridge, (coefficients, left_out) in zip(RIDGES, ridge_fits(design, targets)):
        torch.testing.assert_close(coefficients, fitted(design, targets, ridge))
        for i in range(n):
            others = [j for j in range(n) if j != i]
            torch.testing.assert_close(left_out[i], design[i] @ fitted(design[others], targets[others], ridge))


def test_panel_by_hand():
    """Every regression refitted without every label, weighed by its errors, added up node by node."""
    data = graph()
    views = plain_views(data)
    designs = [*views, torch.cat(views, dim=1) / len(views) ** 0.5]
    targets = torch.nn.functional.one_hot(data.y[NODES], 3).double() - 1 / 3
    errors, said = [], []
    for design in designs:
        for ridge in RIDGES:
            everywhere = design @ fitted(design[NODES], targets, ridge)
            for place, node in enumerate(NODES):
                others = [j for j in range(len(NODES)) if j != place]
                everywhere[node] = design[node] @ fitted(design[NODES[others]], targets[others], ridge)
            errors.append((targets - everywhere[NODES]).square().sum(dim=1).mean())
            said.append(everywhere + 1 / 3)
    weights = torch.softmax(-SHARPNESS * torch.stack(errors) / min(errors), dim=0)
    expected = sum(weight * shares for weight, shares in zip(weights, said))
    found = fit_ridge_panel(data, NODES, data.y[NODES], 3)
    torch.testing.assert_close(found.shares.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.tensor(found.regressions["weight"].to_numpy()), weights, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.shares.sum(dim=1), torch.ones(90))


def test_verdict_with_the_panel():
    data = graph()
    model = GCN(8, 4, 3)
    train(model, data, NODES, epochs=20)
    jury = Jury(model, data, NODES).fit()
    asked = torch.tensor([5, 0, 77])
    verdict = jury.verdict(asked, with_panel=True)
    expected = 1 - jury.ridge_panel.shares[asked, verdict.predicted_class]
    torch.testing.assert_close(verdict.panel_doubt, expected)
    assert verdict.ranking(by="panel_doubt").tolist() == asked[expected.argsort(descending=True)].tolist()
    assert verdict.to_frame()["panel_doubt"].tolist() == expected.tolist()
    torch.testing.assert_close(jury.verdict(asked).p_values, verdict.p_values)


def test_names_of_nodes_do_not_matter():
    data = graph()
    order = torch.randperm(90, generator=torch.Generator().manual_seed(2))  # new node k was order[k]
    other = copy.copy(data)
    other.x, other.y, other.edge_index = data.x[order], data.y[order], order.argsort()[data.edge_index]
    nodes = order.argsort()[NODES]
    mine, theirs = (fit_ridge_panel(g, v, g.y[v], 3).shares for g, v in ((data, NODES), (other, nodes)))
    torch.testing.assert_close(theirs, mine[order], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("density", [1.0, 0.7, 0.3])
def test_views_that_are_rounding_say_nothing(density: float):
    """On a well-mixed graph all averages over many hops are equal: what is left of them must not be blown up."""
    generator = torch.Generator().manual_seed(0)
    there = (torch.rand(60, 60, generator=generator) < density).triu(1)
    pairs = there.nonzero().T
    data = Data(x=torch.rand(60, 9, generator=generator), edge_index=torch.cat([pairs, pairs.flip(0)], dim=1))
    data.y = torch.randint(3, (60,), generator=generator)
    order = torch.randperm(60, generator=generator)
    place = order.argsort()
    other = Data(x=data.x[order], edge_index=place[data.edge_index], y=data.y[order])
    shares = fit_ridge_panel(data, NODES, data.y[NODES], 3).shares
    again = fit_ridge_panel(other, place[NODES], data.y[NODES], 3).shares
    torch.testing.assert_close(again[place], shares, rtol=0.0, atol=1e-4)


def test_weights_look_where_labels_can_be_told():
    """Neighbours of one class: far views lead. Neighbours at random: the node's own features do."""
    nodes = torch.arange(0, 300, 5)
    weight = {}
    for homophily in (0.95, 0.25):
        data = synthetic(num_nodes=300, num_edges=900, num_features=16, num_classes=4, homophily=homophily, seed=3)
        table = fit_ridge_panel(data, nodes, data.y[nodes], 4).regressions
        weight[homophily] = table.groupby("hops")["weight"].sum()
    assert weight[0.95][0] < weight[0.95][4]
    assert weight[0.25][0] > weight[0.25][4]
    assert weight[0.25].idxmax() in (0, "all")


def test_what_cannot_be_asked():
    data = graph()
    model = GCN(8, 4, 3)
    train(model, data, NODES, epochs=2)
    with pytest.raises(SettingError, match="expected a verdict with the ridge panel"):
        Jury(model, data, NODES).fit().verdict().ranking(by="panel_doubt")
    numbers = copy.copy(data)
    numbers.y = torch.randn(90)
    with pytest.raises(SettingError, match="about classes"):
        Jury(GCN(8, 4, 1), numbers, NODES, loss="mse").fit().verdict(with_panel=True)
