"""Answers as files: labels.csv, all answers as CSV, Label Studio's JSON."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from jurygcn.app.nodes import NodeTable
from jurygcn.app.store import Answer, Answers
from jurygcn.io import label_studio
from jurygcn.io.spreadsheet import as_csv


def labels_csv(answers: Answers, table: NodeTable) -> str:
    """The label of each node that has one, with the columns node, label and chosen, as `jurygcn quantify` reads it."""
    rows = (
        [*_node(node, table), table.classes[label], answers.origin(node)]
        for node, label in sorted(answers.labels.items())
    )
    return as_csv([*_heading(table), "label", "chosen"], rows)


def answers_csv(answers: Answers, table: NodeTable) -> str:
    """Every answer, in the order in which they were given."""
    rows = (
        [*_node(a.node, table), a.annotator, a.kind, _word(a, table), a.comment, a.chosen, _time(a)]
        for a in sorted(answers, key=lambda answer: answer.number)
    )
    return as_csv([*_heading(table), "annotator", "answer", "label", "comment", "chosen", "time"], rows)


def _heading(table: NodeTable) -> list[str]:
    return ["node", "name"] if table.names is not None and not table.written_by_name else ["node"]


def _node(node: int, table: NodeTable) -> list[str]:
    """The cells that name a node: people look for its name, where that is not what is written."""
    return [table.written(node), table.name(node)][: len(_heading(table))]


def label_studio_json(answers: Answers, table: NodeTable) -> str:
    """Tasks with annotations, in Label Studio's format. Names and comments are in the field ``answers`` of the data."""
    tasks = []
    for node in sorted({*answers.given, *answers.by_node}):
        given = [a for a in answers.by_node.get(node, {}).values() if a.kind != "skip"]
        given.sort(key=lambda answer: answer.number)
        annotations = [_annotation(a.label, table) for a in given]
        if node in answers.given and not annotations:
            annotations = [_annotation(answers.given[node][0], table)]
        if annotations:
            said = [{"annotator": a.annotator, "comment": a.comment, "time": _time(a)} for a in given]
            about = {"node": table.written(node), "name": table.name(node), "chosen": answers.origin(node)}
            task = label_studio.task({**about, "answers": said}, table.name(node))
            tasks.append({**task, "annotations": annotations})
    return label_studio.as_json_text(tasks)


EXPORTS: dict[str, Callable[[Answers, NodeTable], str]] = {
    "labels.csv": labels_csv,
    "answers.csv": answers_csv,
    "label-studio.json": label_studio_json,
}


def _annotation(label: int | None, table: NodeTable) -> dict[str, Any]:
    """An annotation; "don't know" is a cancelled one.

    It does not name the annotator, because Label Studio refuses people that it does not know; the task's data does.
    """
    result = [] if label is None else [label_studio.choice(table.classes[label])]
    return {"result": result, "was_cancelled": label is None}


def _word(answer: Answer, table: NodeTable) -> str:
    return "" if answer.label is None else table.classes[answer.label]


def _time(answer: Answer) -> str:
    return datetime.fromtimestamp(answer.at, timezone.utc).isoformat(timespec="seconds")
