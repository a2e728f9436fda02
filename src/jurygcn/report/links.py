"""What the edges of a node do to its prediction, for the neighbourhood view."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from jurygcn.edits.base import base_of
from jurygcn.edits.edit import is_undirected
from jurygcn.edits.influences import edges_away, effects_on
from jurygcn.errors import JuryError
from jurygcn.jury import Jury
from jurygcn.report.document import rounded

# Nodes whose edges are tried, the edges of each of them, and the largest graph in which that takes seconds.
MOST_NODES, MOST_EDGES, MOST_GRAPH = 40, 10, 100_000


def links_of(jury: Jury, nodes: Tensor) -> dict[str, Any] | None:
    """For each of the first nodes its neighbours, and what would be predicted without the edge to them.

    None where edits cannot be computed or would take long.
    """
    if jury.votes.how == "linearized" or int(jury.data.num_nodes) > MOST_GRAPH or jury.node_type is not None:
        return None
    if not is_undirected(jury.data):
        return None
    try:
        base = base_of(jury)
        pairs = [(node, other) for node in nodes[:MOST_NODES].tolist() for other in _neighbours(jury, node)]
        effects = effects_on(base, edges_away(jury, pairs), [node for node, _ in pairs])
    except JuryError:  # edits have stricter needs than verdicts
        return None
    classify = jury.engine.loss.name == "cross_entropy"
    direct, through, _ = effects.supports(effects.predicted(classify=classify))
    without = effects.after.argmax(dim=1) if classify else effects.after[:, 0]
    found: list[dict[str, list[Any]]] = [
        {"node": [], "direct": [], "through": [], "without": []} for _ in nodes[:MOST_NODES]
    ]
    row = {node: k for k, node in enumerate(nodes[:MOST_NODES].tolist())}
    columns = zip(pairs, direct.tolist(), through.tolist(), without.tolist(), strict=True)
    for (node, other), by_messages, by_training, instead in columns:
        entry = found[row[node]]
        entry["node"].append(other)
        entry["direct"].append(by_messages)
        entry["through"].append(by_training)
        entry["without"].append(instead)
    return {"rows": [{key: rounded(values, 3) for key, values in entry.items()} for entry in found]}


def _neighbours(jury: Jury, node: int) -> list[int]:
    source, target = jury.data.edge_index
    near: Tensor = target[(source == node) & (target != node)].unique()
    return [int(other) for other in near[:MOST_EDGES].tolist()]
