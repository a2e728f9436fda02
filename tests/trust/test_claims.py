"""What is promised of label sets, and when nothing is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import mannwhitneyu
from torch_geometric.data import Data
from typer.testing import CliRunner

from jurygcn import GCN, Jury, train
from jurygcn.active import Recipe, Scene
from jurygcn.cli import app
from jurygcn.conformal.claims import balance_chance, degree_chance
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.retraining import Retraining
from jurygcn.models.training import fit_gcn
from jurygcn.report import report_on
from jurygcn.settings import LeaveOut, Votes


def heavy_tailed(size: int = 300, seed: int = 0, *, regression: bool = False) -> Data:
    """A graph grown by preferential attachment: few nodes with many neighbours; classes of unequal size."""
    rng = np.random.default_rng(seed)
    ends = [0, 1]
    for node in range(2, size):
        ends += [node, int(rng.choice(ends)), node, int(rng.choice(ends))]
    pairs = np.array(ends[2:]).reshape(-1, 2)
    edge_index = torch.from_numpy(np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0).T.copy())
    y = torch.from_numpy(rng.choice(3, size=size, p=[0.5, 0.3, 0.2]))
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed)) + y[:, None]
    target = x.sum(dim=1) if regression else y
    return Data(x=x, edge_index=edge_index, y=target, num_nodes=size, num_classes=0 if regression else 3)


def degree_of(data: Data) -> torch.Tensor:
    return torch.bincount(data.edge_index[1], minlength=int(data.num_nodes))


def jury_on(data: Data, nodes: torch.Tensor, **settings) -> Jury:
    classify = not data.y.is_floating_point()
    model = GCN(4, 4, 3 if classify else 1)
    loss = "cross_entropy" if classify else "mse"
    train(model, data, nodes, epochs=20, loss=loss)
    return Jury(model, data, nodes, **{"weight_decay": 5e-4, "loss": loss, **settings}).fit()


def drawn(data: Data, count: int, seed: int = 0) -> torch.Tensor:
    return torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(seed))[:count]


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
        *("promise", 0.9, "labels that were drawn", "nodes"),
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


def test_labels_chosen_by_degree_are_found_out():
    data = heavy_tailed()
    hubs = degree_of(data).argsort(descending=True)[:40]
    jury = jury_on(data, hubs)
    verdict = jury.verdict(advice=None)
    claim = verdict.claim(0.1)
    assert claim.kind == "none"
    assert "other degrees" in claim.reasons[0]
    assert claim.words.startswith("No coverage is claimed. The labelled nodes have other degrees")
    assert claim.reasons[0] in jury.health().advice
    assert repr(verdict).startswith("Verdict(caution: no coverage is claimed.")
    leaves = degree_of(data).argsort()[:40]
    assert jury_on(data, leaves).verdict(advice=None).claim().coverage is None


def test_few_random_draws_are_accused():
    """The two tests of exchangeability accuse random labels as seldom as they say: here never in 400 draws."""
    data = heavy_tailed()
    degree = degree_of(data).numpy()
    chances = np.array([degree_chance(degree, drawn(data, 40, seed).numpy()) for seed in range(400)])
    assert (chances < 1e-4).sum() == 0
    assert 0.005 <= (chances < 0.05).mean() <= 0.1  # and it is a test: one in twenty is below 0.05
    balanced = [balance_chance(torch.bincount(data.y[drawn(data, 30, seed)])) for seed in range(400)]
    assert min(balanced) > 1e-4


@pytest.mark.parametrize("size", [2, 5, 20])
def test_degrees_that_say_nothing(size: int):
    regular = np.full(size, 3)
    assert degree_chance(regular, np.arange(1)) == 1.0
    assert degree_chance(np.arange(size), np.arange(size)) == 1.0  # everything is labelled


def test_degree_chance_is_the_rank_sum_test():
    random = np.random.default_rng(0)
    compared = 0
    for size in random.integers(5, 300, 60):
        degree = random.poisson(random.uniform(0.5, 8.0), size)
        nodes = random.choice(size, random.integers(1, size), replace=False)
        if degree.min() < degree.max():
            theirs = mannwhitneyu(degree[nodes], np.delete(degree, nodes), method="asymptotic").pvalue
            assert degree_chance(degree, nodes) == pytest.approx(theirs, rel=1e-9)
            compared += 1
    assert compared > 50


def test_balance_by_counting():
    """n! / (k!)^C / C^n against all ways to deal the labels."""
    ways = np.stack(np.meshgrid(*[range(3)] * 6, indexing="ij")).reshape(6, -1).T
    equal = np.mean([(np.bincount(way, minlength=3) == 2).all() for way in ways])
    assert balance_chance(torch.tensor([2, 2, 2])) == pytest.approx(equal)
    assert balance_chance(torch.tensor([2, 3, 1])) == 1.0
    assert balance_chance(torch.tensor([5])) == pytest.approx(1.0)


@pytest.mark.parametrize("classes", [3, 7])
def test_labels_drawn_class_by_class_are_found_out(classes: int):
    """20 for each class, on any graph: the same claim about the average over classes."""
    data = heavy_tailed()
    many = Data(x=data.x, edge_index=data.edge_index, y=torch.arange(300) % classes, num_classes=classes)
    nodes = torch.cat([(many.y == c).nonzero()[:, 0][:: 300 // classes // 20][:20] for c in range(classes)])
    model = GCN(4, 4, classes)
    train(model, many, nodes, epochs=5)
    claim = Jury(model, many, nodes, weight_decay=5e-4).fit().verdict(advice=None).claim()
    assert (claim.kind, claim.over) == ("target", "classes")
    assert "exactly 20 labels" in claim.words
    assert "on average over classes" in claim.words


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
    with pytest.raises(SettingError, match="random, per class or actively"):
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
