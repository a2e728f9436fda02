"""An experiment is a table or figure; the runner measures missing cells, summarises, and writes CSV, JSON and PNG."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from jurygcn.canvas import save_figure
from jurygcn.checks import MOST_REPEATS, check_count
from jurygcn.experiments.cells import Cell, Cells, Row, environment
from jurygcn.io.files import replacing, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUNS, QUICK_RUNS = 20, 2  # splits to average over; 20 as in the paper


@dataclass(frozen=True)
class Scope:
    """How much to measure: the number of runs, and whether only a quick subset."""

    runs: int = RUNS
    quick: bool = False


@dataclass(frozen=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        title: the heading.
        about: how it is measured and how it differs from the paper, in a few sentences.
        cells: everything to measure; a cell is the keyword arguments of ``measure``.
        measure: measures one cell; returns plain values.
        stamp: the settings of a cell; a cell with another stamp is measured again.
        summary: from rows to the table that is written as CSV, with the paper's numbers and ours.
        shown: the summary in the paper's layout, as tables of text by title.
        draw: the figure; None for tables.
    """

    title: str
    about: str
    cells: Callable[[Scope], Iterable[Cell]]
    measure: Callable[..., Row]
    stamp: Callable[[Cell], str]
    summary: Callable[[list[Row]], pd.DataFrame]
    shown: Callable[[pd.DataFrame], dict[str, pd.DataFrame]]
    draw: Callable[[pd.DataFrame], Figure] | None = None


@dataclass(frozen=True, eq=False)
class Reproduced:
    """The result: the summary, the same in the paper's layout, the measured rows and the files written."""

    name: str
    experiment: Experiment
    summary: pd.DataFrame
    shown: dict[str, pd.DataFrame]
    rows: list[Row] = field(repr=False)
    files: list[Path] = field(default_factory=list)


def run_experiment(
    name: str,
    experiment: Experiment,
    *,
    out: Path,
    runs: int | None = None,
    quick: bool = False,
    finished: bool = False,
    progress: bool = False,
) -> Reproduced:
    """Measure the cells missing in ``out/NAME.jsonl``, then write NAME.csv, NAME.json and NAME.png.

    ``finished`` measures nothing and summarises the existing cells; ``progress`` shows a bar on stderr.
    """
    scope = Scope((QUICK_RUNS if quick else RUNS) if runs is None else runs, quick)
    check_count(scope.runs, "runs", most=MOST_REPEATS)
    stem = f"{name}.quick" if quick else name
    kept, wanted = Cells(stem, experiment.stamp, folder=out), list(experiment.cells(scope))
    kept.measure([] if finished else wanted, experiment.measure, what=experiment.title, show=progress)
    rows = kept.rows(wanted)
    summary = experiment.summary(rows)
    document = {
        "experiment": name,
        "quick": quick,
        "runs": scope.runs,
        "about": experiment.about,
        "environment": environment(),
        "summary": records(summary),
        "rows": rows,
    }
    files = [out / f"{stem}.csv", out / f"{stem}.json"]
    with replacing(files[0]) as temporary:
        summary.to_csv(temporary, index=False)
    write_text(files[1], json.dumps(document, indent=1) + "\n")
    if experiment.draw is not None:
        files.append(save_figure(experiment.draw(summary), out / f"{stem}.png"))
    return Reproduced(name, experiment, summary, experiment.shown(summary), rows, files)


def records(frame: pd.DataFrame) -> list[Row]:
    """The frame's rows as plain values, None for missing values."""
    found: list[Row] = json.loads(frame.to_json(orient="records", double_precision=12))
    return found
