"""The tables of full conformal prediction."""

from __future__ import annotations

from pages.rows import Document, Tables, markdown, named


def tables(document: Document) -> Tables:
    """One table for each question of the script that has an answer."""
    parts = {"retraining": _retraining, "coverage": _coverage, "ratio": _ratio}
    parts |= {"classes": _classes, "explore": _explore, "cost": _cost}
    for name, write in parts.items():
        rows = [row for row in document["rows"] if row["part"] == name]
        if rows:
            yield f"full_conformal: {name}", write(rows)


def _retraining(rows: list[Document]) -> str:
    body = [
        [
            f"{named(r['dataset'])}, {r['nodes']} nodes, {r['method']}",
            *(f"{r[key]:.3f}" for key in ("median", "p95", "mean", "bias")),
        ]
        for r in rows
    ]
    return markdown(["p-values against retrained bags", "median", "95 %", "mean", "mean with sign"], body)


def _coverage(rows: list[Document]) -> str:
    body = [
        [
            f"{named(r['dataset'])}, {r['kind']}, {1 - r['alpha']:g}",
            str(r["splits"]),
            f"{r['coverage']:.3f} ± {r['standard_error']:.3f}",
            f"{r['size']:.2f}",
            f"{r['jackknife_coverage']:.3f}",
            f"{r['jackknife_size']:.2f}",
            f"{r['size_ratio']:.3f}",
        ]
        for r in rows
    ]
    head = ["graph, jury, target", "splits", "full: coverage ± standard error", "labels per set"]
    return markdown([*head, "jackknife+: coverage", "labels per set", "size ratio at equal coverage"], body)


def _ratio(rows: list[Document]) -> str:
    body = [
        [
            f"{named(r['dataset'])}, {r['kind']}, {1 - r['alpha']:g}",
            *(str(r["splits"]), f"{r['coverage']:.3f}", f"{r['jackknife_coverage']:.3f}"),
            f"{r['size_ratio']:.3f} ± {r['ratio_error']:.3f}",
        ]
        for r in rows
    ]
    head = ["graph, jury, target", "splits", "full: coverage", "jackknife+: coverage"]
    return markdown([*head, "size ratio at equal coverage ± standard error"], body)


def iterations(document: Document) -> Tables:
    """Jurors of one and of several iterations; sets of a model that stopped early."""
    compared = [row for row in document["rows"] if row["part"] == "compared"]
    body = [
        [
            f"{named(r['dataset'])}, {r['epochs']} epochs, {r['jurors']}",
            *(str(r["splits"]), f"{r['error']:.3f}", f"{r['bias']:+.3f}", f"{r['coverage']:.3f}", f"{r['size']:.2f}"),
            f"{1000 * r['seconds']:.0f}",
        ]
        for r in compared
    ]
    head = ["graph, jurors", "splits", "mean difference to retrained", "with sign", "coverage, target 0.9"]
    yield "iterations: compared", markdown([*head, "labels per set", "CPU ms to fit"], body)
    if rows := [row for row in document["rows"] if row["part"] == "underfitted"]:
        body = [
            [
                f"{r['jurors']}, {1 - r['alpha']:g}",
                *(str(r["splits"]), f"{r['coverage']:.3f} ± {r['standard_error']:.3f}"),
                f"{r['difference']:+.3f} ± {r['difference_error']:.3f}",
                *(f"{r['size']:.2f}", f"{r['relative_gradient']:.2f}"),
            ]
            for r in rows
        ]
        head = ["jurors, epochs of training, target", "splits", "coverage ± standard error"]
        head += ["minus that of one iteration", "labels per set", "relative gradient"]
        yield "iterations: underfitted", markdown(head, body)


def _classes(rows: list[Document]) -> str:
    body = [
        [
            f"{named(r['dataset'])}, {r['sets']}",
            *(str(r["splits"]), f"{r['worst_class']:.3f}", f"{r['coverage']:.3f}", f"{r['size']:.2f}"),
            f"{r['too_few']:.0%}",
        ]
        for r in rows
    ]
    head = ["graph, sets", "splits", "worst class", "all nodes", "labels per set", "comparisons with too few labels"]
    return markdown(head, body)


def _explore(rows: list[Document]) -> str:
    body = [
        [
            f"{r['share']:.0%} drawn: {r['what']}",
            str(r["runs"]),
            f"{r['value']:.3f}" + (f" ± {r['standard_error']:.3f}" if r.get("standard_error") is not None else ""),
            "" if r["size"] is None else f"{r['size']:.2f}",
        ]
        for r in rows
    ]
    return markdown(["Cora, 100 labels by jury-design", "runs", "accuracy, or coverage", "labels per set"], body)


def _cost(rows: list[Document]) -> str:
    body = [
        [
            f"{named(r['dataset'])}, {r['kind']}",
            *(f"{r[key]:.2f}" for key in ("fit", "jackknife+", "full", "full, first", "estimated")),
            *(f"{r['ratio']:.1f}", str(r["bound"]), f"{r['with_fit']:.1f}", f"{r['peak_megabytes']:.0f}"),
        ]
        for r in rows
    ]
    head = ["CPU seconds", "fit", "jackknife+", "full", "full, first time", "estimated by cost(full=True)"]
    return markdown([*head, "ratio", "2C", "ratio with fit", "peak MB"], body)
