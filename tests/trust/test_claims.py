"""What is promised of label sets, and when nothing is."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attached_graphs import degree_of, drawn, heavy_tailed, jury_on
from torch_geometric.data import Data
from typer.testing import CliRunner

from jurygcn import GCN, Jury, train
from jurygcn.active import Recipe, Scene
from jurygcn.cli import app
from jurygcn.conformal.claims import Claim, Grounds, percent
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.retraining import Retraining
from jurygcn.models.training import fit_gcn
from jurygcn.report import report_on
from jurygcn.settings import LeaveOut, Votes

RANDOM, PER_CLASS, ACTIVE = "random", "per class", "actively"

# What is claimed at level 0.1 with 40 labels; docs/claims.md shows the same rows.
CLAIMS: dict[str, tuple[dict[str, Any], dict[str, Any], str, float | None, str]] = {
    # settings of the jury, of the verdict -> kind, coverage, what the words say
    "retrained, fixed settings": (
        {"leave_out": "retrain"},
        {"diffusion": 0},
        "promise",
        0.8,
        "by the jackknife+ theorem",
    ),
    "retrained, another fixed setting": ({"leave_out": "retrain"}, {"diffusion": 1}, "promise", 0.8, "theorem"),
    "retrained, APS": ({"leave_out": "retrain"}, {"diffusion": 0, "nonconformity": "aps"}, "promise", 0.8, "theorem"),
    "retrained, some jurors": (
        {"leave_out": LeaveOut("retrain", max_jurors=20)},
        {"diffusion": 0},
        "promise",
        0.8,
        "theorem",
    ),
    "retrained, averages chosen": ({"leave_out": "retrain"}, {}, "target", 0.9, "chosen with the same labels"),
    "retrained from the trained model": (
        {"leave_out": "retrain", "retraining": Retraining(epochs=5, start="warm")},
        {"diffusion": 0},
        "target",
        0.9,
        "did not start from scratch",
    ),
    "retrained without the node": (
        {"leave_out": "retrain", "retraining": Retraining(epochs=5, remove="node", processes=1)},
        {"diffusion": 0},
        "target",
        0.9,
        "left out more than a loss",
    ),
    "retrained, labels per class": (
        {"leave_out": "retrain", "chosen": PER_CLASS},
        {"diffusion": 0},
        "target",
        0.9,
        "on average over classes",
    ),
    "retrained, labels chosen actively": (
        {"leave_out": "retrain", "chosen": ACTIVE},
        {"diffusion": 0},
        "none",
        None,
        "chosen actively",
    ),
    "newton": ({}, {"diffusion": 0}, "target", 0.9, "estimated and were not compared with retrained ones"),
    "newton, averages chosen": ({}, {}, "target", 0.9, "chosen with the same labels"),
    "newton, advised": ({}, {"diffusion": 0, "advice": "auto"}, "target", 0.9, "weights of the advice were chosen"),
    "retrained, advised": (
        {"leave_out": "retrain"},
        {"diffusion": 0, "advice": "auto"},
        "target",
        0.9,
        "weights of the advice were chosen",
    ),
    "newton, linearised": (
        {"votes": Votes("linearized", rank=8)},
        {"diffusion": 0},
        "target",
        0.9,
        "first-order approximations",
    ),
    "newton, labels per class": ({"chosen": PER_CLASS}, {}, "target", 0.9, "on average over classes"),
    "newton, labels chosen actively": ({"chosen": ACTIVE}, {}, "none", None, "chosen actively"),
    "influence": ({"leave_out": "influence"}, {"diffusion": 0}, "none", None, "Influence jurors move too little"),
    "influence, linearised": ({"leave_out": "influence", "votes": "linearized"}, {}, "none", None, "Influence jurors"),
    "as printed": ({"leave_out": LeaveOut("printed", solver="direct")}, {}, "none", None, "as printed"),
}


@pytest.mark.parametrize("row", CLAIMS)
def test_what_is_claimed(row: str):
    settings, question, kind, coverage, words = CLAIMS[row]
    data = heavy_tailed()
    settings = {"retraining": Retraining(epochs=5), **settings}
    claim = jury_on(data, drawn(data, 40), **settings).verdict(**{"advice": None, **question}).claim(0.1)
    assert (claim.kind, claim.coverage) == (kind, coverage if coverage is None else pytest.approx(coverage))
    assert words in claim.words
    assert bool(claim.reasons) == (kind != "promise")
    assert claim.over == ("classes" if "per class" in row else "nodes")


# Other sets at level 0.1 with 40 labels: settings of jury, verdict and sets -> kind, coverage, words, over what.
SETS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, float | None, str, str]] = {
    "panel alone": ({}, {"advice": "panel"}, {}, "promise", 0.8, "jackknife+ theorem", "nodes"),
    "panel alone, full": ({}, {"advice": "panel"}, {"method": "full"}, "promise", 0.9, "full conformal", "nodes"),
    "panel alone, full, by class": (
        *({}, {"advice": "panel"}, {"method": "full", "by": "class"}),
        *("promise", 0.9, "in each class", "each class"),
    ),
    "panel alone, full, by group": (
        *({}, {"advice": "panel"}, {"method": "full", "by": "group"}),
        *("promise", 0.9, "in each group", "each group"),
    ),
    "panel alone, full, labels per class": (
        *({"chosen": PER_CLASS}, {"advice": "panel"}, {"method": "full"}),
        *("target", 0.9, "on average over classes", "classes"),
    ),
    "panel alone, full, by class, labels per class": (
        *({"chosen": PER_CLASS}, {"advice": "panel"}, {"method": "full", "by": "class"}),
        *("promise", 0.9, "in each class", "each class"),
    ),
    "newton, full": ({}, {"diffusion": 0}, {"method": "full"}, "target", 0.9, "added label are estimated", "nodes"),
    "newton, advised, full": ({}, {"advice": "auto"}, {"method": "full"}, "target", 0.9, "weights of the adv", "nodes"),
    "newton, by class": ({}, {"diffusion": 0}, {"by": "class"}, "target", 0.9, "in each class", "each class"),
    "newton, full, by class": (
        *({}, {"diffusion": 0}, {"method": "full", "by": "class"}),
        *("target", 0.9, "in each class", "each class"),
    ),
    "newton, by group": ({}, {"diffusion": 0}, {"by": "group"}, "target", 0.9, "in each group", "each group"),
    "newton, full, labels chosen actively": (
        *({"chosen": ACTIVE}, {"diffusion": 0}, {"method": "full"}),
        *("none", None, "chosen actively", "nodes"),
    ),
    "newton, full, drawn labels vote": (
        *({"chosen": ACTIVE, "drawn": 20}, {"diffusion": 0}, {"method": "full"}),
        *("target", 0.9, "labels that were drawn", "nodes"),
    ),
    "panel alone, full, drawn labels vote": (
        *({"chosen": ACTIVE, "drawn": 20}, {"advice": "panel"}, {"method": "full"}),
        *("target", 0.9, "labels that were drawn", "nodes"),
    ),
    "newton, new nodes": ({}, {"new": True, "diffusion": 0}, {}, "target", 0.9, "grew after training", "nodes"),
    "panel alone, new nodes": ({}, {"new": True, "advice": "panel"}, {}, "target", 0.9, "grew after", "nodes"),
}


@pytest.mark.parametrize("row", SETS)
def test_what_is_claimed_of_other_sets(row: str):
    settings, question, sets, kind, coverage, words, over = SETS[row]
    data = heavy_tailed()
    nodes = drawn(data, 40)
    if "drawn" in settings:
        settings = {**settings, "drawn": nodes[: settings["drawn"]]}
    question = {"advice": None, **question}
    if question.pop("new", False):
        question["new_data"] = Data(
            x=torch.cat([data.x, data.x[:3]]),
            edge_index=torch.cat([data.edge_index, torch.tensor([[300], [5]])], dim=1),
        )
    groups = torch.arange(300) % 2 if sets.get("by") == "group" else None
    full = sets.get("method") == "full"
    claim = jury_on(data, nodes, **settings).verdict(**question, full=full, groups=groups).claim(0.1, **sets)
    assert (claim.kind, claim.coverage) == (kind, coverage if coverage is None else pytest.approx(coverage))
    assert words in claim.words
    assert bool(claim.reasons) == (kind != "promise")
    assert claim.over == over


# Regression at level 0.05 with 40 labels.
INTERVALS = {
    ("retrain", "jackknife+"): ("promise", 0.9),
    ("retrain", "minmax"): ("promise", 0.95),
    ("retrain", "jackknife"): ("none", None),
    ("newton", "jackknife+"): ("target", 0.95),
    ("newton", "minmax"): ("target", 0.95),
    ("newton", "jackknife"): ("none", None),
    ("influence", "jackknife+"): ("none", None),
    ("influence", "minmax"): ("none", None),
    ("newton", "full"): ("target", 0.95),
    ("panel alone", "full"): ("promise", 0.95),
    ("panel alone", "jackknife+"): ("promise", 0.9),
}


@pytest.mark.parametrize(("leave_out", "interval"), INTERVALS)
def test_what_is_claimed_of_intervals(leave_out: str, interval: str):
    data = heavy_tailed(regression=True)
    advice, how = ("panel", "newton") if leave_out == "panel alone" else (None, leave_out)
    jury = jury_on(data, drawn(data, 40), leave_out=how, retraining=Retraining(epochs=5))
    claim = jury.verdict(alpha=0.05, interval=interval, advice=advice).claim()
    kind, coverage = INTERVALS[leave_out, interval]
    assert (claim.kind, claim.coverage) == (kind, coverage if coverage is None else pytest.approx(coverage))
    if kind == "promise":
        assert jury.verdict(alpha=0.05, interval=interval, exact_ranks=False, advice=advice).claim().kind == "target"
        assert (
            jury.verdict(alpha=0.01, interval=interval, advice=advice).claim().kind == "none"
        )  # too few labels for that


def test_a_claim_in_words_is_rounded_down():
    """1 - 0.025 is 97.5 %: 98 % would be more than the theorem says."""
    assert Claim(0.025, "promise", 1 - 0.025, full=True).words.startswith("At least 97.5% contain the truth")
    assert Claim(0.1, "target", 1 - 0.1).brief == "target: 90%"
    assert [percent(1 - alpha) for alpha in (0.05, 0.07, 0.3, 1 / 3, 1e-4)] == ["95%", "93%", "70%", "66.6%", "99.9%"]


def test_every_row_stands_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    told = {row[0]: row[-1] for row in rows}
    for name, (_, _, kind, _, _) in CLAIMS.items():
        assert told[name].startswith(kind), name
    for name, (_, _, _, kind, *_) in SETS.items():
        assert told[name].startswith(kind), name
    for (leave_out, interval), (kind, _) in INTERVALS.items():
        assert told[f"{leave_out}, {interval}"].startswith(kind)


def test_dropout_is_part_of_the_claim():
    data = heavy_tailed()
    nodes = drawn(data, 40)
    model = GCN(4, 4, 3, dropout=0.8)
    train(model, data, nodes, epochs=3)
    claim = Jury(model, data, nodes, weight_decay=5e-4).fit().verdict(diffusion=0, advice=None).claim()
    assert claim.kind == "target"
    assert "dropout" not in claim.words  # the effective decay accounts for it
    stated = LeaveOut(decay="stated")
    claim = Jury(model, data, nodes, weight_decay=5e-4, leave_out=stated).fit().verdict(diffusion=0).claim()
    assert claim.kind == "target"
    assert "8 draws of the model's dropout" in claim.words
    off = LeaveOut(decay="stated", dropout_masks=0)
    claim = Jury(model, data, nodes, weight_decay=5e-4, leave_out=off).fit().verdict(diffusion=0, advice=None).claim()
    assert claim.kind == "target"
    assert "dropout (0.8)" in claim.words
    assert "not proven" in claim.words


def test_fidelity_decides_about_the_claim():
    data = heavy_tailed()
    nodes = drawn(data, 40)
    jury = jury_on(data, nodes, retraining=Retraining(epochs=1000))  # not what the model was trained with
    assert not jury.fidelity(10).trusted
    claim = jury.verdict(diffusion=0, advice=None).claim()
    assert claim.kind == "none"
    assert "differ too much" in claim.words
    model = GCN(4, 4, 3)
    train(model, data, nodes, epochs=1500, weight_decay=0.05)
    jury = Jury(model, data, nodes, weight_decay=0.05, retraining=Retraining(epochs=1500)).fit()
    found = jury.fidelity(10)
    assert found.trusted
    claim = jury.verdict(diffusion=0, advice=None).claim()
    assert claim.kind == "target"
    assert f"correlate {found.correlation:.3f}" in claim.words


@pytest.mark.parametrize(("labels", "alpha", "claimed"), [(8, 0.1, False), (9, 0.1, True), (19, 0.025, False)])
def test_too_few_labels_for_the_level(labels: int, alpha: float, claimed: bool):
    data = heavy_tailed()
    verdict = jury_on(data, drawn(data, labels)).verdict(advice=None)
    claim = verdict.claim(alpha)
    assert (claim.coverage is not None) == claimed
    if not claimed:
        assert f"{round(1 / alpha) - 1} jurors" in claim.words
        assert verdict.label_sets(alpha).all()  # and indeed nothing is excluded


def test_claims_withheld_for_other_reasons():
    data = heavy_tailed()
    nodes = drawn(data, 40)
    active = jury_on(data, nodes, chosen="actively")
    assert active.verdict(advice=None).claim().reasons == ("The labels were chosen actively, not drawn at random.",)
    assert "chosen actively" in " ".join(active.health().advice)
    assert jury_on(data, nodes).verdict(advice=None).claim(0.5).coverage is None
    with pytest.raises(SettingError, match="random, per class, actively"):
        jury_on(data, nodes, chosen="cleverly")


def test_active_learning_withholds_its_claims(tmp_path: Path):
    data = heavy_tailed()
    nodes = drawn(data, 40)
    model, _ = fit_gcn(data, nodes, Recipe(epochs=5), seed=0)
    scene = Scene.of(
        data,
        nodes,
        data.y[nodes],
        candidates=torch.arange(5),
        batch=1,
        model=model,
        weight_decay=5e-4,
        generator=np.random.default_rng(0),
    )
    assert scene.verdict.claim().coverage is None
    path = scene.jury().save(tmp_path / "jury")
    assert Jury.load(path, model, scene.data).chosen == "actively"


def test_the_page_and_the_command_line_say_so(tmp_path: Path):
    data = heavy_tailed()
    claims = {}
    for name, nodes in (("random", drawn(data, 40)), ("hubs", degree_of(data).argsort(descending=True)[:40])):
        jury = jury_on(data, nodes)
        content = report_on(jury, jury.verdict(advice=None)).content
        tile = next(tile for tile in content["headline"] if tile["what"] == "Coverage")
        claims[name] = (tile["note"], " ".join(content["notes"]), content["caution"])
    assert "target: 90%" in claims["random"][0]
    assert "Label sets: the target is that 90% contain the truth. This is not proven." in claims["random"][1]
    assert "nothing is claimed" in claims["hubs"][0]
    assert "target" not in claims["hubs"][0]
    assert claims["random"][2] == ""
    assert claims["hubs"][2].startswith("No coverage is claimed. The labelled nodes have other degrees")

    def quantify(*options: str) -> str:
        command = ["quantify", "karate", "--labels", "12", "--epochs", "5", "--hidden", "4", *options]
        result = CliRunner().invoke(app, command, terminal_width=200)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "the target is that 90% contain the truth. This is not proven." in " ".join(quantify().split())
    assert "no coverage is claimed. The labels were chosen actively" in " ".join(
        quantify("--chosen", "actively").split()
    )
    facts = json.loads(quantify("--chosen", "actively", "--json"))["jury"]
    assert (facts["claim"], facts["claimed_coverage"]) == ("none", None)
    assert facts["claim_reasons"] == ["The labels were chosen actively, not drawn at random."]


@pytest.mark.parametrize("alone", [False, True])
def test_reasons_name_arguments_that_exist(alone: bool):
    grounds = Grounds(classify=False, exact_ranks=False, panel_alone=alone)
    named = re.findall(r"use (\w+)=", " ".join(grounds.claim(0.1, 50).reasons))
    assert "exact_ranks" in named
    assert set(named) <= set(inspect.signature(Jury.verdict).parameters)
