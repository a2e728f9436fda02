"""The jury beside other methods: catching errors, probabilities, label sets, classes never seen; 60 random labels.

What `jurygcn evaluate` measures, on the three citation graphs. Every score is to catch the errors of its own method's
model. Jury, max-probability, entropy, temperature scaling and energy judge the same GCN (the paper's, without dropout);
MC dropout, the ensemble, Laplace, GPN and S-GNN have models of their own, with other errors. Temperature scaling and
GPN also use the labels of 500 validation nodes. Split conformal has the same 60 labels, a random half of them for
calibration. CF-GNN has the same 60 labels, a quarter of them for its second network and a quarter for calibration; its
rows with validation labels choose the epoch by 500 more. It takes minutes for each split, so it may have fewer splits
than the others; the table then says so. Left out are 3, 2 and 1 of the classes. Interrupted runs go on where they
stopped; --finished publishes what is there.
"""

from __future__ import annotations

from statistics import mean

from harness import options, save, table
from jurygcn.choices import COMPARED_ALPHA, COMPARED_SPLITS
from jurygcn.data import cache_folder
from jurygcn.experiments.comparison import CORRECTED, LABELS, METHODS, Evaluation, evaluate
from jurygcn.experiments.experiment import records
from jurygcn.learning import preset_for
from protocol import CITATION, graph

QUICK = ("jury", "split conformal", "temperature", "energy")


def rows_of(name: str, found: Evaluation) -> list[dict]:
    return [{"table": key, "dataset": name, **row} for key, frame in found.tables.items() for row in records(frame)]


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is measured")
    rows = []
    for name in CITATION[:1] if chosen.quick else CITATION:
        kept = None if chosen.quick else cache_folder() / "benchmarks" / "evaluation" / name
        methods, splits = (QUICK, 1) if chosen.quick else (METHODS, COMPARED_SPLITS)
        given = {"splits": splits, "keep": kept, "finished": chosen.finished}
        slow = tuple(method for method in methods if method == CORRECTED)  # its splits are counted apart
        for some in (tuple(method for method in methods if method not in slow), slow):
            if some:
                found = evaluate(graph(name), methods=some, preset=preset_for(name), progress=True, **given)
                rows += rows_of(name, found)
    for part, value in (("errors", "auroc"), ("sets", "size"), ("strange", "auroc")):
        mine = [row for row in rows if row["table"] == part]
        names = list(dict.fromkeys((row["method"], row.get("score", "")) for row in mine))
        datasets = list(dict.fromkeys(row["dataset"] for row in mine))
        by = {((row["method"], row.get("score", "")), row["dataset"]): row[value] for row in mine}
        body = []
        for key in names:
            values = [by.get((key, dataset)) for dataset in datasets]
            overall = "" if None in values else f"{mean(values):.3f}"
            body.append([" ".join(key).strip(), *("" if v is None else f"{v:.3f}" for v in values), overall])
        table(f"{part}: {value}", ["method", *datasets, "mean"], body)
    print(save("evaluation", rows, quick=chosen.quick, labels=LABELS, alpha=COMPARED_ALPHA))


if __name__ == "__main__":
    main()
