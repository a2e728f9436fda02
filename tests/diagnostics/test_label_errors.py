"""Label errors: the noise model against its formulas, the ranking and its reasons on graphs with known errors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, Jury, Votes, train
from jurygcn.data import synthetic
from jurygcn.diagnostics import left_out
from jurygcn.diagnostics.label_errors import LabelErrors
from jurygcn.diagnostics.noise import RATES, ROUNDS, SCALES, STRICT, WIDE, NoiseModel, fit_noise, learned_noise
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.panel import Panel
from jurygcn.leave_one_out.stacking import uncertain_weights

NODES = torch.arange(0, 240, 3)
DECAY = 5e-3


def clean() -> Data:
    return synthetic(
        num_nodes=300, num_edges=1500, num_features=12, num_classes=4, separation=2.5, homophily=0.9, seed=4
    )


def spoiled(share: float = 0.15) -> tuple[Data, Tensor]:
    """A graph some of whose training labels are another class, and which those are."""
    data = clean()
    generator = torch.Generator().manual_seed(1)
    wrong = NODES[torch.randperm(len(NODES), generator=generator)[: int(share * len(NODES))]]
    data.y = data.y.clone()
    data.y[wrong] = (data.y[wrong] + torch.randint(1, 4, (len(wrong),), generator=generator)) % 4
    return data, wrong


def jury_of(data: Data, **settings_of: object) -> Jury:
    model = GCN(12, 8, 4)
    train(model, data, NODES, epochs=100, weight_decay=DECAY, seed=0)
    return Jury(model, data, NODES, weight_decay=DECAY, **settings_of).fit()


def test_wrong_labels_are_found_and_put_right() -> None:
    data, wrong = spoiled()
    truth = clean().y
    found = jury_of(data).label_errors()
    bad = torch.isin(torch.tensor(found.table["node"].tolist()), wrong)
    assert roc_auc_score(bad, found.table["wrong"]) > 0.95
    assert roc_auc_score(bad, -found.table["probability"]) > 0.95
    flagged = found.table[found.table["flagged"]]
    hits = torch.isin(torch.tensor(flagged["node"].tolist()), wrong)
    assert len(flagged) >= 8
    assert float(hits.double().mean()) > 0.75
    assert abs(found.noise - 0.15) < 0.08
    right = flagged.loc[hits.numpy()]
    assert float(np.mean([int(s) == int(truth[n]) for s, n in zip(right["suggested"], right["node"])])) > 0.8
    assert found.of == "jury"
    assert found.table["wrong"].is_monotonic_decreasing
    assert found.flagged.tolist() == flagged["node"].tolist()


def test_reasons_are_about_the_suggested_class() -> None:
    data, _ = spoiled()
    found = jury_of(data).label_errors()
    for row in found.table[found.table["flagged"]].itertuples():
        assert row.label != row.suggested
        assert len(row.against) >= 1
        assert row.node not in row.against
        assert {int(data.y[node]) for node in row.against} == {int(row.suggested)}
        assert f"speak for {row.suggested}" in row.why
    assert (found.table.loc[~found.table["flagged"], "why"] == "").all()


def test_labels_against_are_the_largest_coefficients_of_the_refits() -> None:
    """The prediction without label i is a sum over the other labels; its coefficients come from solving it again."""
    data, _ = spoiled()
    jury = jury_of(data)
    advice, panel, found = jury.advice(), jury.panel, jury.label_errors()
    weight_of = dict(zip(advice.members[1:], advice.weights[1:].tolist()))
    row = found.table.iloc[0]
    i = NODES.tolist().index(row["node"])
    others = torch.arange(len(NODES)) != i
    total = torch.zeros(len(NODES), dtype=torch.float64)
    without = Panel(data, NODES[others], panel.targets[others], dtype=torch.float64)
    for member in without.members:
        if member.words in weight_of:
            coefficients, offset = member.design.coefficients(member.ridge)
            total[others] += weight_of[member.words] * (
                offset + without.columns(member.design)[NODES[i]].double() @ coefficients
            )
    total[data.y[NODES] != int(row["suggested"])] = 0.0
    assert list(row["against"]) == NODES[total.topk(3).indices].tolist()


def test_clean_labels_are_left_alone() -> None:
    data, _ = spoiled(share=0.0)
    found = jury_of(data).label_errors()
    assert found.noise < 0.08
    assert int(found.table["flagged"].sum()) <= 4
    assert "%" in found.words


def test_a_class_whose_labels_are_all_flagged_is_named() -> None:
    """A rare class can look like errors: 3 of 80 labels."""
    table = pd.DataFrame({"label": ["ok"] * 3 + ["fraud"] * 3, "flagged": [False, True, False] + [True] * 3})
    assert "All labels of a class are flagged (3 of fraud)" in LabelErrors(table, 0.05, 0.0, "jury").words
    table.loc[3, "flagged"] = False
    assert "All labels" not in LabelErrors(table, 0.05, 0.0, "jury").words


def test_thresholds_nest_and_false_discoveries_are_the_mean() -> None:
    data, _ = spoiled()
    jury = jury_of(data)
    few, many = jury.label_errors(threshold=0.8), jury.label_errors(threshold=0.1)
    assert set(few.flagged.tolist()) < set(many.flagged.tolist())
    for found in (few, many):
        chosen = found.table[found.table["flagged"]]
        assert found.false_discoveries == pytest.approx(1 - chosen["wrong"].mean())
    with pytest.raises(SettingError, match="threshold"):
        jury.label_errors(threshold=2.0)
    nobody = jury.label_errors(threshold=1.0)
    assert len(nobody.flagged) == 0
    assert "None is suspicious" in nobody.words


def test_the_models_jurors_where_there_is_no_stacked_jury(monkeypatch) -> None:
    monkeypatch.setattr(left_out, "MOST_VOTES", 10)  # linearised jurors with more votes take no advice
    data, wrong = spoiled()
    found = jury_of(data, votes=Votes("linearized", rank=32)).label_errors()
    bad = torch.isin(torch.tensor(found.table["node"].tolist()), wrong)
    assert found.of == "model"
    assert roc_auc_score(bad, found.table["wrong"]) > 0.8
    assert all(row == () for row in found.table["against"])


# --- the noise model ------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(1, 12), st.integers(0, 10_000))
def test_posterior_by_enumeration(classes: int, n: int, seed: int) -> None:
    """Loops over rates, scales and labels, with Bayes' rule over the true class of each."""
    generator = torch.Generator().manual_seed(seed)
    logs = torch.log_softmax(torch.randn(n, classes, generator=generator, dtype=torch.float64), dim=1)
    y = torch.randint(0, classes, (n,), generator=generator)
    found = fit_noise(logs, y)
    total, rates, wrong = 0.0, 0.0, np.zeros(n)
    for scale in SCALES[::1].tolist():
        p = torch.softmax(scale * logs, dim=1).numpy()
        for rate in RATES.tolist():
            joint = np.full((n, classes), rate / (classes - 1)) * p  # true class c, wrong label
            for i in range(n):
                joint[i, y[i]] = (1 - rate) * p[i, y[i]]
            prior = (1 - rate) ** (STRICT - 1) * np.exp(-(np.log(scale) ** 2) / (2 * WIDE**2))
            weight = prior * joint.sum(axis=1).prod()
            total += weight
            rates += weight * rate
            wrong += weight * (1 - joint[np.arange(n), y] / joint.sum(axis=1))
    assert found.rate == pytest.approx(rates / total, rel=1e-6)
    np.testing.assert_allclose(found.wrong.numpy(), wrong / total, rtol=1e-6, atol=1e-9)


