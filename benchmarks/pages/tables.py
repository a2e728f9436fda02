"""All tables of README.md and the docs, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import mean
from typing import Any

from pages import active, comparison, costs, edits, full, labelling, learning, reproduced, validation
from pages.rows import (
    CITATION,
    DEFAULT,
    MAX_PROBABILITY,
    SPLIT,
    Document,
    Documents,
    Tables,
    auroc,
    column,
    date_of,
    markdown,
    named,
    scores_of,
    script_of,
    spread,
    values_of,
)


def all_tables(found: Documents) -> dict[str, str]:
    """Every table that these results give."""
    made = {"headline": headline(found), "environments": environments(found)}
    for name, write in WRITERS.items():
        if name in found:
            tables = write(found[name])
            made |= {name: tables} if isinstance(tables, str) else dict(tables)
    return made


def headline(found: Documents) -> str:
    """The table of README.md."""
    body = []

    def line(words: str, script: str, key: str, digits: int = 3, **where: Any) -> None:
        rows = found[script]["rows"]
        cells = [f"{mean(column(rows, key, dataset=name, **where)):.{digits}f}" for name in CITATION]
        body.append([words, *cells, f"`{script}.py`", date_of(found[script])])

    stacked = {"method": "stacked", "labels": 60}
    alone = (("newton", "the model's jurors alone"), (SPLIT, SPLIT))
    line("Coverage of label sets, target 0.9: **stacked jury** (default)", "advice", "coverage", **stacked)
    for kind, words in alone:
        line(f"Coverage of label sets, target 0.9: {words}", "label_sets", "coverage", kind=kind, alpha=0.1)
    line("Labels per set: **stacked jury**", "advice", "size", 2, **stacked)
    for kind, words in alone:
        line(f"Labels per set: {words}", "label_sets", "size", 2, kind=kind, alpha=0.1)
    line("AUROC for wrong predictions: **stacked jury**", "advice", "auroc", **stacked)
    for score, words in ((DEFAULT, "ambiguity of the model's jurors"), (MAX_PROBABILITY, MAX_PROBABILITY)):
        line(f"AUROC for wrong predictions: {words}", "error_detection", score)
    for epochs in values_of(found["fidelity"]["rows"], "epochs"):
        words = f"Correlation of jurors with retraining, {epochs} epochs"
        line(words, "fidelity", "newton_correlation", epochs=epochs)
    return markdown(["60 random labels, means over splits", *CITATION.values(), "Script", "Measured"], body)


def environments(found: Documents) -> str:
    """What each result was measured with."""
    columns = {
        "jurygcn": "jurygcn",
        "Python": "python",
        "torch": "torch",
        "torch_geometric": "torch_geometric",
        "cores": "cpu_count",
        "threads": "threads",
    }
    body = [
        [
            f"`{script_of(name)}`",
            date_of(found[name]),
            *(str(found[name]["environment"][key]) for key in columns.values()),
        ]
        for name in WRITERS
        if name in found
    ]
    return markdown(["script", "measured", *columns], body)


def endurance(document: Document) -> str:
    """Long runs, for docs/reliability.md."""
    body = [
        [
            f"{row['count']:,} {row['what']}",
            f"{row['warm_mb']:.0f} MB",
            f"{row['growth_mb']:.2f} MB",
            str(row["files_before"]),
            str(row["files_most"]),
        ]
        for row in document["rows"]
    ]
    head = ["in one process", "memory after warm-up", "growth to the end", "open files before", "open files at most"]
    return markdown(head, body)


def label_sets(document: Document) -> Tables:
    rows = document["rows"]
    columns = [c for a in values_of(rows, "alpha") for c in (f"coverage, target {1 - a:g}", "labels per set")]
    for name in values_of(rows, "dataset"):
        body = []
        for kind in values_of(rows, "kind"):
            cells = []
            for alpha in values_of(rows, "alpha"):
                row = next(r for r in rows if (r["dataset"], r["kind"], r["alpha"]) == (name, kind, alpha))
                cells += [
                    f"{row['coverage']:.3f} ± {row['coverage_sd']:.3f}",
                    f"{row['size']:.2f} ± {row['size_sd']:.2f}",
                ]
            body.append([kind, *cells, f"{row['accuracy']:.3f}"])
        yield f"label_sets: {name}", markdown(["jurors", *columns, "test accuracy"], body)


def advice(document: Document) -> Tables:
    """The stacked jury: one table for each number of labels."""
    rows = document["rows"]
    keys = {"coverage": 3, "size": 2, "auroc": 3, "accuracy": 3, "ece": 3, "nll": 3}
    for labels in values_of(rows, "labels"):
        body = []
        for row in (row for row in rows if row["labels"] == labels):
            cells = [f"{row[key]:.{d}f} ± {row[f'{key}_sd']:.{d}f}" if key in row else "" for key, d in keys.items()]
            body.append([f"{named(row['dataset'])}, {row['method']}", *cells])
        head = ["graph, method", "coverage, target 0.9", "labels per set", "AUROC", "accuracy", "ECE", "NLL"]
        yield f"advice: {labels} labels", markdown(head, body)


def advice_splits(document: Document) -> str:
    """Coverage on more splits."""
    body = [
        [
            f"{named(row['dataset'])}, {row['method']}",
            str(row["splits"]),
            f"{row['coverage']:.3f} ± {row['error']:.3f}",
            f"{row['lowest']:.3f}",
            f"{row['first_ten']:.3f}",
            f"{row['size']:.2f}",
        ]
        for row in document["rows"]
    ]
    head = ["graph, method", "splits", "coverage ± standard error", "lowest", "first 10 splits", "labels per set"]
    return markdown(head, body)


def fidelity(document: Document) -> str:
    rows, body = document["rows"], []
    for name in values_of(rows, "dataset"):
        for epochs in values_of(rows, "epochs"):
            get = {
                k: column(rows, k, dataset=name, epochs=epochs) for k in rows[0] if k.endswith(("error", "correlation"))
            }
            correlations = [spread(get[f"{kind}_correlation"]) for kind in ("influence", "newton")]
            mistakes = [spread(get[f"{kind}_error"]) for kind in ("influence", "newton", "retrain")]
            bias = mean(get["newton_error"]) / mean(get["retrain_error"]) - 1
            body.append([f"{named(name)}, {epochs} epochs", *correlations, *mistakes, f"{bias:+.1%}"])
    head = ["", "influence corr.", "newton corr.", "influence error", "newton error", "retrained error", "newton bias"]
    return markdown(head, body)


def error_detection(document: Document) -> str:
    rows = document["rows"]
    names = values_of(rows, "dataset")
    order = sorted(scores_of(document), key=lambda score: -auroc(document, score))
    body = [
        [score, *(spread(column(rows, score, dataset=name)) for name in names), f"{auroc(document, score):.3f}"]
        for score in order
    ]
    return markdown(["score", *map(named, names), "mean"], body)


def regression(document: Document) -> Tables:
    rows = document["rows"]
    for name in values_of(rows, "graph"):
        body = [
            [kind, *(spread(column(rows, key, graph=name, kind=kind)) for key in ("coverage", "width"))]
            for kind in values_of(rows, "kind")
        ]
        yield f"regression: {name}", markdown(["interval", "coverage", "mean width"], body)


def any_gnn(document: Document) -> str:
    keys = ("influence_correlation", "newton_correlation", "influence_error", "newton_error", "retrained_error")
    body = [
        [
            f"{row['model']}, {row['graph']}",
            f"{row['accuracy']:.3f}",
            f"{row['gradient']:.1e}",
            *(f"{row[key]:.3f}" for key in keys),
        ]
        for row in document["rows"]
    ]
    return markdown(["model", "test accuracy", "gradient norm", *(key.replace("_", " ") for key in keys)], body)


def real_models(document: Document) -> str:
    def about(row: Mapping[str, Any], call: str) -> list[str]:
        if call not in row:  # measured before the script had this call
            return ["–"] * 4
        r = row[call]
        covered = f"{r['coverage']:.3f} ({r['least_coverage']:.3f} to {r['most_coverage']:.3f})"
        return [covered, f"{r['size']:.2f}", f"{r['auroc']:.3f}", f"{r['ratio']:.2f}"]

    body = [
        [
            f"{row['model']}, {named(row['graph'])}",
            f"{row['accuracy']:.3f}",
            *about(row, "default"),
            *about(row, "alone"),
            f"{row['auroc_max_probability']:.3f}",
            f"{row['alone']['peak_gb']:.1f} GB",
        ]
        for row in document["rows"]
    ]
    each = ["labels per set", "AUROC", "time"]
    head = [
        "model",
        "accuracy",
        "coverage by default",
        *each,
        "coverage alone",
        *each,
        "AUROC max-probability",
        "memory",
    ]
    return markdown(head, body)


def real_models_agreement(document: Document) -> str:
    kinds = ("plain", "averaged", "effective", "corrected")
    body = [
        [
            row["model"],
            f"{row['retrained_mean']:.3f}",
            *(f"{row[kind]['mean']:.3f}, {row[kind]['correlation']:.3f}, {row[kind]['rmse']:.3f}" for kind in kinds),
            f"{row['step_length']:.2f}",
        ]
        for row in document["rows"]
    ]
    return markdown(["model", "retrained", *kinds, "length of corrected steps"], body)


def accuracy(document: Document) -> str:
    rates = [f"{rate:g}" for rate in document["settings"]["dropouts"]]
    body = [
        [
            named(row["dataset"]),
            str(row["labels"]),
            *(f"{row[f'dropout {rate}']['mean']:.1f} ± {row[f'dropout {rate}']['sd']:.1f}" for rate in rates),
            str(row["paper"]),
        ]
        for row in document["rows"]
    ]
    head = ["test accuracy, %", "labels", *(f"dropout {rate}" for rate in rates), "the paper's Random row"]
    return markdown(head, body)


WRITERS: Mapping[str, Callable[[Document], str | Tables]] = {
    "evaluation": comparison.tables,
    "label_sets": label_sets,
    "advice": advice,
    "advice_splits": advice_splits,
    "full_conformal": full.tables,
    "iterations": full.iterations,
    "fidelity": fidelity,
    "free_validation": validation.tables,
    "error_detection": error_detection,
    "regression": regression,
    "any_gnn": any_gnn,
    "real_models": real_models,
    "real_models_agreement": real_models_agreement,
    "active_learning": active.tables,
    "active_protocols": active.protocols,
    "active_gains": active.gains,
    "active_design": active.ablation,
    "active_windows": active.windows,
    "labelling": labelling.tables,
    "semi_supervised": learning.tables,
    "bandits": learning.bandits,
    "speed": costs.speed,
    "scale": costs.scale,
    "many_labels": costs.many_labels,
    "growth": costs.growth,
    "linearized": costs.linearized,
    "accuracy": accuracy,
    "what_if": edits.tables,
    "reproduction": reproduced.tables,
    "endurance": endurance,
}
