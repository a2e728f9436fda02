"""The jury of a trained model and its verdict: the common part of quantify, demo and doctor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from torch_geometric.data import Data

from jurygcn.allocator import keep_freed_memory
from jurygcn.arrivals import on_new_graph
from jurygcn.cli.tables import SET_ALPHA
from jurygcn.cli.trained_model import Session, stopwatch
from jurygcn.errors import JuryError
from jurygcn.evaluation import accuracy, error_auroc, mean_set_size, micro_f1, set_coverage
from jurygcn.jury import Jury
from jurygcn.leave_one_out.retraining import Retraining
from jurygcn.settings import LeaveOut, Run
from jurygcn.verdict import Verdict


@dataclass(frozen=True, eq=False)
class Judgement:
    """A session with its jury and the verdict on all nodes; ``arrived`` counts nodes that a new graph has more."""

    session: Session
    jury: Jury
    verdict: Verdict
    arrived: int | None = None

    def test_scores(self) -> dict[str, Any]:
        """Scores of the predictions and the label sets on the test nodes; None without test nodes."""
        nodes = self.session.test_nodes
        measures = ("accuracy", "micro_f1", "error_auroc", "jury_accuracy", "set_coverage", "mean_set_size")
        if not len(nodes):
            return {"nodes": 0, **dict.fromkeys(measures)}
        truth, predicted = self.session.data.y[nodes], self.verdict.predicted_class[nodes]
        sets = self.verdict.label_sets(SET_ALPHA)[nodes]
        advised = self.verdict.advice is not None
        values = (
            accuracy(predicted, truth),
            micro_f1(predicted, truth),
            error_auroc(self.verdict.uncertainty()[nodes], predicted != truth),
            accuracy(self.verdict.jury_class[nodes], truth) if advised else None,
            set_coverage(sets, truth),
            mean_set_size(sets),
        )
        return {"nodes": len(nodes), **dict(zip(measures, values))}

    def describe(self, command: str) -> dict[str, Any]:
        """The run as plain values, for --json and run.json."""
        jurors, claim = self.jury.jurors, self.verdict.claim(SET_ALPHA)
        return {
            **self.session.describe(command),
            "jury": {
                "jurors": jurors.count,
                "leave_out": jurors.leave_out,
                "votes": self.jury.votes.how,
                "discarded": getattr(jurors, "discarded", 0.0),
                "as_printed": self.jury.leave_out.printed,
                "curvature": self.jury.leave_out.curvature,
                "solver": jurors.solver,
                "reason": jurors.reason,
                "residual": jurors.residual,
                "iterations": jurors.iterations,
                "alpha": self.verdict.alpha,
                "diffusion": self.verdict.diffusion,
                "advice": None if self.verdict.advice is None else self.verdict.advice.words,
                "score": self.verdict.score_name,
                "set_alpha": SET_ALPHA,
                "sets": self.verdict.method,
                "by": self.verdict.by,
                "drawn": len(self.jury.positions) if self.jury.drawn else None,
                "claim": claim.kind,
                "claimed_coverage": claim.coverage,
                "claim_reasons": list(claim.reasons),
            },
            "arrived": self.arrived,
            "test": self.test_scores(),
            "left_out": left_out_facts(self.jury),
        }


def left_out_facts(jury: Jury) -> dict[str, Any] | None:
    """What left-out labels say, as plain values; None where the jurors for it cannot be found."""
    try:
        expected, calibrated, errors = jury.expected_accuracy(), jury.calibrate().calibration, jury.label_errors()
    except JuryError:
        return None
    return {
        "labels": expected.n,
        "accuracy": expected.accuracy,
        "interval": list(expected.interval),
        "level": expected.level,
        "log_loss": expected.log_loss,
        "promised": expected.promised,
        "words": expected.words,
        "temperature": None if calibrated is None else calibrated.temperature,
        "noise": errors.noise,
        "false_discoveries": errors.false_discoveries,
        "suspicious": errors.flagged.tolist(),
        "suspicious_words": errors.words,
    }


def judge(
    session: Session,
    *,
    alpha: float = 0.025,
    diffusion: str = "auto",
    advice: bool = True,
    sets: str = "jackknife+",
    by: str | None = None,
    groups: Tensor | None = None,
    new_data: Data | None = None,
    resume: Path | None = None,
    **settings: Any,
) -> Judgement:
    """Fit the jury of a session's model and compute its verdict on all nodes; continue from counts in ``resume``.

    With ``new_data`` the nodes are those of the graph that has grown, and the session is then about it.
    """
    keep_freed_memory()  # allowed here: the command line owns the process
    jury = fit_jury(session, **settings)
    with stopwatch(session.seconds, "votes"):
        steps = diffusion if diffusion == "auto" else int(diffusion)
        kept = resume if jury.votes.how == "exact" else None  # linearised votes are counted in one pass
        verdict = jury.verdict(
            alpha=alpha,
            diffusion=steps,
            advice="auto" if advice else None,
            full=sets == "full",
            groups=groups,
            new_data=new_data,
            resume=kept,
        )
    if (sets, by) != ("jackknife+", None):
        verdict = verdict.with_sets(sets, by=by)
    if new_data is None:
        return Judgement(session, jury, verdict)
    arrived = int(new_data.num_nodes) - int(session.data.num_nodes)
    return Judgement(replace(session, data=on_new_graph(jury, new_data).data), jury, verdict, arrived)


def leave_out_by(how: str, curvature: str, solver: str, *, as_printed: bool, max_jurors: int | None = None) -> LeaveOut:
    """The setting for these options; --as-printed replaces --leave-out and --curvature."""
    if as_printed:
        how, curvature = "printed", "printed"
    return LeaveOut(how, curvature, solver, max_jurors=max_jurors)


def fit_jury(session: Session, **settings: Any) -> Jury:
    """A fitted jury of a session's model."""
    s = session.settings
    retraining = Retraining(epochs=s.epochs, lr=s.lr, seed=s.seed)
    with stopwatch(session.seconds, "jurors"):
        return Jury(
            session.model,
            session.data,
            session.train_nodes,
            weight_decay=session.weight_decay,
            chosen=session.chosen,
            retraining=retraining,
            **{"run": Run(progress=True), **settings},
        ).fit()
