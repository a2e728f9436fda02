"""An edit of a labelled graph, checked and in plain arrays."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.checks import all_finite, in_short
from jurygcn.data import check_nodes
from jurygcn.data.contents import EDGE_VALUES
from jurygcn.data.heterogeneous import layout_of
from jurygcn.errors import DataError, SettingError
from jurygcn.graph.edited import Changes

if TYPE_CHECKING:
    from jurygcn.engine import Engine

Pairs = Tensor | Sequence[tuple[int, int]]
Rows = Mapping[int, Any]


@dataclass(frozen=True, eq=False)
class Edit:
    """Changes of one graph and of its labels; what changes nothing is left out.

    A removed node keeps its number. It loses all edges and its label.

    Shapes: E edges, F features, k entries each.

    Attributes:
        removed: positions of removed edges, (k,).
        added: added edges, (2, k).
        changed, rows: nodes with new features, (k,), and the features, (k, F).
        relabelled, labels: nodes with a new label, (k,), and the labels as rows of y.
        unlabelled: training nodes that lose their label, (k,).
        gone: removed nodes, (k,).
        ends: the end nodes of removed edges, (2, k).
    """

    removed: Tensor
    added: Tensor
    changed: Tensor
    rows: Tensor
    relabelled: Tensor
    labels: Tensor
    unlabelled: Tensor
    gone: Tensor
    ends: Tensor

    @property
    def empty(self) -> bool:
        """Whether nothing changes."""
        return not len(self.touched) and not len(self.relabelled) and not len(self.unlabelled)

    @cached_property
    def touched(self) -> Tensor:
        """The nodes whose incoming messages, degree or features change."""
        nodes: Tensor = torch.cat([self.ends.flatten(), self.added.flatten(), self.changed]).unique()
        return nodes

    def applied(self, data: Data) -> Data:
        """The edited graph; tensors that do not change are shared."""
        edited = copy.copy(data)
        if len(self.removed) or self.added.shape[1]:
            kept = torch.ones(data.edge_index.shape[1], dtype=torch.bool)
            kept[self.removed] = False
            edited.edge_index = torch.cat([data.edge_index[:, kept], self.added.to(data.edge_index)], dim=1)
            for key in EDGE_VALUES:
                if data.get(key) is not None:
                    value = data[key]
                    edited[key] = torch.cat([value[kept], value.new_ones(self.added.shape[1], *value.shape[1:])])
        if len(self.changed):
            edited.x = data.x.clone()
            edited.x[self.changed] = self.rows.to(data.x)
        if len(self.relabelled):
            edited.y = data.y.clone()
            edited.y[self.relabelled] = self.labels.to(data.y)
        return edited

    def labelled(self, train_nodes: Tensor) -> Tensor:
        """The training nodes after the edit: those that keep their label, then those that get one."""
        kept = train_nodes[~torch.isin(train_nodes, self.unlabelled)]
        return torch.cat([kept, self.relabelled[~torch.isin(self.relabelled, train_nodes)]])


def changes_of(edits: Sequence[Edit], of: Tensor) -> Changes:
    """Many edits as arrays; ``of`` says which edit each centre has."""

    def joined(parts: list[Tensor]) -> Tensor:
        owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([p.shape[-1] for p in parts]))
        flat = torch.cat(parts, dim=-1)
        return torch.cat([owner[None], flat if flat.dim() == 2 else flat[None]])

    return Changes(
        count=len(edits),
        edit=of,
        touched=joined([e.touched for e in edits]),
        removed=joined([e.removed for e in edits]),
        added=joined([e.added for e in edits]),
        changed=joined([e.changed for e in edits]),
        rows=torch.cat([e.rows for e in edits]),
    )


def edit_of(
    engine: Engine,
    *,
    remove_edges: Pairs | None = None,
    add_edges: Pairs | None = None,
    remove_nodes: Tensor | Sequence[int] | None = None,
    change_features: Rows | None = None,
    change_labels: Rows | None = None,
    undirected: bool | None = None,
) -> Edit:
    """Check an edit of the engine's graph; see ``Jury.what_if`` for the arguments."""
    data = engine.data
    if layout_of(data) is not None:
        raise SettingError(
            "expected a graph without types of nodes for an edit or its influence, got a HeteroData; "
            "edit it and retrain"
        )
    both = is_undirected(data) if undirected is None else undirected
    none = torch.zeros(0, dtype=torch.long)
    gone = none if _nothing(remove_nodes) else check_nodes(remove_nodes, data, what="remove_nodes")  # type: ignore[arg-type]
    removed = _positions(data, remove_edges, both=both)
    added = _new_edges(data, add_edges, gone, both=both)
    if len(gone):
        removed = torch.cat([removed, torch.isin(data.edge_index, gone).any(dim=0).nonzero()[:, 0]]).unique()
    changed, rows = _features(data, change_features, gone)
    relabelled, labels, dropped = _labels(engine, change_labels, gone)
    lost = torch.cat([dropped, gone[torch.isin(gone, engine.train_nodes)]]).unique()
    ends = data.edge_index[:, removed]
    return Edit(removed, added, changed, rows, relabelled, labels, lost, gone, ends)


def _nothing(given: Any) -> bool:
    return given is None or len(given) == 0


