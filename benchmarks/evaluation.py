"""The jury beside other methods: catching errors, probabilities, label sets, classes never seen; 60 random labels.

What `jurygcn evaluate` measures, on the three citation graphs. Every score is to catch the errors of its own method's
model. Jury, max-probability, entropy, temperature scaling and energy judge the same GCN (the paper's, without dropout);
MC dropout, the ensemble, Laplace, GPN and S-GNN have models of their own, with other errors. Temperature scaling and
GPN also use the labels of 500 validation nodes. Split conformal has the same 60 labels, a random half of them for
calibration. Left out are 3, 2 and 1 of the classes. The numbers are from before jurors took advice: "panel doubt" is a
former score, which advice replaces, and whose form was chosen on other splits of these graphs, so its numbers lean to
the hopeful side; advice.py measures the stacked jury. Interrupted runs go on
where they stopped; --finished publishes what is there.
"""

from __future__ import annotations

from statistics import mean

from harness import options, save, table
from jurygcn.choices import COMPARED_ALPHA, COMPARED_SPLITS
from jurygcn.data import cache_folder
from jurygcn.experiments.comparison import LABELS, METHODS, Evaluation, evaluate
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
        given = {"methods": methods, "splits": splits, "keep": kept, "finished": chosen.finished}
        rows += rows_of(name, evaluate(graph(name), preset=preset_for(name), progress=True, **given))
    for part, value in (("errors", "auroc"), ("sets", "size"), ("strange", "auroc")):
        mine = [row for row in rows if row["table"] == part]
        names = list(dict.fromkeys((row["method"], row.get("score", "")) for row in mine))
        datasets = list(dict.fromkeys(row["dataset"] for row in mine))
        by = {((row["method"], row.get("score", "")), row["dataset"]): row[value] for row in mine}
        body = []
        for key in names:
            values = [by[key, dataset] for dataset in datasets]
            body.append([" ".join(key).strip(), *(f"{v:.3f}" for v in values), f"{mean(values):.3f}"])
        table(f"{part}: {value}", ["method", *datasets, "mean"], body)
    print(save("evaluation", rows, quick=chosen.quick, labels=LABELS, alpha=COMPARED_ALPHA))


if __name__ == "__main__":
    main()
