"""The file of answers: SQLite, one transaction for each answer, in memory for reading."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from jurygcn.errors import DataError, SettingError, excerpt

FORMAT = 1
KINDS = ("label", "unknown", "skip")
TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS given (node INTEGER PRIMARY KEY, label INTEGER NOT NULL, chosen TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS answers (
  node INTEGER NOT NULL, annotator TEXT NOT NULL, kind TEXT NOT NULL, label INTEGER, comment TEXT NOT NULL,
  chosen TEXT NOT NULL, request TEXT NOT NULL, number INTEGER NOT NULL UNIQUE, at REAL NOT NULL,
  PRIMARY KEY (node, annotator)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS curve (labels INTEGER PRIMARY KEY, accuracy REAL NOT NULL, lower REAL NOT NULL,
  upper REAL NOT NULL);
"""


@dataclass(frozen=True)
class Answer:
    """What one annotator said about one node.

    Attributes:
        node, annotator: the key: an annotator has one answer for a node.
        kind: "label", "unknown" (the annotator does not know) or "skip" (not now, not this annotator).
        label: the class; None unless ``kind`` is "label".
        comment: free text.
        chosen: how the node was chosen: "actively" or "random".
        request: the identity of the request that brought the answer, so that a repeated request changes nothing.
        number: the position in the order of answers.
        at: the time, in seconds since 1970.
    """

    node: int
    annotator: str
    kind: str
    label: int | None = None
    comment: str = ""
    chosen: str = "actively"
    request: str = ""
    number: int = 0
    at: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.label is None) == (self.kind == "label"):
            raise DataError(
                f"expected an answer of kind label (with a class), unknown or skip, got {self.kind!r} with "
                f"{self.label!r}; correct it"
            )


COLUMNS = tuple(field.name for field in fields(Answer))


@dataclass(frozen=True)
class Point:
    """The estimated accuracy of the model after a number of labels, with a band."""

    labels: int
    accuracy: float
    lower: float
    upper: float