def is_undirected(data: Data) -> bool:
    """Whether every edge has its reverse."""
    span = int(data.num_nodes)
    source, target = data.edge_index.long()
    return torch.equal((source * span + target).unique(), (target * span + source).unique())


def _pairs(given: Pairs | None, data: Data, what: str) -> Tensor:
    """(k, 2) node numbers."""
    if _nothing(given):
        return torch.zeros(0, 2, dtype=torch.long)
    try:
        pairs = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        pairs = torch.zeros(0)
    if pairs.dim() != 2 or pairs.shape[1] != 2 or pairs.is_floating_point() or pairs.dtype == torch.bool:
        raise DataError(
            f"expected {what} as pairs (source, target) of nodes, got {in_short(given)}; pass a list of pairs"
        )
    check_nodes(pairs.flatten().unique(), data, what=what)
    return pairs.long().cpu()


def _positions(data: Data, given: Pairs | None, *, both: bool) -> Tensor:
    """The positions of edges in ``edge_index``; all copies of a repeated edge."""
    pairs = _pairs(given, data, "remove_edges")
    if not len(pairs):
        return torch.zeros(0, dtype=torch.long)
    span = int(data.num_nodes)
    keys = data.edge_index[0].long() * span + data.edge_index[1].long()
    wanted = pairs[:, 0] * span + pairs[:, 1]
    missing = ~torch.isin(wanted, keys)
    if bool(missing.any()):
        a, b = pairs[int(missing.nonzero()[0])].tolist()
        raise DataError(
            f"expected edges of the graph in remove_edges, got {a}-{b}, which it does not have; check the pair"
        )
    if both:
        wanted = torch.cat([wanted, pairs[:, 1] * span + pairs[:, 0]])
    return torch.isin(keys, wanted).nonzero()[:, 0]


def _new_edges(data: Data, given: Pairs | None, gone: Tensor, *, both: bool) -> Tensor:
    pairs = _pairs(given, data, "add_edges")
    if not len(pairs):
        return torch.zeros(2, 0, dtype=torch.long)
    unknown = [words for key, words in EDGE_VALUES.items() if key != "edge_weight" and data.get(key) is not None]
    if unknown:
        raise DataError(
            f"expected a graph without {unknown[0]} to add edges to, got one with; rebuild the graph instead"
        )
    span = int(data.num_nodes)
    if both:
        pairs = torch.cat([pairs, pairs.flip(1)])
    keys = pairs[:, 0] * span + pairs[:, 1]
    old = torch.isin(keys, data.edge_index[0].long() * span + data.edge_index[1].long())
    wrong = old | (pairs[:, 0] == pairs[:, 1]) | torch.isin(pairs, gone).any(dim=1)
    if bool(wrong.any()):
        a, b = pairs[int(wrong.nonzero()[0])].tolist()
        raise DataError(
            f"expected add_edges between two nodes that stay and have no edge yet, got {a}-{b}; drop the pair"
        )
    keys = keys.unique()
    return torch.stack([keys // span, keys % span])


def _features(data: Data, given: Rows | None, gone: Tensor) -> tuple[Tensor, Tensor]:
    if not given:
        return torch.zeros(0, dtype=torch.long), data.x.new_zeros(0, data.x.shape[1])
    nodes = check_nodes(list(given), data, what="change_features")
    rows = [torch.as_tensor(row).to(data.x).reshape(-1) for row in given.values()]
    if any(len(row) != data.x.shape[1] for row in rows) or not all(all_finite(row) for row in rows):
        raise DataError(
            f"expected {data.x.shape[1]} finite features for each node in change_features, got others; pass "
            "{node: features}"
        )
    new = torch.stack(rows)
    differs = (new != data.x[nodes]).any(dim=1) & ~torch.isin(nodes, gone)
    return nodes[differs], new[differs]


def _labels(engine: Engine, given: Rows | None, gone: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes with a new label, the labels, and training nodes that lose theirs."""
    data, none = engine.data, torch.zeros(0, dtype=torch.long)
    if not given:
        return none, data.y[:0], none
    nodes = check_nodes(list(given), data, what="change_labels")
    dropped = torch.tensor([n for n, value in given.items() if value is None], dtype=torch.long)
    strangers = dropped[~torch.isin(dropped, engine.train_nodes)]
    if len(strangers):
        raise DataError(
            f"expected training nodes where a label is None, got node {int(strangers[0])} without a label; drop it"
        )
    nodes = nodes[~torch.isin(nodes, dropped) & ~torch.isin(nodes, gone)]
    if not len(nodes):
        return none, data.y[:0], dropped
    try:
        labels = torch.stack([torch.as_tensor(given[n]).to(data.y).reshape(data.y.shape[1:]) for n in nodes.tolist()])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError("expected change_labels as {node: label}, got another form; pass one label per node") from error
    checked = engine.loss.targets(labels)
    if engine.loss.name == "cross_entropy" and int(checked.max()) >= engine.num_outputs:
        raise DataError(
            f"expected labels below {engine.num_outputs} in change_labels, got {int(checked.max())}; check the class"
        )
    same = torch.isin(nodes, engine.train_nodes) & (labels == data.y[nodes]).reshape(len(nodes), -1).all(dim=1)
    return nodes[~same], labels[~same], dropped
