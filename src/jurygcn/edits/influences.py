"""Which edges, nodes, features and labels drive the prediction of a node: each is taken away, without retraining."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.checks import check_choice, check_count
from jurygcn.choices import TAKEN_AWAY
from jurygcn.data import check_nodes
from jurygcn.diagnostics.grounds import why_untrusted
from jurygcn.diagnostics.influence import influence_of_all_labels
from jurygcn.edits.base import Base, base_of, predictions
from jurygcn.edits.certificate import retrained_after
from jurygcn.edits.edit import Edit, edit_of, is_undirected
from jurygcn.edits.steps import Objectives, TooManyEdits, edited_parts
from jurygcn.errors import JuryWarning
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.graph.reach import reached_by

if TYPE_CHECKING:
    from jurygcn.jury import Jury

# Edits that are solved at once. Where products of rows have no short way, products with others' columns are wasted, and
# more edits are not faster. The same holds for predictions of many edits.
TOGETHER, FEW = 32, 8
MOST = 3_000  # edits of one question; the nearest are taken

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(frozen=True, eq=False)
class Effects:
    """The prediction of a node before and after each of b edits.

    Shapes: before, direct, after (b, C).
    """

    before: Tensor
    direct: Tensor
    after: Tensor

    def supports(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How much an output of each node drops: by message passing, through the parameters, and in all, (b,) each."""
        rows = torch.arange(len(self.before))
        before, direct, after = (part[rows, outputs] for part in (self.before, self.direct, self.after))
        return before - direct, direct - after, before - after

    def predicted(self, *, classify: bool) -> Tensor:
        """The class predicted before, or the first output of a regression, (b,)."""
        return self.before.argmax(dim=1) if classify else torch.zeros(len(self.before), dtype=torch.long)


def influence_on(jury: Jury, node: int, of: str, check: int = 0) -> pd.DataFrame:
    """What drives the prediction of ``node``, the largest influence first; see ``Jury.influence_on``."""
    check_choice(of, "of", TAKEN_AWAY)
    check_count(check, "check", least=0, most=MOST)
    table = _table_of(jury, node, of)
    exact = of == "labels" and jury.leave_out.how == "retrain"
    if not exact and (doubt := why_untrusted(jury)):
        warnings.warn(
            f"{doubt} Effects through training may be wrong; compare them with training again, by "
            "influence_on(..., check=3) or jury.fidelity().",
            JuryWarning,
            stacklevel=4,
        )
    if check:
        known = [
            drop_after_retraining(jury, node, _edit_of(jury, node, row)) for row in table[:check].to_dict("records")
        ]
        table["retrained"] = known + [math.nan] * (len(table) - len(known))
    return table


def drop_after_retraining(jury: Jury, node: int, edit: Edit) -> float:
    """How much the prediction of a node drops if the model is trained again after an edit."""
    engine = jury.engine
    data, train_nodes = edit.applied(engine.data), edit.labelled(engine.train_nodes)
    theta = retrained_after(jury, data, train_nodes, jury.retraining)
    there = engine.elsewhere(data, train_nodes, engine.loss.targets(data.y[train_nodes]))
    asked = torch.tensor([node])
    before = predictions(engine, engine.theta[None], asked)[0, :, 0]
    output = int(before.argmax()) if engine.loss.name == "cross_entropy" else 0
    return float(before[output] - predictions(there, theta[None], asked)[0, output, 0])


def _edit_of(jury: Jury, node: int, row: dict[Any, Any]) -> Edit:
    """What a row of the table takes away."""
    if "source" in row:
        return edges_away(jury, [(int(row["source"]), int(row["target"]))])[0]
    if "feature" in row:
        return _without_feature(jury, node, int(row["feature"]))
    if "train_node" in row:
        return edit_of(jury.engine, change_labels={int(row["train_node"]): None})
    return node_away(jury, int(row["node"]))


def _table_of(jury: Jury, node: int, of: str) -> pd.DataFrame:
    if of == "labels":
        table = influence_of_all_labels(jury, node)
        table.insert(2, "direct", 0.0)
        table.insert(3, "through_parameters", table["support"])
        return table
    (node,) = check_nodes([node], jury.data, what="node").tolist()
    columns, edits = {"edges": _edges, "nodes": _nodes, "features": _features}[of](jury, node)
    effects = effects_on(base_of(jury), edits, [node] * len(edits))
    return _table(columns, effects, classify=jury.engine.loss.name == "cross_entropy")


def _table(columns: dict[str, list[int]], effects: Effects, *, classify: bool) -> pd.DataFrame:
    outputs = effects.predicted(classify=classify)
    direct, through, support = (part.double().numpy() for part in effects.supports(outputs))
    without = effects.after.argmax(dim=1) if classify else effects.after[:, 0]
    frame = pd.DataFrame({**columns, "direct": direct, "through_parameters": through, "support": support})
    frame["prediction_without"] = without.numpy()
    return frame.iloc[np.argsort(-np.abs(support), kind="stable")].reset_index(drop=True)


