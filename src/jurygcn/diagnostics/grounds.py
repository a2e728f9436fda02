"""What decides which coverage a jury may claim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jurygcn.conformal.asked import Question
from jurygcn.conformal.claims import Grounds
from jurygcn.data.heterogeneous import why_no_neighbours
from jurygcn.diagnostics.health import has_batch_norm, largest_dropout
from jurygcn.leave_one_out.panel import MOST_LANDMARKS

if TYPE_CHECKING:
    from jurygcn.jury import Jury


def grounds_of(jury: Jury, question: Question, advice: str | None) -> Grounds:
    """The conditions that determine the claim of the answer to a question; ``advice`` as jurors took it."""
    engine, (over, against, notes) = jury.engine, jury.label_origin
    classify = engine.loss.name == "cross_entropy"
    return Grounds(
        leave_out=jury.leave_out.how,
        symmetric=jury.retraining.symmetric,
        votes=jury.votes.how,
        diffusion_chosen=question.diffusion == "auto" and not why_no_neighbours(jury.data),
        advised=advice == "auto",
        panel_alone=advice == "panel",
        landmarks=engine.num_train > MOST_LANDMARKS,
        full=question.interval == "full",
        interval=question.interval,
        classify=classify,
        exact_ranks=question.exact_ranks,
        dropout=largest_dropout(engine.model),
        random_in_training=not jury.dropout_masks and engine.random_in_training,
        dropout_masks=jury.dropout_masks,
        batch_norm=has_batch_norm(engine.model),
        effective=jury.leave_out.decay == "effective",
        decayed=bool((engine.decay > 0).any()),
        grown=jury.grown,
        over=over,
        against=against,
        notes=notes,
        agreement=jury.agreement,
        remarks=jury.remarks if classify else (),
    )


def jurors_trusted(jury: Jury) -> bool:
    """Whether the model's jurors may vote in the stacked jury: retrained ones, or estimated ones that are trusted."""
    return jury.leave_out.how == "retrain" or not why_untrusted(jury)


def why_untrusted(jury: Jury) -> str:
    """Why estimates of training without some labels are not trusted, in a sentence or two; empty if they are.

    ``fidelity`` decides, if it was called. Before, estimates for models with batch normalisation or without weight
    decay are not trusted: they often differ from retraining.
    """
    if jury.agreement is not None:
        return "" if jury.agreement.trusted else f"{jury.agreement.words} They differ too much."
    if has_batch_norm(jury.engine.model):
        return "The model has batch normalisation: estimates for such models often differ from retraining."
    if not bool((jury.engine.decay > 0).any()):
        return "The model has no weight decay, so estimates rest on an estimated one."
    return ""
