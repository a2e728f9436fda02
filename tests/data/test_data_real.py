"""The real graphs, through the configured package index (or the cache it has filled)."""

from __future__ import annotations

import pytest
import torch

from jurygcn.data import load_dataset, paper_split, public_split, sizes

pytestmark = pytest.mark.data

SIZES = {
    "cora": (2708, 5278, 1433, 7),
    "citeseer": (3327, 4552, 3703, 6),
    "pubmed": (19717, 44324, 500, 3),
}
PUBLIC = {"cora": (140, 500, 1000), "citeseer": (120, 500, 1000), "pubmed": (60, 500, 1000)}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    data = load_dataset(name)
    assert sizes(data) == SIZES[name]
    source, target = data.edge_index
    assert (source != target).all()
    keys = source * data.x.shape[0] + target
    assert (keys[1:] > keys[:-1]).all()
    assert (target * data.x.shape[0] + source).sort().values.equal(keys)
    sums = data.x.sum(dim=1)
    assert torch.allclose(sums[sums > 0], torch.ones(1), atol=1e-5)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_split(name):
    split = public_split(load_dataset(name))
    assert (split.pool.numel(), split.val.numel(), split.test.numel()) == PUBLIC[name]
    assert len(torch.cat([split.pool, split.val, split.test]).unique()) == sum(PUBLIC[name])
    assert torch.bincount(load_dataset(name).y[split.pool]).unique().tolist() == [20]  # 20 labels of each class


def test_citeseer_keeps_its_unlabelled_nodes_out_of_every_split():
    data = load_dataset("citeseer")
    lost = (data.y == -1).nonzero()[:, 0]
    assert lost.numel() == 15
    assert torch.bincount(data.edge_index[0])[lost].sum() == 16  # called isolated, yet they have edges
    assert not data.x[lost].any()
    for mask in ("train_mask", "val_mask", "test_mask"):
        assert not data[mask][lost].any()
    split = paper_split(data, seed=0)
    assert not torch.isin(torch.cat([split.pool, split.val, split.test]), lost).any()
    assert split.pool.numel() == 3312 - 1500


def test_cora_is_the_known_graph():
    data = load_dataset("cora", normalize_features=False)
    assert sorted(torch.bincount(data.y).tolist()) == [180, 217, 298, 351, 418, 426, 818]
    assert int(data.x.sum()) == 49216
    assert data.class_names[3] == "Probabilistic_Methods"
    assert torch.bincount(data.edge_index[0]).max() == 168
    same = data.y[data.edge_index[0]] == data.y[data.edge_index[1]]
    assert abs(same.float().mean() - 0.81) < 0.001
