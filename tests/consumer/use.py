"""What a typed project may rely on. ``mypy --strict`` reads this file; nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jurygcn
from jurygcn import active, learning
from jurygcn.data import paper_split, random_labels

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from torch_geometric.data import Data
    from typing_extensions import assert_type


def quantify(data: Data, features: int, classes: int) -> list[int]:
    """Train, judge, rank: every result has a type that mypy knows."""
    train_nodes = random_labels(paper_split(data, seed=0).pool, 30, seed=0)
    model = jurygcn.GCN(features, 16, classes)
    jurygcn.train(model, data, train_nodes, weight_decay=5e-4)
    settings = jurygcn.LeaveOut("newton", max_jurors=20)
    jury = jurygcn.Jury(model, data, train_nodes, weight_decay=5e-4, leave_out=settings, run=jurygcn.Run(memory="1GB"))
    verdict = jury.fit().verdict(alpha=0.1)
    assert_type(jury.fit(), jurygcn.Jury)
    assert_type(verdict, jurygcn.Verdict)
    assert_type(verdict.label_sets(alpha=0.1), torch.Tensor)
    assert_type(verdict.to_frame(), pd.DataFrame)
    assert_type(verdict.claim(0.1).words, str)
    assert_type(jury.expected_accuracy().words, str)
    assert_type(jurygcn.__version__, str)
    nodes: list[int] = verdict.ranking().tolist()
    return nodes


def choose(data: Data) -> active.History:
    """Active learning, and a method for few labels."""
    fitted = learning.GCNClassifier().fit(data, torch.arange(20), seed=0)
    assert_type(fitted.predict_proba(), torch.Tensor)
    return active.run(data, "jury-design", initial=4, budget=12, step=4, seed=0)


def mistakes(data: Data) -> None:
    """Wrong calls that mypy must refuse: an ignore that is not needed is an error in strict mode."""
    jurygcn.Jury(1, data)  # type: ignore[arg-type]
    jurygcn.Verdict().gone  # type: ignore[call-arg, attr-defined]  # noqa: B018
