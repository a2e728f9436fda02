"""Nodes that arrive after training: a jury on a graph that has grown, without refitting."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch_geometric.data import Data

from jurygcn.engine.moved import moved

if TYPE_CHECKING:
    from jurygcn.jury import Jury


def on_new_graph(jury: Jury, data: Data) -> Jury:
    """The jury with the same jurors, whose votes, the panel's included, are cast on the graph ``data``.

    Jurors also vote on their own nodes there, so that labelled and new nodes are scored by the same function.
    """
    grown = copy.copy(jury)
    grown.engine = moved(jury.engine, data)
    grown.data, grown.grown, grown._advice, grown._left_out = grown.engine.data, True, {}, {}
    grown.__dict__.pop("panel", None)
    return grown
