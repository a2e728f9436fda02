"""Juries and verdicts as text, for the console and for notebooks, without further computation."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jurygcn.jury import Jury
    from jurygcn.verdict import Verdict

ALPHA = 0.1  # the level of the label sets described; their target coverage is 90 %
SHOWN = 5  # nodes in a notebook's table
DOUBT = "caution"  # the first fact of a jury or verdict that should not be relied on


def jury_facts(jury: Jury) -> dict[str, str]:
    """The model, graph, labels and jurors, and whether the jury is fitted."""
    engine = jury.engine
    how = "the printed formulas" if jury.leave_out.printed else jury.leave_out.how
    waiting = "" if jury.fitted else ", not fitted: call fit()"
    found = jury.agreement
    doubt = {} if found is None or found.trusted else {DOUBT: f"do not trust the jurors. {found.words}"}
    return doubt | {
        "model": f"{type(engine.model).__name__}, {engine.num_parameters:,} parameters",
        "graph": f"{int(jury.data.num_nodes):,} {f'{jury.node_type} ' if jury.node_type else ''}nodes",
        "labels": f"{engine.num_train:,}",
        "jurors": f"{len(jury.positions):,} by {how}, {jury.votes.how}{waiting}",
    }


def verdict_facts(verdict: Verdict) -> dict[str, str]:
    """The size of the verdict and a summary of its label sets or intervals; where nothing is claimed, that first."""
    facts = _summary(verdict)
    if len(verdict) and verdict.claim(ALPHA).kind == "none":
        return {DOUBT: facts.pop("coverage")} | facts
    return facts


def _summary(verdict: Verdict) -> dict[str, str]:
    facts = {"nodes": f"{len(verdict):,}", "jurors": f"{int(verdict.num_jurors.max()) if len(verdict) else 0:,}"}
    if verdict.label_counts is None:
        width = verdict.width[verdict.width.isfinite()]
        usual = f"{float(width.median()):.3g}" if len(width) else "infinite"
        facts["intervals"] = f"level {verdict.alpha:g}, median width {usual}"
        return facts | ({"coverage": claim_words(verdict, ALPHA)} if len(verdict) else {})
    sizes = verdict.set_size(ALPHA).double()
    facts["classes"] = str(verdict.outputs.shape[1])
    if len(verdict):
        decided = f"{100 * float((sizes == 1).double().mean()):.0f} % with one"
        facts["label sets"] = f"level {ALPHA:g}, {float(sizes.mean()):.2f} labels on average, {decided}"
        facts["coverage"] = claim_words(verdict, ALPHA)
    facts["diffusion"] = str(verdict.diffusion)
    if verdict.advice is not None:
        facts["advice"] = verdict.advice.words
    return facts


def claim_words(verdict: Verdict, alpha: float) -> str:
    """The claim about the label sets or intervals, starting in lower case."""
    words = verdict.claim(alpha).words
    return words[0].lower() + words[1:]


def as_line(name: str, facts: Mapping[str, str]) -> str:
    """The facts in one line: Name(what: value; ...)."""
    said = "; ".join(f"{what}: {value.removesuffix('.')}" for what, value in facts.items())
    return f"{name}({said})"


def as_html(name: str, facts: Mapping[str, str]) -> str:
    """The facts as a small table."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(what)}</th><td style='text-align:left'>{escape(value)}</td></tr>"
        for what, value in facts.items()
    )
    return f"<strong>{escape(name)}</strong><table>{rows}</table>"


def verdict_html(verdict: Verdict) -> str:
    """The facts and, unless there are several targets, the most uncertain nodes."""
    facts = as_html("Verdict", verdict_facts(verdict))
    if verdict.lower.dim() > 1:
        return facts
    place = {node: row for row, node in enumerate(verdict.nodes.tolist())}
    first = [place[node] for node in verdict.ranking()[:SHOWN].tolist()]
    wanted = (
        "node",
        "predicted_class",
        "predicted_value",
        "probability",
        "label_set",
        "doubt",
        "jury_class",
        "ambiguity",
        "lower",
        "upper",
        "width",
    )
    frame = verdict.to_frame(ALPHA).iloc[first]
    shown = frame[[column for column in wanted if column in frame]].copy()
    if "label_set" in shown:
        shown["label_set"] = [", ".join(map(str, labels)) or "none" for labels in shown["label_set"]]
    table = shown.to_html(index=False, escape=True, float_format=lambda value: f"{value:.3g}")
    return f"{facts}<p>Most uncertain:</p>{table}"


def position_of(verdict: Verdict, node: int) -> int:
    """The position of a node in the verdict, -1 if it is not in it."""
    found = torch.nonzero(verdict.nodes == node)
    return int(found[0]) if len(found) else -1
