"""The paper's tables and figures, one module each, and a comparison of methods on any graph."""

from __future__ import annotations

from pathlib import Path

from jurygcn.errors import SettingError
from jurygcn.experiments import figure1, figure2, figure3, table1, table2
from jurygcn.experiments.comparison import Evaluation, evaluate
from jurygcn.experiments.experiment import Experiment, Reproduced, run_experiment

EXPERIMENTS: dict[str, Experiment] = {
    "table1": table1.EXPERIMENT,
    "table2": table2.EXPERIMENT,
    "figure1": figure1.EXPERIMENT,
    "figure2": figure2.EXPERIMENT,
    "figure3": figure3.EXPERIMENT,
}


def reproduce(
    name: str, *, out: str | Path = "reproduced", runs: int | None = None, quick: bool = False, progress: bool = False
) -> Reproduced:
    """Regenerate a table or figure of the paper; after an interruption the same call continues.

    Args:
        name: table1, table2, figure1, figure2 or figure3.
        out: the folder for NAME.jsonl (every measured cell), NAME.csv, NAME.json and NAME.png.
        runs: splits to average over; 20 by default, 2 with ``quick``.
        quick: a small subset, for a quick check; files are called NAME.quick.
        progress: show a bar on stderr.
    """
    if name not in EXPERIMENTS:
        raise SettingError(f"expected one of {', '.join(EXPERIMENTS)}, got {name!r}; choose one")
    return run_experiment(name, EXPERIMENTS[name], out=Path(out), runs=runs, quick=quick, progress=progress)


__all__ = ["EXPERIMENTS", "Evaluation", "Experiment", "Reproduced", "evaluate", "reproduce"]
