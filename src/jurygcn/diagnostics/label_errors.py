r"""Which training labels may be wrong: those that jurors which never saw them find implausible.

The stacked jury predicts each left-out node; its regressions learn the probable classes instead of the labels
(:mod:`jurygcn.diagnostics.noise`). Labels whose probability of being wrong is above a threshold are flagged. The mean
of :math:`1 - w_i` over those flagged estimates the rate of false discoveries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from jurygcn.checks import in_short
from jurygcn.conformal.counts import FLOOR
from jurygcn.conformal.predictions import predictions_at
from jurygcn.data.heterogeneous import all_edges, layout_of
from jurygcn.diagnostics.grounds import jurors_trusted
from jurygcn.diagnostics.left_out import class_names_of, has_stacked_jury
from jurygcn.diagnostics.noise import fit_noise, learned_noise
from jurygcn.errors import SettingError

if TYPE_CHECKING:
    from jurygcn.jury import Jury

NAMED = 3  # the labels named for each node


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """All training labels, from the most to the least suspicious.

    Attributes:
        table: a row per label. ``node`` and ``label``; ``suggested``: the most probable other class; ``probability``:
            of the label, by jurors that never saw it, with regressions that learn probable classes; ``p_value``: the
            probability of a class as implausible as the label, if the jury is right; ``wrong``: the probability that
            the label is wrong; ``flagged``; ``against``: the labelled nodes of the suggested class that speak for it
            most; ``neighbours`` and ``why``: in words, for flagged labels.
        noise: the estimated share of wrong labels among all.
        false_discoveries: the estimated share of right labels among the flagged ones; 0 if none is flagged.
        of: whose predictions they are, "jury" or "model".
    """

    table: pd.DataFrame = field(repr=False)
    noise: float
    false_discoveries: float
    of: str

    @property
    def flagged(self) -> Tensor:
        """The nodes with flagged labels, the most suspicious first."""
        return torch.tensor(self.table.loc[self.table["flagged"], "node"].tolist(), dtype=torch.long)

    @property
    def words(self) -> str:
        """The result in sentences."""
        n, k = len(self.table), int(self.table["flagged"].sum())
        share = f"About {self.noise:.0%}" if self.noise >= 0.005 else "Less than 1%"
        said = f"{share} of {n:,} labels are estimated to be wrong. "
        if not k:
            return said + "None is suspicious enough to be flagged."
        if k == 1:
            return said + "1 is flagged: check it before you change it." + self._whole_classes()
        return said + (
            f"{k:,} are flagged: check them first. The estimate that {self.false_discoveries:.0%} of these are right "
            "assumes that only wrong labels are surprising; nodes unlike their neighbours are surprising, too."
            + self._whole_classes()
        )

    def _whole_classes(self) -> str:
        """A warning of classes whose labels are all flagged: a class with few labels looks like errors."""
        flagged = self.table.groupby("label", sort=False)["flagged"]
        whole = [f"{n} of {c}" for c, n in flagged.count()[flagged.all()].items()]
        if not whole:
            return ""
        return f" All labels of a class are flagged ({', '.join(whole)}): a class with few labels can look like errors."


def label_errors_of(jury: Jury, *, threshold: float) -> LabelErrors:
    """All labels ranked; those that are wrong with a probability above ``threshold`` are flagged."""
    if not (isinstance(threshold, int | float) and 0.0 <= threshold <= 1.0):
        raise SettingError(f"expected a threshold between 0 and 1, got {in_short(threshold)}; change it")
    found, stacked = jury.left_out(), has_stacked_jury(jury) and bool(jury.panel.members)
    if stacked:
        heard = found.probabilities if jurors_trusted(jury) else None
        noise = learned_noise(jury.panel, jury.positions.cpu(), found.labels, heard)
    else:
        noise = fit_noise(found.probabilities.clamp_min(FLOOR).log(), found.labels)
    p, wrong = noise.truth, noise.wrong
    own = noise.logs.exp().gather(1, found.labels[:, None]).squeeze(1)
    given = p.gather(1, found.labels[:, None])
    tail = torch.where(p <= given * (1 + 1e-9), p, 0.0).sum(dim=1).clamp_max(1.0)
    suggested = p.scatter(1, found.labels[:, None], -1.0).argmax(dim=1)
    order = wrong.argsort(descending=True, stable=True)
    count = int((wrong > threshold).sum())
    names = class_names_of(jury)
    against = _labels_against(jury, suggested)
    neighbours = _neighbours(jury, found.nodes[order[:count]])
    table = pd.DataFrame(
        {
            "node": found.nodes[order].tolist(),
            "label": [names[c] for c in found.labels[order].tolist()],
            "suggested": [names[c] for c in suggested[order].tolist()],
            "probability": own[order].tolist(),
            "p_value": tail[order].tolist(),
            "wrong": wrong[order].tolist(),
            "flagged": [k < count for k in range(len(order))],
            "against": [tuple(against[i]) for i in order.tolist()],
        }
    )
    rows = table.to_dict("records")
    table["neighbours"] = [_about_neighbours(row, neighbours.get(row["node"]), names) for row in rows]
    nodes = getattr(jury.data, "node_names", None)
    table["why"] = [_why(row, nodes) for row in table.to_dict("records")]
    return LabelErrors(
        table,
        noise.rate,
        max(0.0, float(1.0 - wrong[order[:count]].mean())) if count else 0.0,
        "jury" if stacked else "model",
    )


def _labels_against(jury: Jury, suggested: Tensor) -> list[list[int]]:
    r"""For each juror's node the labelled nodes of the suggested class that the stacked jury gives most weight there.

    Without label i a regression predicts :math:`f_{-i}(i) = \sum_{j \ne i} h_{ij} y_j / (1 - h_{ii})`. So these are the
    largest :math:`\sum_k \beta_k h^k_{ij} / (1 - h^k_{ii})`.
    """
    n = len(suggested)
    if not has_stacked_jury(jury) or not len(jury.advice().advisers):
        return [[] for _ in range(n)]
    advice = jury.advice()
    nodes = jury.train_nodes[jury.positions]
    weights = torch.zeros(n, n, dtype=torch.float64)
    for weight, adviser in zip(advice.weights[1:].tolist(), advice.advisers):
        hat = (adviser.offset + adviser.columns[nodes] @ adviser.coefficients).double()
        weights += weight * hat / (1.0 - hat.diagonal())[:, None]
    targets = jury.engine.targets[jury.positions].cpu()
    weights[targets[None, :] != suggested[:, None]] = 0.0
    weights.fill_diagonal_(0.0)
    top = weights.topk(min(NAMED, n), dim=1)
    kept = zip(nodes[top.indices].tolist(), (top.values > 0).tolist())
    return [[node for node, there in zip(row, some) if there] for row, some in kept]


def _neighbours(jury: Jury, nodes: Tensor) -> dict[int, Tensor]:
    """Counts of the classes that the model predicts for the neighbours of each node, (C,)."""
    if layout_of(jury.data) is not None or not len(nodes):
        return {}
    pairs, _ = all_edges(jury.data)
    pairs = pairs[:, (pairs[0] != pairs[1]) & torch.isin(pairs[1], nodes)].unique(dim=1)
    if not pairs.shape[1]:
        return {}
    others, where = pairs[0].unique(return_inverse=True)
    said = predictions_at(jury.engine, others)[:, :, 0].argmax(dim=1)[where]
    C = jury.engine.num_outputs
    return {int(node): torch.bincount(said[pairs[1] == node], minlength=C) for node in nodes}


def _about_neighbours(row: dict[Any, Any], counts: Tensor | None, names: list[str]) -> str:
    """What the model predicts for the neighbours of a flagged label's node; empty for the others."""
    if not row["flagged"] or counts is None:
        return ""
    for_it, given = (int(counts[names.index(row[key])]) for key in ("suggested", "label"))
    return f"{for_it} of {int(counts.sum())} neighbours are predicted as {row['suggested']}, {given} as {row['label']}"


def _why(row: dict[Any, Any], nodes: Sequence[Any] | None) -> str:
    """The reasons for a flagged label in words; empty for the others."""
    said = [row["neighbours"]] if row["neighbours"] else []
    if row["flagged"] and row["against"]:
        listed = ", ".join(str(nodes[node] if nodes else node) for node in row["against"])
        said.append(f"labelled nodes that speak for {row['suggested']}: {listed}")
    return "; ".join(said)
