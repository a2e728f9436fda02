"""Checksums of a graph's tensors, so that caches follow a graph's contents and not its address.

A tensor can change without notice: through a NumPy view, through ``.data``, or when it is freed and another one takes
its address. So its bytes are read each time (a few milliseconds for tens of megabytes) and compared by a 128-bit
checksum.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from jurygcn.errors import DataError
from jurygcn.io.fingerprints import checksum

# Checksums by name; equal contents are equal graphs.
Contents = Mapping[str, bytes]

# The tensors of a graph that a model may read, and their names in messages: those with an entry per edge, and all.
EDGE_VALUES = {"edge_weight": "edge weights", "edge_attr": "edge attributes", "edge_type": "edge types"}
PARTS = {"x": "features", "edge_index": "edges", **EDGE_VALUES}

# The contents of each snapshot; an entry is dropped when the snapshot is freed.
_known: WeakIdKeyDictionary = WeakIdKeyDictionary()


def contents(data: Data, *, parts: Mapping[str, Any] = PARTS) -> Contents:
    """The checksums of a graph's tensors; for a snapshot, those from the time it was taken."""
    known: Contents | None = _known.get(data)
    return _read(data, parts) if known is None else known


def _read(data: Data, parts: Mapping[str, Any] = PARTS) -> Contents:
    tensors = {name: data.get(name) for name in parts}
    return {name: checksum(tensor) for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def snapshot(data: Data) -> Data:
    """A shallow copy whose checksums are computed once, for work that uses a graph many times.

    The copy shares the caller's tensors. Code that computes something from a snapshot calls :func:`check_same` first,
    so that an edit in between is noticed.
    """
    if data in _known:
        return data
    taken = copy.copy(data)
    _known[taken] = _read(data)
    return taken


def check_same(taken: Data) -> None:
    """Raise DataError if a snapshot's tensors were edited after it was taken."""
    now, then = _read(taken), contents(taken)
    changed = [words for name, words in PARTS.items() if now.get(name) != then.get(name)]
    if changed:
        raise DataError(
            f"expected the graph to stay unchanged while in use, got other {' and '.join(changed)}; start again"
        )
