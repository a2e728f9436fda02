"""`jurygcn quantify`: the uncertainty of a GCN's predictions."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from jurygcn.choices import Recipe
from jurygcn.cli import options as given
from jurygcn.cli.doctor import examine, plain_report, report_facts
from jurygcn.cli.output import check_out, check_page, say_written, write_content, write_csv, write_page, write_run
from jurygcn.cli.reporting import print_json
from jurygcn.cli.train import score_facts, training_facts
from jurygcn.errors import SettingError

if TYPE_CHECKING:
    from jurygcn.cli.verdicts import Judgement
    from jurygcn.diagnostics.fidelity import Fidelity
    from jurygcn.diagnostics.health import Health

SHOWN = 10  # nodes per table
UNFINISHED = ".batches"  # folder in --out for the votes counted so far; removed when the results are written
RECORD = re.compile(r"\.?[0-9a-f]{32,64}\.npz(\.jurygcn-[0-9a-f]{32}\.npz)?")  # its files, complete or temporary


def quantify(
    data: given.Name,
    labels: given.Labels = None,
    train_nodes: given.TrainNodes = None,
    model: given.Checkpoint = None,
    alpha: given.Alpha = 0.025,
    out: given.Out = None,
    page: given.Page = None,
    retrain: given.Retrain = 0,
    leave_out: given.LeaveOut = "newton",
    curvature: given.Curvature = "ggn",
    solver: given.Solver = "auto",
    as_printed: given.AsPrinted = False,
    diffusion: given.Diffusion = "auto",
    advice: given.Advice = True,
    sets: given.Sets = "jackknife+",
    by: given.By = "all",
    groups: given.Groups = None,
    drawn: given.Drawn = None,
    new_data: given.NewData = None,
    seed: given.Seed = 0,
    epochs: given.Epochs = Recipe.epochs,
    weight_decay: given.WeightDecay = None,
    hidden: given.Hidden = Recipe.hidden,
    votes: given.Votes = "auto",
    max_jurors: given.MaxJurors = None,
    chosen: given.Chosen = None,
    parallel: given.Parallel = None,
    memory: given.Memory = "8GB",
    as_json: given.AsJson = False,
) -> None:
    """Train or load a GCN, and quantify the uncertainty of each of its predictions.

    Trains without dropout, because the jackknife needs an optimum of the training objective. Prints the ten most and
    the ten least uncertain nodes. With --out, writes verdict.csv (all nodes), run.json, and report.json, the input of
    jurygcn report. After an interruption the same command counts only the remaining votes.
    """
    from jurygcn.cli.groups import groups_of
    from jurygcn.cli.nodes import read_any_nodes
    from jurygcn.cli.trained_model import Settings, load_graph, start_session
    from jurygcn.cli.verdicts import judge, leave_out_by
    from jurygcn.engine.moved import check_grown
    from jurygcn.settings import Run

    check_out(out)
    check_page(page)
    _check_together(new_data=new_data, page=page, sets=sets, drawn=drawn, max_jurors=max_jurors)
    jurors = leave_out_by(leave_out, curvature, solver, as_printed=as_printed, max_jurors=max_jurors)
    settings = Settings(
        labels=labels,
        train_nodes=train_nodes,
        checkpoint=model,
        epochs=epochs,
        weight_decay=weight_decay,
        hidden=hidden,
        seed=seed,
        chosen=chosen,
    )
    graph, loading = load_graph(data)
    grown = None if new_data is None else load_graph(new_data)[0]
    if grown is not None:
        check_grown(graph, grown)
    compared = groups_of(groups, by, graph if grown is None else grown)
    voters = None if drawn is None else read_any_nodes(drawn, graph, "--drawn")
    session = start_session(graph, loading, settings)
    judgement = judge(
        session,
        alpha=alpha,
        diffusion=diffusion,
        advice=advice,
        sets=sets,
        by=None if by == "all" else by,
        groups=compared,
        new_data=grown,
        drawn=voters,
        leave_out=jurors,
        votes=votes,
        run=Run(parallel, memory, progress=True),
        resume=None if out is None or grown is not None else out / UNFINISHED,
    )
    # linearised juries avoid large matrices, and the check-up would need them
    wanted = retrain > 0 or judgement.jury.votes.how != "linearized"
    checkup = examine(judgement.session, judgement.jury, retrain) if wanted else (None, None)
    if checkup[1] is not None:
        judgement = replace(judgement, verdict=judgement.verdict.compared(checkup[1].agreement))
    report = plain_report(checkup[0], checkup[1]) if retrain and checkup[0] is not None else None
    present(judgement, "quantify", out=out, page=page, as_json=as_json, checkup=checkup, report=report)
    if out is not None:
        _remove_counts(out / UNFINISHED)


def _check_together(
    *, new_data: str | None, page: Path | None, sets: str, drawn: Path | None, max_jurors: int | None
) -> None:
    """Raise SettingError for options that exclude each other."""
    if new_data is not None and page is not None:
        raise SettingError("expected --new-data or --report, got both; the page is about the graph of the training")
    if new_data is not None and sets == "full":
        raise SettingError("expected --sets jackknife+ with --new-data, got full; leave --sets out")
    if drawn is not None and max_jurors is not None:
        raise SettingError("expected --drawn or --max-jurors, got both; drop one")


def _remove_counts(folder: Path) -> None:
    """Remove the saved counts, and the folder if it is then empty."""
    with suppress(OSError):
        for path in folder.iterdir():
            if RECORD.fullmatch(path.name):
                path.unlink()
        folder.rmdir()


def present(
    judgement: Judgement,
    command: str,
    *,
    out: Path | None = None,
    page: Path | None = None,
    as_json: bool = False,
    checkup: tuple[Health | None, Fidelity | None] = (None, None),
    report: dict[str, Any] | None = None,
) -> None:
    """Write the files, then print the tables or the JSON; ``report`` is the doctor's report, if there is one."""
    from jurygcn.cli.tables import (
        SET_ALPHA,
        class_legend,
        extremes,
        facts_table,
        marks_in_words,
        node_table,
        verdict_frame,
    )
    from jurygcn.report import report_on
    from jurygcn.report.diagnostics_text import caution

    session, verdict = judgement.session, judgement.verdict
    frame = verdict_frame(verdict, session.data, session.train_nodes)
    if judgement.arrived is not None:
        frame["arrived"] = frame["node"] >= len(frame) - judgement.arrived
    most, least = extremes(verdict, frame, SHOWN)
    run = judgement.describe(command) | (report or {})
    files: list[Path] = []
    if out is not None or page is not None:
        health, fidelity = checkup
        results = {"verdict.csv": write_csv(frame)}
        if judgement.arrived is None:  # the page is about the graph of the training
            shown = report_on(
                judgement.jury,
                verdict,
                test_nodes=session.test_nodes,
                alpha=SET_ALPHA,
                health=health,
                fidelity=fidelity,
            )
            results["report.json"] = write_content(shown)
        if out is not None:
            files += write_run(out, run, results)
        if page is not None:
            files.append(write_page(shown, page))
    if as_json:
        print_json({**run, "most_uncertain": most, "least_uncertain": least, "files": [str(path) for path in files]})
        return
    console = Console()
    doubt = caution(verdict.claim(SET_ALPHA), *checkup, verdict.advice)
    if doubt:
        console.print(f"Caution: {doubt}\n", style="yellow", markup=False, highlight=False)
    for title, rows in ((f"{len(most)} most uncertain nodes", most), (f"{len(least)} least uncertain nodes", least)):
        console.print(node_table(rows, title=title, width=console.width))
    notes = (*marks_in_words([*most, *least], verdict.diffusion), class_legend(session.data))
    for line in notes:
        if line is not None:
            console.print(line, style="dim", markup=False, highlight=False)
    console.print(
        facts_table(summary(judgement, run["test"], run["left_out"]), title=f"Verdict on {session.data.name}")
    )
    if report is not None:
        console.print(facts_table(report_facts(report), title="Doctor's report"))
    say_written(console, files)


