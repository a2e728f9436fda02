"""The verdict: intervals, label sets and uncertainty scores of each node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from torch import Tensor

from jurygcn.conformal.advice import Advice
from jurygcn.conformal.claims import Agreement, Claim, Grounds
from jurygcn.conformal.intervals import check_alpha
from jurygcn.conformal.tally import Tally, check_method
from jurygcn.display.figures import plot_node, plot_verdict
from jurygcn.display.words import as_line, verdict_facts, verdict_html
from jurygcn.errors import SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Score -> whether a high value means uncertain.
RANKINGS = {
    "doubt": True,
    "ambiguity": True,
    "width": True,
    "set_size": True,
    "loo_variance": True,
    "label_flips": True,
    "neighbour_doubt": True,
    "credibility": False,
    "confidence": False,
}


@dataclass(frozen=True, eq=False)
class Verdict:
    """The jury's verdict on m nodes.

    ``claim(alpha)`` states the coverage of the label sets, or of a regression's intervals. With retrained jurors, fixed
    settings and labels drawn at random, a theorem guarantees coverage of at least 1 - 2 alpha. With estimated jurors,
    1 - alpha is a target without proof. No coverage is claimed after active learning, and none for the classification
    interval [lower, upper], which is the paper's ranking score and not a set of labels.

    Attributes:
        nodes: the queried nodes, (m,).
        outputs: the model's own class probabilities, or its outputs for regression, (m, C).
        lower, upper: the paper's interval of the output norm (Eq. 7); for regression the interval of the target.
        num_jurors: how many jurors voted on each node: n, or n - 1 for a training node, (m,).
        kinds: the paper's name for what the width measures (Prop. 1), one per node: "epistemic" where another labelled
            node lies within the model's reach, "aleatoric+epistemic" where none does.
        loo_errors: the jurors' errors on their own nodes (Eq. 6), (n,).
        loo_variance: jackknife variance of the prediction over jurors, (m,).
        label_flips: share of jurors that predict another class than the model, (m,); empty for regression.
        neighbour_doubt: one minus the predicted class's mean probability within two hops, (m,); uses no jurors, and
            detects errors well on homophilous graphs; empty for regression, and for a node type that no relation joins
            with itself.
        jury_outputs: what the stacked jury predicts, (m, C): calibrated class probabilities, or values of a regression;
            empty without advice.
        advice: the members of the stacked jury and how much each counts; None without advice.
        alpha: the level of lower and upper.
        diffusion: how many times votes were averaged over neighbourhoods before scoring labels.
        grounds: the conditions that determine the claim.
        method, by: which label sets and p-values are meant where none are named; see ``with_sets``.
    """

    nodes: Tensor
    outputs: Tensor
    lower: Tensor
    upper: Tensor
    num_jurors: Tensor
    kinds: list[str]
    loo_errors: Tensor
    loo_variance: Tensor
    label_flips: Tensor
    neighbour_doubt: Tensor
    alpha: float
    diffusion: int = 0
    label_counts: Tensor | None = field(default=None, repr=False)
    names: list[str] | None = field(default=None, repr=False)
    grounds: Grounds = field(default_factory=Grounds, repr=False)
    jury_outputs: Tensor = field(default_factory=lambda: torch.empty(0))
    advice: Advice | None = field(default=None, repr=False)
    tallies: dict[tuple[str, str | None], Tally] = field(default_factory=dict, repr=False)
    method: str = "jackknife+"
    by: str | None = None

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def width(self) -> Tensor:
        """The paper's uncertainty: upper - lower. A weak score for classification, because it hardly varies.

        Implements: Eq. (8), Definition 1.
        """
        return self.upper - self.lower

    @property
    def probabilities(self) -> Tensor:
        """The model's class probabilities, (m, C)."""
        if self.label_counts is None:
            raise SettingError("expected a classification for probabilities, got a regression; use outputs")
        return self.outputs

    @property
    def predicted_class(self) -> Tensor:
        """The model's predicted class, (m,)."""
        return self.outputs.argmax(dim=-1)

    @property
    def calibrated(self) -> Tensor:
        """The stacked jury's class probabilities, (m, C); their temperature comes from left-out labels."""
        if self.label_counts is None or self.advice is None:
            raise SettingError(
                "expected a classification with advice for calibrated probabilities, got none; use "
                "jury.verdict(advice='auto'), with exact votes"
            )
        return self.jury_outputs

    @property
    def jury_class(self) -> Tensor:
        """The class that the stacked jury would predict instead, (m,)."""
        return self.calibrated.argmax(dim=-1)

    @property
    def doubt(self) -> Tensor:
        """One minus the calibrated probability of the model's predicted class: finds errors best, (m,)."""
        return 1.0 - self.calibrated.gather(1, self.predicted_class[:, None]).squeeze(1)

    # --- label sets ------------------------------------------------------------------------------------

    @property
    def _counts(self) -> Tensor:
        if self.label_counts is None:
            raise SettingError(
                "expected a classification for label sets and p-values, got a regression; use lower and upper"
            )
        return self.label_counts

    @cached_property
    def p_values(self) -> Tensor:
        r"""Conformal p-value of each label: its rank among the scores of the jurors' left-out labels, (m, C).

        .. math:: p(u, y) = \frac{1 + \#\{i \ne u : s_{-i}(i, y_i) \ge s_{-i}(u, y)\}}{n' + 1}
        """
        return self.tally().p_values()

    @property
    def full_p_values(self) -> Tensor:
        r"""Full conformal p-value of each label, (m, C): its rank among the scores of its bag.

        .. math:: p(u, y) = \frac{1 + \#\{i : s_i \ge s_u\}}{n + 1}

        Every member of the bag, the labels and (u, y), is scored by the model that learned the others. Labelled nodes
        have their jackknife+ p-values.
        """
        return self.tally("full").p_values()

    def with_sets(self, method: str, *, by: str | None = None) -> Verdict:
        """The same verdict, whose label sets, p-values and claim are those of ``method`` and ``by`` by default."""
        self.tally(method, by)
        return replace(self, method=method, by=by)

    def _meant(self, method: str | None, by: str | None) -> tuple[str, str | None]:
        return check_method(method or self.method, by or (self.by if method is None else None))

    def tally(self, method: str | None = None, by: str | None = None) -> Tally:
        """The counts behind ``label_sets(method=..., by=...)``; its p-values can be smoothed."""
        counts, (method, by) = self._counts, self._meant(method, by)
        if (method, by) == ("jackknife+", None):
            return Tally(counts, self.num_jurors[:, None])
        if (method, by) not in self.tallies:
            asked = ["full=True"] * (method == "full") + ["groups=..."] * (by == "group")
            raise SettingError(
                f"expected a verdict with the counts for method={method!r} and by={by!r}, got one without; use "
                f"jury.verdict({', '.join(asked)}) with exact votes"
            )
        return self.tallies[method, by]

    def label_sets(self, alpha: float = 0.1, *, method: str | None = None, by: str | None = None) -> Tensor:
        r"""Prediction sets at level ``alpha``, (m, C) bool.

        With the jackknife+, y is in the set unless at least :math:`(1-\alpha)(n'+1)` jurors give it a higher
        nonconformity score than their own left-out label. With fewer than 1/alpha - 1 labels the set contains every
        label.

        Args:
            alpha: the level.
            method: "jackknife+" by default, or "full" for full conformal sets, of a verdict with ``full=True``.
            by: "class" compares a label with labelled nodes of its own class alone, so that sets aim at coverage within
                each class; "group" compares with those of the node's group alone, of a verdict with ``groups=...``. A
                class or group with fewer than 1/alpha - 1 labels excludes nothing: see ``too_few``.
        """
        return self.tally(method, by).sets(alpha)

    def too_few(self, alpha: float = 0.1, *, by: str | None = None) -> Tensor:
        """Where labels cannot be excluded because there are too few labelled nodes to compare with, bool.

        Shapes: (m, C) for ``by="class"``, else (m, 1).
        """
        return self.tally(by=by).too_few(alpha)

    def set_size(self, alpha: float = 0.1, *, method: str | None = None, by: str | None = None) -> Tensor:
        """The number of labels in the prediction set, (m,); 0 means that no class fits the node."""
        return self.label_sets(alpha, method=method, by=by).sum(dim=1)

    def claim(self, alpha: float | None = None, *, method: str | None = None, by: str | None = None) -> Claim:
        """The claimed coverage of ``label_sets(alpha, ...)``, at 0.1 by default.

        For a regression it is that of the intervals, whose level is the alpha of ``jury.verdict``.

        A promise if a theorem applies, a target if there is no proof, or nothing.
        """
        if self.label_counts is None:
            alpha = self.alpha
        level = check_alpha(0.1 if alpha is None else alpha, below=1.0)
        grounds, voters = self.grounds, int(self.num_jurors.max()) if len(self) else 0
        if self.label_counts is not None and len(self):
            tally, (how, category) = self.tally(method, by), self._meant(method, by)
            few = float(tally.too_few(level).double().mean()) if category else 0.0
            voters, grounds = int(tally.voters.max()), replace(grounds, full=how == "full", by=category, too_few=few)
        return grounds.claim(level, voters)

    def compared(self, agreement: Agreement) -> Verdict:
        """The same verdict with the claim that follows from a comparison of its jurors with retrained ones."""
        return replace(self, grounds=replace(self.grounds, agreement=agreement))

    # --- scores ----------------------------------------------------------------------------------------

    @cached_property
    def _top_two(self) -> Tensor:
        p = self.p_values
        return p.topk(min(2, p.shape[1]), dim=1).values

    @property
    def credibility(self) -> Tensor:
        """Largest p-value, (m,); low if no label fits, so that the node is unlike the labelled ones."""
        return self._top_two[:, 0]

    @property
    def confidence(self) -> Tensor:
        """One minus the second largest p-value, (m,); high if all other labels are excluded."""
        return 1.0 - (self._top_two[:, 1] if self._top_two.shape[1] > 1 else torch.zeros_like(self._top_two[:, 0]))

    @property
    def ambiguity(self) -> Tensor:
        """One minus the gap between the two largest p-values, (m,); high if several labels, or none, fit."""
        return 2.0 - self.credibility - self.confidence

    @property
    def score_name(self) -> str:
        """The name of the default score of uncertainty."""
        if self.label_counts is None:
            return "width"
        return "ambiguity" if self.advice is None else "doubt"

    def uncertainty(self, by: str | None = None) -> Tensor:
        """A score by name, oriented so that a high value means uncertain, (m,).

        The default is the doubt for classes with advice, the ambiguity without, and the width for a regression.
        """
        by = by or self.score_name
        if by not in RANKINGS:
            raise SettingError(f"expected score to be one of {', '.join(RANKINGS)}, got {by!r}; choose one")
        if by == "neighbour_doubt" and len(self.neighbour_doubt) < len(self):
            raise SettingError("expected a verdict on classes of nodes with neighbours, got another; use ambiguity")
        values = self.set_size().double() if by == "set_size" else getattr(self, by).double()
        return values if RANKINGS[by] else -values

    def ranking(self, by: str | None = None) -> Tensor:
        """The nodes from most to least uncertain; equal scores are ordered by the paper's width, then by node."""
        order = self.nodes.argsort(stable=True)
        for key in (self.width.double(), self.uncertainty(by)):
            order = order[key[order].argsort(descending=True, stable=True)]
        return self.nodes[order]

    # --- text, figures and tables ----------------------------------------------------------------------

    def __repr__(self) -> str:
        return as_line("Verdict", verdict_facts(self))

    def _repr_html_(self) -> str:
        return verdict_html(self)

    def plot(self, *, alpha: float = 0.1) -> Figure:
        """A figure of the scores and of the label sets at ``alpha`` (or the intervals of a regression)."""
        return plot_verdict(self, alpha=alpha)

    def plot_node(self, node: int, *, alpha: float = 0.1) -> Figure:
        """A figure of one node: the p-values and probabilities of its labels, or its interval."""
        return plot_node(self, node, alpha=alpha)

    def to_frame(self, alpha: float = 0.1) -> pd.DataFrame:
        """A table with one row per node and all scores; label sets at ``alpha``.

        ``label_set`` is a tuple of class names, or of class numbers if classes have no names. ``prediction_in_set``
        says whether the set contains the model's prediction; see docs/choosing_a_score.md for why it may not.
        """
        columns: dict[str, Any] = {"node": self.nodes.tolist()}
        if self.label_counts is None:
            outputs = self.outputs.shape[1]
            for c in range(outputs):
                columns["predicted_value" if outputs == 1 else f"predicted_value_{c}"] = self.outputs[:, c].tolist()
                if self.advice is not None:
                    said = "jury_value" if outputs == 1 else f"jury_value_{c}"
                    columns[said] = self.jury_outputs[:, c].tolist()
        else:
            columns["predicted_class"] = self.predicted_class.tolist()
            columns["probability"] = self.outputs.amax(dim=1).tolist()
            if self.advice is not None:
                columns["doubt"], columns["jury_class"] = self.doubt.tolist(), self.jury_class.tolist()
        if self.lower.dim() == 1:
            columns |= {
                "lower": self.lower.tolist(),
                "upper": self.upper.tolist(),
                "width": self.width.tolist(),
            }
        if self.label_counts is not None:
            sets = self.label_sets(alpha)
            columns["label_set"] = [self._labels_in(row) for row in sets.tolist()]
            columns["set_size"] = self.set_size(alpha).tolist()
            columns["prediction_in_set"] = sets.gather(1, self.predicted_class[:, None])[:, 0].tolist()
            for name in ("credibility", "confidence", "ambiguity"):
                columns[name] = getattr(self, name).tolist()
            columns["label_flips"] = self.label_flips.tolist()
            if len(self.neighbour_doubt):
                columns["neighbour_doubt"] = self.neighbour_doubt.tolist()
        columns["loo_variance"] = self.loo_variance.tolist()
        columns["kinds"] = self.kinds
        return pd.DataFrame(columns)

    def _labels_in(self, row: list[bool]) -> tuple[str, ...] | tuple[int, ...]:
        labels = tuple(c for c, inside in enumerate(row) if inside)
        return tuple(str(self.names[c]) for c in labels) if self.names else labels
