"""Full conformal counts and intervals of a jury: what its jurors predict once a label of a node is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.conformal.advice import own_predictions
from jurygcn.conformal.counts import Counts
from jurygcn.conformal.exact import ExactCounter
from jurygcn.conformal.first_order import FirstOrderCounter
from jurygcn.conformal.full import Bags, count_full
from jurygcn.conformal.full_intervals import full_intervals
from jurygcn.data.heterogeneous import layout_of
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.added import AddedLabels
from jurygcn.leave_one_out.added_panel import AddedToPanel
from jurygcn.progress import progress_bar
from jurygcn.verdict import Verdict

if TYPE_CHECKING:
    from jurygcn.jury import Jury

WORDS = "Adding labels"  # of the progress bar
KERNEL_SHARE = 4  # one part in so many of the memory is for the kernels of some nodes


def with_full(jury: Jury, counter: ExactCounter | FirstOrderCounter, counts: Counts, verdict: Verdict) -> Verdict:
    """The verdict with full conformal label sets, or with full conformal intervals of a regression.

    Labelled nodes keep their jackknife+ counts and intervals: their labels are known.
    """
    assert isinstance(counter, ExactCounter)  # `check_full` refuses the others
    asked, memory = counter.asked, jury.run.bytes / KERNEL_SHARE
    places = (~torch.isin(asked.nodes, asked.engine.train_nodes)).nonzero().squeeze(1)
    bags = _bags(jury, counter, counts, asked.nodes[places])
    if not asked.classify:
        outputs = verdict.outputs if counter.advice is None else verdict.jury_outputs
        with progress_bar(WORDS, total=len(places), unit="nodes", show=jury.run.progress) as advance:
            ends = full_intervals(bags, asked.nodes[places], outputs[places], memory=memory, advance=advance)
        lower, upper = verdict.lower.clone(), verdict.upper.clone()
        lower[places], upper[places] = (end.to(lower) for end in ends)
        return replace(verdict, lower=lower, upper=upper)
    scored = counter.advised_outputs()
    if scored is None:
        scored = counter.averaged_outputs(counts.best_average)
    assert scored is not None
    nodes, scored = asked.nodes[places], scored[places]
    with progress_bar(WORDS, total=len(places), unit="nodes", show=jury.run.progress) as advance:
        found = count_full(bags, nodes, scored, groups=asked.groups, memory=memory, advance=advance)
    parts = {None: found.counts, "class": found.by_class, "group": found.by_group}
    tallies = dict(verdict.tallies)
    for by, part in parts.items():
        if part is not None:
            plus = tallies["jackknife+", by]
            merged, ties = plus.counts.clone(), torch.zeros_like(plus.counts)
            merged[places] = part
            if by is None:
                ties[places] = found.ties
            tallies["full", by] = replace(plus, counts=merged, ties=ties if by is None else None)
    return replace(verdict, tallies=tallies)


def check_groups(groups: Tensor | Sequence[int] | None, data: Data) -> Tensor | None:
    """The groups as numbers from 0 on, one for every node of the graph; raise SettingError unless they are that."""
    if groups is None:
        return None
    given, N = torch.as_tensor(groups).cpu(), int(data.num_nodes)
    if given.shape != (N,) or given.is_floating_point() or given.is_complex():
        raise SettingError(
            f"expected groups as {N} whole numbers, one for every node of the graph, got {given.dtype} of shape "
            f"{tuple(given.shape)}; change them"
        )
    numbered: Tensor = given.unique(return_inverse=True)[1]
    return numbered


def check_full(jury: Jury, *, full: bool, interval: str, alone: bool) -> None:
    """Raise SettingError unless jurors with an added label can be estimated."""
    classify = jury.engine.loss.name == "cross_entropy"
    if full and not classify:
        raise SettingError("expected classes for full=True, got a regression; use interval='full'")
    if interval == "full" and classify:
        raise SettingError("expected a regression for interval='full', got classes; use full=True")
    if not classify and jury.engine.num_outputs > 1:
        raise SettingError(
            f"expected one target for full conformal intervals, got {jury.engine.num_outputs}; use "
            "interval='jackknife+'"
        )
    if jury.grown and not alone:
        raise SettingError(
            "expected advice='panel' for full conformal prediction on new_data, got the model's jurors; use it, or the "
            "jackknife+"
        )
    if alone and jury.votes.how == "exact" and layout_of(jury.data) is None:
        return
    how = jury.leave_out.how
    if how != "newton" or jury.votes.how != "exact" or jury.leave_out.corrected_by:
        raise SettingError(
            "expected newton jurors with exact votes and without corrections for full conformal prediction, got "
            f"leave_out={how!r}, votes={jury.votes.how!r}, corrected_by={jury.leave_out.corrected_by}; change them, "
            "use advice='panel', or use the jackknife+"
        )


def _bags(jury: Jury, counter: ExactCounter, counts: Counts, nodes: Tensor) -> Bags:
    asked, advice = counter.asked, counter.advice
    diffusion = 0
    if asked.classify:
        diffusion = counts.best_average if advice is None else advice.diffusion
    share = torch.ones(asked.num_jurors, dtype=torch.float64) if advice is None else advice.left_out[0].double()
    panel = None
    if advice is not None and advice.advisers:
        known = {member.words: member for member in jury.panel.members}
        members = [known[words] for words in advice.members[1:]]
        panel = AddedToPanel(jury.panel, members, advice.left_out[1:], jury.positions, nodes)
    steps, memory = jury.jurors.steps, jury.run.ballots
    own = own_predictions(asked.engine, steps, asked.own_nodes, diffusion=diffusion, memory=memory)[diffusion].double()
    added = None
    if panel is None or bool((share > 0).any()):
        added = AddedLabels(jury.factorised, diffusion=diffusion)
    return Bags(asked, own, added, panel, share)
