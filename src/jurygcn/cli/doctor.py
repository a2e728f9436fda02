"""`jurygcn doctor`: check whether the jurors of a model can be trusted."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jurygcn.choices import Recipe
from jurygcn.cli import options as given
from jurygcn.cli.reporting import print_json

if TYPE_CHECKING:
    from jurygcn.cli.trained_model import Session
    from jurygcn.diagnostics.fidelity import Fidelity
    from jurygcn.diagnostics.health import Health
    from jurygcn.jury import Jury


def doctor(
    data: given.Name,
    labels: given.Labels = None,
    train_nodes: given.TrainNodes = None,
    model: given.Checkpoint = None,
    retrain: given.Retrain = 20,
    leave_out: given.LeaveOut = "newton",
    curvature: given.Curvature = "ggn",
    solver: given.Solver = "auto",
    as_printed: given.AsPrinted = False,
    seed: given.Seed = 0,
    epochs: given.Epochs = Recipe.epochs,
    lr: given.LearningRate = Recipe.lr,
    weight_decay: given.WeightDecay = None,
    hidden: given.Hidden = Recipe.hidden,
    as_json: given.AsJson = False,
) -> None:
    """Check whether the verdict is reliable: convergence, curvature, solver, agreement with retrained jurors.

    Retrains some jurors from scratch. For a checkpoint, pass the --epochs, --lr and --seed that it was trained with.
    """
    from jurygcn.cli.tables import facts_table, in_words
    from jurygcn.cli.train import training_facts
    from jurygcn.cli.trained_model import Settings, open_session
    from jurygcn.cli.verdicts import fit_jury, leave_out_by

    jurors = leave_out_by(leave_out, curvature, solver, as_printed=as_printed)
    settings = Settings(
        labels=labels,
        train_nodes=train_nodes,
        checkpoint=model,
        epochs=epochs,
        lr=lr,
        weight_decay=weight_decay,
        hidden=hidden,
        seed=seed,
    )
    session = open_session(data, settings)
    jury = fit_jury(session, leave_out=jurors)
    report = plain_report(*examine(session, jury, retrain))
    if as_json:
        print_json({**session.describe("doctor"), **report})
        return
    facts = training_facts(session) | report_facts(report) | {"time": in_words(session.seconds)}
    Console().print(facts_table(facts, title=f"Doctor's report on {session.data.name}"))


def examine(session: Session, jury: Jury, retrain: int) -> tuple[Health, Fidelity | None]:
    """The health of the jury, and its fidelity if ``retrain`` is above 0."""
    with session.timed("health", "Checking the model"):
        health = jury.health()
    if not retrain:
        return health, None
    with session.timed("retraining", "Retraining jurors"):
        return health, jury.fidelity(min(retrain, jury.jurors.count))


def plain_report(examined: Health, found: Fidelity | None) -> dict[str, Any]:
    """Health, fidelity (None without retraining) and advice, as plain values."""
    health = asdict(examined)
    advice = list(health.pop("advice"))
    del health["doubts"]  # part of the advice
    if found is None:
        return {"health": health, "fidelity": None, "advice": advice}
    fidelity = {
        "retrained": len(found.frame),
        "correlation": found.correlation,
        "loo_error_estimated": found.loo_error[0],
        "loo_error_retrained": found.loo_error[1],
        "bias": found.bias,
    }
    return {"health": health, "fidelity": fidelity, "advice": [*advice, found.advice]}


def report_facts(report: dict[str, Any]) -> dict[str, str]:
    """The report as rows of a table."""
    health, fidelity = report["health"], report["fidelity"]
    low, high = health["eigenvalues"]
    facts = {
        "gradient": f"norm {health['gradient']:.1e}, relative {health['relative_gradient']:.1%} (0 % at the optimum)",
        "curvature": f"eigenvalues {low:.1e} to {high:.1e}, damping {health['damping']:g}",
        "solver": f"{health['solver']}; relative residual {health['residual']:.1e}",
    }
    if health["leverage"] is not None:
        facts["leverage"] = "{:.3f} to {:.3f} over the labelled nodes (below 1)".format(*health["leverage"])
    if fidelity is not None:
        facts["fidelity"] = f"correlation {fidelity['correlation']:.3f} with {fidelity['retrained']} retrained jurors"
    facts["advice"] = "\n".join(report["advice"]) or "none"
    return facts
