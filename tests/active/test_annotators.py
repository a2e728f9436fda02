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


def by_loops(answers, classes: int, prior=None, own=()) -> tuple[dict[int, np.ndarray], dict[str, float]]:
    """EM word for word, one number at a time; without a prior only ``own`` have their own rates."""
    nodes, names = sorted({a[0] for a in answers}), sorted({a[1] for a in answers})
    post = {}
    for i in nodes:
        votes = np.array([float(sum(a[0] == i and a[2] == c for a in answers)) for c in range(classes)])
        post[i] = votes / votes.sum() if prior is None else (votes + prior[i]) / (votes.sum() + 1)
    for _ in range(3000):
        e = {}
        for name in names:
            mine = [a for a in answers if a[1] == name]
            if prior is None:
                several = [a for a in answers if sum(a[0] == other[0] for other in answers) > 1]
                mine = [a for a in several if a[1] == name or name not in own]
            e[name] = min(max(sum(1 - post[i][l] for i, _, l in mine) / (len(mine) + B), 1e-12), 1 - 1 / classes)
        weighed = [i for i in nodes if any(j == i and name in own for j, name, _ in answers)]
        share = [(sum(post[i][c] for i in weighed) + 1) / (len(weighed) + classes) for c in range(classes)]
        for i in nodes:
            p = np.array(share) if i in weighed else np.ones(classes)
            p = p if prior is None else prior[i].copy()
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


def test_it_is_expectation_maximisation_of_some_with_their_own_rate(monkeypatch):
    monkeypatch.setattr("jurygcn.annotators.THREE_ANSWERED", 8)
    _, answers = made(0, nodes=14, rates={"a": 0.1, "b": 0.4, "c": 0.2})
    answers = [a for a in answers if a[0] not in (1, 2, 3, 4) or a[1] == "b"]
    answers += [(1, "d", 0), (2, "d", 1), (2, "e", 2), (3, "e", 1), (30, "d", 0), (30, "e", 0), (31, "e", 2)]
    found = agreement(answers, 3)
    assert found.own == {"a", "b", "c"}
    posterior, rates = by_loops(answers, 3, own=found.own)
    assert found.posterior == pytest.approx(np.stack([posterior[i] for i in sorted(posterior)]), abs=1e-5)
    assert found.error_rates == pytest.approx(rates, abs=1e-5)
    assert found.error_rates["d"] == found.error_rates["e"]


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
    assert "1 node is undecided and gets no label: 0. Ask again" in found.words


def split(answers) -> dict[int, dict[str, int]]:
    """The answers of each node with different ones, by annotator."""
    by_node: dict[int, dict[str, int]] = {}
    for node, name, label in answers:
        by_node.setdefault(node, {})[name] = label
    return {node: said for node, said in by_node.items() if len(set(said.values())) > 1}


@pytest.mark.parametrize("rates", [{"anna": 0.25, "ben": 0.25}, {"anna": 0.3, "ben": 0.1}, {"anna": 0.0, "ben": 0.4}])
@pytest.mark.parametrize("classes", [2, 4])
def test_of_two_annotators_nobody_is_believed_more(rates, classes):
    """Pairs of answers do not tell who of the two is wrong: no disagreement is decided."""
    for seed in range(10):
        truth, answers = made(seed, nodes=60, rates=rates, classes=classes)
        answers = [(n + 1000 * (truth[n] == 0), a, label) for n, a, label in answers if truth[n] == 0 or n % 3]
        found = agreement(answers, classes)
        assert found.ties == sorted(split(answers))
        assert found.error_rates["anna"] == found.error_rates["ben"]
        assert not found.own
        assert f"{len(found.ties)} nodes are undecided" in found.words
        assert "Ask again, best a third person" in found.words


def test_the_common_rate_of_two_annotators_is_their_average():
    for rates in ({"anna": 0.25, "ben": 0.25}, {"anna": 0.3, "ben": 0.1}):
        common = [
            agreement(made(seed, nodes=200, rates=rates, classes=4)[1], 4).error_rates["anna"] for seed in range(10)
        ]
        assert np.mean(common) == pytest.approx(np.mean(list(rates.values())), abs=0.025)


def test_average_annotators_decide_by_majority():
    """A rare class keeps its majority, and chains of pairs do not tell who is wrong."""
    names = ["a", "b", "c", "d", "e"]
    answers = [(n, names[(n + k) % 5], 0) for n in range(30) for k in range(2)]
    answers += [(50, "a", 1), (50, "b", 1), (50, "c", 0), (51, "d", 1), (51, "e", 0), (52, "f", 2)]
    found = agreement(answers, 3)
    assert not found.own
    assert found.ties == [51]
    assert found.decided == {**dict.fromkeys(range(30), 0), 50: 1, 52: 2}


def test_enough_nodes_of_three_give_rates_of_ones_own():
    rates = {"anna": 0.3, "ben": 0.05, "carl": 0.1}
    _, answers = made(0, nodes=200, rates=rates)
    pairs = [(n + 1000, a, label) for n, a, label in made(1, nodes=60, rates={"anna": 0.3, "ben": 0.05})[1]]
    found = agreement([*answers, *pairs, (2000, "dora", 1), (2000, "carl", 2), (2001, "dora", 0)], 3)
    assert found.own == {"anna", "ben", "carl"}
    for name, rate in rates.items():
        assert found.error_rates[name] == pytest.approx(rate, abs=0.06)
    assert split(pairs)
    assert all(found.decided[node] == said["ben"] for node, said in split(pairs).items())
    # a newcomer counts as average, not as right
    assert found.error_rates["carl"] < found.error_rates["dora"] == pytest.approx(0.15, abs=0.03)
    assert found.decided[2000] == 2
    assert "dora counts as average" in found.words
    assert agreement([*answers[: 3 * 19], *pairs], 3).own == frozenset()
    assert agreement([*answers[: 3 * 20], *pairs], 3).own == {"anna", "ben", "carl"}
    # the same answer several times is not a third person
    assert not agreement([*pairs, *pairs], 3).own


def test_few_answers_are_not_said_to_be_all_right():
    _, answers = made(0, nodes=20, rates={"anna": 0.0, "ben": 0.0, "carl": 0.4})
    for n in (2, 3):
        found = agreement([a for k, a in enumerate(answers) if k % 3 < n], 3)
        assert " 0%" not in found.words
        assert "about 4% of 20" in found.words or n == 2
    assert "nothing tells" in agreement([(0, "a", 1), (1, "b", 1)], 3).words


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
    # without carl nothing tells that ben is the careless one
    path.write_text("\n".join(line for line in lines if ",carl," not in line) + "\n")
    result = CliRunner().invoke(
        app, ["active", "add", "karate", "--labels", str(tmp_path / "two.csv"), "--answers", str(path)]
    )
    assert result.exit_code == 0, result.output
    assert "13 new labels" in result.output
    assert "8 nodes are undecided and get no label: 0, 3, 6, 9, 12, 15, 18, 20." in result.output
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 22
