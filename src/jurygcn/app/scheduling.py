"""Which node an annotator gets next. Nothing here waits: the list of nodes to label is always long enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from jurygcn.app.store import Answers

LEASE = 300.0  # seconds without a sign of life after which a node goes to somebody else


@dataclass(frozen=True)
class Chosen:
    """A node to label and the reason in words."""

    node: int
    reason: str
    chosen: str = "actively"


@dataclass
class Desk:
    """Hands out nodes: the current choice first, then the rest of the previous one, then the fallback order.

    Each tab of each annotator holds one node at a time. Nobody else gets this node, unless ``overlap`` annotators
    should label every node.

    Attributes:
        answers: the answers so far.
        order: all nodes in the order of last resort.
        overlap: the number of annotators for a node.
        now: the clock, in seconds.
    """

    answers: Answers
    order: Sequence[int]
    overlap: int = 1
    now: Callable[[], float] = time.monotonic
    ranking: list[Chosen] = field(default_factory=list)
    previous: list[Chosen] = field(default_factory=list)
    held: dict[tuple[str, str], tuple[int, float]] = field(default_factory=dict)

    def renew(self, choices: Iterable[Chosen]) -> None:
        """Replace the choice; what is left of the old one comes after it."""
        fresh = list(choices)
        nodes = {entry.node for entry in fresh}
        self.previous = [e for e in self.ranking if e.node not in nodes and not self.settled(e.node)]
        self.ranking = fresh

    def next_for(self, annotator: str, tab: str) -> Chosen | None:
        """The node for this tab: the one that it holds already, else a new one; None if no node is left."""
        self._release_expired()
        held = self.held.get((annotator, tab))
        node = held[0] if held and annotator not in self.answers.by_node.get(held[0], {}) else None
        if node is None:
            node = next((n for n in self._candidates() if self._free(n, annotator, tab)), None)
        if node is None:
            self.held.pop((annotator, tab), None)
            return None
        self.hold(annotator, tab, node)
        return self.entry(node)

    def hold(self, annotator: str, tab: str, node: int) -> None:
        """Reserve the node for this tab."""
        self.held[annotator, tab] = (node, self.now() + LEASE)

    def still_there(self, annotator: str, tab: str) -> None:
        """A sign of life of this tab: its node stays reserved."""
        if (annotator, tab) in self.held:
            self.hold(annotator, tab, self.held[annotator, tab][0])

    def release(self, annotator: str, node: int) -> None:
        """End the annotator's reservations of this node."""
        self.held = {key: kept for key, kept in self.held.items() if key[0] != annotator or kept[0] != node}

    def entry(self, node: int) -> Chosen:
        """The node with the reason for its choice, as far as it is known."""
        known = (e for e in chain(self.ranking, self.previous) if e.node == node)
        return next(known, Chosen(node, "the next choice is not ready yet; this node has many neighbours"))

    def settled(self, node: int) -> bool:
        """Whether nobody needs to be asked about the node any more."""
        said = self._said(node)
        return len(said) >= self.overlap or (node in self.answers.given and not said)

    def open_nodes(self) -> NDArray[np.int64]:
        """The nodes that may be chosen: without an answer, not reserved, and not skipped by all annotators."""
        known = {answer.annotator for answer in self.answers} | {annotator for annotator, _ in self.held}
        free = np.ones(len(self.order), dtype=bool)
        free[[*self.answers.given, *self.pending()]] = False
        for node, answers in self.answers.by_node.items():
            if answers and (self._said(node) or not known - answers.keys()):
                free[node] = False
        return np.flatnonzero(free)

    def pending(self) -> list[int]:
        """The nodes that annotators hold and that have no label yet."""
        self._release_expired()
        return sorted({node for node, _ in self.held.values() if self.answers.label(node) is None})

    def ready(self) -> int:
        """How many nodes of the current choice nobody has got yet."""
        reserved = {node for node, _ in self.held.values()}
        return sum(e.node not in reserved and not self.answers.by_node.get(e.node) for e in self.ranking)

    def _candidates(self) -> Iterator[int]:
        """All nodes, those first that one annotator of several has labelled."""
        begun = self.answers.by_node if self.overlap > 1 else ()
        chosen = (entry.node for entry in chain(self.ranking, self.previous))
        return chain((n for n in begun if 0 < len(self._said(n)) < self.overlap), chosen, self.order)

    def _free(self, node: int, annotator: str, tab: str) -> bool:
        answers = self.answers.by_node.get(node, {})
        if annotator in answers or self.settled(node):
            return False
        holders = {key for key, (held, _) in self.held.items() if held == node and key != (annotator, tab)}
        if any(name == annotator for name, _ in holders):  # another tab of the same person
            return False
        return len({*self._said(node), *(name for name, _ in holders)}) < self.overlap

    def _said(self, node: int) -> set[str]:
        """The annotators with a label or "don't know" for the node."""
        return {a.annotator for a in self.answers.by_node.get(node, {}).values() if a.kind != "skip"}

    def _release_expired(self) -> None:
        now = self.now()
        self.held = {key: kept for key, kept in self.held.items() if kept[1] > now}
