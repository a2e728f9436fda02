"""Splits into training, validation and test nodes; each draw has its own generator, from its seed and purpose."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.data.labels import labelled
from jurygcn.data.validate import MASKS
from jurygcn.errors import DataError, SettingError

TEST_NODES, VALIDATION_NODES = 1000, 500
REDDIT_TEST_NODES, REDDIT_VALIDATION_NODES = 139_779, 23_296
REDDIT_LIKE = 200_000  # graphs with more nodes get Reddit's counts
_TEST_SHARE, _VALIDATION_SHARE = 0.4, 0.2


@dataclass(frozen=True)
class Split:
    """Disjoint, sorted node indices: the pool to draw labels from, the validation nodes and the test nodes.

    Shapes:
        pool, val, test: 1-D int64.
    """

    pool: Tensor
    val: Tensor
    test: Tensor


def paper_split(data: Data, *, seed: int) -> Split:
    """The paper's protocol: random test and validation nodes; all other labelled nodes are the pool.

    There are 1000 test and 500 validation nodes; 139,779 and 23,296 for Reddit and graphs above 200,000 nodes.
    On a small graph, at most 40 % of the labelled nodes are for testing and at most 20 % for validation.
    """
    nodes = labelled(data).nonzero()[:, 0]
    count = nodes.numel()
    if count < 3:
        raise DataError(f"expected at least 3 labelled nodes to split, got {count}; add labels")
    large = getattr(data, "name", None) == "reddit" or data.x.shape[0] > REDDIT_LIKE
    num_test = REDDIT_TEST_NODES if large else TEST_NODES
    num_val = REDDIT_VALIDATION_NODES if large else VALIDATION_NODES
    # The caps are for graphs too small for the counts; Reddit's own counts are more than 40 %.
    if num_test + num_val > (0.8 if large else _TEST_SHARE + _VALIDATION_SHARE) * count:
        num_test = min(num_test, max(1, int(_TEST_SHARE * count)))
        num_val = min(num_val, max(1, int(_VALIDATION_SHARE * count)))
    shuffled = nodes[torch.from_numpy(_generator(seed, "split").permutation(count))]
    parts = shuffled[num_test + num_val :], shuffled[num_test : num_test + num_val], shuffled[:num_test]
    pool, val, test = (part.sort().values for part in parts)
    return Split(pool, val, test)


def public_split(data: Data, *, index: int = 0) -> Split:
    """The split in the data's masks; `index` chooses among several."""
    missing = [mask for mask in MASKS if mask not in data]
    if missing:
        name = getattr(data, "name", "this graph")
        raise DataError(
            f"expected a public split on {name}, got no {', '.join(missing)}; use paper_split, or "
            "load it from Planetoid files with load_dataset(name, root=folder of the ind.* files)"
        )
    masks = [data[mask] if data[mask].dim() == 2 else data[mask][:, None] for mask in MASKS]
    available = min(mask.shape[1] for mask in masks)
    if not 0 <= index < available:
        raise SettingError(f"expected a split index 0..{available - 1}, got {index}; choose one of these")
    known = labelled(data)
    train, val, test = ((mask[:, index] & known).nonzero()[:, 0] for mask in masks)
    return Split(train, val, test)


def random_labels(pool: Tensor, n: int, *, seed: int) -> Tensor:
    """`n` nodes of the pool, uniformly without replacement, sorted.

    Draws with the same seed are nested: a smaller n gives a subset of a larger n.
    """
    if not 1 <= n <= pool.numel():
        raise SettingError(f"expected between 1 and {pool.numel()} labels (the pool), got {n}; change n")
    order = torch.from_numpy(_generator(seed, "labels").permutation(pool.numel()))
    return pool[order[:n]].sort().values


def per_class_labels(data: Data, pool: Tensor, per_class: int, *, seed: int) -> Tensor:
    """`per_class` nodes of each class of the pool, uniformly without replacement, sorted."""
    if data.y.is_floating_point() or data.num_classes < 1:
        raise DataError("expected classes to draw labels from, got regression targets or none; use random_labels")
    if per_class < 1:
        raise SettingError(f"expected at least 1 label per class, got {per_class}; change per_class")
    generator = _generator(seed, "labels")
    shuffled = pool[torch.from_numpy(generator.permutation(pool.numel()))]
    chosen = []
    for number in range(data.num_classes):
        members = shuffled[data.y[shuffled] == number]
        if members.numel() < per_class:
            raise DataError(
                f"expected {per_class} nodes of class {number} in the pool, got {members.numel()}; lower per_class"
            )
        chosen.append(members[:per_class])
    return torch.cat(chosen).sort().values


def _generator(seed: int, purpose: str) -> np.random.Generator:
    """Independent random streams for one seed, one per purpose."""
    if seed < 0:
        raise SettingError(f"expected a seed of at least 0, got {seed}; change it")
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])
