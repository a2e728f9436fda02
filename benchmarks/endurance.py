"""Does a process that goes on for long keep its memory and its files?

One process does 500 steps of active learning (20 runs of 25 steps with jury-design, each kept in a file), and then fits
and hears 1,000 juries, every tenth on a graph that is new to it. Resident memory and open files are noted after every
run and after every 25 verdicts, when the process is in the same state each time. The first fifth is warm-up; growth is
the slope of the line through the rest, times its length.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from harness import options, save, table
from jurygcn import Jury, active
from jurygcn.data import synthetic
from jurygcn.models.training import fit_gcn
from protocol import PLAIN

RUNS, STEPS, VERDICTS, EVERY = 20, 25, 1_000, 25
GRAPH = {"num_nodes": 1_000, "num_edges": 4_000, "num_features": 16, "num_classes": 3}
WARM_UP = 0.2


def resident_mb() -> float:
    """What the process has in memory now, in MB; garbage not counted."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files() -> int:
    """How many files, sockets and pipes the process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def learning(data: Data, runs: int, steps: int) -> Iterator[int]:
    """Runs of active learning; yields the steps done so far."""
    recipe = active.Recipe(epochs=20)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(runs):
            path = Path(folder) / f"{seed}.json"
            settings = {"initial": 5, "budget": steps, "step": 1, "count_initial": False, "seed": seed}
            history = active.run(data, "jury-design", **settings, recipe=recipe, resume=path)
            assert len(history.steps) == steps + 1
            yield (seed + 1) * steps


def hearing(data: Data, verdicts: int, every: int) -> Iterator[int]:
    """Juries fitted and heard; yields the verdicts given so far."""
    nodes = torch.arange(0, 300, 10)
    model, _ = fit_gcn(data, nodes, PLAIN, seed=0)
    for number in range(verdicts):
        if number % 10 == 9:
            data = copy(data)
            data.edge_index = data.edge_index.clone()
        Jury(model, data, nodes, weight_decay=PLAIN.weight_decay).fit().verdict(advice=None)
        if (number + 1) % every == 0:
            yield number + 1


def observe(what: str, work: Iterator[int]) -> dict[str, Any]:
    """Memory and open files while the work goes on."""
    started, files = time.perf_counter(), open_files()
    seen = [(done, resident_mb(), open_files()) for done in work]
    count, memory, handles = (np.array(part, dtype=float) for part in zip(*seen))
    warm = count > WARM_UP * count[-1]
    slope = float(np.polyfit(count[warm], memory[warm], 1)[0])
    return {
        "what": what,
        "count": int(count[-1]),
        "warm_mb": round(float(memory[warm][0]), 1),
        "end_mb": round(float(memory[-1]), 1),
        "growth_mb": round(slope * float(count[-1] - count[warm][0]), 2),
        "files_before": files,
        "files_most": int(handles.max()),
        "seconds": round(time.perf_counter() - started, 1),
    }


def measure(runs: int, steps: int, verdicts: int, every: int) -> list[dict[str, Any]]:
    data = synthetic(**GRAPH)
    works: dict[str, Callable[[], Iterator[int]]] = {
        "active-learning steps": lambda: learning(data, runs, steps),
        "verdicts": lambda: hearing(data, verdicts, every),
    }
    return [observe(what, work()) for what, work in works.items()]


def main() -> None:
    chosen = options(__doc__)
    size = (5, 5, 100, 10) if chosen.quick else (RUNS, STEPS, VERDICTS, EVERY)
    rows = measure(*size)
    columns = ["what", "count", "warm_mb", "end_mb", "growth_mb", "files_before", "files_most", "seconds"]
    table("Endurance", columns, [[row[key] for key in columns] for row in rows])
    save("endurance", rows, quick=chosen.quick, graph=GRAPH)


if __name__ == "__main__":
    main()
