"""The worker's side: what is shown of nodes, and one round of training and choosing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from annotators import CLASSES, NODES, SCRIPT, truth, write_graph

from jurygcn.active.design import Design
from jurygcn.active.tasks import scene_of
from jurygcn.app.choosing import play
from jurygcn.app.preparation import load, strongest_features, table_of
from jurygcn.app.rounds import Job, Source
from jurygcn.data import load_dataset
from jurygcn.errors import DataError
from jurygcn.models.training import Recipe


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = write_graph(tmp_path_factory.mktemp("choosing") / "graph")
    return load(Source(str(folder), classes=CLASSES))


def job(labelled: int, *, pending: tuple[int, ...] = (), size: int = 6, train: bool = True) -> Job:
    labels = {node: truth(node) for node in range(labelled)}
    candidates = np.array([node for node in range(NODES) if node not in labels and node not in pending])
    return Job(labels, list(pending), candidates, size, train)


def test_the_table_of_nodes(graph):
    data, loaded = graph
    table = loaded.table
    assert len(table) == NODES
    assert table.name(0) == SCRIPT
    assert set(table.texts) == {"title", "home", "image"}
    for node in (0, 17, 60):
        ends = data.edge_index
        assert table.around(node) == sorted(set(ends[1][ends[0] == node].tolist()))
    degrees = [len(table.around(node)) for node in table.by_degree]
    assert degrees == sorted(degrees, reverse=True)
    near, edges = table.surroundings(5, {table.around(5)[-1]: 0})
    assert near[0] == table.around(5)[-1]  # labelled ones first
    assert all(b in table.around(a) for a, b in edges)
    assert any("title" in note for note in loaded.notes)


def test_strongest_features_against_a_loop():
    x = torch.tensor([[1.5, 0, 5], [0, 0, 5], [0, 2, 5], [3, 0, 5.5]])
    data = load_dataset("karate")
    data.x = x
    places, values = strongest_features(data, 2)
    z = ((x - x.mean(dim=0)) / x.std(dim=0, correction=0)).abs()
    for row in range(4):
        order = sorted((f for f in range(3) if x[row, f] != 0), key=lambda f: -float(z[row, f]))[:2]
        found = [int(place) for place in places[row] if place >= 0]
        assert found == order
        assert [float(v) for v in values[row][: len(order)]] == [float(x[row, f]) for f in order]


def test_classes_may_come_from_a_file_of_labels(tmp_path):
    folder = write_graph(tmp_path / "graph")
    labels = tmp_path / "labels.csv"
    labels.write_text("node,label,chosen\npaper 1,beta,random\npaper 2,alpha,\n")
    _, loaded = load(Source(str(folder), labels))
    assert loaded.table.classes == ["alpha", "beta"]
    assert loaded.labels == {1: 1, 2: 0}
    assert loaded.origins == {1: "random"}
    with pytest.raises(DataError, match="--classes"):
        load(Source(str(folder)))


def test_before_the_first_label_the_choice_is_the_strategys_own(graph):
    data, _ = graph
    found = play(data, job(0))
    scene = scene_of(data, {}, batch=6, candidates=None, recipe=Recipe(), seed=0)
    assert [choice.node for choice in found.choices] == Design()(scene).nodes.tolist()
    assert found.view is None
    assert found.point is None
    assert "uncertainty" in found.choices[0].reason


def test_a_round(graph):
    data, _ = graph
    found = play(data, job(24))
    scene = scene_of(data, job(24).labels, batch=6, candidates=None, recipe=Recipe(), seed=0)
    assert [choice.node for choice in found.choices] == Design()(scene).nodes.tolist()
    verdict = scene.jury().verdict()
    assert found.view.predictions.tolist() == verdict.predicted_class.tolist()
    assert np.array_equal(found.view.sets, verdict.label_sets(0.1).numpy())
    assert found.point.labels == 24
    assert 0 <= found.point.lower <= found.point.accuracy <= found.point.upper + 1e-9
    assert found.point.upper <= 1


def test_nodes_that_people_have_now_count_as_labelled(graph):
    """The design does not choose twins of pending nodes: the choice differs, and pending nodes are not in it."""
    data, _ = graph
    first = play(data, job(12)).choices
    pending = tuple(choice.node for choice in first[:3])
    second = [choice.node for choice in play(data, job(12, pending=pending)).choices]
    assert not set(pending) & set(second)
    scene = scene_of(
        data, job(12).labels, batch=6, candidates=None, recipe=Recipe(), seed=0, pending=torch.tensor(pending)
    )
    window = Design().window(scene)
    features = window.rows
    known = np.concatenate([features[:12], features[list(pending)]])
    weights = Design().weights(scene)
    ridge = Design().ridge(scene, window) * (12 + 3 + 6)
    best = None
    for node in job(12, pending=pending).candidates:  # the first choice by brute force
        rows = np.concatenate([known, features[node : node + 1]])
        inverse = np.linalg.inv(ridge * np.eye(features.shape[1]) + rows.T @ rows)
        left = float(np.einsum("ud,de,ue,u->", features, inverse, features, weights))
        best = min(best or (left, int(node)), (left, int(node)))
    assert second[0] == best[1]


def test_estimates_come_from_jurors_that_left_the_label_out(graph):
    data, _ = graph
    scene = scene_of(data, job(24).labels, batch=6, candidates=None, recipe=Recipe(), seed=0)
    jury = scene.jury()
    everything = jury.leave_one_out_predictions(jury.train_nodes)  # (n, n, C)
    own = everything[torch.arange(24), torch.arange(24)]
    right = (own.argmax(dim=1) == scene.data.y[jury.train_nodes]).double().mean()
    assert play(data, job(24)).point.accuracy == pytest.approx(float(right))


def test_flipped_labels_are_doubtful(graph):
    data, _ = graph
    wanted = job(40)
    wrong = {3: (truth(3) + 1) % 3, 17: (truth(17) + 1) % 3}
    found = play(data, Job({**wanted.labels, **wrong}, [], wanted.candidates, 6)).doubtful
    assert set(wrong) & {entry.node for entry in found[:4]}
    assert all(entry.suggested != entry.label for entry in found)


def test_one_label_and_one_candidate(graph):
    data, _ = graph
    assert play(data, job(1)).point.labels == 1
    assert [c.node for c in play(data, Job({}, [], np.array([5]), 6)).choices] == [5]
    assert play(data, Job({0: 0, 1: 1}, [], np.array([], dtype=np.int64), 6)).choices == []


def test_a_model_that_fails_does_not_stop_the_choice(graph, monkeypatch):
    data, _ = graph

    def fail(*_: object, **__: object) -> None:
        raise DataError("expected something, got nothing; change it")

    monkeypatch.setattr("jurygcn.app.choosing.view_of", fail)
    found = play(data, job(12))
    assert len(found.choices) == 6
    assert "expected something" in found.note


def test_a_table_without_folder():
    table = table_of(load_dataset("karate"))
    assert table.texts == {}
    assert table.picture(0, 0) is None
    assert table.describe(0)["features"]
