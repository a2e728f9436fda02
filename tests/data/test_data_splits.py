"""Splits: sizes, disjointness, seeds, and what may not be drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from jurygcn.data import (
    load_dataset,
    paper_split,
    per_class_labels,
    public_split,
    random_labels,
    synthetic,
)
from jurygcn.errors import DataError, SettingError


def plain(count: int, name: str = "graph", unlabelled: int = 0) -> Data:
    y = torch.arange(count) % 3
    y[:unlabelled] = -1
    return Data(x=torch.zeros(count, 1), y=y, num_classes=3, name=name)


@pytest.mark.parametrize(
    ("data", "pool", "val", "test"),
    [
        (plain(2708), 1208, 500, 1000),
        (plain(3327, unlabelled=15), 1812, 500, 1000),
        (plain(232_965), 69_890, 23_296, 139_779),
        (plain(232_965, name="reddit"), 69_890, 23_296, 139_779),
        (plain(34), 15, 6, 13),
        (plain(3), 1, 1, 1),
        (plain(2000), 800, 400, 800),
        (plain(1000, name="reddit"), 400, 200, 400),
    ],
)
def test_paper_split_sizes(data, pool, val, test):
    split = paper_split(data, seed=0)
    assert (split.pool.numel(), split.val.numel(), split.test.numel()) == (pool, val, test)
    drawn = torch.cat([split.pool, split.val, split.test])
    assert drawn.unique().numel() == drawn.numel()
    assert drawn.sort().values.equal((data.y >= 0).nonzero()[:, 0])


def test_seeds_decide_and_global_state_does_not():
    data = plain(2708)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = paper_split(data, seed=5)
    chosen = random_labels(first.pool, 100, seed=5)
    assert torch.get_rng_state().equal(before)
    np.random.default_rng().random()
    torch.manual_seed(2)
    assert paper_split(data, seed=5).test.equal(first.test)
    assert random_labels(first.pool, 100, seed=5).equal(chosen)
    assert not paper_split(data, seed=6).test.equal(first.test)
    assert not random_labels(first.pool, 100, seed=6).equal(chosen)


def test_split_and_labels_use_separate_streams():
    # With one stream for both, equal sizes would draw the same positions.
    data = plain(2000)
    everything = torch.arange(2000)
    test = paper_split(data, seed=0).test
    labels = random_labels(everything, test.numel(), seed=0)
    overlap = len(set(test.tolist()) & set(labels.tolist()))
    assert 260 < overlap < 380  # 800 of 2000 twice: 320 expected, standard deviation 14
    assert not test.equal(labels)


def test_random_labels_are_nested_and_inside_the_pool():
    pool = torch.arange(100, 200)
    few, more = random_labels(pool, 10, seed=1), random_labels(pool, 20, seed=1)
    assert set(few.tolist()) < set(more.tolist()) < set(pool.tolist())
    assert few.unique().numel() == 10


def test_random_labels_are_uniform():
    counts = torch.zeros(10)
    for seed in range(600):
        counts[random_labels(torch.arange(10), 3, seed=seed)] += 1
    assert ((counts - 180).abs() < 5 * (600 * 0.3 * 0.7) ** 0.5).all()


def test_per_class_labels():
    data = synthetic(num_nodes=400, num_edges=1000, num_classes=4)
    split = paper_split(data, seed=2)
    chosen = per_class_labels(data, split.pool, 5, seed=2)
    assert torch.bincount(data.y[chosen]).tolist() == [5, 5, 5, 5]
    assert set(chosen.tolist()) <= set(split.pool.tolist())
    assert chosen.equal(per_class_labels(data, split.pool, 5, seed=2))
    assert not chosen.equal(per_class_labels(data, split.pool, 5, seed=3))


def test_public_split():
    data = plain(6, unlabelled=1)
    masks = {
        "train_mask": [1, 1, 0, 0, 0, 0],
        "val_mask": [0, 0, 1, 0, 0, 0],
        "test_mask": [0, 0, 0, 1, 1, 0],
    }
    for key, values in masks.items():
        data[key] = torch.tensor(values, dtype=torch.bool)
    split = public_split(data)
    assert (split.pool.tolist(), split.val.tolist(), split.test.tolist()) == ([1], [2], [3, 4])
    for key in masks:
        data[key] = torch.stack([data[key], data[key].roll(1)], dim=1)
    assert public_split(data, index=1).test.tolist() == [4, 5]
    with pytest.raises(SettingError, match=r"split index 0\.\.1, got 2"):
        public_split(data, index=2)


def test_what_cannot_be_split():
    with pytest.raises(DataError, match="at least 3 labelled nodes to split, got 1"):
        paper_split(plain(9, unlabelled=8), seed=0)
    with pytest.raises(DataError, match="public split on karate, got no train_mask"):
        public_split(load_dataset("karate"))
    with pytest.raises(SettingError, match="between 1 and 4 labels"):
        random_labels(torch.arange(4), 5, seed=0)
    with pytest.raises(SettingError, match="between 1 and 4 labels"):
        random_labels(torch.arange(4), 0, seed=0)
    with pytest.raises(DataError, match="5 nodes of class 0 in the pool, got 2"):
        per_class_labels(plain(6), torch.arange(6), 5, seed=0)
    with pytest.raises(SettingError, match="at least 1 label per class"):
        per_class_labels(plain(6), torch.arange(6), 0, seed=0)
    regression = Data(x=torch.zeros(4, 1), y=torch.rand(4), num_classes=0)
    with pytest.raises(DataError, match="regression targets"):
        per_class_labels(regression, torch.arange(4), 1, seed=0)
    with pytest.raises(SettingError, match="seed of at least 0"):
        paper_split(plain(6), seed=-1)
