"""Tables of time and memory. Times are of one run on one machine: the ratios are what counts."""

from __future__ import annotations

from collections.abc import Callable

from pages.rows import Document, named

Markdown = Callable[..., str]


def speed(document: Document, markdown: Markdown) -> list[str]:
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
    dense, ours = document["dense"]["dense"], document["dense"]["ours"]
    others = [
        [row["library"], named(row["dataset"]), f"{row['speedup']:,.0f}", f"{row['difference']:.0e}"]
        for row in document["libraries"]
    ]
    return [
        "How many times faster fit and verdict of all nodes are than retraining every juror:",
        markdown(["graph", "fit and verdict", *routes.values()], body),
        f"Against the dense route (Cora, 10 labels, h = 8): {dense['seconds'] / ours['seconds']:,.0f} times faster.",
        markdown(["same influences of 100 nodes by", "graph", "times faster", "relative difference"], others),
    ]


def scale(document: Document, markdown: Markdown) -> list[str]:
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
    return [f"{document['nodes']:,} nodes, {document['edges']:,} edges.", markdown(head, body)]


def growth(document: Document, markdown: Markdown) -> list[str]:
    body = [
        [row["changed"], *(f"{row[key]:.2f}" for key in ("fit_s", "verdict_s", "both"))]
        for row in document["exponents"]
    ]
    base = ", ".join(f"{value:,} {name}" for name, value in document["base"].items())
    return [
        f"{base} where not changed.",
        markdown(["seconds grow as this size to the power of", "fit", "verdict", "both"], body),
        "![Seconds of fit and verdict over each size](figures/growth.png)",
    ]


def linearized(document: Document, markdown: Markdown) -> list[str]:
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
    return [
        markdown(head, body),
        "With many labels what a juror says of its own node decides nearly everything; that is never compressed. The "
        "variance over jurors is, so it is too small by about the share outside.",
    ]
