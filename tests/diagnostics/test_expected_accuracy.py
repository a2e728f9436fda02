"""The expected accuracy and its interval: by hand, by loops, on random draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from left_out_cases import DECAY, NODES, graph, invented, jury_of, model_of
from torch.nn import functional

from jurygcn import Jury, Votes
from jurygcn.data import load_dataset, paper_split, random_labels
from jurygcn.diagnostics import left_out
from jurygcn.diagnostics.accuracy import CORRECTED, assisted_accuracy, bootstrap_mean, summarised, wilson
from jurygcn.diagnostics.left_out import LeftOut
from jurygcn.models import Recipe, fit_gcn


def test_summary_by_hand() -> None:
    rows = [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]]
    found = summarised(invented(rows, [0, 1, 0, 2]), of="model", level=0.95, names=["a", "b", "c"])
    assert found.accuracy == 0.75
    assert found.n == 4
    assert found.confusion.to_numpy().tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert found.log_loss == pytest.approx(-np.log([0.7, 0.5, 0.1, 0.4]).mean())
    brier = [(0.09 + 0.04 + 0.01), (0.04 + 0.25 + 0.09), (0.81 + 0.64 + 0.01), (0.09 + 0.09 + 0.36)]
    assert found.brier == pytest.approx(np.mean(brier))
    table = found.per_class.set_index("class")
    assert table.loc["a", ["labels", "right", "recall", "precision"]].tolist() == [2, 1, 0.5, 1.0]
    assert table.loc["b", "precision"] == 0.5
    assert found.left_out_accuracy == 0.75
    assert found.interval == found.left_out_interval == wilson(3, 4, level=0.95)
    assert found.others == 0
    assert "75%" in found.words
    assert "from 4 left-out labels)" in found.words


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(2, 20), st.integers(1, 30), st.integers(0, 10_000))
def test_help_of_other_nodes_by_a_loop(C: int, n: int, m: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    own, left_out = (torch.softmax(2 * torch.randn(n, C, generator=generator).double(), dim=1) for _ in range(2))
    labels, said = (torch.randint(0, C, (k,), generator=generator) for k in (n, m))
    stacked = torch.softmax(2 * torch.randn(m, C, generator=generator).double(), dim=1)
    found = assisted_accuracy(LeftOut(torch.arange(n), labels, own), left_out, said, stacked)
    mean = sum(float(stacked[u, said[u]]) for u in range(m)) / m
    gaps, calibrated = [], []
    for i in range(n):
        c = int(own[i].argmax())
        sure = float(left_out[i, c])
        gaps.append(float(c == int(labels[i])) - sure)
        calibrated.append(sure * (1 - sure))
    r = sum(gaps) / n
    spread = max(sum((gap - r) ** 2 for gap in gaps) / (n - 1), sum(calibrated) / n)
    assert found.accuracy == pytest.approx(min(max(mean + CORRECTED * r, 0.0), 1.0))
    assert found.error == pytest.approx((spread / n + ((1 - CORRECTED) * r) ** 2) ** 0.5)
    assert found.others == m


def test_the_whole_correction_has_no_bias_whatever_the_probabilities() -> None:
    """Over draws of labels the mean of the corrected estimates is the accuracy, for a jury that is far too sure."""
    generator = torch.Generator().manual_seed(0)
    N, n = 400, 20
    y = torch.randint(0, 3, (N,), generator=generator)
    p = torch.softmax(torch.randn(N, 3, generator=generator).double() + 1.5 * functional.one_hot(y, 3), dim=1)
    sure = torch.softmax(6 * p.log(), dim=1)
    truth, plain, corrected = float((p.argmax(dim=1) == y).double().mean()), [], []
    for _ in range(300):
        order = torch.randperm(N, generator=generator)
        own, rest = order[:n], order[n:]
        found = assisted_accuracy(LeftOut(own, y[own], p[own]), sure[own], p[rest].argmax(dim=1), sure[rest])
        r = float(((p[own].argmax(dim=1) == y[own]).double() - sure[own].max(dim=1).values).mean())
        plain.append(found.accuracy - CORRECTED * r)
        corrected.append(found.accuracy + (1 - CORRECTED) * r)
    assert np.mean(plain) - truth > 0.15
    assert abs(np.mean(corrected) - truth) < 3 * np.std(corrected) / 300**0.5


def test_other_nodes_help_where_labels_were_drawn_at_random() -> None:
    data = graph()
    model = model_of(data)
    jury = Jury(model, data, NODES, weight_decay=DECAY).fit()
    found, verdict, left = jury.expected_accuracy(), jury.verdict(), jury.left_out()
    others = torch.tensor([u for u in range(150) if u not in NODES.tolist()])
    with torch.no_grad():
        said = model(data.x, data.edge_index)[others].argmax(dim=1)
    byhand = assisted_accuracy(left, jury.left_out("jury").probabilities, said, verdict.calibrated[others].double())
    assert found.accuracy == pytest.approx(byhand.accuracy, abs=1e-6)
    assert found.error == pytest.approx(byhand.error, abs=1e-6)
    assert found.interval == pytest.approx(
        (found.accuracy - 1.959964 * found.error, found.accuracy + 1.959964 * found.error), abs=1e-5
    )
    assert "and 120 nodes without a label" in found.words
    assert found.left_out_accuracy == float((left.probabilities.argmax(dim=1) == left.labels).double().mean())
    stacked = jury.expected_accuracy(of="jury")
    mine = jury.left_out("jury")
    again = assisted_accuracy(mine, mine.probabilities, verdict.jury_class[others], verdict.calibrated[others].double())
    assert stacked.accuracy == pytest.approx(again.accuracy, abs=1e-6)
    for chosen in ("per class", "actively"):
        plain = Jury(model, data, NODES, weight_decay=DECAY, chosen=chosen).fit().expected_accuracy()
        assert plain.others == 0
        assert plain.accuracy == plain.left_out_accuracy
        assert "without a label" not in plain.words


def test_labels_alone_where_there_is_no_stacked_jury(monkeypatch) -> None:
    jury = jury_of(votes=Votes("linearized", rank=16))
    monkeypatch.setattr(left_out, "MOST_VOTES", 10)
    found = jury.expected_accuracy()
    assert found.others == 0
    assert found.accuracy == found.left_out_accuracy


def test_wilson_solves_its_equation() -> None:
    """The ends are the shares p with |k/n - p| = z sqrt(p (1 - p) / n)."""
    for k, n in ((0, 10), (3, 10), (37, 60), (60, 60)):
        for p in wilson(k, n, level=0.95):
            assert abs(abs(k / n - p) - 1.959964 * (p * (1 - p) / n) ** 0.5) < 1e-6
    assert wilson(0, 0, level=0.9) == (0.0, 1.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 200), st.integers(0, 200), st.floats(0.5, 0.99))
def test_wilson_contains_the_share(n: int, k: int, level: float) -> None:
    k = min(k, n)
    low, high = wilson(k, n, level=level)
    assert 0.0 <= low <= k / n + 1e-12
    assert k / n - 1e-12 <= high <= 1.0
    wider = wilson(k, n, level=(1 + level) / 2)
    assert wider[0] <= low + 1e-12
    assert high <= wider[1] + 1e-12


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    low, high = bootstrap_mean(values, level=0.95)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)
    assert bootstrap_mean(values, level=0.95) == (low, high)


def test_coverage_of_the_interval_on_random_draws() -> None:
    """Over draws of labels the interval contains the accuracy on test nodes, and the estimate is hardly biased."""
    data = load_dataset("digits")
    inside, off = [], []
    for seed in range(8):
        split = paper_split(data, seed=seed)
        nodes = random_labels(split.pool, 60, seed=seed)
        model, _ = fit_gcn(data, nodes, Recipe(dropout=0.0), seed=seed)
        found = Jury(model, data, nodes, weight_decay=Recipe.weight_decay).fit().expected_accuracy()
        with torch.no_grad():
            right = model(data.x, data.edge_index).argmax(dim=1) == data.y
        accuracy = float(right[split.test].double().mean())
        inside.append(found.interval[0] <= accuracy <= found.interval[1])
        off.append(found.accuracy - accuracy)
    assert sum(inside) >= 7
    assert abs(np.mean(off)) < 0.04


def test_nothing_is_promised_after_active_learning() -> None:
    data = graph()
    jury = Jury(model_of(data), data, NODES, weight_decay=DECAY, chosen="actively").fit()
    found = jury.expected_accuracy()
    assert not found.promised
    assert "actively" in found.words
    assert "nothing about other nodes" in found.words
    per_class = Jury(model_of(data), data, NODES, weight_decay=DECAY, chosen="per class").fit().expected_accuracy()
    assert per_class.promised
    assert "class by class" in per_class.words
    assert "too low" in per_class.words
