"""The rules for labels:

* Integers 0..C-1 are classes and -1 marks a node without label; `y` becomes int64.
* Floats that are all whole numbers are classes too (a table with gaps turns integers into floats);
  NaN marks a node without label.
* Floats with a fractional part are regression targets: `y` becomes float32, `num_classes` becomes 0 and
  NaN marks a node without target. If most of them are whole numbers, this is an error, unless
    `num_classes = 0` asks for regression.
* Text (in nodes.csv or a NetworkX graph) is class names, numbered in sorted order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from jurygcn.errors import DataError, excerpt, listing

UNLABELLED = -1
LARGEST = 2**53  # float64 represents every whole number up to here exactly


def labelled(data: Any) -> Tensor:
    """Which nodes have a label (or a regression target).

    Shapes:
        returns: (N,) bool.
    """
    y: Tensor = data.y
    return ~torch.isnan(y) if y.is_floating_point() else y >= 0


def check_labels(y: Any, num_nodes: int, num_classes: int | None) -> tuple[Tensor, int]:
    """Return (labels in the library's form, number of classes); raise DataError for anything else."""
    if y is None:
        return torch.full((num_nodes,), UNLABELLED, dtype=torch.long), num_classes or 0
    if not isinstance(y, Tensor):
        raise DataError(f"expected labels `y` as a tensor of integers, got {type(y).__name__}; use torch.tensor")
    y = y.detach().cpu()
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.shape != (num_nodes,):
        raise DataError(
            f"expected one label per node, shape ({num_nodes},), got shape {tuple(y.shape)}; "
            "give class numbers (y.argmax(dim=1) for one-hot rows); several labels per node need one jury per label"
        )
    if y.is_complex():
        raise DataError("expected integer labels, got complex numbers; give class numbers 0..C-1")
    if y.is_floating_point():
        return _float_labels(y.double(), num_classes)
    y = y.long()
    if num_classes == 0 and bool((y >= 0).any()):
        return y.float(), 0
    return y, _count_classes(y, num_classes)


def _float_labels(y: Tensor, num_classes: int | None) -> tuple[Tensor, int]:
    if bool(torch.isinf(y).any()):
        node = int(torch.isinf(y).nonzero()[0])
        raise DataError(f"expected finite labels, got {y[node].item()} at node {node}; use NaN for 'no label'")
    known = ~torch.isnan(y)
    whole = known & (y == y.round())
    if num_classes == 0:
        return _targets(y), 0
    if bool((whole == known).all()):
        if bool((y.abs() > LARGEST).any()):
            node = int((y.abs() > LARGEST).nonzero()[0])
            raise DataError(
                f"expected classes numbered 0..C-1, got label {y[node].item():g} at node {node}; renumber them"
            )
        classes = torch.where(known, y, torch.full_like(y, UNLABELLED)).long()
        return classes, _count_classes(classes, num_classes)
    if num_classes is not None or 2 * int(whole.sum()) > int(known.sum()):
        node = int((known & ~whole).nonzero()[0])
        raise DataError(
            f"expected integer labels, got {y[node].item():g} at node {node}; "
            "correct it, or set num_classes = 0 if these are regression targets"
        )
    return _targets(y), 0


def _targets(y: Tensor) -> Tensor:
    """Regression targets in single precision; raise DataError if one is too large for it."""
    single = y.float()
    if bool(torch.isinf(single).any()):
        node = int(torch.isinf(single).nonzero()[0])
        raise DataError(f"expected targets up to 3e38, got {y[node].item():g} at node {node}; use another unit")
    return single


def _count_classes(y: Tensor, num_classes: int | None) -> int:
    lowest, highest = int(y.min()), int(y.max())
    if lowest < UNLABELLED:
        raise DataError(
            f"expected labels 0..C-1, or {UNLABELLED} for no label, got {lowest} at node {int(y.argmin())}; "
            "renumber the classes"
        )
    if num_classes is None:
        count = int((y >= 0).sum())
        if highest > max(count, 1):
            raise DataError(
                f"expected classes numbered 0..C-1, got label {highest} among {count} labelled nodes; "
                "renumber the classes without gaps"
            )
        return highest + 1
    if highest >= num_classes:
        raise DataError(f"expected labels below num_classes = {num_classes}, got {highest}; correct one of the two")
    return num_classes


def read_classes(texts: Sequence[str], *, where: str) -> tuple[Tensor, list[str] | None]:
    """Turn written labels into class numbers; empty text is 'no label'.

    Returns the labels and, when they are names, the list of names in the order of their numbers.
    `where` begins the error message, such as "nodes.csv, column 'label'".
    """
    present = [text for text in texts if text]
    numbers = {text: _as_number(text) for text in set(present)}
    if any(value is None for value in numbers.values()):
        if any(value is not None for value in numbers.values()):
            word = next(text for text in present if numbers[text] is None)
            raise DataError(
                f"{where}: expected integer labels, got {excerpt(word)} among numbers; "
                "write all labels as integers, or all as names"
            )
        names = sorted(numbers)
        index = {name: position for position, name in enumerate(names)}
        return torch.tensor([index[text] if text else UNLABELLED for text in texts], dtype=torch.long), names
    fraction = next((text for text in present if not float(text).is_integer() or abs(float(text)) > LARGEST), None)
    if fraction is not None:
        raise DataError(
            f"{where}: expected integer labels, got {listing([fraction])}; "
            "round it, or name the column 'target' if it holds regression targets"
        )
    return torch.tensor([int(float(t)) if t else UNLABELLED for t in texts], dtype=torch.long), None


def _as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
