"""The stacked jury: label sets, errors found, calibration and accuracy, beside the model's jurors alone and rivals.

20, 60 or 140 random labels, 10 splits, target 0.9. Every method has the same labels. The jury trains on all of them;
split conformal trains on a random half and calibrates on the other, and tuned DAPS calibrates on a quarter. CF-GNN is
in evaluation.py. The panel,
the pool and their constants were chosen on digits, synthetic graphs, amazon_photo, het_chameleon, webkb_texas and
quantiles of us_county_election, on other splits (seeds from 100 on); Cora, Citeseer and PubMed had no part in it.
Ablations: the model's jurors alone, the panel alone, equal halves of both probabilities, views of features only, walks
only; their sets count votes as the verdict does. Energies are of the same model, with their authors' settings.
With --splits, coverage alone on 40 splits of the graphs that were not fetched, 60 labels.
Interrupted runs go on where they stopped.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import mean, pstdev, stdev
from typing import Any

import torch
from torch import Tensor

from harness import options, save, table
from jurygcn import Jury
from jurygcn.baselines.posthoc import energies
from jurygcn.conformal.advice import Advice, own_predictions, take_advice
from jurygcn.conformal.asked import Asked, Question
from jurygcn.data import cache_folder
from jurygcn.evaluation import accuracy, ece, error_auroc, mean_set_size, nll, set_coverage
from jurygcn.experiments.cells import Cells
from jurygcn.experiments.rival_sets import conformal_sets
from jurygcn.experiments.trials import Trial as Compared
from jurygcn.learning import GCNClassifier
from jurygcn.verdict import Verdict
from protocol import CITATION, PLAIN, Trial, extra, graph, spread, trial

ALPHA = 0.1
LABELS = (60, 20, 140)
OTHERS = ("webkb_texas", "het_chameleon", "amazon_photo")
UNDERFIT = {"amazon_photo": 0.05, "het_chameleon": 0.05}  # learning rates where 0.01 does not fit in 100 epochs
VERSION = 2  # increased by hand when more is measured
MANY = 40  # splits for coverage alone


def about(verdict: Verdict, truth: Tensor, probabilities: Tensor, doubt: Tensor) -> dict[str, float]:
    sets = verdict.label_sets(ALPHA)
    return {
        "coverage": set_coverage(sets, truth),
        "size": mean_set_size(sets),
        "accuracy": accuracy(probabilities.argmax(dim=1), truth),
        "auroc": error_auroc(doubt, verdict.predicted_class != truth),
        "ece": ece(probabilities, truth),
        "nll": nll(probabilities, truth),
    }


def advised(jury: Jury, t: Trial, advice: Advice | None) -> tuple[Verdict, Tensor]:
    """A verdict with some advice, through the parts that ``Jury.verdict`` is made of."""
    jury._advice["auto"] = advice
    verdict = jury.verdict(t.split.test)
    return verdict, verdict.calibrated


def variants(jury: Jury, t: Trial) -> dict[str, Advice]:
    """Advice from parts of the panel, and without the model."""
    asked = Asked(jury.engine, jury.positions, t.split.test, Question(0.025, False, "jackknife+", "lac", "auto"))
    own = own_predictions(jury.engine, jury.jurors.steps, asked.own_nodes, diffusion="auto", memory="1GB")
    members = jury.panel.members
    parts = {
        "stacked": (own, members),
        "features only": (own, [m for m in members if m.design.view.of_features]),
        "walks only": (own, [m for m in members if not m.design.view.of_features]),
        "panel alone": ({k: torch.full_like(p, 1 / p.shape[1]) for k, p in own.items()}, members),
    }
    found = {}
    for name, (votes, some) in parts.items():
        jury.panel.members = some
        found[name] = take_advice(jury.engine, jury.panel, jury.positions, votes)
    jury.panel.members = members
    return found


def halves(jury: Jury, t: Trial, panel: Advice) -> tuple[Verdict, Tensor]:
    """Equal halves of the model's and the panel's probabilities, juror by juror."""
    diffusion = jury.verdict(t.split.test[:1], advice=None).diffusion
    given = replace(panel, diffusion=diffusion)
    plain, votes = type(given).outputs, type(given).votes

    class Halved(Advice):
        def outputs(self, model: Tensor) -> Tensor:
            return (model + plain(self, model)) / 2

        def votes(self, model: Tensor, jurors: Tensor) -> Tensor:
            return (model + votes(self, model, jurors)) / 2

    return advised(jury, t, Halved(**vars(given)))


def measure(name: str, labels: int, seed: int) -> dict[str, Any]:
    t = trial(name, seed=seed, num_labels=labels, lr=UNDERFIT.get(name, PLAIN.lr))
    test, truth = t.split.test, t.data.y[t.split.test]
    jury = t.jury("newton")
    alone = jury.verdict(test, advice=None)
    pi = alone.outputs
    rows = {
        "model alone": about(alone, truth, pi, alone.ambiguity),
        "max-probability": {"auroc": error_auroc(1 - pi.amax(dim=1), alone.predicted_class != truth)},
    }
    for kind, score in energies(t.model, t.data, t.labels).items():
        rows[kind] = {"auroc": error_auroc(score[test], alone.predicted_class != truth)}
    found = variants(jury, t)
    share = found["stacked"].model_share
    for kind, advice in found.items():
        verdict, said = advised(jury, t, advice)
        rows[kind] = about(verdict, truth, said, verdict.doubt)
    verdict, said = halves(jury, t, found["panel alone"])
    rows["equal halves"] = about(verdict, truth, said, verdict.doubt)
    jury._advice.clear()
    default = jury.verdict(test)
    assert default.label_sets(ALPHA).sum().item() == round(rows["stacked"]["size"] * len(test))
    return {"methods": rows, "model_share": share}


def rival_sets(name: str, labels: int, seed: int) -> dict[str, Any]:
    """Split conformal with the same labels, splits and learning rate."""
    network = GCNClassifier(dropout=0.0, lr=UNDERFIT.get(name, PLAIN.lr))
    found = conformal_sets(Compared.of(graph(name), labels, seed), ALPHA, seed, network)
    return {"methods": {kind: {"coverage": r["coverage"], "size": r["size"]} for kind, r in found.items()}}


def covered(name: str, seed: int) -> dict[str, Any]:
    """Coverage and size of the default jury's sets, of those without advice and of split conformal's; 60 labels."""
    t = trial(name, seed=seed, lr=UNDERFIT.get(name, PLAIN.lr))
    jury, test = t.jury("newton"), t.split.test
    rows = dict(rival_sets(name, len(t.labels), seed)["methods"])
    for kind, advice in (("stacked", "auto"), ("model alone", None)):
        sets = jury.verdict(test, advice=advice).label_sets(ALPHA)
        rows[kind] = {"coverage": set_coverage(sets, t.data.y[test]), "size": mean_set_size(sets)}
    return {"methods": rows}


def many_splits(*, quick: bool) -> None:
    kept = Cells("splits", lambda _: str(VERSION), folder=cache_folder() / "benchmarks" / "advice")
    wanted = [{"name": name, "seed": seed} for name in extra(*OTHERS) for seed in range(2 if quick else MANY)]
    kept.measure(wanted, covered, what="Measuring", show=False)
    rows, found = kept.rows(wanted), []
    for name in extra(*OTHERS):
        for kind in ("stacked", "model alone", "split conformal, LAC"):
            mine = [row["methods"][kind] for row in rows if row["name"] == name]
            coverage = [row["coverage"] for row in mine]
            about_it = {
                "coverage": mean(coverage),
                "error": stdev(coverage) / len(mine) ** 0.5,
                "lowest": min(coverage),
            }
            first = {"first_ten": mean(coverage[:10]), "size": mean(row["size"] for row in mine)}
            found.append({"dataset": name, "method": kind, "splits": len(mine), **about_it, **first})
    keys = ("coverage", "error", "lowest", "first_ten", "size")
    body = [[r["dataset"], r["method"], *(f"{r[k]:.3f}" for k in keys)] for r in found]
    table(f"60 labels, target 0.9, {found[0]['splits']} splits", ["graph", "method", *keys], body)
    print(save("advice_splits", found, quick=quick))


def costs(name: str) -> dict[str, float]:
    """Median seconds of fit and verdict on all nodes, alternately with and without advice."""
    t = trial(name, seed=0)
    took: dict[str | None, list[float]] = {None: [], "auto": []}
    first = {}
    for _ in range(7):
        for advice, times in took.items():
            started = time.process_time()  # of this process alone: other work on the machine does not count
            t.jury("newton").verdict(advice=advice)
            times.append(time.process_time() - started)
            first.setdefault(advice, times[0])
    plain, with_it = (sorted(took[advice][1:])[3] for advice in (None, "auto"))
    return {"unadvised": plain, "advised": with_it, "ratio": with_it / plain, "first": first["auto"]}


def main() -> None:
    flags = {"cost": "measure the cost only", "splits": f"coverage alone, {MANY} splits"}
    chosen = options(__doc__, finished="run nothing; publish what is measured", **flags)
    if chosen.splits:
        many_splits(quick=chosen.quick)
        return
    if not chosen.cost:
        everything(quick=chosen.quick, finished=chosen.finished)
    if chosen.finished:
        return
    rows = [{"dataset": name, **costs(name)} for name in ("cora", "pubmed")]
    body = [[r["dataset"], *(f"{r[k]:.3f}" for k in ("unadvised", "advised", "ratio", "first"))] for r in rows]
    table("seconds of fit and verdict, 60 labels, all nodes", ["graph", "alone", "advised", "ratio", "first run"], body)
    print(save("advice_cost", rows, quick=chosen.quick))


def everything(*, quick: bool, finished: bool) -> None:
    datasets = CITATION[:1] if quick else (*extra(*OTHERS), *CITATION)
    sizes, seeds = ((60,), range(2)) if quick else (LABELS, range(10))
    wanted = [
        {"name": name, "labels": labels, "seed": seed}
        for labels in sizes
        for name in datasets
        for seed in seeds
        if not (name == "webkb_texas" and labels > 60)
    ]
    parts = {}
    for part, run in (("advice", measure), ("rivals", rival_sets)):
        kept = Cells(part, lambda _: str(VERSION), folder=cache_folder() / "benchmarks" / "advice")
        kept.measure([] if finished else wanted, run, what="Measuring", show=False)
        parts[part] = {(r["name"], r["labels"], r["seed"]): r for r in kept.rows(wanted)}
    rows = [
        {**row, "methods": row["methods"] | parts["rivals"][key]["methods"]}
        for key, row in parts["advice"].items()
        if key in parts["rivals"]
    ]
    summary = []
    for labels in sizes:
        for name in datasets:
            mine = [row for row in rows if (row["name"], row["labels"]) == (name, labels)]
            if len(mine) < len(seeds):  # not all splits are measured
                continue
            body = []
            for kind in mine[0]["methods"]:
                about_it: dict[str, Any] = {"dataset": name, "labels": labels, "method": kind, "splits": len(mine)}
                for key in mine[0]["methods"][kind]:
                    values = [row["methods"][kind][key] for row in mine]
                    about_it |= {key: mean(values), f"{key}_sd": pstdev(values)}
                if kind == "stacked":
                    about_it["model_share"] = mean(row["model_share"] for row in mine)
                summary.append(about_it)
                keys = ("coverage", "size", "auroc", "accuracy", "ece", "nll")
                body.append([kind, *(f"{about_it[k]:.3f}" if k in about_it else "" for k in keys)])
            share = spread([row["model_share"] for row in mine])
            columns = ["method", "coverage", "size", "AUROC", "accuracy", "ECE", "NLL"]
            table(f"{name}: {labels} labels, {len(mine)} splits; share of the model {share}", columns, body)
    print(save("advice", summary, quick=quick))


if __name__ == "__main__":
    main()
