"""Do estimated jurors agree with retrained ones? Influence, newton and cold-start retraining side by side.

Every training node's juror is retrained (60 random labels, GCN h=16, no dropout, weight decay 5e-4).
"""

from __future__ import annotations

from statistics import mean

import torch

from harness import options, save, table
from jurygcn.diagnostics.fidelity import correlate
from protocol import CITATION, spread, trial


def compare(name: str, epochs: int, seed: int) -> dict[str, object]:
    t = trial(name, seed=seed, epochs=epochs)
    index = torch.arange(len(t.labels))
    row: dict[str, object] = {"dataset": name, "epochs": epochs, "seed": seed}
    own = {}
    for kind in ("retrain", "influence", "newton"):
        jury = t.jury(kind)
        own[kind] = jury.leave_one_out_predictions(t.labels)[index, index, t.data.y[t.labels]]
        row[f"{kind}_error"] = float(jury.verdict(t.labels, diffusion=0, advice=None).loo_errors.mean())
    for kind in ("influence", "newton"):
        row[f"{kind}_correlation"] = correlate(own[kind], own["retrain"])
    return row


def main() -> None:
    chosen = options(__doc__)
    seeds = range(2 if chosen.quick else 5)
    datasets = CITATION[:1] if chosen.quick else CITATION
    rows = [compare(name, epochs, seed) for name in datasets for epochs in (100, 500) for seed in seeds]
    shown = []
    for name in datasets:
        for epochs in (100, 500):
            mine = [row for row in rows if (row["dataset"], row["epochs"]) == (name, epochs)]
            column = {
                key: [float(row[key]) for row in mine] for key in mine[0] if key.endswith(("error", "correlation"))
            }
            shown.append(
                [
                    f"{name}, {epochs} epochs",
                    spread(column["influence_correlation"]),
                    spread(column["newton_correlation"]),
                    *(f"{mean(column[f'{kind}_error']):.3f}" for kind in ("influence", "newton", "retrain")),
                    f"{mean(column['newton_error']) / mean(column['retrain_error']) - 1:+.1%}",
                ]
            )
    table(
        "Jurors against cold-start retraining: the probability of the left-out label",
        ["60 labels", "influence corr.", "newton corr.", "influence err", "newton err", "retrained err", "newton bias"],
        shown,
        note=f"{len(seeds)} splits; mean newton correlation over all: "
        f"{mean(float(row['newton_correlation']) for row in rows):.3f}",
    )
    print(save("fidelity", rows, quick=chosen.quick))


if __name__ == "__main__":
    main()
