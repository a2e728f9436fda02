"""What the page shows of nodes: plain arrays and texts, made by the worker, used by the server."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

PICTURES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
LARGEST_PICTURE = 32 << 20  # bytes
LONGEST_TEXT = 20_000  # characters of one cell on the page
DRAWN = 20  # neighbours in the picture


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Names, neighbours, strongest features and texts of all nodes.

    Attributes:
        graph: the name of the graph.
        classes: the names of the classes.
        names: the names of the nodes, or None.
        written_by_name: whether files name nodes by name; else by number.
        first, neighbours: the neighbours of node v are ``neighbours[first[v]:first[v + 1]]``.
        features: the names of the features, or None.
        strongest, values: the most unusual features of each node and their values; -1 fills rows.
        texts: the columns of text of nodes.csv.
        folder: where pictures that these columns name may be; None if there is no folder.

    Shapes: first (N + 1,), neighbours (2E,), strongest and values (N, k).
    """

    graph: str
    classes: list[str]
    names: list[str] | None
    written_by_name: bool
    first: NDArray[np.int64]
    neighbours: NDArray[np.int32]
    features: list[str] | None
    strongest: NDArray[np.int32]
    values: NDArray[np.float32]
    texts: dict[str, list[str]]
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def facts(self) -> dict[str, Any]:
        """What must be the same for an answer to mean the same."""
        names = hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:16] if self.names else ""
        return {"nodes": len(self), "classes": self.classes, "names": names}

    @cached_property
    def by_degree(self) -> list[int]:
        """All nodes, those with most neighbours first."""
        return [int(node) for node in np.argsort(-np.diff(self.first), kind="stable")]

    def name(self, node: int) -> str:
        """The name of the node, or its number."""
        return self.names[node] if self.names else str(node)

    def written(self, node: int) -> str:
        """The node as in files of labels."""
        return self.names[node] if self.names and self.written_by_name else str(node)

    @cached_property
    def _by_text(self) -> dict[str, int]:
        return {self.written(node): node for node in range(len(self))}

    @cached_property
    def _by_name(self) -> dict[str, int]:
        return {name: node for node, name in enumerate(self.names or ())}

    def find(self, text: object, name: object = None) -> int | None:
        """The node that a file calls so; None if there is none, or if number and name do not agree."""
        if not self.names or name is None:
            return self._by_text.get(str(text))
        node = self._by_name.get(str(name))
        return node if node is not None and str(text) in (str(node), str(name)) else None

    def around(self, node: int) -> list[int]:
        """The neighbours of the node, sorted."""
        return [int(v) for v in self.neighbours[self.first[node] : self.first[node + 1]]]

    def describe(self, node: int) -> dict[str, Any]:
        """The node's texts and strongest features, for the page."""
        said = [
            {"column": column, **self._cell(place, cells[node])}
            for place, (column, cells) in enumerate(self.texts.items())
            if cells[node]
        ]
        pairs = zip(self.strongest[node].tolist(), self.values[node].tolist())
        named = [(self._feature(index), value) for index, value in pairs if index >= 0 and math.isfinite(value)]
        features = [{"name": name, "value": value} for name, value in named if name.partition("=")[0] not in self.texts]
        return {"texts": said, "features": features}

    def surroundings(self, node: int, known: dict[int, int]) -> tuple[list[int], list[list[int]]]:
        """Up to DRAWN neighbours, labelled ones first, and the edges between them."""
        near = sorted(self.around(node), key=lambda v: (v not in known, v))[:DRAWN]
        there = set(near)
        return near, [[a, b] for a in near for b in self.around(a) if a < b and b in there]

    def picture(self, node: int, column: int) -> Path | None:
        """The picture that this cell names, if it is a picture inside the folder."""
        cells = list(self.texts.values())
        if not (self.folder and 0 <= node < len(self) and 0 <= column < len(cells)):
            return None
        return self._picture(cells[column][node])

    def _feature(self, index: int) -> str:
        return self.features[index] if self.features else f"feature {index}"

    def _cell(self, place: int, text: str) -> dict[str, Any]:
        if text.startswith(("https://", "http://")) and not any(c.isspace() for c in text):
            return {"kind": "link", "text": text[:LONGEST_TEXT]}
        if self._picture(text) is not None:
            return {"kind": "image", "text": text[:LONGEST_TEXT], "place": place}
        return {"kind": "text", "text": text[:LONGEST_TEXT]}

    def _picture(self, text: str) -> Path | None:
        if self.folder is None or PurePosixPath(text).suffix.lower() not in PICTURES or "\0" in text:
            return None
        try:
            home = self.folder.resolve()
            path = (home / text).resolve()
            inside = path.is_relative_to(home) and path.is_file() and path.stat().st_size <= LARGEST_PICTURE
        except (OSError, ValueError):
            return None
        return path if inside and path.suffix.lower() in PICTURES else None
