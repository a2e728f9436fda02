"""One split of a graph for the methods that are compared: the graph, the labels, the test nodes."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.checks import in_short
from jurygcn.data import Split, paper_split, random_labels
from jurygcn.errors import SettingError
from jurygcn.evaluation import leave_out_classes

LEFT_OUT_SHARE = 0.4  # of the classes: 3 of Cora's 7, 2 of Citeseer's 6, 1 of PubMed's 3


@dataclass(frozen=True, eq=False)
class Trial:
    """One split: the graph for a method, its labels, and the test nodes. Shapes: labels (n,), strange (m,)."""

    data: Data
    split: Split
    labels: Tensor
    strange: Tensor

    @classmethod
    def of(cls, data: Data, labels: int, seed: int) -> Trial:
        """The paper's split with random labels."""
        split = paper_split(data, seed=seed)
        if labels > len(split.pool):
            raise SettingError(
                f"expected at most the {len(split.pool)} labels of the pool, got {in_short(labels)}; lower the "
                "number of labels"
            )
        return cls(data, split, random_labels(split.pool, labels, seed=seed), torch.zeros(len(split.test)).bool())

    @classmethod
    def left_out(cls, data: Data, labels: int, seed: int) -> Trial:
        """The same without the labels and validation nodes of some classes."""
        split = paper_split(data, seed=seed)
        found = leave_out_classes(data.y, classes_to_leave_out(data))
        known = found.labels >= 0
        reduced = copy(data)
        reduced.y, reduced.num_classes = found.labels, len(found.classes)
        pool, val = split.pool[known[split.pool]], split.val[known[split.val]]
        nodes = random_labels(pool, min(labels, len(pool)), seed=seed)
        return cls(reduced, Split(pool, val, split.test), nodes, found.outlier[split.test])

    @property
    def truth(self) -> Tensor:
        """The test nodes' labels, (m,)."""
        truth: Tensor = self.data.y[self.split.test]
        return truth


def classes_to_leave_out(data: Data) -> int:
    """The number of classes to leave out of training; 0 if there are too few classes."""
    classes = int(data.num_classes)
    return min(max(1, round(LEFT_OUT_SHARE * classes)), classes - 2) if classes > 2 else 0
