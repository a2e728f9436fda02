"""What a graph holds, as checksums: whatever is remembered of a graph belongs to its contents, not to its address.

A tensor can be edited without leaving a trace on the tensor: through a NumPy view, through ``.data``, or by freeing it
and making another one in the same place. So its bytes are read each time, which takes a few milliseconds for tens of
megabytes, and compared by a 128-bit checksum.
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

# What every model may read of a graph.
PARTS = {"x": "features", "edge_index": "edges", "edge_weight": "edge weights", "edge_attr": "edge attributes"}

# The contents of snapshots, forgotten together with them.
_known: WeakIdKeyDictionary = WeakIdKeyDictionary()


def contents(data: Data, *, parts: Mapping[str, Any] = PARTS) -> Contents:
    """The checksums of a graph's tensors; of a snapshot those it had when it was taken."""
    known: Contents | None = _known.get(data)
    return _read(data, parts) if known is None else known


def _read(data: Data, parts: Mapping[str, Any] = PARTS) -> Contents:
    tensors = {name: data.get(name) for name in parts}
    return {name: checksum(tensor) for name, tensor in tensors.items() if isinstance(tensor, Tensor)}


def snapshot(data: Data) -> Data:
    """A shallow copy whose contents are read now and not again: for work that uses a graph many times.

    The tensors are the caller's. Whatever is made from a snapshot calls :func:`check_same` first, so that nothing is
    made from contents that are no longer those.
    """
    if data in _known:
        return data
    taken = copy.copy(data)
    _known[taken] = _read(data)
    return taken


def check_same(taken: Data) -> None:
    """Refuse a snapshot whose tensors were edited after it was taken."""
    now, then = _read(taken), contents(taken)
    changed = [words for name, words in PARTS.items() if now.get(name) != then.get(name)]
    if changed:
        raise DataError(f"the graph's {' and '.join(changed)} were edited while they were in use; start again")
