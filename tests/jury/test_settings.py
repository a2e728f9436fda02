"""The settings of a jury: shorthands, refusals, and what a saved jury keeps of them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

import jurygcn
from cases import Case
from jurygcn import GCN, Jury, LeaveOut, Run, Votes
from jurygcn.errors import SettingError
from jurygcn.linalg import CG


def jury_with(**settings: Any) -> Jury:
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=0.05)
    return Jury(engine.model, engine.data, engine.train_nodes, weight_decay=0.05, **settings)


# --- shorthands -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["newton", "influence", "retrain", "printed"])
def test_a_name_stands_for_a_way_to_leave_out(how: str):
    found = jury_with(leave_out=how).leave_out
    assert found == jury_with(leave_out=LeaveOut(how)).leave_out
    assert replace(found, decay="auto", dropout_masks=None) == LeaveOut(how)
    assert found.decay == ("effective" if found.dropout_masks == 0 else "stated")


@pytest.mark.parametrize("how", ["exact", "linearized"])
def test_a_name_stands_for_a_way_to_vote(how: str):
    assert jury_with(votes=how).votes == jury_with(votes=Votes(how)).votes == Votes(how)


@pytest.mark.parametrize("parallel", [None, 2, -1, "serial", "processes:3", "dask://127.0.0.1:9"])
def test_a_number_or_an_address_stands_for_a_run(parallel: int | str | None):
    assert jury_with(run=parallel).run == Run(parallel=parallel)


def test_without_settings():
    jury = jury_with()
    unresolved = replace(jury.leave_out, decay="auto", dropout_masks=None)
    assert (unresolved, jury.votes, jury.run) == (LeaveOut("newton"), Votes("exact"), Run())


def test_auto_is_resolved_and_the_rest_stays(monkeypatch):
    monkeypatch.setattr("jurygcn.finding.MANY_BALLOTS", 1)
    given = Votes(rank=7)
    assert jury_with(votes=given).votes == Votes("linearized", rank=7)
    assert jury_with(votes=given, leave_out="printed").votes == Votes("exact", rank=7)
    assert jury_with(votes=given, run=2).votes == Votes("exact", rank=7)
    assert given == Votes("auto", rank=7)


def test_printed_jurors_take_the_curvature_of_theorem_1():
    assert LeaveOut("printed").curvature == LeaveOut("printed", curvature="printed").curvature == "printed"
    assert replace(LeaveOut("printed"), solver="direct") == LeaveOut("printed", solver="direct")
    assert LeaveOut("printed").printed
    assert not LeaveOut("influence", curvature="printed").printed


def test_the_settings_reach_the_jurors():
    few = LeaveOut("influence", solver=CG(tolerance=1e-9), damping=0.3, max_jurors=3)
    jury = jury_with(leave_out=few).fit()
    assert (jury.jurors.count, jury.jurors.leave_out, jury.jurors.solver) == (3, "influence", "cg")
    assert jury.health().damping == 0.3
    compressed = jury_with(votes=Votes("linearized", rank=2)).fit()
    assert len(compressed.jurors.directions) == 2


@pytest.mark.parametrize(
    ("leave_out", "words"), [("newton", "5 by newton, exact"), ("printed", "5 by the printed formulas, exact")]
)
def test_a_jury_says_how_its_jurors_are_found(leave_out: str, words: str):
    assert words in repr(jury_with(leave_out=leave_out))


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [LeaveOut(), Votes(), Run()], ids=lambda s: type(s).__name__)
def test_settings_cannot_be_changed(settings: object):
    for name in vars(settings):
        with pytest.raises(FrozenInstanceError):
            setattr(settings, name, None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LeaveOut("magic"), "expected leave_out to be one of newton, influence, retrain, printed, got 'magic'"),
        (lambda: LeaveOut(curvature="magic"), "expected curvature to be one of ggn, hessian, printed, got 'magic'"),
        (lambda: LeaveOut(solver="magic"), "expected solver to be one of auto, direct"),
        (lambda: LeaveOut(damping=-1.0), "expected damping as a finite number of at least 0, got -1.0"),
        (lambda: LeaveOut(max_jurors=0), "expected max_jurors as a whole number of at least 1, got 0"),
        (lambda: LeaveOut(curvature="hessian"), "expected curvature='ggn' for leave_out='newton', got 'hessian'"),
        (lambda: LeaveOut("printed", curvature="hessian"), "expected curvature='printed' for leave_out='printed', got"),
        (lambda: Votes("magic"), "expected votes to be one of auto, exact, linearized, got 'magic'"),
        (lambda: Votes(rank=0), "expected rank as a whole number of at least 1, got 0"),
        (lambda: Run(parallel="magic"), "expected parallel to be 'serial', a number of processes"),
        (lambda: Run(memory="lots"), "expected memory as a text such as '2GB' or '500MB', got 'lots'"),
        (lambda: Run(progress="yes"), "expected progress to be True or False, got 'yes'"),
        (lambda: jury_with(leave_out=3), "expected leave_out to be one of newton, influence, retrain, printed or a"),
        (lambda: jury_with(leave_out=Votes()), "or a LeaveOut, got Votes("),
        (lambda: jury_with(votes=128), "expected votes to be one of auto, exact, linearized or a Votes, got 128"),
        (lambda: jury_with(run=2.5), "expected run to be 'serial', a number of processes, 'dask://host:port' or a Run"),
        (lambda: jury_with(leave_out=LeaveOut(max_jurors=6)), "expected max_jurors as a whole number between 1 and 5"),
        (lambda: jury_with(leave_out="retrain", votes="linearized"), "use votes='exact'"),
    ],
)
def test_wrong_values_are_one_sentence(make: Any, words: str):
    with pytest.raises(SettingError) as refusal:
        make()
    assert words in str(refusal.value)


@pytest.mark.parametrize("old", ["solver", "damping", "as_printed", "rank", "max_jurors", "memory", "parallel"])
def test_keywords_of_before_are_unknown(old: str):
    with pytest.raises(TypeError, match=old):
        jury_with(**{old: 1})


# --- on disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"leave_out": LeaveOut("influence", curvature="hessian", solver="direct", damping=2.0, max_jurors=4)},
        {"leave_out": LeaveOut("printed", solver="direct", damping=2.0)},
        {"votes": Votes("linearized", rank=3), "run": Run(memory="5MB", progress=True)},
        {"leave_out": LeaveOut(damping=0), "votes": Votes("exact", rank=9), "run": Run("serial")},
    ],
    ids=["default", "hessian", "printed", "linearized", "serial"],
)
def test_a_saved_jury_has_the_same_settings(tmp_path: Path, settings: dict[str, Any]):
    """All but the solver, which has done its work, and where it ran."""
    jury = jury_with(**settings).fit()
    again = Jury.load(jury.save(tmp_path / "jury"), jury.engine.model, jury.data)
    assert again.leave_out == replace(jury.leave_out, solver="auto", max_jurors=len(jury.positions))
    assert again.votes == jury.votes
    assert again.run == Run(memory=jury.run.memory)
    assert (again.jurors.steps == jury.jurors.steps).all()


def test_a_saved_jury_may_run_elsewhere(tmp_path: Path):
    jury = jury_with(run=Run(memory="5MB")).fit()
    folder = jury.save(tmp_path / "jury")
    again = Jury.load(folder, jury.engine.model, jury.data, run=Run(memory="1MB", progress=True), votes="exact")
    assert again.run == Run(memory="1MB", progress=True)
    solved = Jury.load(folder, jury.engine.model, jury.data, leave_out=LeaveOut(solver="cg"))
    assert solved.leave_out.solver == "cg"
    with pytest.raises(SettingError, match=r"found with another damping than 0\.5"):
        Jury.load(folder, jury.engine.model, jury.data, leave_out=LeaveOut(damping=0.5))


def test_the_package_offers_them():
    assert {"LeaveOut", "Votes", "Run"} <= set(jurygcn.__all__)
    assert jurygcn.GCN is GCN
