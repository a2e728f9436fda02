"""Find the node or class that a user names, by one rule for files, options and answers.

The text is looked up among the names first. A number that is no name is a position, unless some names are numbers:
then every number is read as a name. So the meaning of a number depends on the graph alone. If a table has both a
position and a name in each row, as our own tables do, the two must agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.errors import DataError, excerpt, listing


class Names:
    """The names of ``count`` items of one kind ("node", "class"), and the lookup of texts among them."""

    def __init__(self, kind: str, names: Sequence[Any] | None, count: int) -> None:
        self.kind, self.count = kind, count
        self.names = [str(name) for name in names] if names is not None and len(names) else None
        self._found: dict[str, int | None] = {}  # None: several items have this name
        for position, name in enumerate(self.names or ()):
            self._found[name] = None if name in self._found else position
        self.numeric = any(_is_number(name) for name in self._found)

    @classmethod
    def of_nodes(cls, data: Data) -> Names:
        """The names of a graph's nodes."""
        return cls("node", getattr(data, "node_names", None), int(data.num_nodes))

    @classmethod
    def of_classes(cls, data: Data) -> Names:
        """The names of a graph's classes."""
        return cls("class", getattr(data, "class_names", None), int(data.num_classes))

    def position(self, given: Any, name: Any = None) -> int:
        """The position of the item that ``given`` names; ``name`` is the same row's entry in a column of names."""
        text = str(given)
        if self.names is not None and name is not None and str(name).strip():
            return self._agreed(text, str(name))
        for written in (text, text.strip()):
            found = self._found.get(written, -1)
            if found is None:
                raise DataError(
                    f"expected the name of one {self.kind}, got {excerpt(written)}, which several {self.kind} entries "
                    "share; give them different names"
                )
            if found >= 0:
                return found
        if not self.numeric and self._is_position(text.strip()):
            return int(text)
        raise DataError(f"expected {self._expected}, got {excerpt(text.strip())}; correct it")

    def text(self, position: int) -> str:
        """How to write ``position`` so that it can be read back: its name if names are numbers, else its number."""
        return self.names[position] if self.names is not None and self.numeric else str(position)

    def __contains__(self, text: str) -> bool:
        return text in self._found

    def _agreed(self, text: str, name: str) -> int:
        for written in (name, name.strip()):
            if self.names is not None and self._is_position(text.strip()) and self.names[int(text)] == written:
                return int(text)
            found = self._found.get(written)
            if found is not None and text.strip() == written.strip():
                return found
        raise DataError(
            f"expected the number or name of the {self.kind} whose name is {excerpt(name)}, got {excerpt(text)}; "
            "correct one of the two columns, or leave one out"
        )

    @property
    def _expected(self) -> str:
        if self.kind == "class":
            return f"one of the classes {listing(self.names or range(self.count))}"
        if self.names is None:
            return f"a node number 0..{self.count - 1}"
        if self.numeric:  # a position could be confused with a name
            return f"a node name such as {listing(self.names[:2])} (this graph's names are numbers)"
        return f"a node number 0..{self.count - 1} or a node name"

    def _is_position(self, text: str) -> bool:
        """Whether the text is a number 0..count-1; the length is checked because `int` rejects very long numbers."""
        return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < self.count


def check_names(names: Any, count: int, what: str) -> list[str]:
    """The names as strings; raise DataError unless there are ``count``, all different, non-empty and encodable."""
    if not isinstance(names, list | tuple | np.ndarray | Tensor) or np.ndim(names) != 1 or len(names) != count:
        got = f"{len(names)}" if isinstance(names, list | tuple) else type(names).__name__
        got = f"shape {tuple(names.shape)}" if isinstance(names, np.ndarray | Tensor) else got
        raise DataError(f"expected {what}, a list with one name for each of {count}, got {got}; complete or drop it")
    texts = [str(name) for name in (names.tolist() if isinstance(names, np.ndarray | Tensor) else names)]
    seen: set[str] = set()
    for text in texts:
        if not text.strip() or text in seen:
            got = f"{excerpt(text)} twice" if text.strip() else "an empty one"
            raise DataError(f"expected {what} that differ and are not empty, got {got}; rename one")
        if not is_text(text):
            raise DataError(f"expected {what} of Unicode text, got {excerpt(text)}, which has no UTF-8 form; rename it")
        seen.add(text)
    return texts


def is_text(text: str) -> bool:
    """Whether the text can be written to a file: a lone surrogate cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
