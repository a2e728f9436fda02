"""The paper's Table 1, Figure 2 and Figure 3, as `jurygcn reproduce` regenerates them.

Table 2 and Figure 1 are above: active_learning.py and semi_supervised.py run them with more strategies, methods and
graphs. Interrupted runs go on where they stopped; --finished publishes the cells that are measured.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from harness import FIGURES, options, save, table
from jurygcn.canvas import save_figure
from jurygcn.data import cache_folder
from jurygcn.experiments import EXPERIMENTS
from jurygcn.experiments.experiment import records, run_experiment

NAMES = ("table1", "figure2", "figure3")


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish the cells that are measured")
    rows = []
    with TemporaryDirectory() as temporary:
        out = Path(temporary) if chosen.quick else cache_folder() / "benchmarks" / "reproduction"
        for name in NAMES:
            how = {"quick": chosen.quick, "finished": chosen.finished, "progress": True}
            if chosen.finished and not (out / f"{name}.jsonl").exists():
                continue
            found = run_experiment(name, EXPERIMENTS[name], out=out, **how)
            for title, frame in found.shown.items():
                table(f"{found.experiment.title}: {title}", list(frame.columns), frame.to_numpy().tolist())
            rows += [{"experiment": name, **row} for row in records(found.summary)]
            if found.experiment.draw is not None and not chosen.quick:
                save_figure(found.experiment.draw(found.summary), FIGURES / f"{name}.png")
    print(save("reproduction", rows, quick=chosen.quick))


if __name__ == "__main__":
    main()
