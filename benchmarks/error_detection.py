"""Which score catches wrong predictions? AUROC on the test nodes, 60 random labels.

The scores of the model's own jurors, without advice; advice.py measures the stacked jury. The paper's width is here as
it is: a weak score. "Default" is the jury's ambiguity with the diffusion the jurors choose. The ridge panel, where it
is in the table, is a former score, which advice replaces.
"""

from __future__ import annotations

from statistics import mean

from harness import options, save, table
from jurygcn.evaluation import accuracy, error_auroc
from protocol import CITATION, spread, trial

ABOUT = ("dataset", "seed", "diffusion", "accuracy")


def scores(name: str, seed: int) -> dict[str, object]:
    t = trial(name, seed=seed)
    test = t.split.test
    jury = t.jury("newton")
    default, raw, twice = (jury.verdict(test, diffusion=k, advice=None) for k in ("auto", 0, 2))
    pi = default.outputs
    wrong = default.predicted_class != t.data.y[test]
    everything = {
        "default (ambiguity)": default.uncertainty(),
        "max-probability": 1 - pi.amax(dim=1),
        "entropy": -(pi * pi.clamp_min(1e-12).log()).sum(dim=1),
        "ambiguity, no diffusion": raw.ambiguity,
        "ambiguity, diffusion 2": twice.ambiguity,
        "stacked jury": jury.verdict(test).doubt,
        "neighbour doubt": default.neighbour_doubt,
        "paper's width": raw.width,
        "paper's width, influence jurors": t.jury("influence").verdict(test, diffusion=0, advice=None).width,
        "variance over jurors": raw.loo_variance,
        "label flips": raw.label_flips,
    }
    truth = t.data.y[test]
    return {
        "dataset": name,
        "seed": seed,
        "diffusion": default.diffusion,
        "accuracy": accuracy(default.predicted_class, truth),
        **{key: error_auroc(value, wrong) for key, value in everything.items()},
    }


def main() -> None:
    chosen = options(__doc__)
    datasets = CITATION[:1] if chosen.quick else CITATION
    seeds = range(2 if chosen.quick else 10)
    rows = [scores(name, seed) for name in datasets for seed in seeds]
    names = [key for key in rows[0] if key not in ABOUT]
    body = []
    for key in names:
        cells = [[float(r[key]) for r in rows if r["dataset"] == d] for d in datasets]
        body.append([key, *(spread(c) for c in cells), f"{mean(mean(c) for c in cells):.3f}"])
    table(f"AUROC of catching wrong predictions, {len(seeds)} splits", ["score", *datasets, "mean"], body)
    gains = {
        d: mean(float(r["default (ambiguity)"]) - float(r["max-probability"]) for r in rows if r["dataset"] == d)
        for d in datasets
    }
    print("default over max-probability:", ", ".join(f"{d} {g:+.3f}" for d, g in gains.items()))
    print(save("error_detection", rows, quick=chosen.quick))


if __name__ == "__main__":
    main()
