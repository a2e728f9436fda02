"""How do fit and verdict of all nodes grow with the graph, its features, its classes and its labels?

A synthetic graph in which one size at a time is doubled, the others staying. The exponent is the slope of log time over
log size across all sizes of a row; a small one says that something else costs more there. Edges per node stay as they
are when nodes are added, so that row doubles the edges too. Times are CPU seconds of one thread, without advice.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy and torch load their libraries

import numpy as np
import torch

from harness import FIGURES, options, save, table
from jurygcn import Jury
from jurygcn.data import synthetic
from jurygcn.models.training import fit_gcn
from protocol import PLAIN

FIGURE = FIGURES / "growth.png"
BASE = {"nodes": 16_000, "edges": 80_000, "labels": 50, "features": 64, "classes": 4}
SIZES: dict[str, list[int]] = {
    "nodes": [8_000, 16_000, 32_000, 64_000, 128_000],
    "edges": [80_000, 160_000, 320_000, 640_000, 1_280_000],
    "labels": [50, 100, 200, 400, 800],
    "features": [64, 128, 256, 512, 1024],
    "classes": [4, 8, 16, 32],
}
DECAY, REPEATS = PLAIN.weight_decay, 3


def measure(changed: str, size: int) -> dict[str, Any]:
    sizes = BASE | {changed: size}
    if changed == "nodes":
        sizes["edges"] = 5 * size
    data = synthetic(
        num_nodes=sizes["nodes"],
        num_edges=sizes["edges"],
        num_features=sizes["features"],
        num_classes=sizes["classes"],
        seed=0,
    )
    nodes = torch.randperm(sizes["nodes"], generator=torch.Generator().manual_seed(0))[: sizes["labels"]]
    model, _ = fit_gcn(data, nodes, replace(PLAIN, epochs=50), seed=0, outputs=sizes["classes"])
    fit, verdict = [], []
    for _ in range(REPEATS):
        started = time.process_time()
        jury = Jury(model, data, nodes, weight_decay=DECAY, votes="exact").fit()
        between = time.process_time()
        jury.verdict(advice=None)
        fit.append(between - started)
        verdict.append(time.process_time() - between)
    return {
        "changed": changed,
        "size": size,
        "fit_s": min(fit),
        "verdict_s": min(verdict),
        "solver": jury.jurors.solver,
    }


def exponent(rows: list[dict[str, Any]], key: str) -> float:
    """Slope of log time over log size."""
    size = np.log([row["size"] for row in rows])
    seconds = np.log([row["fit_s"] + row["verdict_s"] if key == "both" else row[key] for row in rows])
    return float(np.polyfit(size, seconds, 1)[0])


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8, 5.2), layout="constrained")
        panels = figure.subplots(2, 3, sharey=True).ravel()
        for spare in panels[len(SIZES) :]:
            spare.remove()
        for axes, changed in zip(panels, SIZES):
            mine = [row for row in rows if row["changed"] == changed]
            size = [row["size"] for row in mine]
            for key, colour, marker in (("fit_s", "#D55E00", "s"), ("verdict_s", "#0072B2", "o")):
                label = f"{key[:-2]}, slope {exponent(mine, key):.2f}"
                axes.loglog(size, [row[key] for row in mine], color=colour, marker=marker, markersize=4, label=label)
            axes.set_title(changed, loc="left", fontsize=10)
            axes.set_xticks(
                size, [f"{s / 1e6:.1f}M" if s >= 1e6 else f"{s // 1000}k" if s >= 2000 else str(s) for s in size]
            )
            axes.minorticks_off()
            axes.set_ylim(top=9)  # room for the legend
            axes.grid(axis="y", color="#EEEEEE")
            axes.legend(frameon=False, fontsize=8)
        for axes in panels[::3]:
            axes.set_ylabel("seconds")
        figure.savefig(FIGURE, dpi=150, metadata={"Software": None})


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    wanted = {name: sizes[:2] if chosen.quick else sizes for name, sizes in SIZES.items()}
    rows = [measure(name, size) for name, sizes in wanted.items() for size in sizes]
    slopes = []
    for name in wanted:
        mine = [row for row in rows if row["changed"] == name]
        slopes.append({"changed": name, **{key: exponent(mine, key) for key in ("fit_s", "verdict_s", "both")}})
    table(
        "Exponents: seconds grow as size to the power of",
        ["size", "from", "to", "fit", "verdict", "both"],
        [
            [
                slope["changed"],
                f"{wanted[slope['changed']][0]:,}",
                f"{wanted[slope['changed']][-1]:,}",
                *(f"{slope[key]:.2f}" for key in ("fit_s", "verdict_s", "both")),
            ]
            for slope in slopes
        ],
        note=", ".join(f"{value:,} {name}" for name, value in BASE.items()) + " where not changed; h = 16",
    )
    if not chosen.quick:
        draw(rows)
    print(save("growth", rows, quick=chosen.quick, base=BASE, exponents=slopes))


if __name__ == "__main__":
    main()
