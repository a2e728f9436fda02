"""One labelling session: answers, the desk, the worker's results; requests and replies as plain values."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from jurygcn.app.nodes import NodeTable
from jurygcn.app.rounds import Doubtful, Failed, Job, Loaded, Message, Round, View
from jurygcn.app.scheduling import Desk
from jurygcn.app.store import KINDS, Answer, Answers, Point
from jurygcn.errors import DataError, SettingError, excerpt

LONGEST_NAME, LONGEST_COMMENT, LONGEST_KEY = 60, 2000, 64
MOST_LISTED, MOST_POINTS = 20, 100  # in one reply


class Gone(SettingError):
    """The request cannot be done in the present state; the page shows the message and goes on."""


@dataclass(frozen=True)
class Caller:
    """An annotator in one tab of a browser."""

    annotator: str
    tab: str

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Caller:
        """From the fields of a request; raise DataError for impossible ones."""
        name = _text(request, "annotator", LONGEST_NAME).strip()
        if not name:
            raise DataError("expected the name of an annotator, got none; enter a name")
        return cls(name, _text(request, "tab", LONGEST_KEY, default="-"))


@dataclass
class Session:
    """The state of the application.

    Attributes:
        answers: the file of answers.
        batch: the choice is renewed after half as many answers; twice as many nodes are chosen each time.
        overlap: the number of annotators for a node.
        submit: sends a job to the worker.
    """

    answers: Answers
    batch: int = 20
    overlap: int = 1
    submit: Callable[[Job], object] = id
    table: NodeTable | None = None
    desk: Desk | None = None
    view: View | None = None
    doubtful: list[Doubtful] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    note: str = ""
    busy: bool = False
    changes: int = 0  # answers and undone answers since the last job
    rounds: int = 0
    used: int = 0  # labels of the last round with a model
    failed: str = ""

    # --- messages of the worker ------------------------------------------------------------------------

    def hear(self, message: Message) -> None:
        """Take a message of the worker."""
        if isinstance(message, Loaded):
            self._loaded(message)
        elif isinstance(message, Round):
            self._finished(message)
        elif isinstance(message, Failed):
            self.failed = message.why
        elif self.table is None and not self.failed:
            self.failed = "expected the worker to load the graph, got its end; check the memory and start again"
        else:
            self.busy = True  # nothing can be submitted any more
            self.note = "The worker has ended: answers are saved, but nodes are not chosen anew. Start again."

    def _loaded(self, message: Loaded) -> None:
        try:
            self.answers.bind(message.table.facts)
            self.answers.add_given(message.labels, message.origins)
        except DataError as error:
            self.failed = str(error)
            return
        self.table, self.notes = message.table, message.notes
        self.desk = Desk(self.answers, message.table.by_degree, self.overlap)
        self._send(train=False)  # the first nodes: no training before the first page

    def _finished(self, found: Round) -> None:
        self.busy, self.note = False, found.note
        self.rounds += 1
        self.opened()[1].renew(found.choices)
        if found.view is not None:
            self.view, self.doubtful, self.used = found.view, found.doubtful, found.labels
        if found.point is not None:
            self.answers.add_point(found.point)
        if self.rounds == 1 and self.answers.labels:
            self._send(train=True)
        else:
            self._renew()

    def _renew(self, enough: int | None = None) -> None:
        """Start the next round if enough has changed."""
        enough = max(1, self.batch // 2) if enough is None else enough
        if not self.busy and self.rounds and self.changes >= enough:
            self._send(train=True)

    def learn(self) -> None:
        """Start the next round now, if anything has changed."""
        self._renew(1)

    def _send(self, *, train: bool) -> None:
        desk = self.opened()[1]
        self.busy, self.changes = True, 0
        labels = dict(sorted(self.answers.labels.items()))
        self.submit(Job(labels, desk.pending(), desk.open_nodes(), 2 * self.batch, train))

    # --- requests --------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether nodes can be handed out."""
        return self.rounds > 0

    def opened(self) -> tuple[NodeTable, Desk]:
        """The nodes and the desk; raise Gone before the graph is loaded."""
        if self.table is None or self.desk is None:
            raise Gone("The graph is not loaded yet.")
        return self.table, self.desk

    def state(self, caller: Caller | None = None) -> dict[str, Any]:
        """Progress, the curve, answers to look at again."""
        if not self.ready:
            return {"ready": False, "stage": "Loading the graph" if self.table is None else "Choosing the first nodes"}
        table, desk = self.opened()
        if caller is not None:
            desk.still_there(caller.annotator, caller.tab)
        counts, labels = self.answers.counts, self.answers.labels
        return {
            "ready": True,
            "labels": len(labels),
            "given": len(self.answers.given),
            "nodes": len(table),
            "per_class": np.bincount(list(labels.values()), minlength=len(table.classes)).tolist(),
            "annotators": counts,
            "mine": counts.get(caller.annotator, dict.fromkeys(KINDS, 0)) if caller else None,
            "curve": [asdict(point) for point in thinned(self.answers.curve)],
            "used": self.used,
            "training": self.busy and not self.note,
            "note": self.note,
            "again": self._worth_a_look(),
        }

    def next(self, caller: Caller) -> dict[str, Any] | None:
        """The page of the next node; None if no node is left."""
        if not self.ready:
            raise Gone("The first nodes are not chosen yet.")
        entry = self.opened()[1].next_for(caller.annotator, caller.tab)
        return None if entry is None else self.page(entry.node, caller.annotator)

    def answer(self, caller: Caller, request: Mapping[str, Any]) -> Answer:
        """Record an answer. The same request again changes nothing."""
        table, _ = self.opened()
        node, label = _number(request, "node", len(table)), request.get("label")
        kind, key = _text(request, "kind", LONGEST_KEY), _text(request, "request", LONGEST_KEY)
        if label is not None:
            label = _number(request, "label", len(table.classes))
        given = Answer(
            node, caller.annotator, kind, label, _text(request, "comment", LONGEST_COMMENT, lines=True), request=key
        )
        before = self.answers.by_node.get(node, {}).get(caller.annotator)
        if before is not None and key and before.request == key:
            return before
        if before is not None and request.get("revise") is not True:
            raise Gone(f"You have answered {table.name(node)} already, in another tab. Here is the next node.")
        return self.take(given)

    def take(self, answer: Answer) -> Answer:
        """Record a checked answer."""
        made = self.answers.record(answer)
        self.opened()[1].release(answer.annotator, answer.node)
        self.changes += 1
        self._renew()
        return made

    def drop(self, answer: Answer) -> None:
        """Take back an answer."""
        self.answers.remove(answer)
        self.changes += 1

    def undo(self, caller: Caller) -> dict[str, Any]:
        """Take back the annotator's last answer; returns the page of its node, with the answer."""
        desk = self.opened()[1]
        last = self.answers.last_of(caller.annotator)
        if last is None:
            raise Gone("There is nothing to undo.")
        self.drop(last)
        desk.hold(caller.annotator, caller.tab, last.node)
        return {**self.page(last.node, caller.annotator), "before": _said(last)}

    def look(self, caller: Caller, request: Mapping[str, Any]) -> dict[str, Any]:
        """The page of a node to look at again, with the annotator's answer."""
        node = _number(request, "node", len(self.opened()[0]))
        before = self.answers.by_node.get(node, {}).get(caller.annotator)
        return {
            **self.page(node, caller.annotator),
            "before": None if before is None else _said(before),
            "revise": True,
        }

    def page(self, node: int, annotator: str) -> dict[str, Any]:
        """What the page shows of a node. Other people's answers for this node are not shown."""
        table, desk = self.opened()
        labels = {v: label for v in table.around(node) if (label := self.answers.labels.get(v)) is not None}
        near, edges = table.surroundings(node, labels)
        shown = [node, *near]
        view = self.view
        return {
            "node": node,
            "name": table.name(node),
            "reason": desk.entry(node).reason,
            "degree": len(table.around(node)),
            **table.describe(node),
            "near": [
                {
                    "node": v,
                    "name": table.name(v),
                    "label": labels.get(v),
                    "prediction": None if view is None else int(view.predictions[v]),
                }
                for v in shown
            ],
            "edges": edges,
            "verdict": None
            if view is None
            else {
                "prediction": int(view.predictions[node]),
                "probability": round(float(view.probabilities[node]), 4),
                "set": np.flatnonzero(view.sets[node]).tolist(),
                "p_values": [round(float(p), 4) for p in view.p_values[node]],
                "labels": self.used,
            },
            "annotator": annotator,
        }

    def _worth_a_look(self) -> list[dict[str, Any]]:
        table = self.opened()[0]
        found = [
            {"node": node, "name": table.name(node), "why": "disagreement", "said": votes}
            for node, votes in self.answers.disagreements().items()
        ]
        listed = {entry["node"] for entry in found}
        for entry in self.doubtful:
            if entry.node not in listed and self.answers.label(entry.node) == entry.label:
                found.append({**asdict(entry), "name": table.name(entry.node), "why": "doubtful"})
        return found[:MOST_LISTED]


def thinned(points: list[Point]) -> list[Point]:
    """At most MOST_POINTS of the points, evenly, with the last one."""
    step = -(-len(points) // MOST_POINTS) or 1
    return points[::-step][::-1]


def _said(answer: Answer) -> dict[str, Any]:
    return {"kind": answer.kind, "label": answer.label, "comment": answer.comment}


def _text(request: Mapping[str, Any], key: str, longest: int, *, default: str = "", lines: bool = False) -> str:
    text = request.get(key, default)
    if not isinstance(text, str) or len(text) > longest:
        raise DataError(f"expected {key} as text of at most {longest} characters, got {excerpt(text)}; shorten it")
    bad = [c for c in text if unicodedata.category(c) in ("Cc", "Cs") and not (lines and c in "\n\t\r")]
    if bad:
        raise DataError(f"expected {key} without control characters, got {excerpt(text)}; remove them")
    return text


def _number(request: Mapping[str, Any], key: str, count: int) -> int:
    number = request.get(key)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise DataError(f"expected {key} as a number 0..{count - 1}, got {excerpt(number)}; reload the page")
    return number
