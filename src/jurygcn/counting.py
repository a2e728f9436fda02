"""How the votes of a jury are counted: exactly or to first order, with which advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jurygcn.conformal.advice import Advice, chosen_advice, panel_alone
from jurygcn.conformal.asked import Asked
from jurygcn.conformal.exact import ExactCounter, advised_counter
from jurygcn.conformal.first_order import FirstOrderCounter, check_linearized
from jurygcn.diagnostics.grounds import jurors_trusted
from jurygcn.diagnostics.left_out import has_stacked_jury, voting
from jurygcn.leave_one_out.jurors import CompressedJurors

if TYPE_CHECKING:
    from jurygcn.jury import Jury

Known = dict[int | str, Advice]  # advice by the number of averages


def counter_of(jury: Jury, asked: Asked, advice: str | None, known: Known) -> ExactCounter | FirstOrderCounter:
    """The counter of the jury's votes; ``known`` keeps the advice that was chosen."""
    if isinstance(jury.jurors, CompressedJurors):
        check_linearized(asked)
        if advice is None or not has_stacked_jury(jury):
            return FirstOrderCounter(asked, jury.jurors)
    jurors, memory = voting(jury), jury.run.ballots
    if advice is None:
        return ExactCounter(asked, jurors, memory=memory)
    if advice == "panel":
        alone = panel_alone(jury.engine, jury.panel, jury.positions)
        return ExactCounter(asked, jurors, memory=memory, advice=alone)
    here, heard = jury.run.parallel in (None, "serial"), jurors_trusted(jury)
    return advised_counter(asked, jurors, jury.panel, memory=memory, known=known, here=here, heard=heard)


def advice_of(jury: Jury, diffusion: int | str, known: Known) -> Advice:
    """The members of the stacked jury and their weights, chosen once for each number of averages."""
    return chosen_advice(
        *(jury.engine, voting(jury), jury.panel, jury.positions),
        diffusion=diffusion,
        memory=jury.run.ballots,
        known=known,
        heard=jurors_trusted(jury),
    )