def left_out_rows(found: dict[str, Any]) -> dict[str, str]:
    """What left-out labels say, as rows of a table."""
    heat = found["temperature"]
    facts = {"expected accuracy": found["words"]}
    if heat is not None:
        which = "overconfident" if heat > 1 else "underconfident"
        facts["calibration"] = f"{which}: divide the logits by {heat:.2f}, see jury.calibrate()"
    return facts | {"labels to check": found["suspicious_words"]}


def summary(judgement: Judgement, test: dict[str, Any], left_out: dict[str, Any] | None = None) -> dict[str, str]:
    """Settings and test results as rows of a table."""
    from jurygcn.cli.tables import SET_ALPHA
    from jurygcn.display.words import claim_words

    jurors, verdict = judgement.jury.jurors, judgement.verdict
    steps = "none" if verdict.diffusion == 0 else f"{verdict.diffusion} step" + "s" * (verdict.diffusion > 1)
    facts = training_facts(judgement.session)
    spent = facts.pop("time")
    facts["jury"] = f"{jurors.count:,} {jurors.leave_out} jurors" + ", as printed" * judgement.jury.leave_out.printed
    if judgement.jury.votes.how == "linearized":
        facts["jury"] += (
            f", linearised: {getattr(jurors, 'discarded', 0.0):.1%} outside {getattr(jurors, 'rank', 0)} directions"
        )
    facts["solver"] = f"{jurors.reason}; relative residual {jurors.residual:.1e}"
    if judgement.arrived is not None:
        facts["new nodes"] = f"{judgement.arrived:,} arrived after training; nothing was trained again"
    facts["diffusion"] = f"{steps} (votes averaged over neighbourhoods)" if verdict.diffusion else steps
    if verdict.advice is not None:
        facts["advice"] = verdict.advice.words
    if left_out is not None:
        facts |= left_out_rows(left_out)
    facts |= score_facts(test)
    if test["nodes"]:
        facts["label sets"] = (
            f"{100 * test['set_coverage']:.1f} % contain the true label (target {100 * (1 - SET_ALPHA):g} %), "
            f"{test['mean_set_size']:.2f} labels on average"
            + f"; {verdict.method} sets, by {verdict.by}" * (verdict.by is not None)
            + "; full conformal sets" * ((verdict.method, verdict.by) == ("full", None))
        )
        if test["error_auroc"] == test["error_auroc"]:  # not NaN: there are right and wrong predictions
            facts["error detection"] = f"AUROC {test['error_auroc']:.3f} by {verdict.score_name}"
        if test["jury_accuracy"] is not None:
            facts["jury's own classes"] = f"{100 * test['jury_accuracy']:.1f} % right"
    facts["coverage"] = claim_words(verdict, SET_ALPHA)
    return facts | {"time": spent}
