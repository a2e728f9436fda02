"""How much of jury-design's window should belong to what the model sees? On graphs that no other table reports.

A two-layer GCN sees features averaged over two hops. `seen` is their fixed share of the window; the rest is shared by
all views, by what they foretell. Graphs: other draws of the synthetic graphs, scikit-learn's digits, WebKB Texas, and
US counties in five classes of equal size. The recipe is the longer one of active_learning.py, labels are added in steps
of 20 up to 100 (Texas: of 10 up to 60). Numbers are means of test accuracy over the query sizes, less that without a
fixed share, on the same splits. "expected gain" is jury-gain, with one half.
"""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import torch
from torch_geometric.data import Data

from active_design import TwoHops
from active_graphs import EDGES, FEATURES, NEITHER, misleading
from active_learning import LONGER
from harness import options, publish, save, table, with_published
from jurygcn import active
from jurygcn.active import Design
from jurygcn.active.gain import Gain
from jurygcn.data import synthetic
from protocol import Cells, extra, graph

FIRST_SEED, SPLITS, QUICK_SPLITS = 1000, 10, 1
WITHOUT = "no fixed share"
VARIANTS: dict[str, Any] = {
    WITHOUT: Design(seen=0.0),
    "a quarter": Design(seen=0.25),
    "half": Design(seen=0.5),
    "two hops alone": TwoHops(),
    "half, expected gain": Gain(),
    "random": "random",
}
TEXAS, COUNTIES = "webkb_texas", "us_county_election"


def development_graph(name: str, seed: int) -> Data:
    """A synthetic graph of its own for every split, or a real one."""
    if name == NEITHER:
        return misleading(seed=FIRST_SEED + seed)
    if name == FEATURES:
        return synthetic(
            num_nodes=2000,
            num_edges=8000,
            num_classes=5,
            homophily=0.3,
            separation=3.0,
            degree_exponent=3.0,
            seed=FIRST_SEED + 100 + seed,
        )
    if name == EDGES:
        return synthetic(
            num_nodes=2000, num_edges=10_000, num_classes=6, homophily=0.8, separation=0.3, seed=FIRST_SEED + 200 + seed
        )
    data = graph(name)
    return in_classes(data, 5) if name == COUNTIES else data


def in_classes(data: Data, count: int) -> Data:
    """The graph with a numeric target in classes of equal size."""
    target = data.y.flatten().double()
    inner = torch.quantile(target, torch.linspace(0, 1, count + 1, dtype=torch.float64)[1:-1])
    found = data.clone()
    found.y, found.num_classes = torch.bucketize(target, inner), count
    return found


def one_run(dataset: str, variant: str, seed: int) -> dict[str, Any]:
    history = active.run(
        development_graph(dataset, seed),
        VARIANTS[variant],
        seed=FIRST_SEED + seed,
        recipe=LONGER,
        initial=10,
        budget=60 if dataset == TEXAS else 100,
        step=10 if dataset == TEXAS else 20,
        learner="advised",
    )
    return {key: [100 * getattr(step, key) for step in history.steps[1:]] for key in ("accuracy", "learner_accuracy")}


def less(rows: list[dict[str, Any]], base: dict[int, dict[str, Any]], key: str) -> dict[str, Any]:
    """The mean difference over splits that have this learner, its standard error, and their number."""
    found = [mean(row[key]) - mean(base[row["seed"]][key]) for row in rows if row[key] and base[row["seed"]][key]]
    error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else None
    return {"difference": mean(found) if found else None, "error": error, "splits": len(found)}


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is finished")
    names = (NEITHER,) if chosen.quick else (NEITHER, FEATURES, EDGES, "digits", *extra(TEXAS, COUNTIES))
    seeds = range(QUICK_SPLITS if chosen.quick else SPLITS)
    name = "active_windows_quick" if chosen.quick else "active_windows"
    cells = with_published(Cells(name, lambda cell: f"1 {VARIANTS[cell['variant']]!r}"))
    wanted = [{"dataset": g, "variant": v, "seed": seed} for seed in seeds for g in names for v in VARIANTS]
    if not chosen.finished:
        cells.measure(wanted, one_run)
    rows = []
    for g in names:
        found = {v: [r for r in cells.rows(wanted) if (r["dataset"], r["variant"]) == (g, v)] for v in VARIANTS}
        base = {row["seed"]: row for row in found[WITHOUT]}
        for v, mine in found.items():
            shared = [row for row in mine if row["seed"] in base]
            if v != WITHOUT and shared:
                gcn, advised = (less(shared, base, key) for key in ("accuracy", "learner_accuracy"))
                rows.append({"dataset": g, "variant": v, "gcn": gcn, "advised": advised})
    table(
        "difference to no fixed share",
        ["graph", "variant", "GCN", "splits", "advised", "splits"],
        [[r["dataset"], r["variant"], *(x for k in ("gcn", "advised") for x in shown(r[k]))] for r in rows],
    )
    if not chosen.quick:
        publish(cells, wanted)
    save("active_windows", rows, quick=chosen.quick, first_seed=FIRST_SEED)


def shown(found: dict[str, Any]) -> tuple[str, int]:
    error = "" if found["error"] is None else f" ± {found['error']:.1f}"
    return ("" if found["difference"] is None else f"{found['difference']:+.1f}{error}"), found["splits"]


if __name__ == "__main__":
    main()
