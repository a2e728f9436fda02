"""Self-training: its parts by hand, and that it improves on the GCN."""

from __future__ import annotations

import pytest
import torch
from small_graphs import communities, parts
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import Jury, learning
from jurygcn.baselines.classifier import logits_of
from jurygcn.data import synthetic
from jurygcn.errors import SettingError
from jurygcn.models import GCN
from jurygcn.self_training.feature_views import FeatureView, feature_views
from jurygcn.self_training.pseudo_labels import (
    NO_PSEUDO_LABELS,
    PseudoLabels,
    ScoredLabels,
    choose_pseudo_labels,
    class_shares,
    count_changes,
    score_labels,
)
from jurygcn.self_training.rounds import (
    TeacherResult,
    fit_with_pseudo_labels,
    not_clearly_worse,
    select_ensemble,
    with_labels,
)

DATA = communities()
TRAIN, VAL, TEST = parts(DATA, labels=6)
QUICK = {"rounds": (0.1, 0.3), "hops": 2}


def test_shares_lean_towards_equal_ones():
    labels = torch.tensor([0, 0, 0, 2])
    torch.testing.assert_close(class_shares(labels, 4, balance=0.0), torch.tensor([0.75, 0, 0.25, 0]))
    torch.testing.assert_close(class_shares(labels, 4, balance=1.0), torch.tensor([4 / 6, 0, 2 / 6, 0]))
    assert float(class_shares(labels, 4, balance=1e6)[0]) == pytest.approx(0.5, abs=1e-4)


def test_scores_are_probability_times_weight():
    probabilities = torch.tensor([[0.7, 0.3], [0.2, 0.8]])
    p_values = torch.tensor([[0.5, 0.9], [0.1, 0.25]])
    found = score_labels(probabilities, p_values, trust=1.0)
    assert found.label.tolist() == [0, 1]
    torch.testing.assert_close(found.score, torch.tensor([0.35, 0.2]))
    torch.testing.assert_close(found.weight, torch.tensor([0.5, 0.25]))
    torch.testing.assert_close(score_labels(probabilities, p_values, trust=0.5).weight, torch.tensor([0.5**0.5, 0.5]))
    torch.testing.assert_close(score_labels(probabilities, p_values, trust=0.0).score, torch.tensor([0.7, 0.8]))


def test_the_surest_of_every_class_are_chosen():
    label = torch.tensor([0, 0, 0, 1, 1, 1])
    score = torch.tensor([0.9, 0.5, 0.7, 0.1, 0.3, 0.2])
    found = choose_pseudo_labels(
        ScoredLabels(label, score, score), torch.tensor([2.0, 1.9]), torch.tensor([0]), weight=0.5
    )
    assert found.nodes.tolist() == [2, 1, 4], "node 0 has a label of its own; 1.9 is one whole node"
    assert found.labels.tolist() == [0, 0, 1]
    torch.testing.assert_close(found.weights, torch.tensor([0.35, 0.25, 0.15]))


def test_changes_are_counted():
    before = PseudoLabels(torch.tensor([1, 2, 3]), torch.tensor([0, 0, 1]), torch.ones(3))
    after = PseudoLabels(torch.tensor([2, 3, 9]), torch.tensor([0, 0, 1]), torch.ones(3))
    assert count_changes(before, after) == 2


def test_rounds_grow_and_the_result_is_what_was_trained():
    found = learning.self_train(DATA, TRAIN, seed=2, distil=False, **QUICK)
    assert type(found.model) is GCN
    counts = [line["pseudo_labels"] for line in found.history]
    assert counts == sorted(counts)
    assert 12 <= counts[0] <= 15
    assert 40 <= counts[1] <= 45
    pseudo = found.pseudo_labels
    assert len(pseudo) == counts[-1]
    assert not bool(torch.isin(pseudo.nodes, TRAIN).any())
    assert len(pseudo.nodes.unique()) == len(pseudo)
    assert bool(((pseudo.weights > 0) & (pseudo.weights <= 1)).all())
    assert len(pseudo.weights.unique()) > 1, "weights come from the jury"
    again = learning.self_train(DATA, TRAIN, seed=2, distil=False, **QUICK)
    assert all(torch.equal(a, b) for a, b in zip(found.model.weights, again.model.weights))


def test_distilling_teaches_all_nodes():
    pseudo = learning.self_train(DATA, TRAIN, **QUICK).pseudo_labels
    assert sorted([*pseudo.nodes.tolist(), *TRAIN.tolist()]) == list(range(150))
    taught = learning.self_train(DATA, TRAIN, **QUICK)
    assert torch.equal(pseudo.labels, taught.teacher_probabilities.argmax(dim=1)[pseudo.nodes])
    assert set(pseudo.weights.tolist()) == {1.0}


