"""Thousands of labels and a model that users bring: PyG's GraphSAGE with 64 hidden units on 50,000 nodes.

The graph is synthetic (500,000 directed edges, 128 features, 10 classes). Labels are random. The model is trained in
the same process, 50 epochs with weight decay 5e-4, without dropout and with dropout 0.5 in the last row. Jurors are
Newton jurors, votes are first-order in 128 directions, and all nodes get a verdict. Every row runs in a process of its
own, so that the peak of its memory is its own, with Python, the graph and training. CPU seconds count all threads.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from typing import Any

import torch
from torch_geometric.nn import GraphSAGE

from harness import options, save, table
from jurygcn import Jury, LeaveOut, Run, Votes, train
from jurygcn.data import synthetic

NODES, EDGES, FEATURES, CLASSES, HIDDEN, DECAY, EPOCHS = 50_000, 500_000, 128, 10, 64, 5e-4, 50
# labels, jurors, dropout, memory
FULL = ((5_000, 5_000, 0.0, "7GB"), (20_000, 1_000, 0.0, "10GB"), (5_000, 1_000, 0.5, "7GB"))
QUICK = ((400, 400, 0.0, "4GB"), (800, 100, 0.0, "4GB"), (400, 100, 0.5, "4GB"))


class Stopwatch:
    """Wall-clock and CPU seconds since it was made or read last."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """The seconds, and start again."""
        wall, cpu = time.perf_counter(), time.process_time()
        found = {"seconds": wall - self.wall, "cpu_seconds": cpu - self.cpu}
        self.wall, self.cpu = wall, cpu
        return found


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(nodes: int, labels: int, jurors: int, dropout: float, memory: str) -> dict[str, Any]:
    share = NODES // nodes
    data = synthetic(
        num_nodes=nodes, num_edges=EDGES // share, num_features=FEATURES // share, num_classes=CLASSES, seed=0
    )
    chosen = torch.randperm(nodes, generator=torch.Generator().manual_seed(0))[:labels]
    torch.manual_seed(0)
    model = GraphSAGE(FEATURES // share, HIDDEN // share, 2, CLASSES, dropout=dropout)
    watch = Stopwatch()
    train(model, data, chosen, epochs=EPOCHS, weight_decay=DECAY)
    training, before = watch.read(), peak_gb()
    jury = Jury(
        *(model, data, chosen),
        weight_decay=DECAY,
        leave_out=LeaveOut(max_jurors=jurors),
        votes=Votes("linearized"),
        run=Run(memory=memory),
    )
    cost = jury.cost()
    print(cost.words, file=sys.stderr, flush=True)
    watch.read()
    jury.fit()
    fit = watch.read()
    verdict = jury.verdict()
    ask = watch.read()
    test = torch.ones(nodes, dtype=torch.bool).index_fill_(0, chosen, False)
    sets = verdict.label_sets(0.1)[test]
    return {
        "labels": labels,
        "jurors": jurors,
        "dropout": dropout,
        "masks": jury.dropout_masks,
        "parameters": jury.engine.num_parameters,
        "solver": jury.jurors.solver,
        "memory": memory,
        "estimated_s": cost.seconds,
        "estimated_gb": cost.bytes / 1e9,
        "training_s": training["seconds"],
        "training_cpu_s": training["cpu_seconds"],
        "fit_s": fit["seconds"],
        "fit_cpu_s": fit["cpu_seconds"],
        "verdict_s": ask["seconds"],
        "verdict_cpu_s": ask["cpu_seconds"],
        "before_gb": before,
        "peak_gb": peak_gb(),
        "discarded": jury.jurors.discarded,
        "accuracy": float((verdict.predicted_class == data.y)[test].double().mean()),
        "coverage": float(sets.gather(1, data.y[test][:, None]).double().mean()),
        "set_size": float(sets.sum(dim=1).double().mean()),
    }


def in_a_process(nodes: int, row: tuple[int, int, float, str], threads: int) -> dict[str, Any]:
    """The measurement in a new process."""
    command = [sys.executable, __file__, "--row", json.dumps([nodes, *row]), str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(found, flush=True)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--row"]:
        torch.set_num_threads(int(sys.argv[3]))
        print(json.dumps(measure(*json.loads(sys.argv[2]))))
        return
    chosen = options(__doc__)
    nodes = NODES // 8 if chosen.quick else NODES
    rows = [in_a_process(nodes, row, chosen.threads) for row in (QUICK if chosen.quick else FULL)]
    table(
        f"Jurors of GraphSAGE {HIDDEN // (NODES // nodes)} and verdicts of all {nodes:,} nodes",
        ["labels, jurors", "solver", "training", "fit", "verdict", "fit, CPU", "verdict, CPU", "peak", "cover", "size"],
        [
            [
                f"{r['labels']:,}, {r['jurors']:,}",
                r["solver"],
                f"{r['training_s']:.0f} s",
                f"{r['fit_s']:.0f} s",
                f"{r['verdict_s']:.0f} s",
                f"{r['fit_cpu_s']:.0f} s",
                f"{r['verdict_cpu_s']:.0f} s",
                f"{r['peak_gb']:.1f} GB",
                f"{r['coverage']:.3f}",
                f"{r['set_size']:.2f}",
            ]
            for r in rows
        ],
        note=f"{EPOCHS} epochs of training; target 0.9",
    )
    print(save("many_labels", rows, quick=chosen.quick, nodes=nodes, edges=EDGES, weight_decay=DECAY))


if __name__ == "__main__":
    main()
