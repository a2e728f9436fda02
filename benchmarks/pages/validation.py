"""Tables of what left-out labels say, on docs/results/validation.md."""

from __future__ import annotations

from typing import Any

from pages.rows import Document, Row, Tables, markdown, named

METHODS = {
    "jury": "**jury, no label spent**",
    "left-out labels alone": "left-out labels alone, no label spent",
    "5-fold": "5-fold cross-validation",
    "30/30": "30 labels train, 30 validate",
    "training labels": "the training labels themselves",
    "stacked jury": "stacked jury (of itself)",
}
CHOICES = {
    "folds": "5 folds, expected accuracy",
    "folds, log loss": "5 folds, log loss",
    "folds, calibrated": "5 folds, calibrated log loss",
    "folds, accuracy": "5 folds, accuracy",
    "jury": "**jurors, expected accuracy**",
    "jury, log loss": "jurors, log loss",
    "jury, calibrated": "jurors, calibrated log loss",
    "jury, accuracy": "jurors, accuracy",
}


def tables(document: Document) -> Tables:
    """All of them; parts that were not measured are left out."""
    rows = document["rows"]
    for part, write in (("accuracy", accuracy), ("calibration", calibration), ("selection", selection)):
        yield f"free_validation: {part}", write([row for row in rows if row["part"] == part])
    errors = [row for row in rows if row["part"] == "errors"]
    yield "free_validation: errors", found_errors(errors)
    yield "free_validation: removed", removed(errors)


def about(row: Row) -> str:
    kind = row.get("kind", "GCN")
    return named(row["name"]) + ("" if kind == "GCN" else f", {kind}")


def accuracy(rows: list[Row]) -> str:
    body = [
        [
            about(row),
            METHODS.get(row["method"], row["method"]),
            str(row["splits"]),
            f"{row['test']:.3f}",
            f"{row['estimate']:.3f}",
            f"{row['bias']:+.3f}",
            f"{row['rmse']:.3f}",
            f"{row['rmse'] / row['binomial']:.2f}",
            f"{row['covered']:.2f}",
            "" if row["method"] == "stacked jury" else f"{row['trainings']:.1f}",
        ]
        for row in rows
    ]
    head = ["graph", "estimate by", "splits", "test accuracy", "estimate", "bias", "RMSE", "RMSE / binomial"]
    return markdown([*head, "interval covers", "further trainings"], body, text=2)


def calibration(rows: list[Row]) -> str:
    body = [
        [
            about(row),
            "**left-out labels**" if row["method"] == "left-out labels" else row["method"],
            str(row["splits"]),
            f"{row['ece']:.3f} ± {row['ece_sd']:.3f}",
            f"{row['ece'] - row['validated']:+.3f}",
            f"{row['nll']:.3f}",
        ]
        for row in rows
    ]
    head = ["graph", "temperature from", "splits", "ECE", "against 500 validation labels", "NLL"]
    return markdown(head, body, text=2)


def selection(rows: list[Row]) -> str:
    body = [
        [
            about(row),
            CHOICES.get(row["method"], row["method"]),
            str(row["splits"]),
            f"{row['accuracy']:.3f} ± {row['accuracy_sd']:.3f}",
            f"{row['relative_cost']:.2f}" if "relative_cost" in row else "",
            f"{row['tied']:.1f}" if "tied" in row else "",
        ]
        for row in rows
    ]
    head = ["graph", "chosen by", "splits", "test accuracy", "time / training all once", "tied with it"]
    return markdown(head, body, text=2)


def found_errors(rows: list[Row]) -> str:
    scores = ("jury", "model's jurors", "cleanlab, 5-fold", "self-influence", "in-sample")
    body = [
        [
            about(row),
            f"{row['rate']:.0%} {row['flips']}",
            str(row["splits"]),
            *(_best(row, score, scores) for score in scores),
        ]
        for row in rows
    ]
    return markdown(["graph", "labels flipped", "splits", *scores], body, text=2)


def _best(row: Row, score: str, scores: tuple[str, ...]) -> str:
    if score not in row:
        return ""
    text = f"{row[score]:.3f}"
    return f"**{text}**" if row[score] == max(row[other] for other in scores if other in row) else text


def removed(rows: list[Row]) -> str:
    def share(value: Any) -> str:
        return "" if value is None else f"{value:.2f}"

    body = [
        [
            about(row),
            f"{row['rate']:.0%} {row['flips']}",
            f"{row['jury flagged']:.0f}",
            share(row["jury found"]),
            share(row["jury false"]),
            share(row["estimated"]),
            share(row["noise"]),
            f"{row['cleanlab flagged']:.0f}" if "cleanlab flagged" in row else "",
            share(row.get("cleanlab found")),
            share(row.get("cleanlab false")),
            *(
                f"{row[key]:.3f}" if (key := f"accuracy, {words}") in row else ""
                for words in ("all labels", "without flagged", "without cleanlab's", "without wrong")
            ),
        ]
        for row in rows
    ]
    head = ["graph", "labels flipped", "flagged", "errors found", "false", "false, estimated", "noise, estimated"]
    head += ["cleanlab: flagged", "found", "false", "accuracy: all labels", "without flagged"]
    return markdown([*head, "without cleanlab's", "without all errors"], body, text=2)