def test_the_cap_and_the_class_balance_hold():
    found = learning.self_train(DATA, TRAIN, rounds=(0.5,), hops=2, max_pseudo_labels=21, balance=1e6, distil=False)
    assert torch.bincount(found.pseudo_labels.labels, minlength=3).tolist() == [7, 7, 7]


def test_confidence_leaves_the_jury_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Jury, "fit", lambda self: pytest.fail("no jury was asked for"))
    found = learning.self_train(DATA, TRAIN, judge="confidence", distil=False, **QUICK)
    assert set(found.pseudo_labels.weights.tolist()) == {1.0}


def results_of(teachers: list[list[float]]) -> list[TeacherResult]:
    """One result for each teacher, with these probabilities of class 1 at each node."""
    return [
        TeacherResult(torch.tensor([[1 - p, p] for p in each]), NO_PSEUDO_LABELS, [], (FeatureView(hops),))
        for hops, each in enumerate(teachers)
    ]


def test_teachers_are_added_while_accuracy_rises():
    results = results_of([[0.9, 0.9, 0.1, 0.1], [0.6, 0.6, 0.6, 0.1], [0.9, 0.45, 0.45, 0.95]])

    def right(outputs: Tensor) -> float:  # every node is of class 1
        return float(outputs.argmax(dim=1).float().mean())

    found = select_ensemble(results, right, max_teachers=10)
    assert found.views == (FeatureView(1), FeatureView(2)), (
        "1 is the best alone; with 2 beside it all four nodes are right"
    )
    torch.testing.assert_close(found.probabilities[:, 1], torch.tensor([0.75, 0.525, 0.525, 0.525]))
    assert select_ensemble(results, right, max_teachers=1).views == (FeatureView(1),)
    torch.testing.assert_close(
        select_ensemble(results[:1], right, max_teachers=10).probabilities, results[0].probabilities
    )


def test_held_out_labels_choose_teachers():
    """Each teacher is trained alone; the ensemble is built from their probabilities."""
    data, held_out = communities(noise=4.0), torch.cat([VAL, TEST])  # so noisy that no teacher is the best everywhere
    settings = {"seed": 1, "rounds": (0.3,), "epochs": 50}
    found = learning.self_train(data, TRAIN, val_nodes=held_out, components=(2, 5), **settings)
    views, taught = [], []
    for view, graph in feature_views(data, (0, 2, 4, 8, 16, 32, 64), (2, 5)):
        views.append(view)
        taught.append(learning.self_train(graph, TRAIN, hops=0, **settings).teacher_probabilities)
    assert len(views) == 20, "after 64 hops fewer than five components are left"
    ensemble = [views.index(FeatureView(*each)) for each in zip(found.hops, found.components)]
    torch.testing.assert_close(found.teacher_probabilities, sum(taught[place] for place in ensemble) / len(ensemble))

    def right(places: list[int]) -> int:
        return int((sum(taught[place] for place in places)[held_out].argmax(dim=1) == data.y[held_out]).sum())

    everyone = range(len(views))
    for count in range(1, len(ensemble) + 1):
        here = right(ensemble[:count])
        assert here == max(right([*ensemble[: count - 1], place]) for place in everyone), "the best teacher to add"
        assert count == 1 or here > right(ensemble[: count - 1]), "each added teacher helps"
    assert max(right([*ensemble, place]) for place in everyone) <= right(ensemble), "no further teacher helps"
    assert len({right([place]) for place in everyone}) > 3, "there is a choice"
    assert len(ensemble) > 1
    truth = data.y[held_out]
    assert found.validation_accuracy == pytest.approx(
        float((logits_of(found.model, data)[held_out].argmax(1) == truth).float().mean())
    )
    assert learning.self_train(data, TRAIN, hops=0, **settings).validation_accuracy is None, "no validation nodes"


def test_held_out_labels_and_hops_must_agree():
    with pytest.raises(SettingError, match="drop one of the two"):
        learning.self_train(DATA, TRAIN, val_nodes=VAL, hops=2)
    with pytest.raises(SettingError, match="pass val_nodes"):
        learning.self_train(DATA, TRAIN, hops="validated")