def test_noise_is_recovered_from_simulated_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2.0 * torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    p = torch.softmax(logits, dim=1)
    y = torch.multinomial(p, 1, generator=generator).squeeze(1)
    flipped = torch.rand(4000, generator=generator) < 0.2
    y[flipped] = (y[flipped] + torch.randint(1, 5, (int(flipped.sum()),), generator=generator)) % 5
    found = fit_noise(0.5 * logits, y)  # the jury is underconfident by a factor of 2
    assert found.rate == pytest.approx(0.2, abs=0.03)
    assert float((found.truth - p).abs().mean()) < 0.03
    flagged = found.wrong > 0.5
    right = float((~flipped)[flagged].double().mean())
    assert float((1 - found.wrong[flagged]).mean()) == pytest.approx(right, abs=0.03)


def test_cleanlab_agrees_on_the_same_probabilities() -> None:
    """Confident learning from the jury's left-out probabilities: the same ranking, and mostly the same labels."""
    rank = pytest.importorskip("cleanlab.rank")
    choose = pytest.importorskip("cleanlab.filter")
    data, wrong = spoiled()
    jury = jury_of(data)
    found, left_out = jury.label_errors(), jury.left_out()
    noise = learned_noise(jury.panel, jury.positions, left_out.labels, left_out.probabilities)
    labels, p = left_out.labels.numpy(), noise.logs.exp().numpy()
    confidence = rank.get_label_quality_scores(labels, p, method="self_confidence")
    by_node = found.table.set_index("node").loc[left_out.nodes.tolist()]
    np.testing.assert_allclose(by_node["probability"], confidence, rtol=1e-6)
    theirs = set(left_out.nodes[torch.from_numpy(choose.find_label_issues(labels, p))].tolist())
    ours, errors = set(found.flagged.tolist()), set(wrong.tolist())
    assert len(ours & theirs) >= 0.7 * len(ours)
    assert len(ours & errors) >= len(theirs & errors) - 3


