"""How the jurors of a jury are found: which votes, how many jurors, by which way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from jurygcn.conformal.claims import origin_of_labels
from jurygcn.conformal.rank import MOST, smallest_rank
from jurygcn.costs import FEW_JURORS, planned_choice, room_for_matrices
from jurygcn.curvature import Curvature, curvature_of
from jurygcn.data import check_nodes
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.corrected import Correction, corrected_steps
from jurygcn.leave_one_out.estimated import LeaveOneOut
from jurygcn.leave_one_out.iterated import iterated_jurors
from jurygcn.leave_one_out.jurors import CompressedJurors, Jurors, draw_positions
from jurygcn.leave_one_out.retraining import retrained_parameters
from jurygcn.settings import BALLOT_SHARE

if TYPE_CHECKING:
    from jurygcn.jury import Jury

# Above this many numbers in all ballots, votes="auto" linearises: exact ones would take many minutes.
MANY_BALLOTS = 2e9


def number_of_jurors(jury: Jury) -> int | None:
    """None for one per label; fewer where each needs its own iterative solves."""
    asked, n = jury.leave_out.max_jurors, jury.engine.num_train
    if asked is not None or n <= FEW_JURORS or jury.leave_out.how != "newton" or jury.leave_out.solver != "auto":
        return asked
    return None if planned_choice(jury).name in ("dual", "direct") else FEW_JURORS


def positions_of(jury: Jury, drawn: Tensor | Sequence[int] | None) -> Tensor:
    """The training nodes with a juror, as positions: all, some drawn at random, or those that the caller drew."""
    if drawn is None:
        return draw_positions(jury.engine.num_train, number_of_jurors(jury))
    nodes = check_nodes(drawn, jury.data, what="drawn")
    found = torch.isin(jury.engine.train_nodes, nodes.to(jury.engine.train_nodes.device)).nonzero().squeeze(1)
    if len(found) < len(nodes):
        raise SettingError(
            f"expected drawn to name training nodes, got {len(nodes) - len(found)} others; leave them out"
        )
    return found


# Why labels that were drawn at random, beside others that were chosen actively, have a target and no promise.
NOT_CHECKED = "Whether the active choice depended on nodes that it left was not checked."


def origin_of(jury: Jury) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """What coverage is averaged over, what stands against any claim of it, and notes, as far as labels decide."""
    if not jury.drawn:
        return origin_of_labels(jury.engine, jury.chosen)
    over, against, notes = origin_of_labels(jury.engine.on(jury.positions), "random")
    return over, against, (*notes, NOT_CHECKED)


def about_drawn(jury: Jury) -> str:
    """What coverage means where only the labels that were drawn at random vote."""
    if not jury.drawn:
        return ""
    return (
        f"Only the {len(jury.positions)} labels that were drawn at random vote. Coverage is over all nodes beside "
        "them, and actively chosen ones count as covered, because their labels are known. The choice must not have "
        "used the drawn labels, and must not depend on nodes that it left."
    )


def resolved_votes(jury: Jury) -> str:
    """What votes="auto" stands for; refuses what cannot be linearised."""
    how, curvature, votes = jury.leave_out.how, jury.leave_out.curvature, jury.votes.how
    possible = how != "retrain" and curvature == "ggn" and not jury.leave_out.corrected_by
    possible = possible and jury.leave_out.iterations == 1
    if votes == "linearized" and not possible:
        raise SettingError(
            "expected newton or influence jurors with curvature='ggn' for votes='linearized', got "
            f"leave_out={how!r}, curvature={curvature!r}, corrected_by={jury.leave_out.corrected_by}, "
            f"iterations={jury.leave_out.iterations}; use votes='exact'"
        )
    ballots = len(jury.positions) * int(jury.data.num_nodes) * jury.engine.num_outputs
    if votes == "auto":
        here = jury.run.parallel in (None, "serial")  # linearised jurors are counted in this process only
        return "linearized" if possible and here and ballots > MANY_BALLOTS else "exact"
    return votes


def curvature_of_jury(jury: Jury) -> Curvature:
    """The curvature operator that the jury's settings ask for."""
    settings = jury.leave_out
    effective = settings.decay == "effective"
    return curvature_of(jury.engine, settings.curvature, damping=settings.damping, effective=effective)


def leave_one_out_of(jury: Jury, curvature: Curvature) -> LeaveOneOut:
    """The curvature, factorised for the jury's jurors."""
    room = room_for_matrices(jury)
    return LeaveOneOut(jury.engine, curvature, jury.leave_out.solver, jury.positions, memory=room)


def find_jurors(jury: Jury) -> tuple[Jurors | CompressedJurors, Correction | None]:
    """The jurors, and their correction by a few retrained ones if the settings ask for it."""
    how, engine = jury.leave_out.how, jury.engine
    if jury.leave_out.corrected_by and not jury.recipe_given:
        raise SettingError(
            "expected retraining=Retraining(...) with corrected_by, got none; say how the model was trained"
        )
    if jury.leave_out.iterations > 1 and jury.leave_out.dropout_masks:
        raise SettingError(
            f"expected no draws of dropout with iterations={jury.leave_out.iterations}, got "
            f"{jury.leave_out.dropout_masks}; use LeaveOut(dropout_masks=0) or LeaveOut(decay='effective')"
        )
    if how == "retrain":
        steps = retrained_parameters(engine, jury.retraining, jury.positions.tolist()) - engine.theta
        return Jurors(steps, "retrain", "none", "every juror was retrained", 0.0, jury.retraining.epochs), None
    if jury.votes.how == "linearized":
        return _compressed(jury), None
    if how == "newton":
        jurors = jury.factorised.newton_jurors()
        if jury.leave_out.iterations > 1:
            room = jury.run.bytes / BALLOT_SHARE
            jurors = iterated_jurors(jury.factorised, jurors, iterations=jury.leave_out.iterations, memory=room)
    else:
        jurors = jury.factorised.influence_jurors(as_printed=jury.leave_out.printed)
    if not jury.leave_out.corrected_by:
        return jurors, None
    k = jury.leave_out.corrected_by
    steps, correction = corrected_steps(engine, jurors.steps, jury.positions, jury.retraining, k=k)
    return replace(jurors, steps=steps), correction


def _compressed(jury: Jury) -> CompressedJurors:
    """Jurors in few directions. Jacobian and factors are not kept: with many labels they are large."""
    many, how, rank = leave_one_out_of(jury, curvature_of_jury(jury)), jury.leave_out.how, jury.votes.rank
    if not isinstance(rank, str):
        return many.compressed_jurors(how, rank=rank)
    compressed = many.compressed_jurors(how, rank=MOST)
    return compressed.in_fewer(smallest_rank(jury.engine, jury.positions, compressed))
