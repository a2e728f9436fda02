"""How the votes of a jury are counted: exactly or to first order, with which advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jurygcn.conformal.advice import Advice, chosen_advice, panel_alone
from jurygcn.conformal.asked import Asked
from jurygcn.conformal.exact import ExactCounter, advised_counter
from jurygcn.conformal.first_order import FirstOrderCounter
from jurygcn.diagnostics.grounds import jurors_trusted
from jurygcn.leave_one_out.jurors import CompressedJurors

if TYPE_CHECKING:
    from jurygcn.jury import Jury

Known = dict[int | str, Advice]  # advice by the number of averages


def counter_of(jury: Jury, asked: Asked, advice: str | None, known: Known) -> ExactCounter | FirstOrderCounter:
    """The counter of the jury's votes; ``known`` keeps the advice that was chosen."""
    if isinstance(jury.jurors, CompressedJurors):
        return FirstOrderCounter(asked, jury.jurors)
    steps, memory = jury.jurors.steps, jury.run.ballots
    if advice is None:
        return ExactCounter(asked, steps, memory=memory)
    if advice == "panel":
        alone = panel_alone(jury.engine, jury.panel, jury.positions)
        return ExactCounter(asked, steps, memory=memory, advice=alone)
    here, heard = jury.run.parallel in (None, "serial"), jurors_trusted(jury)
    return advised_counter(asked, steps, jury.panel, memory=memory, known=known, here=here, heard=heard)


def advice_of(jury: Jury, diffusion: int | str, known: Known) -> Advice:
    """The members of the stacked jury and their weights, chosen once for each number of averages."""
    return chosen_advice(
        *(jury.engine, jury.jurors.steps, jury.panel, jury.positions),
        diffusion=diffusion,
        memory=jury.run.ballots,
        known=known,
        heard=jurors_trusted(jury),
    )