class Answers:
    """All answers of one graph. An answer is in the file, synchronised to disk, when ``record`` returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # FULL: after a power failure every committed answer is there, in WAL mode too
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = FULL")
            self._file.execute("PRAGMA trusted_schema = OFF")
            self._file.executescript(TABLES)
            self.facts: dict[str, Any] = {
                name: json.loads(value) for name, value in self._file.execute("SELECT name, value FROM facts")
            }
            self.given = {n: (label, how) for n, label, how in self._rows("given", ("node", "label", "chosen"))}
            self.by_node: dict[int, dict[str, Answer]] = {}
            self.counts: dict[str, dict[str, int]] = {}  # answers of each kind, by annotator
            for row in self._rows("answers", COLUMNS, order="number"):
                self._keep(Answer(*row))
            self.curve = [Point(*row) for row in self._rows("curve", ("labels", "accuracy", "lower", "upper"))]
            self._count = max((a.number for a in self), default=0)
            self.labels: dict[int, int] = {}  # the class of each labelled node
            self._disputed: set[int] = set()
            self._update({*self.given, *self.by_node})
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise DataError(
                f"expected {path.name} to be a file of answers that jurygcn label wrote, got {error}; choose another "
                "file with --answers"
            ) from error

    def __iter__(self) -> Iterator[Answer]:
        return (answer for answers in self.by_node.values() for answer in answers.values())

    def close(self) -> None:
        """Close the file; everything is then in one file, without the write-ahead log."""
        self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._file.close()

    # --- the graph -------------------------------------------------------------------------------------

    def bind(self, facts: Mapping[str, Any]) -> None:
        """Remember the graph at first use; later, raise DataError for another graph or other classes."""
        wanted = {"format": FORMAT, **facts}
        for name, value in self.facts.items():
            if name in wanted and wanted[name] != value:
                raise DataError(
                    f"expected {self.path.name} to belong to this graph, got {name} {excerpt(value)} in the file and "
                    f"{excerpt(wanted[name])} now; choose another file with --answers"
                )
        with self._transaction():
            rows = [(name, json.dumps(value)) for name, value in wanted.items()]
            self._file.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)
        self.facts |= wanted

    def add_given(self, labels: Mapping[int, int], origins: Mapping[int, str]) -> int:
        """Add labels that come from a file; returns how many are new. A contradiction is refused, as a whole."""
        for node, label in labels.items():
            known = self.given.get(node, (label, ""))[0]
            if known != label:
                classes = self.facts.get("classes", [])
                words = [classes[c] if c < len(classes) else str(c) for c in (known, label)]
                raise DataError(
                    f"expected node {node} to keep its label {excerpt(words[0])}, got {excerpt(words[1])}; "
                    "correct the file of labels"
                )
        new = {n: (label, origins.get(n, "")) for n, label in labels.items() if n not in self.given}
        with self._transaction():
            self._file.executemany("INSERT INTO given VALUES (?, ?, ?)", [(n, *entry) for n, entry in new.items()])
        self.given |= new
        self._update(new)
        return len(new)

    # --- answers ---------------------------------------------------------------------------------------

    def record(self, answer: Answer) -> Answer:
        """Write the answer; it replaces the annotator's earlier answer for the node, if there is one."""
        answer = replace(answer, number=self._count + 1, at=answer.at or time.time())
        marks = ", ".join("?" * len(COLUMNS))
        with self._transaction():
            self._file.execute(
                f"INSERT OR REPLACE INTO answers ({', '.join(COLUMNS)}) VALUES ({marks})", astuple(answer)
            )
        self._count = answer.number
        self._keep(answer)
        self._update([answer.node])
        return answer

    def remove(self, answer: Answer) -> None:
        """Delete an answer."""
        with self._transaction():
            self._file.execute("DELETE FROM answers WHERE node = ? AND annotator = ?", (answer.node, answer.annotator))
        self._forget(answer.node, answer.annotator)
        self._update([answer.node])

    def last_of(self, annotator: str) -> Answer | None:
        """The annotator's latest answer."""
        mine = (answers[annotator] for answers in self.by_node.values() if annotator in answers)
        return max(mine, key=lambda answer: answer.number, default=None)

    # --- labels ----------------------------------------------------------------------------------------

    def label(self, node: int) -> int | None:
        """The class that most annotators gave, or the file of labels; None if there is none or a tie."""
        votes = Counter(self._votes(node).values())
        if not votes:
            return self.given[node][0] if node in self.given else None
        best = votes.most_common(2)
        return None if len(best) > 1 and best[0][1] == best[1][1] else best[0][0]

    def origin(self, node: int) -> str:
        """How a labelled node was chosen, as in labels.csv."""
        said = [a.chosen for a in self.by_node.get(node, {}).values() if a.label is not None]
        return said[0] if said and node not in self.given else self.given.get(node, (0, ""))[1]

    def disagreements(self) -> dict[int, dict[str, int]]:
        """The nodes with different labels from different annotators: the label of each annotator."""
        return {node: self._votes(node) for node in sorted(self._disputed)}

    # --- the curve -------------------------------------------------------------------------------------

    def add_point(self, point: Point) -> None:
        """Add a point to the curve of estimated accuracy; it replaces one with the same number of labels."""
        with self._transaction():
            self._file.execute("INSERT OR REPLACE INTO curve VALUES (?, ?, ?, ?)", astuple(point))
        self.curve = sorted([*(p for p in self.curve if p.labels != point.labels), point], key=lambda p: p.labels)

    # --- SQLite ----------------------------------------------------------------------------------------

    def _keep(self, answer: Answer) -> None:
        """Put the answer into memory, in place of the annotator's earlier one."""
        self._forget(answer.node, answer.annotator)
        self.by_node.setdefault(answer.node, {})[answer.annotator] = answer
        self.counts.setdefault(answer.annotator, dict.fromkeys(KINDS, 0))[answer.kind] += 1

    def _forget(self, node: int, annotator: str) -> None:
        before = self.by_node.get(node, {}).pop(annotator, None)
        if before is not None:
            self.counts[annotator][before.kind] -= 1

    def _votes(self, node: int) -> dict[str, int]:
        return {a.annotator: a.label for a in self.by_node.get(node, {}).values() if a.label is not None}

    def _update(self, nodes: Iterable[int]) -> None:
        for node in nodes:
            label = self.label(node)
            if label is None:
                self.labels.pop(node, None)
            else:
                self.labels[node] = label
            disputed = len(set(self._votes(node).values())) > 1
            (self._disputed.add if disputed else self._disputed.discard)(node)

    def _rows(self, table: str, columns: tuple[str, ...], *, order: str = "1") -> list[tuple[Any, ...]]:
        return self._file.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {order}").fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One transaction; if it cannot be committed, nothing of it is kept."""
        try:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")
        except sqlite3.Error as error:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise SettingError(
                f"expected to write the answer into {self.path.name}, got {error}; free space on the disk"
            ) from error
