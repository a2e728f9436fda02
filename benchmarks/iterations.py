"""Newton jurors of one iteration and of several, against retrained ones: own-label probabilities, sets and time.

A jurygcn.GCN without dropout, trained for 100 or 500 epochs. 20 jurors of each split, drawn at random, are trained
again from scratch as the model was. The table shows how far the probabilities that they give to their left-out labels
are from those of estimated jurors, and coverage and size of the sets of the model alone at 1,000 other nodes, target
0.9. `LeaveOut("newton", iterations=50)` was chosen on karate, block models, digits and webkb_texas, with seeds from
1000 on; the citation graphs were measured once, afterwards. Interrupted runs go on where they stopped.

--only underfitted: amazon_photo, where sets of the model alone cover too little after 100 epochs: jackknife+ sets of
estimated and of retrained jurors, and of a model that is trained for longer.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from harness import options, save, table
from jurygcn import Jury, LeaveOut, Retraining
from jurygcn.data import paper_split, random_labels, synthetic
from jurygcn.experiments.cells import Cells
from jurygcn.leave_one_out.retraining import retrained_parameters
from jurygcn.models import fit_gcn
from protocol import CITATION, PLAIN, extra, graph

ESTIMATES = {"one iteration": LeaveOut("newton"), "iterated": LeaveOut("newton", iterations=50)}
RETRAINED, TESTED, ALPHAS = 20, 1000, (0.05, 0.1, 0.2)
DEVELOPED_ON = {"karate": 20, "sbm": 60, "synthetic": 60, "digits": 60, **dict.fromkeys(extra("webkb_texas"), 60)}
PHOTO, PHOTO_LR, LONGER = "amazon_photo", 0.05, 500


def data_of(name: str, seed: int) -> Data:
    if name == "sbm":
        return synthetic(num_nodes=150, num_edges=900, num_features=16, num_classes=3, seed=seed)
    return graph(name)


def split_of(name: str, data: Data, seed: int, labels: int) -> tuple[Tensor, Tensor]:
    """Random labels, and other nodes."""
    if name in CITATION or name == PHOTO:
        split = paper_split(data, seed=seed)
        return random_labels(split.pool, labels, seed=seed), split.test[:TESTED]
    order = torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(seed))
    order = order[data.y[order] >= 0]
    return order[:labels].sort().values, order[labels : labels + TESTED]


def own_probabilities(jury: Jury, thetas: Tensor, positions: Tensor) -> Tensor:
    """What each model gives to the label of its own node, (k,)."""
    engine = jury.engine
    outputs = engine.predictor(engine.train_nodes[positions], engine.source_dtype).outputs(thetas)
    own = engine.loss.predict(outputs.diagonal(dim1=0, dim2=2).T)
    return own.gather(1, engine.targets[positions][:, None]).squeeze(1)


def sets_of(jury: Jury, nodes: Tensor) -> dict[str, list[float]]:
    """Coverage and size of the sets of the model alone, at every level."""
    verdict, truth = jury.verdict(nodes, advice=None, diffusion=0), jury.data.y[nodes]
    found = {}
    for alpha in ALPHAS:
        sets = verdict.label_sets(alpha)
        hit = sets.gather(1, truth[:, None]).double()
        found[str(alpha)] = [float(hit.mean()), float(sets.sum(dim=1).double().mean())]
    return found


def compared(name: str, labels: int, epochs: int, seed: int) -> dict[str, Any]:
    data = data_of(name, seed)
    nodes, others = split_of(name, data, seed, labels)
    model, _ = fit_gcn(data, nodes, replace(PLAIN, epochs=epochs), seed=seed)
    found: dict[str, Any] = {}
    again: Tensor | None = None
    for words, how in ESTIMATES.items():
        jury = Jury(model, data, nodes, weight_decay=PLAIN.weight_decay, leave_out=how)
        before = time.process_time()
        jury.fit()
        seconds = time.process_time() - before
        some = torch.randperm(labels, generator=torch.Generator().manual_seed(0))[:RETRAINED].sort().values
        if again is None:
            recipe = Retraining(epochs=epochs, seed=seed)
            again = own_probabilities(jury, retrained_parameters(jury.engine, recipe, some.tolist()).float(), some)
        estimated = own_probabilities(jury, jury.engine.theta.float() + jury.jurors.steps[some], some)
        found[words] = {
            "error": float((estimated - again).abs().mean()),
            "bias": float((estimated - again).mean()),
            "seconds": seconds,
            "iterations": jury.jurors.iterations,
            "sets": sets_of(jury, others),
        }
    return found


def underfitted(seed: int) -> dict[str, Any]:
    """amazon_photo: sets of estimated and of retrained jurors, and of a model that is trained for longer."""
    data = graph(PHOTO)
    nodes, others = split_of(PHOTO, data, seed, 60)
    found: dict[str, Any] = {}
    for epochs in (PLAIN.epochs, LONGER):
        model, _ = fit_gcn(data, nodes, replace(PLAIN, epochs=epochs, lr=PHOTO_LR), seed=seed)
        juries = dict(ESTIMATES)
        if epochs == PLAIN.epochs:
            juries["retrained"] = LeaveOut("retrain")
        for words, how in juries.items():
            recipe = Retraining(epochs=epochs, lr=PHOTO_LR, seed=seed)
            jury = Jury(model, data, nodes, weight_decay=PLAIN.weight_decay, leave_out=how, retraining=recipe).fit()
            found[f"{words}, {epochs} epochs"] = sets_of(jury, others)
        found[f"gradient, {epochs} epochs"] = jury.health().relative_gradient
    return found


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="", help="compared or underfitted")
    parser.add_argument("--report", action="store_true", help="only what is measured already")
    mine, rest = parser.parse_known_args()
    sys.argv = [sys.argv[0], *rest]
    quick = options(__doc__).quick
    names = [(name, labels, range(1000, 1003)) for name, labels in DEVELOPED_ON.items()]
    names += [(name, 60, range(3)) for name in CITATION]
    cells = [
        {"name": name, "labels": labels, "epochs": epochs, "seed": seed}
        for name, labels, seeds in (names[:1] if quick else names)
        for epochs in (100, 500)
        for seed in (seeds[:1] if quick else seeds)
    ]
    photo = [{"seed": seed} for seed in range(1 if quick else 12)] if extra(PHOTO) else []
    plan = {"compared": (compared, cells), "underfitted": (underfitted, photo)}
    kept = {name: Cells(f"iterations_{name}{'_quick' if quick else ''}", lambda _: "v1") for name in plan}
    for name, (run, wanted) in plan.items():
        if mine.only in ("", name) and not mine.report:
            kept[name].measure(wanted, run, what=name, show=True)
    summary = [*compared_rows(kept["compared"].rows(cells)), *underfitted_rows(kept["underfitted"].rows(photo))]
    table(
        "against retrained jurors, 60 labels (karate: 20)",
        ("graph, epochs", "jurors", "splits", "error", "bias", "coverage", "size", "CPU s"),
        [
            (
                *(f"{r['dataset']}, {r['epochs']}", r["jurors"], r["splits"], f"{r['error']:.3f}", f"{r['bias']:+.3f}"),
                *(f"{r['coverage']:.3f}", f"{r['size']:.2f}", f"{r['seconds']:.3f}"),
            )
            for r in summary
            if r["part"] == "compared"
        ],
    )
    table(
        "amazon_photo, model alone",
        ("jurors", "target", "splits", "coverage", "difference to one iteration", "size"),
        [
            (
                *(r["jurors"], f"{1 - r['alpha']:g}", r["splits"], f"{r['coverage']:.3f} ± {r['standard_error']:.3f}"),
                f"{r['difference']:+.3f} ± {r['difference_error']:.3f}",
                f"{r['size']:.2f}",
            )
            for r in summary
            if r["part"] == "underfitted"
        ],
    )
    save("iterations", summary, quick=quick)


def compared_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for name, epochs in dict.fromkeys((r["name"], r["epochs"]) for r in rows):
        some = [r for r in rows if (r["name"], r["epochs"]) == (name, epochs)]
        for words in ESTIMATES:
            sets = [r[words]["sets"]["0.1"] for r in some]
            out.append(
                {
                    **{"part": "compared", "dataset": name, "epochs": epochs, "jurors": words, "splits": len(some)},
                    **{k: mean(r[words][k] for r in some) for k in ("error", "bias", "seconds")},
                    "iterations": max(r[words]["iterations"] for r in some),
                    "coverage": mean(s[0] for s in sets),
                    "size": mean(s[1] for s in sets),
                }
            )
    return out


def underfitted_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for words in [key for key in (rows[0] if rows else {}) if key.endswith("epochs") and "gradient" not in key]:
        first, epochs = next(iter(ESTIMATES)), words.split(", ")[-1]
        for alpha in map(str, ALPHAS):
            covered = [r[words][alpha][0] for r in rows]
            apart = [r[words][alpha][0] - r[f"{first}, {epochs}"][alpha][0] for r in rows]
            out.append(
                {
                    **{"part": "underfitted", "jurors": words, "alpha": float(alpha), "splits": len(rows)},
                    **{"coverage": mean(covered), "difference": mean(apart)},
                    "standard_error": stdev(covered) / len(rows) ** 0.5 if len(rows) > 1 else 0.0,
                    "difference_error": stdev(apart) / len(rows) ** 0.5 if len(rows) > 1 else 0.0,
                    "size": mean(r[words][alpha][1] for r in rows),
                    "relative_gradient": mean(r[f"gradient, {epochs}"] for r in rows),
                }
            )
    return out


if __name__ == "__main__":
    main()
