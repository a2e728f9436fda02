"""Several answers for a node, against loops, enumeration of all classes, and made annotators."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jurygcn.annotators import PRIOR_ANSWERS as B
from jurygcn.annotators import agreement
from jurygcn.errors import DataError


def made(seed: int, *, nodes: int, rates: dict[str, float], classes: int = 3, each: int = 1):
    """True classes, and ``each`` answers of every annotator for every node."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=nodes)
    answers = []
    for node, name, _ in itertools.product(range(nodes), rates, range(each)):
        wrong = rng.random() < rates[name]
        answers.append((node, name, int((truth[node] + wrong * rng.integers(1, classes)) % classes)))
    return truth, answers


def by_loops(answers, classes: int, prior=None) -> tuple[dict[int, np.ndarray], dict[str, float]]:
    """EM word for word, one number at a time."""
    nodes, names = sorted({a[0] for a in answers}), sorted({a[1] for a in answers})
    post = {}
    for i in nodes:
        votes = np.array([float(sum(a[0] == i and a[2] == c for a in answers)) for c in range(classes)])
        post[i] = votes / votes.sum() if prior is None else (votes + prior[i]) / (votes.sum() + 1)
    for _ in range(3000):
        e = {}
        for name in names:
            mine = [a for a in answers if a[1] == name]
            e[name] = min(max(sum(1 - post[i][l] for i, _, l in mine) / (len(mine) + B), 1e-12), 1 - 1 / classes)
        share = [(sum(post[i][c] for i in nodes) + 1) / (len(nodes) + classes) for c in range(classes)]
        for i in nodes:
            p = np.array(share) if prior is None else prior[i].copy()
            for c in range(classes):
                for j, name, label in answers:
                    if j == i:
                        p[c] *= 1 - e[name] if label == c else e[name] / (classes - 1)
            post[i] = p / p.sum()
    return post, e


@pytest.mark.parametrize("with_prior", [False, True])
def test_it_is_expectation_maximisation(with_prior):
    _, answers = made(0, nodes=12, rates={"a": 0.1, "b": 0.4})
    answers = [a for k, a in enumerate(answers) if k % 5]  # some nodes have one answer
    rng = np.random.default_rng(1)
    prior = {i: rng.dirichlet(np.ones(3)) for i in range(12)} if with_prior else None
    found = agreement(answers, 3, prior=prior)
    posterior, rates = by_loops(answers, 3, prior)
    assert found.nodes.tolist() == sorted(posterior)
    assert found.posterior == pytest.approx(np.stack([posterior[i] for i in sorted(posterior)]), abs=1e-5)
    assert found.error_rates == pytest.approx(rates, abs=1e-5)


def log_likelihood(answers, rates, prior) -> float:
    """The log of the answers' probability with the penalty of the rates, summed over every assignment of classes."""
    nodes, classes = sorted(prior), len(next(iter(prior.values())))
    total = 0.0
    for truth in itertools.product(range(classes), repeat=len(nodes)):
        y = dict(zip(nodes, truth))
        p = np.prod([prior[i][y[i]] for i in nodes])
        for i, name, label in answers:
            p *= 1 - rates[name] if label == y[i] else rates[name] / (classes - 1)
        total += p
    return float(np.log(total) + B * sum(np.log1p(-e) for e in rates.values()))


def test_the_error_rates_are_a_maximum_by_enumeration():
    _, answers = made(3, nodes=5, rates={"a": 0.2, "b": 0.3, "c": 0.4})
    rng = np.random.default_rng(2)
    prior = {i: rng.dirichlet(2 * np.ones(3)) for i in range(5)}
    found = agreement(answers, 3, prior=prior)
    best = log_likelihood(answers, found.error_rates, prior)
    moved = 0
    for name, step in itertools.product(found.error_rates, (-0.01, 0.01)):
        rates = {**found.error_rates, name: found.error_rates[name] + step}
        if 1e-9 < rates[name] < 1 - 1 / 3:
            assert log_likelihood(answers, rates, prior) < best
            moved += 1
    assert moved >= 4
    # the posterior of a node, by summing over all assignments with that class
    for row, i in enumerate(found.nodes):
        shares = []
        for c in range(3):
            fixed = {**prior, i: np.where(np.arange(3) == c, prior[i], 0.0)}
            shares.append(np.exp(log_likelihood(answers, found.error_rates, fixed) - best))
        assert found.posterior[row] == pytest.approx(shares, abs=1e-6)


