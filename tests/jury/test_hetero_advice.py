"""The stacked jury of one node type of a HeteroData: regressions that see all types as one graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hetero_models import AUTHORS, NODES, PAPERS, VENUES, judged, made
from jurygcn.data import graph_of
from jurygcn.data.heterogeneous import one_graph
from jurygcn.graph.similarity import AVERAGES, WALKS
from jurygcn.leave_one_out.panel import INTERCEPT

STARTS = {"paper": 0, "author": PAPERS, "venue": PAPERS + AUTHORS}  # papers come first
TOTAL = PAPERS + AUTHORS + VENUES


def all_types(data):
    """Features and closed neighbourhoods of all nodes, by loops over the HeteroData."""
    widths = {kind: data[kind].x.shape[1] for kind in STARTS}
    x, near, column = np.zeros((TOTAL, sum(widths.values()))), np.eye(TOTAL), 0
    for kind, start in STARTS.items():
        rows = data[kind].x.numpy()
        x[start : start + len(rows), column : column + widths[kind]] = rows
        column += widths[kind]
    for source, _, target in data.edge_types:
        for s, t in data[source, _, target].edge_index.T.tolist():
            near[STARTS[source] + s, STARTS[target] + t] = near[STARTS[target] + t, STARTS[source] + s] = 1.0
    return x, near


@pytest.mark.parametrize("cites", [True, False])
def test_all_types_as_one_graph(cites):
    _, data = made("hgt", cites=cites)
    x, near = all_types(data)
    found = one_graph(graph_of(data, "paper"))
    np.testing.assert_array_equal(found.x.numpy(), x)
    there = np.eye(TOTAL)
    there[found.edge_index[0], found.edge_index[1]] = 1.0
    np.testing.assert_array_equal(there, near)


def test_too_large_a_graph_is_seen_by_the_view_alone(monkeypatch):
    monkeypatch.setattr("jurygcn.data.heterogeneous.MOST_JOINED", 10)
    _, data = made("hgt")
    found = one_graph(graph_of(data, "paper"))
    assert torch.equal(found.x, data["paper"].x)
    assert torch.equal(found.edge_index, data["paper", "cites", "paper"].edge_index)


@pytest.mark.parametrize("cites", [True, False])
def test_regressions_equal_those_that_are_fitted_without_each_label(cites):
    """Rows of averages and walks of dense matrices; every regression fitted again without each label."""
    model, data = made("hgt", cites=cites)
    jury = judged(model, data)
    x, near = all_types(data)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    degree = near.sum(axis=1)
    symmetric, mean = near / np.sqrt(np.outer(degree, degree)), near / degree[:, None]
    targets, checked = jury.panel.targets.numpy(), 0
    for member in jury.panel.members:
        view = member.design.view
        if view.kind not in (AVERAGES, WALKS):
            continue
        step = symmetric if view.kind == AVERAGES else mean
        rows = np.linalg.matrix_power(step, view.hops) @ (x if view.kind == AVERAGES else np.eye(TOTAL))
        rows = view.scale.numpy()[:, None] * rows
        rows = rows if view.centre is None else rows - rows.mean(axis=0)
        rows = np.hstack([rows, np.full((TOTAL, 1), INTERCEPT**0.5)])
        for i, node in enumerate(NODES.tolist()):
            rest = [k for k in range(len(NODES)) if k != i]
            A, Y = rows[NODES.numpy()[rest]], targets[rest]
            fitted = A.T @ np.linalg.solve(A @ A.T + member.ridge * np.eye(len(rest)), Y)
            np.testing.assert_allclose(member.own[i].numpy(), rows[node] @ fitted, atol=1e-8)
            checked += 1
    assert checked > 50


def test_verdict_with_advice():
    model, data = made("hgt")
    jury = judged(model, data)
    verdict, alone = jury.verdict(), jury.verdict(advice=None)
    assert verdict.advice is not None
    assert verdict.jury_outputs.shape == (PAPERS, 3)
    assert torch.equal(verdict.outputs, alone.outputs)
    torch.testing.assert_close(verdict.calibrated.sum(dim=1), torch.ones(PAPERS, dtype=torch.float64))
    some = jury.verdict([5, 1])
    assert torch.equal(some.label_counts, verdict.label_counts[[5, 1]])
    assert torch.equal(judged(model, data, run=2).verdict().label_counts, verdict.label_counts)
    assert jury.left_out("jury").probabilities.shape == (len(NODES), 3)
    assert jury.label_errors().table.shape[0] == len(NODES)
