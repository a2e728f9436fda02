"""Oracles, which give labels: the graph's own labels, a function, a file, or a person at the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.active.labels import class_number, class_words, node_words, read_labels
from jurygcn.data.labels import UNLABELLED
from jurygcn.errors import DataError

# takes nodes and returns one class for each, -1 if it does not know
Oracle = Callable[[Tensor], "Tensor | Sequence[int]"]


def truth(data: Data) -> Oracle:
    """An oracle that reads ``data.y``, for experiments."""
    y = data.y.clone()
    return lambda nodes: y[nodes]


def from_file(path: str | Path, data: Data) -> Oracle:
    """An oracle that reads a CSV file with the columns node and label. It returns -1 for nodes not in the file."""
    nodes, labels = read_labels(Path(path), data)
    known = dict(zip(nodes.tolist(), labels.tolist()))
    return lambda asked: [known.get(node, UNLABELLED) for node in asked.tolist()]


def at_terminal(data: Data, *, ask: Callable[[str], str] = input, say: Callable[[str], Any] = print) -> Oracle:
    """An oracle that asks a person for a class name or number of each node. An empty line skips the node."""

    def answer(nodes: Tensor) -> list[int]:
        return [_ask_once(node, data, ask, say) for node in nodes.tolist()]

    return answer


def _ask_once(node: int, data: Data, ask: Callable[[str], str], say: Callable[[str], Any]) -> int:
    classes = ", ".join(f"{number} {name}" for number, name in enumerate(class_words(data)))
    while True:
        try:
            given = ask(f"{node_words(node, data)}: class ({classes}; empty to skip)? ").strip()
        except EOFError:
            raise DataError("expected an answer, got the end of the input; start again to go on") from None
        if not given:
            return UNLABELLED
        try:
            return class_number(given, data)
        except DataError as error:
            say(str(error))


def ask_oracle(oracle: Oracle, nodes: Tensor, num_classes: int) -> Tensor:
    """The oracle's answers after a check: for each node a class in 0..C-1, or -1.

    Shapes: nodes (b,) -> (b,).
    """
    answers = torch.as_tensor(oracle(nodes)).long().reshape(-1).cpu()
    if len(answers) != len(nodes):
        raise DataError(
            f"expected {len(nodes)} labels from the oracle, got {len(answers)}; return one for each node, -1 to skip it"
        )
    if bool((answers < UNLABELLED).any()) or bool((answers >= num_classes).any()):
        wrong = int(answers[(answers < UNLABELLED) | (answers >= num_classes)][0])
        raise DataError(f"expected classes 0..{num_classes - 1} or -1 from the oracle, got {wrong}; correct it")
    return answers
