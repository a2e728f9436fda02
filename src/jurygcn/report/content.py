"""Compute the content of the page from a jury and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from jurygcn.data import check_nodes, labelled
from jurygcn.data.heterogeneous import all_edges
from jurygcn.diagnostics.fidelity import Fidelity
from jurygcn.diagnostics.health import Health
from jurygcn.diagnostics.influence import influence_of_labels
from jurygcn.errors import SettingError
from jurygcn.evaluation import distance_to_labels
from jurygcn.jury import Jury
from jurygcn.report.diagnostics_text import caution, checkup_words
from jurygcn.report.document import Report, rounded
from jurygcn.report.left_out import expected_tile, left_out_content
from jurygcn.report.links import MOST_NODES as LINKED
from jurygcn.report.links import links_of
from jurygcn.report.measures import MeasuredVerdict, charts, headline
from jurygcn.verdict import Verdict

MAX_ROWS, MAX_EDGES, MAX_NEIGHBOURS = 20_000, 120_000, 40  # limits of one page, so that browsers stay fast
DRIVERS = 8  # the most influential labels shown per node


def report_on(
    jury: Jury,
    verdict: Verdict,
    *,
    test_nodes: Tensor | Sequence[int] | None = None,
    alpha: float = 0.1,
    title: str | None = None,
    health: Health | None = None,
    fidelity: Fidelity | None = None,
    details: int = 2_000,
) -> Report:
    """Compute the content of the page about a verdict.

    Args:
        jury, verdict: the jury and its verdict.
        test_nodes: the nodes to measure on; by default the judged nodes with a known label that were not trained on.
        alpha: level of the label sets; a regression's intervals have the verdict's own level.
        title: the heading; by default the graph's name.
        health, fidelity: the results of ``jury.health()`` and ``jury.fidelity()``, if available.
        details: the number of most uncertain nodes with p-values and influential labels.
    """
    if verdict.label_counts is None and verdict.outputs.shape[1] != 1:
        raise SettingError(
            f"expected a verdict on classes or on one target, got {verdict.outputs.shape[1]} targets; "
            "use one jury per target"
        )
    if fidelity is not None:
        verdict = verdict.compared(fidelity.agreement)
    found = _tested(jury, verdict, test_nodes, alpha)
    position = torch.full((int(jury.data.num_nodes),), -1)
    position[verdict.nodes] = torch.arange(len(verdict))
    order = position[verdict.ranking()]
    rows, detailed = order[:MAX_ROWS], order[: max(0, details)]
    name = getattr(jury.data, "name", None) or (f"{jury.node_type} nodes" if jury.node_type else None)
    edges, left_out = _edges(jury, verdict.nodes[detailed]), left_out_content(jury)
    shown = _details(jury, verdict, detailed)
    content = {
        "title": title or (f"Verdict on {name}" if name else "Verdict"),
        "kind": "classes" if found.classify else "target",
        "classes": _class_names(verdict) if found.classify else [],
        "alpha": alpha if found.classify else verdict.alpha,
        "caution": caution(verdict.claim(found.alpha), health, fidelity, verdict.advice),
        "headline": [*expected_tile(left_out), *headline(found)],
        "left_out": left_out,
        "notes": _notes(
            jury, found, len(rows), len(detailed), complete=edges["complete"], linked=shown["links"] is not None
        ),
        "columns": _columns(found),
        "rows": _rows(jury, found, rows),
        "edges": edges,
        "training": _training(jury),
        "details": shown,
        "charts": charts(found),
        "checkup": checkup_words(health, fidelity),
        "version": version("jurygcn"),
    }
    return Report(rounded(content))


def _tested(jury: Jury, verdict: Verdict, test_nodes: Tensor | Sequence[int] | None, alpha: float) -> MeasuredVerdict:
    data, nodes = jury.data, verdict.nodes
    N = int(data.num_nodes)
    known = labelled(data).reshape(N, -1).all(dim=1)
    tested = known.clone()
    tested[jury.train_nodes] = False
    if test_nodes is not None:
        asked = torch.zeros(N, dtype=torch.bool)
        if len(test_nodes):
            asked[check_nodes(test_nodes, data, what="test_nodes")] = True
        tested &= asked
    joined, everyone = all_edges(data)
    pairs = _pairs(joined)
    degree = torch.bincount(pairs.flatten(), minlength=everyone)[:N]
    distance = torch.from_numpy(distance_to_labels(pairs, jury.train_nodes, num_nodes=everyone))[:N]
    truth = data.y.reshape(N, -1)[:, 0]
    where = tested[nodes].nonzero()[:, 0]
    return MeasuredVerdict(verdict, truth[nodes], known[nodes], where, degree[nodes], distance[nodes], alpha)


def _pairs(edge_index: Tensor) -> Tensor:
    """Every undirected edge once, smaller end first, without loops. Shapes: (2, E) -> (2, E')."""
    ends = edge_index.sort(dim=0).values
    ends = ends[:, ends[0] < ends[1]]
    span = int(ends.max()) + 1 if ends.numel() else 1
    keys = (ends[0] * span + ends[1]).unique()  # one number per edge: much faster than unique columns
    return torch.stack([keys // span, keys % span])


def _class_names(verdict: Verdict) -> list[str]:
    return [str(name) for name in verdict.names or range(verdict.outputs.shape[1])]


def _columns(found: MeasuredVerdict) -> list[dict[str, str]]:
    """The table's columns: key in the rows, heading, kind, explanation."""
    rows = [
        ("node", "Node", "node", "The node's name, or its number"),
        ("prediction", "Prediction", "class", "The model's prediction"),
        ("jury_class", "Jury says", "class", "The class that the stacked jury would predict"),
        ("jury_doubt", "Doubt", "share", "One minus the stacked jury's probability of the prediction"),
        ("set", "Label set", "set", f"The labels that are possible at level {found.alpha:g}"),
        ("truth", "True label", "class", "The known label"),
        (
            "ambiguity",
            "Ambiguity",
            "share",
            "One minus the gap between the two largest p-values; high means uncertain",
        ),
        ("credibility", "Credibility", "share", "The largest p-value; low if no label fits"),
        ("size", "Set size", "count", "Number of labels in the set; 0 means that no class fits"),
        ("probability", "Probability", "share", "The model's probability of its prediction"),
        ("width", "Width", "number", "The paper's uncertainty: the width of the jackknife interval"),
        ("doubt", "Neighbour doubt", "share", "One minus the predicted class's mean probability in the neighbourhood"),
        ("trained", "Trained on", "flag", "Whether the model was trained on this node's label"),
    ]
    if not found.classify:
        rows = [
            rows[0],
            ("prediction", "Prediction", "number", "The model's prediction"),
            ("lower", "Lower", "number", "Lower end of the interval"),
            ("upper", "Upper", "number", "Upper end of the interval"),
            ("width", "Width", "number", "The score: the width of the interval"),
            ("truth", "Target", "number", "The known target"),
            rows[-1],
        ]
    missing = {"truth"} if not found.known.any() else set()
    missing |= {"jury_class", "jury_doubt"} if found.verdict.advice is None else set()
    missing |= {"doubt"} if not len(found.verdict.neighbour_doubt) else set()
    rows = [row for row in rows if row[0] not in missing]
    return [dict(zip(("key", "title", "kind", "help"), row)) for row in rows]


def _rows(jury: Jury, found: MeasuredVerdict, rows: Tensor) -> dict[str, list[Any]]:
    """The table by columns, most uncertain node first; label sets as indices into the list ``sets``."""
    verdict, data = found.verdict, jury.data
    trained = torch.zeros(int(data.num_nodes), dtype=torch.bool)
    trained[jury.train_nodes] = True
    nodes = verdict.nodes[rows]
    names = getattr(data, "node_names", None)
    columns: dict[str, list[Any]] = {"node": nodes.tolist(), "degree": found.degree[rows].tolist()}
    if names:
        columns["name"] = [str(names[node]) for node in nodes.tolist()]
    values = {"width": verdict.width.reshape(-1)}
    if found.classify:
        sets, index = verdict.label_sets(found.alpha)[rows].unique(dim=0, return_inverse=True)
        columns |= {"sets": [row.nonzero()[:, 0].tolist() for row in sets], "set": index.tolist()}
        columns["prediction"] = verdict.predicted_class[rows].tolist()
        columns["size"] = verdict.set_size(found.alpha)[rows].tolist()
        values |= {"probability": verdict.outputs.amax(dim=1)}
        values |= {"doubt": verdict.neighbour_doubt} if len(verdict.neighbour_doubt) else {}
        values |= {"credibility": verdict.credibility, "ambiguity": verdict.ambiguity}
        if verdict.advice is not None:
            columns["jury_class"] = verdict.jury_class[rows].tolist()
            values |= {"jury_doubt": verdict.doubt}
    else:
        values |= {"prediction": verdict.outputs, "lower": verdict.lower, "upper": verdict.upper}
    columns |= {key: value.reshape(-1)[rows].double().tolist() for key, value in values.items()}
    truth, known = found.truth[rows].tolist(), found.known[rows].tolist()
    columns["truth"] = [value if there else None for value, there in zip(truth, known)]
    columns["trained"] = trained[nodes].int().tolist()
    return columns


def _edges(jury: Jury, detailed: Tensor) -> dict[str, Any]:
    """All edges, or in a large graph some edges of the nodes with details."""
    pairs = _pairs(jury.data.edge_index)
    complete = pairs.shape[1] <= MAX_EDGES
    if not complete:
        chosen = torch.zeros(int(jury.data.num_nodes), dtype=torch.bool)
        chosen[detailed] = True
        pairs = pairs[:, chosen[pairs].any(dim=0)]
        both = torch.cat([pairs, pairs.flip(0)], dim=1)
        both = both[:, chosen[both[0]]]
        both = both[:, both[0].argsort(stable=True)]
        count = torch.bincount(both[0], minlength=len(chosen))
        place = torch.arange(both.shape[1]) - (count.cumsum(0) - count)[both[0]]  # rank among its node's edges
        pairs = both[:, place < MAX_NEIGHBOURS].sort(dim=0).values.unique(dim=1)[:, :MAX_EDGES]
    return {"pairs": pairs.T.flatten().tolist(), "complete": complete}


def _training(jury: Jury) -> dict[str, list[Any]]:
    nodes = jury.train_nodes
    names = getattr(jury.data, "node_names", None)
    labels = jury.data.y.reshape(int(jury.data.num_nodes), -1)[nodes, 0].tolist()
    return {"node": nodes.tolist(), "label": labels, "name": [str(names[n]) for n in nodes.tolist()] if names else []}


def _details(jury: Jury, verdict: Verdict, detailed: Tensor) -> dict[str, Any]:
    """P-values and influential labels of the first rows; linearised jurors are too many to compute the labels."""
    columns: dict[str, Any] = {
        "count": len(detailed),
        "p_values": None,
        "drivers": None,
        "support": None,
        "links": None,
    }
    if verdict.label_counts is not None:
        columns["p_values"] = rounded(verdict.p_values[detailed].tolist(), 3)
    if jury.votes.how != "linearized" and len(detailed):
        drivers = influence_of_labels(jury, verdict.nodes[detailed], count=DRIVERS)
        columns["links"] = links_of(jury, verdict.nodes[detailed])
        columns |= {"drivers": drivers.positions.tolist(), "support": rounded(drivers.support.double().tolist(), 3)}
    return columns


def _notes(jury: Jury, found: MeasuredVerdict, rows: int, detailed: int, *, complete: bool, linked: bool) -> list[str]:
    """Sentences about the verdict and about the limits of the page."""
    count, verdict = jury.jurors.count, found.verdict
    how = {"newton": "estimated by a Newton step", "influence": "estimated by influence", "retrain": "retrained"}
    said = [
        f"{len(verdict):,} nodes, {count:,} jurors. A juror is the model without one of its training labels, "
        f"{how[jury.jurors.leave_out]}."
    ]
    claim = verdict.claim(found.alpha)
    if claim.kind != "none":  # that is said first, in the caution
        words = claim.words
        said.append(f"{'Label sets' if found.classify else 'Intervals'}: {words[0].lower()}{words[1:]}")
    if jury.node_type:
        said.append(f"The nodes are those of type {jury.node_type}. Edges to nodes of other types are not drawn.")
    if found.classify and verdict.diffusion:
        often = {1: "once", 2: "twice"}.get(verdict.diffusion, f"{verdict.diffusion} times")
        said.append(f"Votes were averaged over neighbourhoods {often}.")
    if found.classify:
        sets = verdict.label_sets(found.alpha)
        lacking = len(verdict) - int(sets.gather(1, verdict.predicted_class[:, None]).sum())
        empty = int((sets.sum(dim=1) == 0).sum())
        if empty:
            said.append(f"{empty:,} sets are empty: no label fits.")
        if lacking > empty:
            why = (
                "the stacked jury prefers another class"
                if verdict.advice is not None
                else "neighbours outvote it"
                if verdict.diffusion
                else "left-out labels nearly all have a higher probability"
            )
            which = f"{lacking - empty:,} other sets" if empty else f"{lacking:,} sets"
            said.append(f"{which} lack the model's own prediction (marked !), because {why}.")
    if rows < len(verdict):
        said.append(f"The table shows the {rows:,} most uncertain nodes; headline numbers and charts cover all nodes.")
    if detailed < len(verdict):
        said.append(f"The labels with most influence are shown for the {detailed:,} most uncertain nodes.")
        if linked:
            said.append(f"What happens without an edge is computed for the first {min(detailed, LINKED):,} of them.")
    if not complete:
        said.append(
            f"The graph has many edges, so up to {MAX_NEIGHBOURS} neighbours are shown, and only for those nodes."
        )
    if jury.votes.how == "linearized":
        said.append("The jurors are linearised, so the labels with most influence were not computed.")
    return said
