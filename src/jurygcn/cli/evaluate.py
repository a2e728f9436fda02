"""`jurygcn evaluate`: compare the jury with other methods on the same splits of a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from jurygcn.checks import MOST_REPEATS
from jurygcn.choices import COMPARED, COMPARED_ALPHA, COMPARED_SPLITS, USUALLY_COMPARED
from jurygcn.cli import options as given
from jurygcn.cli.output import check_out, say_written, write_csv, write_run
from jurygcn.cli.reporting import print_json, shown
from jurygcn.cli.reproduce import text_table

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from jurygcn.experiments.comparison import Evaluation

NOTE = (
    "Each score is measured on the errors of its own method's model. The jury, max-probability, entropy, temperature "
    "and energy share one GCN; mc-dropout, ensemble, laplace, gpn and sgnn have their own models. Temperature and gpn "
    "also use the labels of validation nodes, and cf-gnn where it says so. Split conformal uses half of the labels for "
    "calibration."
)


def evaluate(
    name: given.Name,
    labels: Annotated[
        int | None, given.whole("--labels", "Labels for each method; 60, or the whole pool if smaller.", least=2)
    ] = None,
    splits: Annotated[
        int, given.whole("--splits", "Random splits to average over.", most=MOST_REPEATS)
    ] = COMPARED_SPLITS,
    alpha: Annotated[
        float, given.real("--alpha", "Share of label sets that may miss the true label.", most=1.0)
    ] = COMPARED_ALPHA,
    methods: Annotated[
        str, typer.Option("--methods", help=f"Some of {', '.join(COMPARED)}, separated by commas.")
    ] = ",".join(USUALLY_COMPARED),
    left_out: Annotated[
        bool, typer.Option("--left-out/--no-left-out", help="Also detect nodes of classes left out of training.")
    ] = True,
    preset: given.Preset = None,
    out: given.Out = None,
    as_json: given.AsJson = False,
) -> None:
    """Compare the jury with other methods on the same splits of a labelled graph.

    Measures how well scores detect wrong predictions, how well probabilities are calibrated, and the coverage and size
    of label sets. With --out every measurement is saved, and the same command continues after an interruption.
    """
    from jurygcn.cli.trained_model import load_graph
    from jurygcn.experiments import comparison

    check_out(out)
    data, _ = load_graph(name)
    chosen = [method.strip() for method in methods.split(",") if method.strip()]
    found = comparison.evaluate(
        data,
        labels=labels,
        splits=splits,
        alpha=alpha,
        methods=chosen,
        left_out=left_out,
        preset=preset,
        keep=out,
        progress=True,
    )
    run = described(found, data)
    files = [] if out is None else written(out, found, run)
    if as_json:
        print_json({**run, "files": [str(path) for path in files]})
        return
    present(found, data.name)
    say_written(Console(), files)


def described(found: Evaluation, data: Data) -> dict[str, Any]:
    """The comparison as plain values."""
    from jurygcn.cli.trained_model import versions
    from jurygcn.data import sizes
    from jurygcn.experiments.experiment import records

    return {
        "command": "evaluate",
        "data": {"name": data.name, **sizes(data)._asdict()},
        "settings": found.settings,
        "versions": versions(),
        **{name: records(frame) for name, frame in found.tables.items()},
    }


def written(out: Path, found: Evaluation, run: dict[str, Any]) -> list[Path]:
    """A CSV per table, and run.json."""
    return write_run(out, run, {f"{name}.csv": write_csv(frame) for name, frame in found.tables.items()})


def present(found: Evaluation, name: str) -> None:
    """Print the tables, best method first."""
    from jurygcn.experiments.comparison import SAME

    console = Console()
    settings = found.settings
    console.print(
        f"\n[bold]{shown(name)}[/bold]: {settings['labels']} labels, {settings['splits']} splits; mean ± sd over splits"
    )
    coverage = f"Label sets (target coverage {1 - settings['alpha']:g})"
    gone = f"Detecting nodes of {settings['classes_left_out']} classes left out of training"
    about_sets = {"coverage": "coverage", "size": "size", "singletons": "single", "singleton_accuracy": "right"}
    titles = {
        "errors": (
            "Detecting wrong predictions (AURC: low is good)",
            {k: k.upper() for k in ("auroc", "aupr", "aurc")},
        ),
        "probabilities": ("Probabilities", {"accuracy": "accuracy", "ece": "ECE", "nll": "NLL", "brier": "Brier"}),
        "sets": (coverage, about_sets),
        "strange": (gone, {"auroc": "AUROC"}),
    }
    for key, frame in found.tables.items():
        title, columns = titles[key]
        best = frame.sort_values("auroc", ascending=False) if "auroc" in frame else frame
        words = best[[column for column in ("method", "score") if column in best]].copy()
        if "model" in best:
            words["errors of"] = ["same GCN" if model == SAME else "its own" for model in best["model"]]
        for place, (column, head) in enumerate(columns.items()):
            values = zip(best[column], best[f"{column}_sd"])
            words[head] = [spread(mean, sd if place == 0 else None) for mean, sd in values]
        console.print(text_table(words, title=title))
    console.print(NOTE, style="dim")


def spread(mean: float, sd: float | None) -> str:
    """The mean, with ± sd if sd is given; empty for NaN."""
    return "" if mean != mean else f"{mean:.3f}" if sd is None else f"{mean:.3f} ± {sd:.3f}"
