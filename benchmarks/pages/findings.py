"""What went wrong, in sentences: each stands only as long as the results bear it out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from pages import active, comparison, learning, reproduced
from pages.rows import (
    DEFAULT,
    MAX_PROBABILITY,
    NEIGHBOURS,
    OPINION,
    WIDTH,
    Document,
    Documents,
    Row,
    auroc,
    column,
    listed,
    named,
    values_of,
)

# seen in jury.fidelity(60).frame of that split
WHY_LOW = {
    ("cora", 100): " There a single juror still believes in the label it left out, where the retrained one does not; "
    "after longer training it does not happen."
}


def findings(found: Documents) -> Iterator[str]:
    yield from findings_on_scores(found["error_detection"])
    yield from findings_on_sets(found["label_sets"]["rows"])
    yield from findings_on_jurors(found["fidelity"]["rows"])
    if "evaluation" in found:
        yield from comparison.findings(found["evaluation"])
    if "regression" in found:
        yield from findings_on_regression(found["regression"])
    if "active_learning" in found:
        yield from active.findings(found["active_learning"])
    if "reproduction" in found:
        yield from reproduced.findings(found["reproduction"])
    if "semi_supervised" in found:
        yield from learning.findings(found["semi_supervised"])


def findings_on_scores(document: Document) -> Iterator[str]:
    rows = document["rows"]
    width, influence_width = auroc(document, WIDTH), auroc(document, f"{WIDTH}, influence jurors")
    if max(width, influence_width) < 0.6:
        yield (
            f"**The paper's width is a weak score.** Its mean AUROC is {width:.3f} with newton jurors and "
            f"{influence_width:.3f} with the paper's influence jurors: no better than chance. "
            "[Why](how_it_works.md#honest-limits)."
        )
    if OPINION in rows[0] and auroc(document, OPINION) > auroc(document, DEFAULT):
        theirs, ours = auroc(document, "opinion_accuracy"), auroc(document, "accuracy")
        yield (
            f"**The best score asks neither the model nor its jurors.** {OPINION.capitalize()} has a mean AUROC of "
            f"{auroc(document, OPINION):.3f}, the default {auroc(document, DEFAULT):.3f}. It is another classifier, "
            f"whose own labels are right on {theirs:.1%} of the test nodes, the judged GCN's on {ours:.1%}; "
            "and it was [chosen](how_it_works.md#8-verdict) by looking at other splits of the same graphs."
        )
    if auroc(document, NEIGHBOURS) > auroc(document, DEFAULT):
        yield (
            f"**Neighbours catch more errors than jurors on these graphs.** {NEIGHBOURS.capitalize()}, which needs no "
            f"jurors, has a mean AUROC of {auroc(document, NEIGHBOURS):.3f}, the default "
            f"{auroc(document, DEFAULT):.3f}. It takes for granted that neighbours share labels; the default lets the "
            "jurors find out."
        )
    for name in values_of(rows, "dataset"):
        gain = mean(column(rows, DEFAULT, dataset=name)) - mean(column(rows, MAX_PROBABILITY, dataset=name))
        if gain < 0:
            yield f"**On {named(name)} the default score is no better than max-probability**: {gain:+.3f} in AUROC."


def findings_on_sets(rows: Sequence[Row]) -> Iterator[str]:
    def at(name: str, kind: str, key: str = "coverage") -> float:
        return mean(column(rows, key, dataset=name, kind=kind, alpha=0.1))

    names = values_of(rows, "dataset")
    bad = [f"{at(name, 'influence'):.3f} on {named(name)}" for name in names if at(name, "influence") < 0.85]
    if bad:
        yield f"**Influence jurors cover far too little**: at target 0.9, {listed(bad)}."
    larger = [d for d in names if at(d, "newton", "size") > at(d, "retrain", "size")]
    if larger:
        pairs = [f"{at(d, 'newton', 'size'):.2f} against {at(d, 'retrain', 'size'):.2f} on {named(d)}" for d in larger]
        yield f"**Newton jurors can be too careful**: larger sets than retrained jurors', {listed(pairs)}."
    for name in names:
        if at(name, "newton") < 0.87:
            yield (
                f"**Newton jurors under-cover slightly on {named(name)}**: {at(name, 'newton'):.3f} at target 0.9, "
                f"{at(name, 'newton, no diffusion'):.3f} without diffusion, where retrained jurors reach "
                f"{at(name, 'retrain'):.3f} and {at(name, 'retrain, no diffusion'):.3f}. The model is right on only "
                f"{at(name, 'newton', 'accuracy'):.0%} of the test nodes there."
            )
        if at(name, "newton", "size") > at(name, "newton, no diffusion", "size"):
            yield (
                f'**`diffusion="auto"` enlarges the sets on {named(name)}**, from '
                f"{at(name, 'newton, no diffusion', 'size'):.2f} to {at(name, 'newton', 'size'):.2f} labels, with "
                f"coverage {at(name, 'newton, no diffusion'):.3f} and {at(name, 'newton'):.3f}: it looks for good "
                "probabilities, not for small sets."
            )


def findings_on_jurors(rows: Sequence[Row]) -> Iterator[str]:
    for name in values_of(rows, "dataset"):
        for epochs in values_of(rows, "epochs"):
            found = sorted(column(rows, "newton_correlation", dataset=name, epochs=epochs))
            if found[0] < 0.93:
                yield (
                    f"**One split can spoil a mean.** On {named(name)} at {epochs} epochs newton jurors correlate "
                    f"{mean(found):.3f} with retraining on average: {found[0]:.3f} on the lowest split, "
                    f"{mean(found[1:]):.3f} on the others.{WHY_LOW.get((name, epochs), '')}"
                )


def findings_on_regression(document: Document) -> Iterator[str]:
    rows, grid = document["rows"], document["weight_decays"]
    for name in values_of(rows, "graph"):
        chosen = column(rows, "weight_decay", graph=name, kind="jackknife+")
        at_end = sum(decay == max(grid) for decay in chosen)
        if at_end > len(chosen) / 2:
            yield (
                f"**The grid of weight decays ends too early for the {name} graph**: the largest value was chosen in "
                f"{at_end} of {len(chosen)} splits, so a longer grid might narrow the intervals of both methods."
            )
