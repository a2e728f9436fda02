"""Learning from few labels and bandits on the results page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pages.rows import CITATION, Document, Row, listed, named, values_of

Markdown = Callable[[Sequence[str], Any], str]
CLEARLY, WITHIN = 5.0, 3.0  # points
LEVEL = 0.05


def tables(document: Document, markdown: Markdown) -> Iterator[str]:
    """Micro-F1 on each graph, what was claimed, the public split."""
    few = [row for row in document["rows"] if row["labels"] != "public"]
    ours = document["ours"]
    for name in values_of(few, "dataset"):
        rows = [row for row in few if row["dataset"] == name]
        counts, most = values_of(rows, "labels"), max(row["runs"] for row in rows)
        body = []
        for method in values_of(rows, "method"):
            cells = {row["labels"]: row for row in rows if row["method"] == method}
            shown = [_cell(cells[count]) if count in cells else "" for count in counts]
            paper = document["paper"].get(method, {}).get(name)
            runs = min(row["runs"] for row in cells.values())
            label = f"**{method}**" if method == ours else method if runs == most else f"{method}, {_runs(runs)}"
            body.append([label, *shown, "" if paper is None else f"{paper:.1f}"])
        yield f"**{named(name)}**, {_runs(most)}; columns are numbers of labels:"
        yield markdown(["method", *map(str, counts), f"the paper, {counts[-1]}"], body)
    yield (
        f"Micro-F1 in %, mean ± sd. An arrow says that the method differs from {ours} (p < {LEVEL:g}): ▼ below it, "
        "▲ above it. The paper's JuryGCN stands beside `reweight`, which is its method."
    )
    yield claims(document)
    yield "![Micro-F1 over label counts, as in the paper's Figure 1](figures/figure1.png)"
    public = [row for row in document["rows"] if row["labels"] == "public"]
    if public:
        names, methods = values_of(public, "dataset"), values_of(public, "method")
        cells = {(row["method"], row["dataset"]): f"{row['mean']:.1f} ± {row['sd']:.1f}" for row in public}
        body = [[method, *(cells.get((method, name), "") for name in names)] for method in methods]
        yield (
            "The same classifiers on the public split (Cora and the last columns: 20 random labels per class), "
            f"{_runs(public[0]['runs'])}; this shows that they are what their authors meant:"
        )
        yield markdown(["method", *map(named, names)], body)


def _cell(row: Row) -> str:
    differs = row["p_value"] is not None and row["p_value"] < LEVEL
    arrow = "" if not differs else " ▼" if row["gain"] > 0 else " ▲"
    return f"{row['mean']:.1f} ± {row['sd']:.1f}{arrow}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def on_citations(document: Document) -> list[Row]:
    """Rows of the paper's splits of its citation graphs: with all methods and many runs."""
    return [row for row in document["rows"] if row["labels"] != "public" and row["dataset"] in CITATION]


def standings(document: Document, method: str | None = None) -> Iterator[tuple[Row, Row]]:
    """Of every citation graph and label count, our row (or another method's) and the row of the best rival."""
    few = on_citations(document)
    for mine in (row for row in few if row["method"] == (method or document["ours"])):
        rivals = [
            row
            for row in few
            if (row["dataset"], row["labels"]) == (mine["dataset"], mine["labels"])
            and row["method"] in document["rivals"]
        ]
        if rivals:
            yield mine, max(rivals, key=lambda row: row["mean"])


def claims(document: Document) -> str:
    """How often ours wins, and by how much with few labels."""
    found = list(standings(document))
    worse = [mine for mine, rival in found if rival["gain"] < 0 and rival["p_value"] < LEVEL]
    where = [f"{named(row['dataset'])} at {row['labels']}" for row in worse]
    lost = f"significantly worse than the best of them on {listed(where)}" if worse else "never significantly worse"
    claim = (
        f"On the citation graphs, against the best of {listed(list(document['rivals']))}, {document['ours']} has the "
        f"higher mean in {sum(rival['gain'] > 0 for _, rival in found)} of {len(found)} cells and is {lost}. Gain in "
        f"points over the best of them at the two smallest label counts: {_gains(smallest(found))}."
    )
    checked = list(standings(document, document["validated"]))
    if not checked:
        return claim
    ahead = sum(mine["mean"] > rival["mean"] for mine, rival in checked)
    return (
        f"{claim} GAT and GPN also see the labels of the validation nodes. Where those choose among teachers "
        f"({document['validated']}), it has the higher mean in {ahead} of {len(checked)} cells; gain at the smallest "
        f"counts: {_gains(smallest(checked))}."
    )


