"""Plain numbers from predictions and truth; tensors, arrays and lists are all accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from jurygcn.errors import DataError


def accuracy(predicted: Tensor | ArrayLike, truth: Tensor | ArrayLike) -> float:
    """Share of nodes whose predicted class is the true one. Shapes: (m,), (m,)."""
    guess, true = _pair(predicted, truth, "predictions", "true labels")
    return float((guess == true).mean())


def micro_f1(predicted: Tensor | ArrayLike, truth: Tensor | ArrayLike) -> float:
    r"""Micro-averaged F1, :math:`2 TP / (2 TP + FP + FN)` with the counts summed over classes. Shapes: (m,), (m,).

    With one label per node every error is one false positive and one false negative, so this equals `accuracy`.
    """
    from sklearn.metrics import f1_score  # here, because it takes most of a second to import

    guess, true = _pair(predicted, truth, "predictions", "true labels")
    return float(f1_score(true, guess, average="micro"))


def error_auroc(score: Tensor | ArrayLike, wrong: Tensor | ArrayLike) -> float:
    """Probability that a wrong prediction has a higher uncertainty score than a right one; ties count half.

    NaN if all predictions are right or all are wrong, for then there is nothing to tell apart.

    Shapes: score (m,), high where uncertain; wrong (m,) bool.
    """
    from sklearn.metrics import roc_auc_score

    scores, errors = _pair(score, wrong, "scores", "marks of wrong predictions")
    if np.isnan(scores.astype(np.float64)).any():
        raise DataError("expected uncertainty scores without NaN, got some; leave those nodes out")
    errors = errors.astype(bool)
    if errors.all() or not errors.any():
        return float("nan")
    # ranks instead of values: the same order, and infinite scores are allowed
    return float(roc_auc_score(errors, np.unique(scores, return_inverse=True)[1]))


def set_coverage(sets: Tensor | ArrayLike, truth: Tensor | ArrayLike) -> float:
    """Share of nodes whose label set holds the true label. Shapes: sets (m, C) bool, truth (m,) int."""
    inside, true = _pair(sets, truth, "label sets", "true labels", dimensions=2)
    if true.min() < 0 or true.max() >= inside.shape[1]:
        bad = true.min() if true.min() < 0 else true.max()
        raise DataError(f"expected true labels 0..{inside.shape[1] - 1}, got {bad}; leave out nodes without label")
    return float(inside.astype(bool)[np.arange(len(true)), true.astype(np.int64)].mean())


def mean_set_size(sets: Tensor | ArrayLike) -> float:
    """Mean number of labels in a set. Shapes: sets (m, C) bool."""
    inside = _array(sets, "label sets", dimensions=2)
    return float(inside.astype(bool).sum(axis=1).mean())


def _pair(
    first: Tensor | ArrayLike, second: Tensor | ArrayLike, what: str, other: str, *, dimensions: int = 1
) -> tuple[NDArray[Any], NDArray[Any]]:
    a, b = _array(first, what, dimensions=dimensions), _array(second, other)
    if len(a) != len(b):
        raise DataError(f"expected as many {what} as {other}, got {len(a)} and {len(b)}; pass the same nodes")
    return a, b


def _array(values: Tensor | ArrayLike, what: str, *, dimensions: int = 1) -> NDArray[Any]:
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != dimensions or len(array) == 0:
        shape = "(nodes,)" if dimensions == 1 else "(nodes, classes)"
        raise DataError(f"expected {what} of shape {shape} for at least one node, got shape {array.shape}; reshape")
    return array
