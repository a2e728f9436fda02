"""The jury beside other methods on the results page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

from pages.rows import Document, Row, listed, named, values_of

Markdown = Callable[[Sequence[str], Any], str]
SAME, JURY, CLOSE = "the same GCN", "jury", 0.01
WITHOUT_JURORS = ("panel_doubt", "neighbour_doubt")


def part(document: Document, table: str) -> list[Row]:
    return [row for row in document["rows"] if row["table"] == table]


def across(rows: Sequence[Row], key: str) -> dict[tuple[str, str], float]:
    """The mean over graphs of every method and score."""
    names = dict.fromkeys((row["method"], row.get("score", "")) for row in rows)
    return {
        (method, score): mean(row[key] for row in rows if (row["method"], row.get("score", "")) == (method, score))
        for method, score in names
    }


def tables(document: Document, markdown: Markdown) -> Iterator[str]:
    """Errors, probabilities, label sets, left-out classes."""
    errors, strange = part(document, "errors"), part(document, "strange")
    names = values_of(errors, "dataset")
    yield f"Splits: {splits_of(errors)}" + (f"; with classes left out: {splits_of(strange)}." if strange else ".")
    yield "**Catching wrong predictions.** AUROC on each graph, mean ± sd over splits, then means over the graphs:"
    yield markdown(
        ["method, score", "errors of", *map(named, names), "AUROC", "AUPR", "AURC"],
        [
            [*_name(key, errors), *_cells(errors, key, names), *(f"{across(errors, m)[key]:.3f}" for m in METRICS)]
            for key in _order(errors)
        ],
    )
    yield standing(document)
    probabilities = part(document, "probabilities")
    yield "**Probabilities.** Accuracy on each graph, then means over the graphs:"
    yield markdown(
        ["method", *map(named, names), "accuracy", "ECE", "NLL", "Brier"],
        [
            [
                key[0],
                *_cells(probabilities, key, names, "accuracy"),
                *(f"{across(probabilities, m)[key]:.3f}" for m in ("accuracy", "ece", "nll", "brier")),
            ]
            for key in across(probabilities, "accuracy")
        ],
    )
    sets = part(document, "sets")
    target = 1 - document["alpha"]
    yield f"**Label sets**, target {target:g}: coverage; labels per set; accuracy of sets with one label:"
    yield markdown(
        ["method", *map(named, names), "labels per set, mean"],
        [
            [key[0], *(_set_cell(sets, key[0], name) for name in names), f"{size:.2f}"]
            for key, size in across(sets, "size").items()
        ],
    )
    yield set_sentence(document)
    if strange:
        yield "**Classes left out of training.** AUROC of telling their nodes from the others:"
        there = values_of(strange, "dataset")
        yield markdown(
            ["method, score", *map(named, there), "mean"],
            [
                [_name(key, strange)[0], *_cells(strange, key, there), f"{across(strange, 'auroc')[key]:.3f}"]
                for key in _order(strange)
            ],
        )


def splits_of(rows: Sequence[Row]) -> str:
    """How many splits there are of each graph."""
    counts = {named(row["dataset"]): row["splits"] for row in rows}
    return ", ".join(f"{name} {count}" for name, count in counts.items())


METRICS = ("auroc", "aupr", "aurc")


def _order(rows: Sequence[Row]) -> list[tuple[str, str]]:
    found = across(rows, "auroc")
    return sorted(found, key=lambda key: -found[key])


def _name(key: tuple[str, str], rows: Sequence[Row]) -> list[str]:
    model = next(row["model"] for row in rows if (row["method"], row["score"]) == key)
    words = f"{key[0]}, {key[1].replace('_', ' ')}"
    return [f"**{words}**" if key[0] == JURY else words, "the GCN" if model == SAME else "its own model"]


def _cells(rows: Sequence[Row], key: tuple[str, str], names: Sequence[str], value: str = "auroc") -> list[str]:
    by = {row["dataset"]: row for row in rows if (row["method"], row.get("score", "")) == key}
    return [f"{by[name][value]:.3f} ± {by[name][f'{value}_sd']:.3f}" if name in by else "" for name in names]


def _set_cell(rows: Sequence[Row], method: str, name: str) -> str:
    row = next(row for row in rows if (row["method"], row["dataset"]) == (method, name))
    single = "none" if row["singleton_accuracy"] is None else f"{row['singleton_accuracy']:.3f}"
    return f"{row['coverage']:.3f}; {row['size']:.2f}; {single}"


def best(rows: Sequence[Row], *, ours: bool) -> tuple[tuple[str, str], float]:
    """The jury's best score by its mean over the graphs, or the best of all others."""
    found = {key: value for key, value in across(rows, "auroc").items() if (key[0] == JURY) == ours}
    key = max(found, key=lambda k: found[k])
    return key, found[key]