def smallest(pairs: list[tuple[Row, Row]]) -> list[tuple[Row, Row]]:
    """Those at the two smallest label counts of each graph."""
    found = []
    for name in values_of([mine for mine, _ in pairs], "dataset"):
        here = [pair for pair in pairs if pair[0]["dataset"] == name]
        found += sorted(here, key=lambda pair: pair[0]["labels"])[:2]
    return found


def gain(mine: Row, rival: Row) -> float:
    """How much better a method is than its rival on the runs that both have."""
    differences = _shared(mine, rival)
    return sum(differences) / len(differences)


def _gains(pairs: list[tuple[Row, Row]]) -> str:
    parts = []
    for name in values_of([mine for mine, _ in pairs], "dataset"):
        here = [pair for pair in pairs if pair[0]["dataset"] == name]
        each = ", ".join(f"{gain(*pair):+.1f} at {pair[0]['labels']} ({pair[1]['method']})" for pair in here)
        parts.append(f"{named(name)} {each}")
    return "; ".join(parts)


def in_short(document: Document) -> str:
    """Self-training at the smallest label count of each graph, beside the GCN and the best rival."""
    rows = {(row["dataset"], row["labels"], row["method"]): row["mean"] for row in document["rows"]}
    fewest: dict[str, tuple[Row, Row]] = {}
    for mine, rival in sorted(standings(document), key=lambda pair: -pair[0]["labels"]):
        fewest[mine["dataset"]] = (mine, rival)
    parts = [
        f"{named(name)}, {mine['labels']} labels: {mine['mean']:.1f} % against "
        f"{rows[name, mine['labels'], 'gcn']:.1f} % "
        f"(best of the others: {rival['method']}, {rival['mean']:.1f} %)"
        for name, (mine, rival) in fewest.items()
    ]
    by_confidence = "self-train by confidence"
    plain = [f"{rows[name, mine['labels'], by_confidence]:.1f}" for name, (mine, _) in fewest.items()]
    checked = [f"{rows[name, mine['labels'], document['validated']]:.1f}" for name, (mine, _) in fewest.items()]
    return (
        f"Self-training against a GCN, Micro-F1: {'; '.join(parts)}. Most of that comes from averaged features and "
        f"rounds of pseudo-labels: with plain confidence in place of the jury's p-values it is {listed(plain)} %. With "
        f"validation labels to choose among teachers: {listed(checked)} %; `semi_supervised.py`."
    )