def test_error_rates_are_found_and_labels_are_better_than_the_majority():
    better, gaps = 0, []
    for seed in range(8):
        rates = {"careful": 0.05, "second": 0.45, "third": 0.45}
        truth, answers = made(seed, nodes=200, rates=rates)
        found = agreement(answers, 3)
        gaps += [abs(found.error_rates[name] - rate) for name, rate in rates.items()]
        votes = np.zeros((200, 3))
        for node, _, label in answers:
            votes[node, label] += 1
        better += (found.labels == truth).mean() >= (votes.argmax(axis=1) == truth).mean() + 0.03
    assert better == 8
    assert np.mean(gaps) < 0.04


def test_one_annotator_asked_again_shows_an_error_rate():
    rates = [agreement(made(s, nodes=100, rates={"oracle": 0.3}, each=3)[1], 3).error_rate for s in range(5)]
    assert np.mean(rates) == pytest.approx(0.3, abs=0.05)


def test_single_answers_are_taken_as_they_are():
    found = agreement([(4, "a", 2), (1, "b", 0)], 3)
    assert found.nodes.tolist() == [1, 4]
    assert found.labels.tolist() == [0, 2]
    assert found.error_rate < 1e-6
    # with a prior that is sure of another class, an answer is doubted
    prior = {i: np.array([0.98, 0.01, 0.01]) for i in range(10)}
    doubted = agreement([(i, "a", int(i == 3)) for i in range(10)], 3, prior=prior)
    assert doubted.labels.tolist() == [0] * 10
    assert doubted.error_rates["a"] == pytest.approx(1 / 13, abs=0.02)


def test_bad_answers_are_refused():
    with pytest.raises(DataError, match="expected answers"):
        agreement([], 3)
    with pytest.raises(DataError, match=r"classes 0\.\.2"):
        agreement([(0, "a", 3)], 3)


def test_ties_are_not_decided():
    found = agreement([(0, "a", 1), (0, "b", 2), (1, "a", 1), (1, "b", 1), (2, "a", 2), (2, "b", 2)], 3)
    assert found.ties == [0]
    assert found.decided == {1: 1, 2: 2}
    assert "1 nodes are tied" in found.words


def test_answers_of_several_annotators_from_a_file(tmp_path):
    """The more reliable annotator decides where two disagree; the command adds the labels and says the error rates."""
    from typer.testing import CliRunner

    from jurygcn import load_dataset
    from jurygcn.active.tasks import read_agreement
    from jurygcn.cli import app

    data = load_dataset("karate")
    truth = data.y.tolist()
    lines = ["node,annotator,answer,label,comment,chosen"]
    for node in range(20):
        wrong = (truth[node] + 1) % int(data.num_classes)
        careless = wrong if node % 3 == 0 else truth[node]
        lines += [f"{node},{name},label,{label},,random" for name, label in
                  (("anna", truth[node]), ("ben", careless), ("carl", truth[node]))]  # fmt: skip
    lines += [
        f"20,anna,label,{truth[20]},,random",
        f"20,ben,label,{(truth[20] + 1) % 4},,random",
        "21,anna,skip,,,random",
    ]
    path = tmp_path / "answers.csv"
    path.write_text("\n".join(lines) + "\n")
    found = read_agreement(path, data)
    assert found.decided == {node: truth[node] for node in range(21)}
    assert found.error_rates["ben"] > 0.2 > found.error_rates["anna"]
    plain = tmp_path / "plain.csv"
    plain.write_text("node,label\n0,1\n")
    assert read_agreement(plain, data) is None
    result = CliRunner().invoke(
        app, ["active", "add", "karate", "--labels", str(tmp_path / "labels.csv"), "--answers", str(path)]
    )
    assert result.exit_code == 0, result.output
    assert "21 new labels" in result.output
    assert "ben" in result.output
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 22