def effects_on(base: Base, edits: Sequence[Edit], nodes: Sequence[int], *, retrain: bool = True) -> Effects:
    """The prediction of a node after each edit, which has its own node; without ``retrain`` the parameters stay."""
    engine = base.engine
    known, place = torch.tensor(list(nodes), dtype=torch.long).unique(return_inverse=True)
    if not len(known):
        nothing = torch.zeros(0, engine.num_outputs, dtype=engine.dtype)
        return Effects(nothing, nothing, nothing)
    before = predictions(engine, engine.theta[None], known)[place, :, 0]

    def in_one_batch(pairs: Sequence[tuple[Edit, int]]) -> list[tuple[Tensor, Tensor]]:
        moves = steps_of(base, [edit for edit, _ in pairs]) if retrain else None
        parts = [slice(k, k + FEW) for k in range(0, len(pairs), FEW)]
        return [after_edits(pairs[part], None if moves is None else moves[part]) for part in parts]

    def after_edits(pairs: Sequence[tuple[Edit, int]], moves: Tensor | None) -> tuple[Tensor, Tensor]:
        """Predictions after each edit, with the parameters as they are, and with those that the step leads to."""
        part, asked = [edit for edit, _ in pairs], [node for _, node in pairs]
        own = torch.arange(len(part))
        graph, centres = edited_parts(base, part, own, torch.tensor(asked))
        there = engine.elsewhere(graph, centres, engine.targets[:1].expand(len(part), *engine.targets.shape[1:]))
        thetas = engine.theta[None]
        if moves is not None:
            thetas = torch.cat([thetas, engine.theta + moves])
        found = predictions(there, thetas, centres)  # (b, C, 1 + b)
        return found[:, :, 0], found[own, :, 0 if moves is None else own + 1]

    parts = [part for found in in_batches(list(zip(edits, nodes, strict=True)), in_one_batch) for part in found]
    return Effects(before, torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts]))


def steps_of(base: Base, edits: Sequence[Edit]) -> Tensor:
    """The change of the parameters for each edit alone, (b, P)."""
    together = TOGETHER if base.short_way else FEW
    return torch.cat(in_batches(edits, lambda part: Objectives(base, part).steps(), together=together))


def in_batches(
    edits: Sequence[Item], work: Callable[[Sequence[Item]], Found], *, together: int | None = None
) -> list[Found]:
    """The results of ``work`` on batches of edits; a batch that is too large is halved."""
    found: list[Found] = []
    size = together or TOGETHER
    for start in range(0, len(edits), size):
        part = edits[start : start + size]
        try:
            found.append(work(part))
        except TooManyEdits:
            found += in_batches(part, work, together=(len(part) + 1) // 2)
    return found


def sources_of(jury: Jury, node: int) -> list[int]:
    """The nodes whose messages, degrees or features reach ``node``, the nearest first; without the node."""
    backwards = Data(edge_index=jury.data.edge_index.flip(0), num_nodes=jury.data.num_nodes)
    order, seen = [], {node}
    for hops in range(1, num_hops(jury.engine.model) + 1):
        new = [v for v in reached_by(backwards, [torch.tensor([node])], hops)[0].tolist() if v not in seen]
        seen |= set(new)
        order += new
    return order


def edges_near(jury: Jury, node: int) -> list[tuple[int, int]]:
    """The edges whose removal may change the output at ``node``, the nearest first; undirected ones once."""
    ends = jury.data.edge_index
    place = torch.full((int(jury.data.num_nodes),), 2**31)
    near = [node, *sources_of(jury, node)]
    place[torch.tensor(near)] = torch.arange(len(near))
    both = is_undirected(jury.data)
    rank = place[ends].amin(dim=0) if both else place[ends[1]]  # of a directed edge the receiver counts
    kept = (rank < 2**31) & (ends[0] < ends[1] if both else ends[0] != ends[1])
    chosen = kept.nonzero()[:, 0]
    chosen = chosen[rank[chosen].argsort(stable=True)]
    return list(dict.fromkeys((int(a), int(b)) for a, b in ends[:, chosen].T.tolist()))


def _edges(jury: Jury, node: int) -> tuple[dict[str, list[int]], list[Edit]]:
    pairs = _cut(edges_near(jury, node), "edges")
    return {"source": [a for a, _ in pairs], "target": [b for _, b in pairs]}, edges_away(jury, pairs)


def _nodes(jury: Jury, node: int) -> tuple[dict[str, list[int]], list[Edit]]:
    near = _cut(sources_of(jury, node), "nodes")
    return {"node": near}, [node_away(jury, other) for other in near]


def _features(jury: Jury, node: int) -> tuple[dict[str, list[int]], list[Edit]]:
    present = _cut(jury.data.x[node].nonzero()[:, 0].tolist(), "features")
    return {"feature": present}, [_without_feature(jury, node, feature) for feature in present]


def edges_away(jury: Jury, pairs: Sequence[tuple[int, int]]) -> list[Edit]:
    """The edits that remove one edge each, in both directions if the graph is undirected."""
    both = is_undirected(jury.data)
    return [edit_of(jury.engine, remove_edges=[pair], undirected=both) for pair in pairs]


def node_away(jury: Jury, node: int) -> Edit:
    """The edit that removes a node."""
    return edit_of(jury.engine, remove_nodes=[node], undirected=False)


def _without_feature(jury: Jury, node: int, feature: int) -> Edit:
    row = jury.data.x[node].clone()
    row[feature] = 0
    return edit_of(jury.engine, change_features={node: row}, undirected=False)


def _cut(things: list[Item], what: str) -> list[Item]:
    if len(things) > MOST:
        warnings.warn(
            f"{len(things):,} {what} reach this node; the {MOST:,} nearest are tried.", JuryWarning, stacklevel=7
        )
    return things[:MOST]
