"""Label Studio's formats: tasks, predictions and annotations with one choice, its configuration, its exports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from jurygcn.errors import DataError, listing
from jurygcn.io.files import read_json

CONTROL, OBJECT = "label", "text"  # names in the configuration


def choice(word: str) -> dict[str, Any]:
    """A result with one choice."""
    return {"from_name": CONTROL, "to_name": OBJECT, "type": "choices", "value": {"choices": [word]}}


def task(about: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A task to import: the node's fields, and the text that annotators see."""
    return {"data": {**about, OBJECT: text}}


def config(words: Sequence[str]) -> str:
    """The labelling interface for these classes, to paste into a project."""
    choices = "\n".join(f"    <Choice value={quoteattr(word)}/>" for word in words)
    return (
        f'<View>\n  <Text name="{OBJECT}" value="${OBJECT}"/>\n'
        f'  <Choices name="{CONTROL}" toName="{OBJECT}" choice="single" required="true">\n'
        f"{choices}\n  </Choices>\n</View>\n"
    )


def as_json_text(document: Any) -> str:
    """Plain values as JSON text."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def read_export(path: Path) -> list[Any]:
    """The tasks of a Label Studio export."""
    try:
        document = read_json(path)
    except OSError as error:
        raise DataError(f"expected answers at {path}, got {error.strerror}; check the path") from error
    except ValueError as error:
        raise DataError(f"expected JSON in {path.name}, got other content ({error}); export it again") from error
    if not isinstance(document, list):
        raise DataError(
            f"expected a list of tasks in {path.name}, got {type(document).__name__}; "
            "export it from Label Studio as JSON"
        )
    return document


def answers_of(document: list[Any], source: str) -> Iterator[tuple[Any, Any, Any, str]]:
    """(node, its name, label, place) of every answer in a Label Studio export."""
    for position, task in enumerate(document, start=1):
        place = f"task {position}"
        try:
            if "data" not in task:  # JSON-MIN has all fields on one level
                yield task["node"], task.get("name"), _single(task.get(CONTROL)), place
                continue
            for annotation in task.get("annotations") or []:
                if annotation.get("was_cancelled"):
                    continue
                for result in annotation["result"]:
                    if result.get("type") == "choices":
                        about, choices = task["data"], result["value"]["choices"]
                        yield about["node"], about.get("name"), _single(choices), place
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(
                f"{source}, {place}: expected a Label Studio task with a node and at most one choice, got other "
                f"content ({type(error).__name__}: {listing([error])}); export it as JSON or JSON-MIN"
            ) from None


def _single(choices: Any) -> Any:
    """The single choice, in any of the export's forms; None if there is none."""
    if isinstance(choices, dict):
        choices = choices.get("choices")
    if isinstance(choices, list):
        if len(choices) > 1:
            raise ValueError(f"{len(choices)} choices")
        return choices[0] if choices else None
    return choices
