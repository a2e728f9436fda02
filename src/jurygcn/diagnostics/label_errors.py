r"""Which training labels may be wrong: those that jurors which never saw them find implausible.

The stacked jury's prediction of a left-out node, with a temperature, stands for the distribution of its true label. A
label is wrong with probability :math:`\epsilon`, and is then any other class:

.. math::
    p_i(c) = softmax(\beta \log \tilde\pi_{-i}(i))_c, \qquad
    P(y_i) = (1 - \epsilon)\, p_i(y_i) + \epsilon\, \frac{1 - p_i(y_i)}{C - 1}, \qquad
    w_i = \frac{\epsilon}{C - 1} \cdot \frac{1 - p_i(y_i)}{P(y_i)}

:math:`w_i` is averaged over the posterior of :math:`\beta` and :math:`\epsilon`, given all labels, on a grid. It is
the probability that label i is wrong; labels with :math:`w_i` above a threshold are flagged. The mean of
:math:`1 - w_i` over those flagged estimates the rate of false discoveries.
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
from jurygcn.diagnostics.left_out import class_names_of, has_stacked_jury
from jurygcn.errors import SettingError

if TYPE_CHECKING:
    from jurygcn.jury import Jury

# Values of epsilon and of beta that are averaged over. The prior of epsilon is Beta(1, STRICT), so that it is small
# without evidence; that of log beta is normal, with a standard deviation of WIDE.
RATES = torch.linspace(0.0, 0.5, 101, dtype=torch.float64)
SCALES = torch.logspace(-1.0, 1.0, 41, dtype=torch.float64)
STRICT, WIDE = 4.0, 1.0
WITNESSES = 3  # the labels named for each node


@dataclass(frozen=True, eq=False)
class NoiseModel:
    """The posterior of the share of wrong labels, and what it says about each label.

    Attributes:
        rate: the posterior mean of the share of wrong labels.

    Shapes: wrong (n,) the probability that each label is wrong; truth (n, C) the distribution of the true label, if the
    jury is right.
    """

    rate: float
    wrong: Tensor
    truth: Tensor


@dataclass(frozen=True, eq=False)
class LabelErrors:
    """All training labels, from the most to the least suspicious.

    Attributes:
        table: a row per label. ``node`` and ``label``; ``suggested``: the most probable other class; ``probability``:
            of the label, by the juror that never saw it; ``p_value``: the probability of a class as implausible as the
            label, if the jury is right; ``wrong``: the probability that the label is wrong; ``flagged``; ``against``:
            the labelled nodes of the suggested class that speak for it most; ``neighbours`` and ``why``: in words, for
            flagged labels.
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
            return said + "1 is flagged: check it before you change it."
        return said + (
            f"{k:,} are flagged: check them first. The estimate that {self.false_discoveries:.0%} of these are right "
            "holds if wrong labels are the only cause of surprises; nodes unlike their neighbours surprise too."
        )


def label_errors_of(jury: Jury, *, threshold: float) -> LabelErrors:
    """All labels ranked; those that are wrong with a probability above ``threshold`` are flagged."""
    if not (isinstance(threshold, int | float) and 0.0 <= threshold <= 1.0):
        raise SettingError(f"expected a threshold between 0 and 1, got {in_short(threshold)}; change it")
    of = "jury" if has_stacked_jury(jury) else "model"
    found = jury.left_out(of)
    logs = found.probabilities.clamp_min(FLOOR).log()
    noise = fit_noise(logs, found.labels)
    p, wrong = noise.truth, noise.wrong
    given = p.gather(1, found.labels[:, None])
    tail = torch.where(p <= given * (1 + 1e-9), p, 0.0).sum(dim=1).clamp_max(1.0)
    suggested = p.scatter(1, found.labels[:, None], -1.0).argmax(dim=1)
    order = wrong.argsort(descending=True, stable=True)
    count = int((wrong > threshold).sum())
    names = class_names_of(jury)
    against = _witnesses(jury, suggested)
    neighbours = _neighbours(jury, found.nodes[order[:count]])
    table = pd.DataFrame(
        {
            "node": found.nodes[order].tolist(),
            "label": [names[c] for c in found.labels[order].tolist()],
            "suggested": [names[c] for c in suggested[order].tolist()],
            "probability": found.own[order].tolist(),
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
    return LabelErrors(table, noise.rate, float(1.0 - wrong[order[:count]].mean()) if count else 0.0, of)


def fit_noise(logs: Tensor, labels: Tensor) -> NoiseModel:
    """Average over the posterior of rate and scale, on a grid. Shapes: logs (n, C), labels (n,)."""
    others = max(logs.shape[1] - 1, 1)
    rates = RATES[:, None]
    likelihoods, by_scale = [], []
    for scale in SCALES:
        p = torch.softmax(scale * logs, dim=1)
        own = p.gather(1, labels[:, None]).squeeze(1)
        by_error = rates * (1 - own) / others  # (rates, n)
        given = ((1 - rates) * own + by_error).clamp_min(1e-300)
        likelihoods.append(given.log().sum(dim=1) - scale.log().square() / (2 * WIDE**2))
        by_scale.append((p, by_error / given))
    posterior = torch.stack(likelihoods) + (STRICT - 1) * torch.log1p(-RATES)  # (scales, rates)
    posterior = torch.softmax(posterior.flatten(), dim=0).view_as(posterior)
    wrong = sum(weights @ w for weights, (_, w) in zip(posterior, by_scale))
    truth = sum(weights.sum() * p for weights, (p, _) in zip(posterior, by_scale))
    assert isinstance(wrong, Tensor)
    assert isinstance(truth, Tensor)
    return NoiseModel(float((posterior @ RATES).sum()), wrong, truth)


def _witnesses(jury: Jury, suggested: Tensor) -> list[list[int]]:
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
    top = weights.topk(min(WITNESSES, n), dim=1)
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
