"""Full conformal label sets: against retraining, their coverage and size, by class, after active learning, and cost.

Five questions, one after the other (``--only NAME`` asks one). Interrupted runs go on where they stopped.

- retraining: p-values of estimated bags against bags that are retrained to convergence (brute_force.py), on karate with
  20 labels, a block model of 150 nodes with 60, and Cora with 40; the panel alone against refitted regressions.
- coverage: 60 random labels, coverage and labels per set of full and jackknife+ sets at 500 test nodes, stacked jury,
  model alone and panel alone. Sizes are compared at equal measured coverage: the level of the jackknife+ is moved until
  its mean coverage is that of the full sets.
- ratio: the same sets on two graphs, with a standard error of the ratio of sizes over splits, by the bootstrap.
- classes: 140 random labels, the worst class's coverage with and without comparing within classes.
- explore: 100 labels by jury-design, a fifth of them drawn at random before; who votes, and what it costs.
- cost: CPU time of a verdict with and without full sets, and the largest memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from brute_force import full_scores, train_to_convergence
from full_rows import KINDS, class_rows, cost_rows, coverage_rows, explore_rows
from harness import RESULTS, options, save, table
from jurygcn import GCN, Jury, LeaveOut, active
from jurygcn.data import paper_split, random_labels, synthetic
from jurygcn.experiments.cells import Cells
from jurygcn.models import fit_gcn
from jurygcn.settings import Run
from jurygcn.verdict import Verdict
from protocol import CITATION, PLAIN, extra, graph, trial

UNDERFIT = {"amazon_photo": 0.05}  # the learning rate where 0.01 does not fit in 100 epochs
TESTED = 500
VERSION = 3  # increased by hand when more is measured
RATIO_GRAPHS, RATIO_SPLITS = ("cora", *extra("amazon_photo")), 40
GRAPHS = (*CITATION, *extra("amazon_photo"))

# --- against retraining -------------------------------------------------------------------------------

SMALL = {"karate": (20, 14), "sbm": (60, 30), "cora": (40, 20)}  # labels and nodes
HIDDEN, DECAY = 16, 5e-4
ITERATIONS = {1: "", 50: ", iterated"}  # of Newton's method for a juror


def retrained(name: str, count: int) -> dict[str, Any]:
    data = (
        synthetic(num_nodes=150, num_edges=900, num_features=16, num_classes=3, seed=0)
        if name == "sbm"
        else graph(name)
    )
    labels, classes = SMALL[name][0], int(data.num_classes)
    order = torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(0))
    train, nodes = order[:labels].sort().values, order[labels : labels + count].sort().values
    W1, W2 = train_to_convergence(data, train, hidden=HIDDEN, classes=classes, decay=DECAY)
    mine, others = full_scores(data, train, nodes, W1, W2, decay=DECAY)
    model = GCN(data.x.shape[1], HIDDEN, classes).double()
    with torch.no_grad():
        for weight, found in zip(model.weights, (W1, W2)):
            weight.copy_(found)
    true, found = (others <= mine.unsqueeze(2)).sum(dim=2), {}
    for iterations, words in ITERATIONS.items():
        how = LeaveOut("newton", iterations=iterations)
        jury = Jury(model, data, train, weight_decay=DECAY, leave_out=how).fit()
        verdict = jury.verdict(nodes, advice=None, diffusion=0, full=True)
        found |= {method + words: _off(verdict, method, true, labels) for method in ("full", "jackknife+")}
    return {**found, "bags": int(others.numel())}


def _off(verdict: Verdict, method: str, true: Tensor, labels: int) -> dict[str, float]:
    off = ((verdict.tally(method).counts - true).abs().double() / (labels + 1)).flatten()
    signed = float((verdict.tally(method).counts - true).double().mean()) / (labels + 1)
    spread = {"median": float(off.median()), "p95": float(off.quantile(0.95))}
    return {**spread, "mean": float(off.mean()), "bias": signed}


# --- coverage -----------------------------------------------------------------------------------------


def sets_of(name: str, seed: int, labels: int) -> dict[str, Any]:
    """Coverage and size of all sets of one split, at every rank."""
    t = trial(name, seed=seed, num_labels=labels, lr=UNDERFIT.get(name, PLAIN.lr))
    nodes = t.split.test[:TESTED]
    truth, jury = t.data.y[nodes], t.jury("newton")
    found: dict[str, Any] = {}
    for kind, settings in KINDS.items():
        if labels == 60 or kind == "stacked":
            verdict = jury.verdict(nodes, full=True, **settings)
            found[kind] = {method: _ranks(verdict, truth, method) for method in ("full", "jackknife+")}
            found[kind]["classes"] = _by_class(verdict, truth)
    return found


def _ranks(verdict: Verdict, truth: Tensor, method: str) -> list[list[float]]:
    """Coverage and mean size of the sets {counts + 1 > rank}, for every rank from 1 on."""
    counts = verdict.tally(method).counts + 1
    own, n = counts.gather(1, truth[:, None]).squeeze(1), int(verdict.num_jurors.max())
    return [
        [round(float((own > rank).double().mean()), 4), round(float((counts > rank).sum(dim=1).double().mean()), 4)]
        for rank in range(n // 2)
    ]


def _by_class(verdict: Verdict, truth: Tensor) -> dict[str, Any]:
    """Hits and nodes of every class at level 0.1, labels per set, and the share of comparisons with too few labels."""
    found: dict[str, Any] = {}
    for method in ("full", "jackknife+"):
        for by in (None, "class"):
            sets = verdict.label_sets(0.1, method=method, by=by)
            hit = sets.gather(1, truth[:, None]).squeeze(1)
            C = sets.shape[1]
            found[f"{method}, {by or 'all'}"] = {
                "hits": torch.bincount(truth[hit], minlength=C).tolist(),
                "nodes": torch.bincount(truth, minlength=C).tolist(),
                "size": float(sets.sum(dim=1).double().mean()),
                "too_few": float(verdict.too_few(0.1, by=by).double().mean()),
            }
    return found


# --- after active learning ----------------------------------------------------------------------------


def explored(seed: int, share: float) -> dict[str, Any]:
    """Cora, 100 labels by jury-design: accuracy, and coverage by those who vote."""
    data = graph("cora")
    split = paper_split(data, seed=seed)
    history = active.run(data, "jury-design", budget=100, seed=seed, split=split, recipe=PLAIN, explore=share)
    nodes = history.labelled
    model, _ = fit_gcn(data, nodes, PLAIN, seed=seed)
    found: dict[str, Any] = {"accuracy": history.steps[-1].accuracy}
    others = torch.ones(int(data.num_nodes), dtype=torch.bool)
    others[nodes] = False
    left = others.nonzero().squeeze(1)
    truth = data.y[left]
    groups = {"all labels vote": None}
    if share:
        groups["drawn labels vote"] = history.explored
    for voters, drawn in groups.items():
        jury = Jury(model, data, nodes, weight_decay=PLAIN.weight_decay, chosen="actively", drawn=drawn).fit()
        for kind, settings in (("stacked", {}), ("panel alone", {"advice": "panel"})):
            verdict = jury.verdict(left, full=True, **settings)
            for method in ("jackknife+", "full"):
                for alpha in (0.1, 0.2):
                    sets = verdict.label_sets(alpha, method=method)
                    found[f"{voters}, {kind}, {method}, {alpha}"] = [
                        float(sets.gather(1, truth[:, None]).double().mean()),
                        float(sets.sum(dim=1).double().mean()),
                    ]
    return found


# --- cost ---------------------------------------------------------------------------------------------


COSTLY: dict[str, dict[str, Any]] = {
    "stacked": {},
    "model alone": {"advice": None, "diffusion": 0},
    "model alone, averaged votes": {"advice": None, "diffusion": 1},
}


def cost(name: str) -> dict[str, Any]:
    data = graph(name)
    labels = random_labels(paper_split(data, seed=0).pool, 60, seed=0)
    model, _ = fit_gcn(data, labels, PLAIN, seed=0)
    found: dict[str, Any] = {"C": int(data.num_classes)}
    before = time.process_time()
    jury = Jury(model, data, labels, weight_decay=PLAIN.weight_decay, run=Run(memory="1GB")).fit()
    found["fit"] = time.process_time() - before
    for kind, settings in COSTLY.items():
        first = jury.cost(full=True, **settings).full_seconds
        jury.verdict(**settings)
        found[kind] = {
            "estimated before": first,
            "estimated": jury.cost(full=True, **settings).full_seconds,
            "jackknife+": _seconds(lambda settings=settings: jury.verdict(**settings), 5),
            "full, first": _seconds(lambda settings=settings: jury.verdict(full=True, **settings), 1),
            "full": _seconds(lambda settings=settings: jury.verdict(full=True, **settings), 3),
        }
    found["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found


def _seconds(do: Callable[[], object], times: int) -> float:
    """The least CPU time of some runs."""
    taken = []
    for _ in range(times):
        before = time.process_time()
        do()
        taken.append(time.process_time() - before)
    return min(taken)


# --- all ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="", help="retraining, coverage, classes, explore or cost")
    parser.add_argument("--report", action="store_true", help="only what is measured already")
    mine, rest = parser.parse_known_args()
    sys.argv = [sys.argv[0], *rest]
    chosen = options(__doc__)
    quick = chosen.quick
    plan: dict[str, tuple[Callable[..., dict[str, Any]], list[dict[str, Any]]]] = {
        "retraining": (
            retrained,
            [{"name": n, "count": 2 if quick else c} for n, (_, c) in SMALL.items() if not (quick and n == "cora")],
        ),
        "cost": (cost, [{"name": name} for name in (["cora"] if quick else ["cora", "pubmed"])]),
        "coverage": (
            sets_of,
            [
                {"name": n, "seed": s, "labels": 60}
                for s in range(2 if quick else 100)
                for n in GRAPHS[: 1 if quick else 9]
            ],
        ),
        "classes": (
            sets_of,
            [
                {"name": n, "seed": s, "labels": 140}
                for s in range(1 if quick else 20)
                for n in GRAPHS[: 1 if quick else 9]
            ],
        ),
        "ratio": (
            sets_of,
            [
                {"name": n, "seed": s, "labels": 60}
                for s in range(2 if quick else RATIO_SPLITS)
                for n in (GRAPHS[:1] if quick else RATIO_GRAPHS)
            ],
        ),
        "explore": (explored, [{"seed": s, "share": e} for s in range(1 if quick else 50) for e in (0.2, 0.0)]),
    }
    kept = {name: Cells(f"full_{name}{'_quick' if quick else ''}", lambda _: f"v{VERSION}") for name in plan}
    for name, (run, cells) in plan.items():
        if mine.only in ("", name) and not mine.report:
            kept[name].measure(cells, run, what=name, show=True)
    rows = {name: kept[name].rows(cells) for name, (_, cells) in plan.items()}
    report(rows, quick=quick)


def report(rows: dict[str, list[dict[str, Any]]], *, quick: bool) -> None:
    """Print all tables and write the summary."""
    summary: list[dict[str, Any]] = []

    def keep(part: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        summary.extend({"part": part, **row} for row in found)
        return found

    again = [
        {"dataset": r["name"], "nodes": r["count"], "bags": r["bags"], "method": m, **r[m]}
        for r in rows["retraining"]
        for m in (method + words for words in ITERATIONS.values() for method in ("full", "jackknife+"))
    ]
    table(
        "p-values against retrained bags",
        ("graph", "nodes", "method", "median", "95 %", "mean", "bias"),
        [
            (r["dataset"], r["nodes"], r["method"], *(f"{r[k]:.4f}" for k in ("median", "p95", "mean", "bias")))
            for r in keep("retraining", again)
        ],
    )
    by_name = {n: [r for r in rows["coverage"] if r["name"] == n] for n in GRAPHS}
    found = [row for n, some in by_name.items() if len(some) > 1 for row in coverage_rows(n, some, 60)]
    table(
        "coverage and labels per set, 60 labels",
        ("graph", "jury", "alpha", "splits", "full", "se", "size", "jackknife+", "size", "ratio", "se", "reached"),
        [
            (
                *(r["dataset"], r["kind"], r["alpha"], r["splits"], f"{r['coverage']:.3f}"),
                *(f"{r['standard_error']:.4f}", f"{r['size']:.2f}", f"{r['jackknife_coverage']:.3f}"),
                *(f"{r['jackknife_size']:.2f}", f"{r['size_ratio']:.3f}", f"{r['ratio_error']:.3f}", r["reached"]),
            )
            for r in keep("coverage", found)
        ],
    )
    found = [
        row
        for n in RATIO_GRAPHS
        if len(some := [r for r in rows["ratio"] if r["name"] == n]) > 1
        for row in coverage_rows(n, some, 60)
    ]
    table(
        "ratio of sizes at equal coverage, 60 labels",
        ("graph", "jury", "alpha", "splits", "full", "size", "ratio", "se"),
        [
            (
                *(r["dataset"], r["kind"], r["alpha"], r["splits"], f"{r['coverage']:.3f}", f"{r['size']:.2f}"),
                *(f"{r['size_ratio']:.3f}", f"{r['ratio_error']:.3f}"),
            )
            for r in keep("ratio", found)
        ],
    )
    by_name = {n: [r for r in rows["classes"] if r["name"] == n] for n in GRAPHS}
    found = [row for n, some in by_name.items() if some for row in class_rows(n, some)]
    table(
        "classes, 140 labels, level 0.1",
        ("graph", "sets", "splits", "worst class", "all nodes", "size", "too few"),
        [
            (
                *(r["dataset"], r["sets"], r["splits"], f"{r['worst_class']:.3f}", f"{r['coverage']:.3f}"),
                *(f"{r['size']:.2f}", f"{r['too_few']:.0%}"),
            )
            for r in keep("classes", found)
        ],
    )
    found = explore_rows(rows["explore"])
    table(
        "after active learning, Cora, 100 labels",
        ("explored", "what", "runs", "value", "size", "se"),
        [
            (
                *(r["share"], r["what"], r["runs"], f"{r['value']:.3f}"),
                *("" if r["size"] is None else f"{r['size']:.2f}", f"{r.get('standard_error') or 0:.4f}"),
            )
            for r in keep("explore", found)
        ],
    )
    found = cost_rows(rows["cost"])
    table(
        "CPU seconds of a verdict on all nodes, 60 labels, memory 1 GB",
        ("graph", "jury", "fit", "jackknife+", "full", "first", "estimated", "ratio", "2C", "with fit", "peak MB"),
        [
            (
                *(r["dataset"], r["kind"], f"{r['fit']:.2f}", f"{r['jackknife+']:.3f}", f"{r['full']:.2f}"),
                *(f"{r['full, first']:.2f}", f"{r['estimated']:.2f}", f"{r['ratio']:.1f}", r["bound"]),
                *(f"{r['with_fit']:.1f}", f"{r['peak_megabytes']:.0f}"),
            )
            for r in keep("cost", found)
        ],
    )

    def about(row: dict[str, Any]) -> tuple[str, str | None]:
        return row["part"], row.get("dataset")

    measured, path = {about(row) for row in summary}, RESULTS / "full_conformal.json"
    before = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() and not quick else []
    save("full_conformal", [*summary, *(row for row in before if about(row) not in measured)], quick=quick)


if __name__ == "__main__":
    main()
