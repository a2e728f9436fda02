"""Inputs of metrics: tensors, arrays and lists, converted to NumPy arrays and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from jurygcn.errors import DataError

Values = Tensor | ArrayLike


def as_array(values: Values, what: str, *, dimensions: int = 1) -> NDArray[Any]:
    """The values as an array of at least one node. Shapes: (m,), or (m, C) with ``dimensions=2``."""
    array = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if array.ndim != dimensions or len(array) == 0:
        shape = "(nodes,)" if dimensions == 1 else "(nodes, classes)"
        raise DataError(f"expected {what} of shape {shape} for at least one node, got shape {array.shape}; reshape it")
    return array


def as_pair(
    first: Values, second: Values, what: str, other: str, *, dimensions: int = 1
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two arrays for the same nodes; ``dimensions`` is that of the first."""
    a, b = as_array(first, what, dimensions=dimensions), as_array(second, other)
    if len(a) != len(b):
        raise DataError(f"expected as many {what} as {other}, got {len(a)} and {len(b)}; pass the same nodes")
    return a, b


def as_scores(score: Values, marks: Values) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Uncertainty scores without NaN, and a mark per node. Shapes: (m,), (m,) bool."""
    scores, marked = as_pair(score, marks, "scores", "marks of wrong predictions")
    scores = scores.astype(np.float64)
    if np.isnan(scores).any():
        raise DataError("expected uncertainty scores without NaN, got some with NaN; leave those nodes out")
    return scores, marked.astype(bool)


def check_classes(truth: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """True labels as class numbers below ``classes``."""
    if truth.min() < 0 or truth.max() >= classes:
        bad = truth.min() if truth.min() < 0 else truth.max()
        raise DataError(f"expected true labels 0..{classes - 1}, got {bad}; leave out nodes without label")
    return truth.astype(np.int64)


def as_sets(sets: Values, truth: Values) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Label sets and true labels of the same nodes. Shapes: (m, C) bool, (m,)."""
    inside, true = as_pair(sets, truth, "label sets", "true labels", dimensions=2)
    return inside.astype(bool), check_classes(true, inside.shape[1])


def as_probabilities(probabilities: Values, truth: Values) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Rows of probabilities and true labels; raise DataError for logits. Shapes: (m, C), (m,)."""
    pi, true = as_pair(probabilities, truth, "probabilities", "true labels", dimensions=2)
    pi = pi.astype(np.float64)
    if not (np.isfinite(pi).all() and (pi >= 0).all() and np.allclose(pi.sum(axis=1), 1.0, atol=1e-3)):
        raise DataError("expected rows of probabilities that sum to 1, got others; apply a softmax to logits first")
    return pi, check_classes(true, pi.shape[1])