# --- learning in spite of wrong labels ------------------------------------------------------------------------


def refits(data: Data, targets: Tensor) -> Tensor:
    """Predictions of each label by regressions that are fitted again to the targets of the others, (k, n, C)."""
    rows = []
    for i in range(len(NODES)):
        others = torch.arange(len(NODES)) != i
        without = Panel(data, NODES[others], targets[others], dtype=torch.float64)
        rows.append(torch.stack([without.answers(member)[NODES[i]] for member in without.members]))
    return torch.stack(rows, dim=1)


def test_probable_classes_by_refitting_every_regression() -> None:
    """Every round with all regressions fitted again for every label, and Bayes' rule in a loop."""
    data, _ = spoiled()
    data.x = data.x.double()
    labels, C = data.y[NODES], 4
    generator = torch.Generator().manual_seed(3)
    model = torch.softmax(2.0 * torch.randn(len(NODES), C, generator=generator, dtype=torch.float64), dim=1)
    panel = Panel(data, NODES, torch.eye(C, dtype=torch.float64)[labels] - 1 / C, dtype=torch.float64)
    found = learned_noise(panel, torch.arange(len(NODES)), labels, model)
    classes = torch.eye(C, dtype=torch.float64)[labels]
    for round_ in range(ROUNDS + 1):
        own = torch.cat([model.log()[None], refits(data, classes - 1 / C)])
        weights = uncertain_weights(own, classes)
        pooled = torch.stack([sum(w * z for w, z in zip(weights[:, i], own[:, i])) for i in range(len(NODES))])
        noise = fit_noise(torch.log_softmax(pooled, dim=1), labels)
        if round_ == ROUNDS:
            break
        for i, y in enumerate(labels.tolist()):
            for c in range(C):
                share = float(noise.truth[i, c]) / (1.0 - float(noise.truth[i, y]))
                classes[i, c] = 1 - noise.wrong[i] if c == y else noise.wrong[i] * share
    torch.testing.assert_close(found.wrong, noise.wrong, atol=2e-4, rtol=1e-3)
    assert found.rate == pytest.approx(noise.rate, abs=1e-4)


def test_learning_probable_classes_finds_more_errors() -> None:
    data, wrong = spoiled(share=0.3)
    bad = torch.isin(NODES, wrong)
    labels = data.y[NODES]
    panel = Panel(data, NODES, torch.eye(4, dtype=torch.float64)[labels] - 0.25, dtype=torch.float64)
    own = torch.stack([member.own for member in panel.members])
    given = torch.eye(4, dtype=torch.float64)[labels]
    once = fit_noise(torch.log_softmax(torch.einsum("kn,knc->nc", uncertain_weights(own, given), own), dim=1), labels)
    learned = learned_noise(panel, torch.arange(len(NODES)), labels, None)
    assert roc_auc_score(bad, learned.wrong) > roc_auc_score(bad, once.wrong)


def test_prediction_of_a_label_does_not_depend_on_it() -> None:
    data, _ = spoiled()
    panel = Panel(data, NODES, torch.eye(4, dtype=torch.float64)[data.y[NODES]] - 0.25, dtype=torch.float64)
    other = panel.targets.clone()
    other[5] = torch.tensor([0.9, -0.3, -0.3, -0.3], dtype=torch.float64)
    for member in panel.members:
        before, after = (member.design.left_out(targets, member.ridge)[1] for targets in (panel.targets, other))
        torch.testing.assert_close(before[5], after[5], atol=1e-9, rtol=0)
        assert float((before - after).abs().max()) > 1e-4


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(1, 10), st.integers(0, 10_000))
def test_probable_classes_are_distributions(classes: int, n: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.softmax(3.0 * torch.randn(n, classes, generator=generator, dtype=torch.float64), dim=1)
    wrong = torch.rand(n, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, classes, (n,), generator=generator)
    found = NoiseModel(0.1, wrong, truth, truth.log()).classes(labels)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(n, dtype=torch.float64))
    torch.testing.assert_close(found.gather(1, labels[:, None]).squeeze(1), 1.0 - wrong)
