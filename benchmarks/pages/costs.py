"""Tables of time and memory. Times are of one run on one machine: the ratios are what counts."""

from __future__ import annotations

from pages.rows import Document, Tables, markdown, named


def speed(document: Document) -> Tables:
    routes = {
        "ordinary_retraining": "ordinary PyG, full batch (one juror timed)",
        "own_retraining_one_by_one": "own training on the receptive field, one by one (one juror timed)",
        "own_retraining_stacked": "own training, all jurors as one stack",
    }
    body = [
        [
            f"{named(row['dataset'])}, {row['labels']} labels",
            f"{1000 * row['newton_s']:.0f} ms",
            *(f"{row[f'speedup_{route}']:,.0f}" for route in routes),
        ]
        for row in document["rows"]
    ]
    yield "speed", markdown(["graph", "fit and verdict", *routes.values()], body)
    others = [
        [row["library"], named(row["dataset"]), f"{row['speedup']:,.0f}", f"{row['difference']:.0e}"]
        for row in document["libraries"]
    ]
    head = ["same influences of 100 nodes by", "graph", "times faster", "relative difference"]
    yield "speed: other libraries", markdown(head, others)


def scale(document: Document) -> str:
    body = [
        [
            f"{row['labels']:,} {row['jurors']}",
            f"{row['fit_s']:.0f} s",
            f"{row['verdict_s']:.0f} s",
            f"{row['own_juror_s']:.1f} s",
            f"{row['speedup_own']:,.0f}",
            f"{row['ordinary_juror_s']:.0f} s",
            f"{row['speedup_ordinary']:,.0f}",
            f"{row['discarded']:.0%}",
            f"{row['coverage']:.3f}",
            f"{row['peak_gb']:.1f} GB",
        ]
        for row in document["rows"]
    ]
    head = [
        "labels, jurors",
        "fit",
        "verdict of all nodes",
        "one juror, receptive field",
        "times n: speed-up",
        "one juror, full batch",
        "times n: speed-up",
        "steps outside the directions",
        "coverage at 0.9",
        "peak memory so far",
    ]
    return markdown(head, body)


def growth(document: Document) -> str:
    body = [
        [row["changed"], *(f"{row[key]:.2f}" for key in ("fit_s", "verdict_s", "both"))]
        for row in document["exponents"]
    ]
    return markdown(["seconds grow as this size to the power of", "fit", "verdict", "both"], body)


def linearized(document: Document) -> str:
    body = [
        [
            f"{named(row['dataset'])}, {row['rank']} directions",
            f"{row['discarded']:.0%}",
            f"{row['mean_change']:.4f}",
            f"{row['largest_change']:.3f}",
            f"{row['same_sets']:.1%}",
            f"{row['coverage']:.3f}",
            f"{row['exact_coverage']:.3f}",
        ]
        for row in document["rows"]
    ]
    head = [
        "graph, 1,000 labels",
        "steps outside",
        "mean change of p-values",
        "largest",
        "same label set at 0.9",
        "coverage",
        "coverage, exact",
    ]
    return markdown(head, body)


def many_labels(document: Document) -> str:
    body = [
        [
            f"{row['labels']:,}, {row['jurors']:,}, {row['dropout']:g}",
            f"{row['training_s']:.0f} s",
            f"{row['fit_s']:.0f} s",
            f"{row['verdict_s']:.0f} s",
            f"{row['estimated_s']:.0f} s",
            f"{row['peak_gb']:.1f} GB",
            f"{row['coverage']:.3f}",
            f"{row['set_size']:.2f}",
        ]
        for row in document["rows"]
    ]
    head = [
        "labels, jurors, dropout",
        "training",
        "fit",
        "verdict of all nodes",
        "fit and verdict, estimated",
        "peak memory",
        "coverage at 0.9",
        "labels per set",
    ]
    return markdown(head, body)