def test_not_clearly_worse_is_within_two_standard_errors():
    # against row 1: row 0 is worse by 0.5 +- 0, row 2 by 0.1 +- 0.5 / sqrt 3, row 3 by 3 +- 1 / sqrt 3
    base = torch.tensor([1.0, 1.0, 1.0, 1.0])
    rows = [base + 0.5, base, base + torch.tensor([0.6, -0.4, 0.6, -0.4]), base + torch.tensor([4.0, 2.0, 4.0, 2.0])]
    assert not_clearly_worse(torch.stack(rows)) == [1, 2]
    half = base + torch.tensor([2.0, 0.0, 2.0, 0.0])  # worse by 1 +- 0.58
    assert not_clearly_worse(torch.stack([base, half])) == [0, 1]
    assert not_clearly_worse(torch.stack([base, base + 1.0])) == [0]
    assert not_clearly_worse(torch.stack([base[:1], base[:1] + 1.0])) == [0]


def test_jurors_choose_how_far_to_look():
    """Where neighbours share labels averages help; where edges are noise they do not. In so small a graph eight hops
    make all nodes alike."""
    assert learning.self_train(DATA, TRAIN, rounds=(0.1,)).hops == (2, 4)
    shuffled = communities(noise=0.1).clone()
    generator = torch.Generator().manual_seed(0)
    edges = torch.randint(150, (2, 3000), generator=generator)
    shuffled.edge_index = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    many, _, _ = parts(shuffled, labels=60)
    assert learning.self_train(shuffled, many, rounds=(0.1,)).hops == (0,)


def test_given_hops_each_have_their_teacher():
    found = learning.self_train(DATA, TRAIN, rounds=(0.1,), hops=(0, 3), judge="confidence", distil=False)
    assert found.hops == (0, 3)
    settings = learning.SelfTraining(judge="confidence", distil=False)
    known = with_labels(DATA, torch.full_like(DATA.y, -1).index_copy(0, TRAIN, DATA.y[TRAIN]))
    said = []
    for _, graph in feature_views(known, (0, 3)):  # the last teachers again, one by one
        teacher = fit_with_pseudo_labels(graph, TRAIN, found.pseudo_labels, settings, seed=0, epochs=100, dropout=0.0)
        said.append(torch.softmax(teacher(graph.x, graph.edge_index), dim=1).detach())
    torch.testing.assert_close(found.teacher_probabilities, (said[0] + said[1]) / 2)


def test_classes_that_no_label_shows_stay_classes():
    nodes = TRAIN[DATA.y[TRAIN] < 2]
    unsaid = DATA.clone()
    del unsaid.num_classes
    found = learning.self_train(unsaid, nodes, rounds=(0.1,), hops=2)
    assert found.teacher_probabilities.shape == (150, 3)


def test_self_training_beats_the_gcn_with_few_labels():
    gains = []
    for seed in range(4):
        train, _, test = parts(DATA, labels=6, seed=seed)
        plain = learning.GCNClassifier().fit(DATA, train, seed=seed).predict(test)
        taught = learning.SelfTraining(**QUICK).fit(DATA, train, seed=seed).predict(test)
        gains.append(float((taught == DATA.y[test]).float().mean() - (plain == DATA.y[test]).float().mean()))
    assert sum(gains) / 4 > 0.05


def many_dense_features() -> tuple[Data, Tensor, Tensor]:
    data = synthetic(
        num_nodes=600, num_edges=24_000, num_features=600, num_classes=30, separation=1.0, homophily=0.3, seed=0
    )
    train, _, test = parts(data, labels=60)
    return data, train, test


def test_many_dense_features_are_learnt():
    """Averages of them are short: were they not made as long as the features, teachers would learn nothing."""
    data, train, test = many_dense_features()
    guess = learning.SelfTraining(hops=0).fit(data, train).predict(test)
    assert (guess == data.y[test]).float().mean() > 0.25  # one in thirty by chance; 0.05 with rows of length 1


def test_views_that_nothing_can_be_learnt_from_are_left_out():
    """Two labels a class tell jurors nothing of how far to look; that teachers fail does."""
    data, train, _ = many_dense_features()
    assert learning.self_train(data, train, rounds=(0.1,), epochs=1).hops == (0,)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"rounds": ()}, "rounds"),
        ({"rounds": (1.5,)}, "rounds"),
        ({"judge": "dredd"}, "dredd"),
        ({"hops": -1}, "hops"),
        ({"max_teachers": 0}, "max_teachers"),
        ({"components": (5, 0)}, "components"),
        ({"components": (2.5,)}, "components"),
        ({"weight": 0.0}, "weight"),
        ({"patience": 3}, "patience"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, word: str):
    with pytest.raises(SettingError, match=word):
        learning.self_train(DATA, TRAIN, **settings)