def standing(document: Document) -> str:
    """Where the jury's best score stands, over all graphs and on each."""
    errors = part(document, "errors")
    (_, mine), value = best(errors, ours=True)
    (method, score), other = best(errors, ours=False)
    where = []
    for name in values_of(errors, "dataset"):
        here = [row for row in errors if row["dataset"] == name]
        own = next(row["auroc"] for row in here if (row["method"], row["score"]) == (JURY, mine))
        rival = max((row for row in here if row["method"] != JURY), key=lambda row: row["auroc"])
        gap = own - rival["auroc"]
        where.append(f"{named(name)} {gap:+.3f} ({rival['method']}, {rival['score'].replace('_', ' ')})")
    jurors = {key[1]: auroc for key, auroc in across(errors, "auroc").items() if key[0] == JURY}
    for name in WITHOUT_JURORS:
        jurors.pop(name, None)
    best_of_jurors = max(jurors, key=lambda name: jurors[name])
    return (
        f"The jury's best score is {mine.replace('_', ' ')} with a mean AUROC of {value:.3f}; the best of the others "
        f"is {method}, {score.replace('_', ' ')} with {other:.3f}. On each graph it is ahead of the best of the others "
        f"there by: {', '.join(where)}. Ridge panel and neighbour doubt need no jurors; of the scores that rest on "
        f"them {best_of_jurors.replace('_', ' ')} is the best, with {jurors[best_of_jurors]:.3f}."
    )


def in_short(document: Document) -> str:
    """Where the jury's scores stand, in half a sentence per graph."""
    errors = part(document, "errors")
    parts = []
    for name in values_of(errors, "dataset"):
        here = [row for row in errors if row["dataset"] == name]
        ours, theirs = ([row for row in here if (row["method"] == JURY) == mine] for mine in (True, False))
        jurors = max((row for row in ours if row["score"] not in WITHOUT_JURORS), key=lambda row: row["auroc"])
        panel = next(row for row in ours if row["score"] == "panel_doubt")
        other = max(theirs, key=lambda row: row["auroc"])
        words = [f"{row['score'].replace('_', ' ')} {row['auroc']:.3f}" for row in (jurors, other)]
        parts.append(f"{named(name)} {words[0]}, {other['method']}'s {words[1]}, ridge panel {panel['auroc']:.3f}")
    return (
        "AUROC of the best score that rests on jurors, of the best of the others, and of the ridge panel, which asks "
        f"neither the model nor jurors: {'; '.join(parts)};"
    )


def set_sentence(document: Document) -> str:
    """How much smaller the jury's sets are."""
    sizes = {key[0]: value for key, value in across(part(document, "sets"), "size").items()}
    cover = {key[0]: value for key, value in across(part(document, "sets"), "coverage").items()}
    others = [f"{1 - sizes[JURY] / size:.0%} smaller than {name}'s" for name, size in sizes.items() if name != JURY]
    return (
        f"The jury's sets need no calibration labels, cover {cover[JURY]:.3f} on average over the graphs, and are "
        f"{listed(others)}."
    )


def findings(document: Document) -> Iterator[str]:
    """Where the jury is not first, or its sets are not what was hoped."""
    errors = part(document, "errors")
    for name in values_of(errors, "dataset"):
        here = [row for row in errors if row["dataset"] == name]
        mine, other = (
            max((row for row in here if (row["method"] == JURY) == ours), key=lambda row: row["auroc"])
            for ours in (True, False)
        )
        if mine["auroc"] < other["auroc"] - CLOSE:
            yield (
                f"**On {named(name)} {other['method']} tells its errors better** "
                f"({other['score'].replace('_', ' ')}, AUROC {other['auroc']:.3f}) than the jury's best score does the "
                f"GCN's ({mine['score'].replace('_', ' ')}, {mine['auroc']:.3f})."
            )
    strange = part(document, "strange")
    if strange:
        ((_, mine), value), ((method, theirs), other) = best(strange, ours=True), best(strange, ours=False)
        if value < other - CLOSE:
            yield (
                f"**Classes that were left out are told best by {method}** ({theirs.replace('_', ' ')}, mean AUROC "
                f"{other:.3f}), not by the jury ({mine.replace('_', ' ')}, {value:.3f})."
            )
    default = across(errors, "auroc")[JURY, "ambiguity"]
    (_, score), value = best(errors, ours=True)
    if score != "ambiguity" and value > default:
        yield (
            f"The default score, ambiguity, is not the jury's best at catching errors on these graphs: "
            f"{score.replace('_', ' ')} has a mean AUROC of {value:.3f}, ambiguity {default:.3f}."
        )
    for row in part(document, "sets"):
        if row["method"] == JURY and row["coverage"] < 1 - document["alpha"]:
            yield (
                f"**The jury's sets cover {row['coverage']:.3f} on {named(row['dataset'])}**, below the target of "
                f"{1 - document['alpha']:g} (the guarantee is {1 - 2 * document['alpha']:g})."
            )
