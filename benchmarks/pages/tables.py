"""The tables of README.md and docs/results.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from pages import active, comparison, costs, learning, reproduced
from pages.findings import findings
from pages.picture import PICTURE
from pages.rows import (
    CITATION,
    DEFAULT,
    MAX_PROBABILITY,
    OPINION,
    SPLIT,
    Document,
    Documents,
    Row,
    auroc,
    column,
    listed,
    named,
    scores_of,
    size_ratios,
    spread,
    values_of,
    width_ratio,
)


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def in_words(value: Any) -> str:
    """A setting, as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{in_words(v)} on {named(k)}" for k, v in value.items())
    if isinstance(value, list):
        nested = any(isinstance(item, list) for item in value)
        return ", ".join(f"{item[1]} at {item[0]}" if nested else in_words(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def setting_words(document: Document) -> Iterator[str]:
    known = {"benchmark", "quick", "environment", "rows", "words"}
    settings = {key: value for key, value in document.items() if key not in known}
    settings |= settings.pop("settings", {})
    for key, value in settings.items():
        yield f"{key.replace('_', ' ')}: {in_words(value)}"


def section(title: str, document: Document, *tables: str) -> str:
    """Title, the script's own description, its settings, what it ran on, the tables."""
    where = document["environment"]
    ran = (
        f"`benchmarks/{document['benchmark']}.py` prints this. jurygcn {where['jurygcn']}, Python {where['python']}, "
        f"torch {where['torch']}, torch_geometric {where['torch_geometric']}, {where['cpu_count']} cores, "
        f"threads: {where['threads']}."
    )
    settings = "; ".join(setting_words(document))
    return "\n\n".join(
        [f"## {title}", document["words"], *([f"Settings: {settings}."] if settings else []), ran, *tables]
    )


# --- README


def readme(found: Documents) -> str:
    sets, fidelity, errors = (found[name]["rows"] for name in ("label_sets", "fidelity", "error_detection"))
    labels = re.search(r"(\d+) random labels", found["label_sets"]["words"])
    body = []

    def line(words: str, script: str, rows: Sequence[Row], key: str, digits: int = 3, **where: Any) -> None:
        cells = [f"{mean(column(rows, key, dataset=name, **where)):.{digits}f}" for name in CITATION]
        body.append([words, *cells, f"`{script}.py`"])

    for kind, words in (("newton", "jury"), (SPLIT, SPLIT)):
        line(f"Coverage of label sets, target 0.9: {words}", "label_sets", sets, "coverage", kind=kind, alpha=0.1)
    for kind, words in (("newton", "jury"), (SPLIT, SPLIT)):
        line(f"Labels per set: {words}", "label_sets", sets, "size", 2, kind=kind, alpha=0.1)
    for epochs in values_of(fidelity, "epochs"):
        words = f"Correlation of jurors with retraining, {epochs} epochs"
        line(words, "fidelity", fidelity, "newton_correlation", epochs=epochs)
    for score in (OPINION, DEFAULT, MAX_PROBABILITY):
        line(f"AUROC for wrong predictions: {score}", "error_detection", errors, score)

    smaller = 1 - mean(size_ratios(sets))
    text = [
        f"![Coverage and size of label sets, and AUROC of scores, on three citation graphs]({PICTURE})",
        markdown(
            [f"{labels[1] if labels else ''} random labels, means over splits", *CITATION.values(), "Script"], body
        ),
        f"Split conformal has the same labels, half of them for calibration; the jury's sets are {smaller:.0%} smaller "
        "on average over the three graphs.",
    ]
    if "evaluation" in found:
        text.append(
            f"Beside entropy, max-probability, temperature scaling, energy, MC dropout, an ensemble, Laplace, GPN and "
            f"S-GNN, each judged by its own model's errors: {comparison.in_short(found['evaluation'])} `evaluation.py`."
        )
    if "semi_supervised" in found:
        text.append(learning.in_short(found["semi_supervised"]))
    if "regression" in found:
        text.append(regression_sentence(found["regression"]))
    if "any_gnn" in found:
        text.append(any_gnn_sentence(found["any_gnn"]))
    text.append("All tables, with what went wrong: [Results](docs/results.md).")
    return "\n\n".join(text)


def regression_sentence(document: Document) -> str:
    rows = document["rows"]
    parts = [
        f"{mean(column(rows, 'coverage', graph=graph, kind='jackknife+')):.3f} on {named(graph)} "
        f"({width_ratio(rows, graph):.2f} times as wide as split conformal's)"
        for graph in values_of(rows, "graph")
    ]
    return (
        f"Regression, {document['labels']} labels, target {1 - document['alpha']:g}: jackknife+ intervals cover "
        f"{listed(parts)}; `regression.py`."
    )


def any_gnn_sentence(document: Document) -> str:
    graphs = values_of(document["rows"], "graph")
    parts = [
        f"{model} {' / '.join(f'{value:.3f}' for value in column(document['rows'], 'newton_correlation', model=model))}"
        for model in values_of(document["rows"], "model")
    ]
    where = " / ".join(f"`{name}`" for name in graphs)
    return f"Other models, correlation of jurors with retraining on {where}: {listed(parts)}; `any_gnn.py`."


# --- docs/results.md


def results(found: Documents) -> str:
    made = [
        "![Coverage and size of label sets, and AUROC of scores](figures/headline.png)",
        *(write(found[name]) for name, write in SECTIONS.items() if name in found),
        "## What went wrong, or less well than hoped",
        "\n".join(f"- {finding}" for finding in findings(found)),
    ]
    return "\n\n".join(made)


def endurance(found: Documents) -> str:
    """What docs/reliability.md says of long runs."""
    body = [
        [
            f"{row['count']:,} {row['what']}",
            f"{row['warm_mb']:.0f} MB",
            f"{row['growth_mb']:.2f} MB",
            str(row["files_before"]),
            str(row["files_most"]),
        ]
        for row in found.get("endurance", {"rows": []})["rows"]
    ]
    head = ["in one process", "memory after warm-up", "growth to the end", "open files before", "open files at most"]
    return markdown(head, body)


def label_sets(document: Document) -> str:
    rows, tables = document["rows"], []
    for name in values_of(rows, "dataset"):
        body = []
        for kind in values_of(rows, "kind"):
            cells = []
            for alpha in values_of(rows, "alpha"):
                where = {"dataset": name, "kind": kind, "alpha": alpha}
                cells += [spread(column(rows, "coverage", **where)), spread(column(rows, "size", **where), 2)]
            body.append([kind, *cells, f"{mean(column(rows, 'accuracy', **where)):.3f}"])
        columns = [c for a in values_of(rows, "alpha") for c in (f"coverage, target {1 - a:g}", "labels per set")]
        splits = len(values_of(rows, "seed"))
        tables += [f"**{named(name)}**, {splits} splits:", markdown(["jurors", *columns, "test accuracy"], body)]
    ratios = ", ".join(f"{ratio:.2f}" for ratio in size_ratios(rows))
    tables.append(
        f"Set size of newton jurors over that of split conformal at target 0.9, on {listed(list(CITATION.values()))}: "
        f"{ratios}; mean {mean(size_ratios(rows)):.2f}."
    )
    return section("Label sets", document, *tables)


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
    note = (
        f"{len(values_of(rows, 'seed'))} splits each; mean newton correlation over everything: "
        f"{mean(column(rows, 'newton_correlation')):.3f}. The error is the mean leave-one-out error of the jurors."
    )
    return section("Jurors against retraining", document, markdown(head, body), note)


def error_detection(document: Document) -> str:
    rows = document["rows"]
    names = values_of(rows, "dataset")
    order = sorted(scores_of(document), key=lambda score: -auroc(document, score))
    body = [
        [score, *(spread(column(rows, score, dataset=name)) for name in names), f"{auroc(document, score):.3f}"]
        for score in order
    ]
    note = f"AUROC, {len(values_of(rows, 'seed'))} splits; 0.5 is chance."
    return section("Catching errors", document, markdown(["score", *map(named, names), "mean"], body), note)


def regression(document: Document) -> str:
    rows, tables = document["rows"], []
    for name in values_of(rows, "graph"):
        body = [
            [kind, *(spread(column(rows, key, graph=name, kind=kind)) for key in ("coverage", "width"))]
            for kind in values_of(rows, "kind")
        ]
        title = f"**{named(name)}**, {len(values_of(rows, 'seed'))} splits, target {1 - document['alpha']:g}:"
        ratio = f"jackknife+ is {width_ratio(rows, name):.2f} times as wide as split conformal."
        tables += [title, markdown(["interval", "coverage", "mean width"], body), ratio]
    return section("Regression", document, *tables)


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
    head = ["model", "test accuracy", "gradient norm", *(key.replace("_", " ") for key in keys)]
    return section("Any GNN", document, markdown(head, body))


def speed(document: Document) -> str:
    return section("Speed", without(document, "dense", "libraries"), *costs.speed(document, markdown))


def scale(document: Document) -> str:
    return section("Reddit's size", without(document, "nodes", "edges"), *costs.scale(document, markdown))


def growth(document: Document) -> str:
    return section("Growth", without(document, "base", "exponents"), *costs.growth(document, markdown))


def linearized(document: Document) -> str:
    return section("Linearised jurors", document, *costs.linearized(document, markdown))


def without(document: Document, *keys: str) -> Document:
    """The document but for what its tables show anyway."""
    return {key: value for key, value in document.items() if key not in keys}


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
    splits = listed(sorted({str(row["splits"]) for row in document["rows"]}))
    return section("Accuracy of the model itself", document, markdown(head, body), f"{splits} splits.")


def active_learning(document: Document) -> str:
    plain = without(document, "claims", "plain_training_seconds", "choosing_seconds")
    return section("Active learning", plain, *active.tables(document, markdown))


def active_design(document: Document) -> str:
    return section("The parts of jury-design", document, *active.ablation(document, markdown))


def semi_supervised(document: Document) -> str:
    plain = {key: value for key, value in document.items() if key not in ("paper", "ours", "validated", "rivals")}
    return section("Learning from few labels", plain, *learning.tables(document, markdown))


def bandits(document: Document) -> str:
    return section("Bandits", document, *learning.bandit_tables(document, markdown))


def evaluation(document: Document) -> str:
    return section("The jury beside other methods", document, *comparison.tables(document, markdown))


def reproduction(document: Document) -> str:
    return section("The paper's tables and figures", document, *reproduced.tables(document, markdown))


SECTIONS = {
    "evaluation": evaluation,
    "label_sets": label_sets,
    "fidelity": fidelity,
    "error_detection": error_detection,
    "regression": regression,
    "any_gnn": any_gnn,
    "active_learning": active_learning,
    "active_design": active_design,
    "semi_supervised": semi_supervised,
    "bandits": bandits,
    "speed": speed,
    "scale": scale,
    "growth": growth,
    "linearized": linearized,
    "accuracy": accuracy,
    "reproduction": reproduction,
}