def findings(document: Document) -> Iterator[str]:
    """What learning with uncertainty does not do."""
    rows = on_citations(document)
    key = {(row["dataset"], row["labels"], row["method"]): row for row in rows}

    def gaps(method: str, other: str) -> list[float]:
        """In every cell that both have, how much better the method is on the runs that both have."""
        pairs = ((row, key.get((d, n, other))) for (d, n, m), row in key.items() if m == method)
        found = (_shared(row, beside) for row, beside in pairs if beside is not None)
        return [sum(differences) / len(differences) for differences in found if differences]

    plain = gaps("reweight", "gcn")
    if plain:
        printed, spread = gaps("reweight, as printed", "gcn"), gaps("reweight by ambiguity", "gcn")
        more = f"; as printed {_mean(printed)}" if printed else ""
        sizes = {
            method: [row["weight_sd"] for row in rows if row["method"] == method and row.get("weight_sd") is not None]
            for method in ("reweight", "reweight by ambiguity")
        }
        spread_words = ": their standard deviation is " if all(sizes.values()) else ""
        if spread_words:
            width, ambiguity = (sum(found) / len(found) for found in sizes.values())
            spread_words += f"{width:.3f}, against {ambiguity:.2f} with ambiguity in its place"
        more += f"; by ambiguity {_mean(spread)}" if spread else ""
        yield (
            f"The paper's reweighting changes the GCN's Micro-F1 by {_mean(plain)} points on average over {len(plain)} "
            f"cells ({min(plain):+.1f} to {max(plain):+.1f}){more}. The width hardly differs between training nodes, "
            f"so weights of mean 1 are nearly equal{spread_words}."
        )
    jury = gaps("self-train", "self-train by confidence")
    if jury:
        runs = max(row["runs"] for row in rows if row["method"] == "self-train by confidence")
        without = gaps("self-train by confidence", "gcn")
        also, chosen = "", gaps(document["validated"], "self-train by confidence, validated")
        if chosen:
            also = f" Where validation labels choose among teachers: {_mean(chosen)} over {len(chosen)} cells "
            also += f"({min(chosen):+.1f} to {max(chosen):+.1f}; few runs)."
        yield (
            f"In self-training, the jury's p-values in place of plain confidence change Micro-F1 by {_mean(jury)} "
            f"points on average over {len(jury)} cells ({min(jury):+.1f} to {max(jury):+.1f}; runs: {runs}); "
            f"plain confidence with the same teachers and schedule is {_mean(without)} points above the GCN.{also}"
        )
    short = [pair for pair in smallest(list(standings(document))) if gain(*pair) < CLEARLY]
    if short:
        where = listed([f"{named(m['dataset'])} at {m['labels']} labels ({gain(m, r):+.1f})" for m, r in short])
        checked = {(m["dataset"], m["labels"]): gain(m, r) for m, r in standings(document, document["validated"])}
        with_them = [f"{checked[key]:+.1f}" for m, _ in short if (key := (m["dataset"], m["labels"])) in checked]
        also = f"; where validation labels choose among teachers, it is {listed(with_them)} there" if with_them else ""
        yield (
            f"Self-training was to be {CLEARLY:g} points above every rival with few labels. Without held-out labels it "
            f"is not on {where}{also}."
        )
    yield from findings_on_public(document)


def findings_on_public(document: Document) -> Iterator[str]:
    """Which of the classifiers to compare with falls short of a well-trained GCN on the public split."""
    public = {(r["dataset"], r["method"]): r["mean"] for r in document["rows"] if r["labels"] == "public"}
    most = {(r["dataset"], r["method"]): r for r in on_citations(document)}  # the largest label count comes last

    def gap(name: str, method: str) -> float:
        return public[name, "gcn, well trained"] - public[name, method]

    for name, method in public:
        if name in CITATION and method in document["rivals"] and gap(name, method) > WITHIN:
            few, paper, mine = most[name, method], document["paper"][method][name], public[name, method]
            others = [other for other in values_of(document["rows"], "dataset") if other.startswith(f"{name}, ")]
            where = [f"{gap(other, method):.1f} ({other.removeprefix(f'{name}, ')})" for other in others]
            more = f" With 20 random labels per class it is below by {listed(where)} points." if where else ""
            yield (
                f"**{method.upper()} is {gap(name, method):.1f} points below a well-trained GCN on {named(name)}'s "
                f"public split** ({mine:.1f} % against {public[name, 'gcn, well trained']:.1f} %), with its authors' "
                f"settings. With {few['labels']} random labels it has {few['mean']:.1f} %, where the paper measured "
                f"{paper:.1f} % with that many.{more}"
            )


def _shared(row: Row, other: Row) -> list[float]:
    """Differences in Micro-F1 on the runs that both rows have."""
    beside = dict(zip(other["seeds"], other["micro_f1"]))
    return [value - beside[seed] for seed, value in zip(row["seeds"], row["micro_f1"]) if seed in beside]


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):+.1f}"


def bandit_tables(document: Document, markdown: Markdown) -> Iterator[str]:
    """Regret of every policy."""
    rows = document["rows"]
    times = [key for key in rows[0] if key.startswith("regret_")]
    body = [
        [
            f"{named(row['dataset'])}, {row['policy']}",
            *(f"{row[key]:.1f}" for key in times),
            f"{row['sd']:.1f}",
            "" if row["p_value"] is None else f"{row['p_value']:.1e}",
        ]
        for row in rows
    ]
    heads = [f"after {key.removeprefix('regret_')}" for key in times]
    yield markdown([f"regret, {_runs(rows[0]['runs'])}", *heads, "sd", "p against ucb-j"], body)
