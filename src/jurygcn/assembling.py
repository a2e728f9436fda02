"""From counts to the verdict: step 11 of Algorithm 2."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from jurygcn.checks import all_finite
from jurygcn.conformal.advice import Advice
from jurygcn.conformal.asked import Asked
from jurygcn.conformal.averaging import NeighbourAverages
from jurygcn.conformal.claims import Grounds
from jurygcn.conformal.counts import Counts, LabelCounts
from jurygcn.conformal.predictions import predictions_at
from jurygcn.conformal.tally import Tally
from jurygcn.data.heterogeneous import all_edges, why_no_neighbours
from jurygcn.errors import ModelError
from jurygcn.graph.neighbourhood import num_hops, other_source_within
from jurygcn.verdict import Verdict

# The uncertainty that the width measures (Prop. 1): without and with another labelled node in reach.
KINDS = np.array(["aleatoric+epistemic", "epistemic"], dtype=object)


class Counter(Protocol):
    """Counts votes, exactly or to first order.

    Attributes:
        asked: the question, the nodes and the jurors.
        outputs: the trained model's predictions at the queried nodes, (m, C).
        advice: the advice that jurors took, if any.
    """

    asked: Asked
    outputs: Tensor
    advice: Advice | None

    def advised_outputs(self) -> Tensor | None:
        """The stacked jury's predictions, (m, C), or None without advice."""

    def averaged_outputs(self, steps: int) -> Tensor | None:
        """The trained model's predictions, averaged ``steps`` times over neighbourhoods, (m, C), or None."""


def assemble(counter: Counter, counts: Counts, grounds: Grounds) -> Verdict:
    """The verdict from the counts of all jurors."""
    asked, outputs = counter.asked, counter.outputs
    _check(asked, counts)
    voters, everyone = asked.voters(), asked.own(torch.arange(asked.num_jurors))
    lower, upper = counts.bounds.bounds(asked.quantity(outputs), voters, everyone)
    best = counts.best_average if asked.classify else 0
    advised = counter.advised_outputs()
    return Verdict(
        nodes=asked.nodes,
        outputs=outputs,
        lower=lower.squeeze(1),
        upper=upper.squeeze(1),
        num_jurors=voters,
        kinds=_kinds(asked),
        loo_errors=torch.cat(counts.bounds.errors).squeeze(1),
        loo_variance=counts.spread.variance(voters),
        label_flips=counts.spread.flips / voters.clamp_min(1),
        neighbour_doubt=_neighbour_doubt(counter),
        alpha=asked.question.alpha,
        diffusion=best,
        label_counts=counts.labels[best].counts if asked.classify else None,
        names=getattr(asked.engine.data, "class_names", None),
        grounds=grounds,
        jury_outputs=outputs.new_empty(0) if advised is None else advised,
        advice=counter.advice,
        tallies=_tallies(asked, counts.labels[best]) if asked.classify else {},
    )


def _tallies(asked: Asked, labels: LabelCounts) -> dict[tuple[str, str | None], Tally]:
    """The counts of the jackknife+: over all jurors, those of a class, and those of a group if there are groups."""
    assert labels.counts is not None
    found: dict[tuple[str, str | None], Tally] = {("jackknife+", None): Tally(labels.counts, asked.voters()[:, None])}
    if labels.by_class is not None:
        found["jackknife+", "class"] = Tally(labels.by_class, asked.class_voters())
    if labels.by_group is not None:
        found["jackknife+", "group"] = Tally(labels.by_group, asked.group_voters())
    return found


def _check(asked: Asked, counts: Counts) -> None:
    """Raise ModelError if a vote is not finite; the sums show it."""
    if not all(all_finite(part) for part in (counts.spread.square, *counts.bounds.errors)):
        raise ModelError(
            f"expected finite predictions of all jurors, got some beyond the range of {asked.engine.source_dtype}; "
            "pass the weight decay the model was trained with, scale the features, or use model.double()"
        )


def _kinds(asked: Asked) -> list[str]:
    """The kind of uncertainty that the width measures at each node. Implements: Prop. 1 and its remark."""
    engine = asked.engine
    hops = num_hops(engine.model)
    pairs, everyone = all_edges(engine.data)
    near = other_source_within(pairs, engine.train_nodes, everyone, hops)
    kinds: list[str] = KINDS[near[asked.nodes].cpu().numpy().astype(int)].tolist()
    return kinds


def _neighbour_doubt(counter: Counter) -> Tensor:
    """One minus the predicted class's mean probability within two hops, (m,); empty where there is no such mean."""
    if not counter.asked.classify or why_no_neighbours(counter.asked.engine.data):
        return torch.empty(0)
    share = counter.averaged_outputs(2)
    if share is None:
        engine = counter.asked.engine
        around = NeighbourAverages(engine.data, counter.asked.nodes, 2)
        share = around(predictions_at(engine, around.reach))[2][:, :, 0]
    predicted = counter.outputs.argmax(dim=1, keepdim=True)
    return 1.0 - share.gather(1, predicted).squeeze(1)
