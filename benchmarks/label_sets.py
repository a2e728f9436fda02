"""Label sets without a calibration split: coverage and size, against retrained jurors and split conformal.

60 random labels in all. The jury trains on all of them; split conformal trains on a random half and calibrates on the
other (LAC scores). Coverage is measured on 1,000 test nodes a split; the default diffusion is chosen by the jurors.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, pstdev
from typing import Any

import torch

from harness import options, save, table
from jurygcn.evaluation import accuracy, mean_set_size, set_coverage, split_conformal
from jurygcn.models.training import fit_gcn
from protocol import CITATION, PLAIN, Trial, extra, spread, trial

ALPHAS = (0.1, 0.2)
UNDERFIT = {"amazon_photo": 0.05, "het_chameleon": 0.05}  # learning rates where 0.01 does not fit in 100 epochs


def calibrated_sets(t: Trial, alpha: float, *, seed: int) -> tuple[torch.Tensor, float]:
    """Prediction sets at the test nodes, and the test accuracy of the model that saw half the labels."""
    # halves at random: the labels come sorted by node, and nodes are not in random order
    labels = t.labels[torch.randperm(len(t.labels), generator=torch.Generator().manual_seed(seed))]
    half = len(labels) // 2
    recipe = replace(PLAIN, epochs=t.recipe.epochs, lr=t.recipe.lr)
    model, _ = fit_gcn(t.data, labels[:half], recipe, seed=seed)
    with torch.no_grad():
        pi = torch.softmax(model(t.data.x, t.data.edge_index), dim=1)
    sets = split_conformal(pi, t.data.y, labels[half:], alpha=alpha)
    return sets[t.split.test], accuracy(pi[t.split.test].argmax(1), t.data.y[t.split.test])


def measure(name: str, seed: int, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    t = trial(name, seed=seed, lr=UNDERFIT.get(name, PLAIN.lr))
    truth = t.data.y[t.split.test]
    rows: list[dict[str, Any]] = []

    def add(kind: str, alpha: float, sets: torch.Tensor, **more: object) -> None:
        rows.append(
            {
                "dataset": name,
                "seed": seed,
                "kind": kind,
                "alpha": alpha,
                "coverage": set_coverage(sets, truth),
                "size": mean_set_size(sets),
                **more,
            }
        )

    for kind in kinds:
        jury = t.jury(kind)
        for diffusion in ("auto", 0):
            verdict = jury.verdict(t.split.test, diffusion=diffusion, advice=None)
            label = kind if diffusion == "auto" else f"{kind}, no diffusion"
            for alpha in ALPHAS:
                right = accuracy(verdict.predicted_class, truth)
                add(label, alpha, verdict.label_sets(alpha), accuracy=right, diffusion=verdict.diffusion)
    for alpha in ALPHAS:
        sets, right = calibrated_sets(t, alpha, seed=seed)
        add("split conformal", alpha, sets, accuracy=right)
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean and standard deviation over the splits, for each dataset, kind of jury and level."""
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["dataset"], row["kind"], row["alpha"]), []).append(row)
    made = []
    for (dataset, kind, alpha), part in groups.items():
        about: dict[str, Any] = {"dataset": dataset, "kind": kind, "alpha": alpha, "splits": len(part)}
        for key in ("coverage", "size", "accuracy"):
            values = [row[key] for row in part]
            about |= {key: mean(values), f"{key}_sd": pstdev(values)}
        made.append(about)
    return made


def main() -> None:
    chosen = options(__doc__)
    datasets = CITATION[:1] if chosen.quick else (*CITATION, *extra("amazon_photo", "het_chameleon"))
    seeds = range(2 if chosen.quick else 10)
    rows = []
    for name in datasets:
        for seed in seeds:
            rows += measure(name, seed, ("influence", "newton", "retrain"))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for name in datasets:
        body = []
        for kind in kinds:
            cells = []
            for alpha in ALPHAS:
                mine = [r for r in rows if (r["dataset"], r["kind"], r["alpha"]) == (name, kind, alpha)]
                cells += [spread([r["coverage"] for r in mine]), f"{mean(r['size'] for r in mine):.2f}"]
            body.append([kind, *cells, f"{mean(r['accuracy'] for r in mine):.3f}"])
        table(
            f"{name}: 60 labels, {len(seeds)} splits",
            ["jurors", "coverage at 0.1", "size", "coverage at 0.2", "size", "accuracy"],
            body,
        )
    ratios = []
    for name in [d for d in datasets if d in CITATION]:
        sizes = {
            kind: mean(r["size"] for r in rows if (r["dataset"], r["kind"], r["alpha"]) == (name, kind, 0.1))
            for kind in ("newton", "split conformal")
        }
        ratios.append(sizes["newton"] / sizes["split conformal"])
    print(
        "set size, newton over split conformal at 0.1:",
        ", ".join(f"{ratio:.2f}" for ratio in ratios),
        f"(mean {mean(ratios):.2f})",
    )
    print(save("label_sets", summary(rows), quick=chosen.quick, runs=rows, learning_rates=UNDERFIT))


if __name__ == "__main__":
    main()
