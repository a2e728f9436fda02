"""Reddit's size on one machine: jurors and verdicts of all nodes, against retraining one juror after the other.

The graph is a synthetic stand-in with Reddit's numbers (232,965 nodes, 114,615,892 directed edges, 602 features, 41
classes); `--quick` makes one of a fiftieth of the size. One juror is retrained in the same run, 100 epochs, in two
ways: on the receptive field of its labels (this library's training), and full-batch over the whole graph with sparse
products, which is what ordinary training does (some epochs timed, extrapolated to 100). Both are multiplied by the
number of labels: extrapolated, since 10,000 trainings take days. ÂX is propagated before anything is timed. "auto" is
`Votes(rank="auto")`: the time to choose its directions, of the verdict, and how many label sets at 0.9 are the same.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch_geometric.data import Data

from harness import options, save, table
from jurygcn import GCN, Jury, Votes, train
from jurygcn.conformal.rank import smallest_rank
from jurygcn.data import synthetic
from jurygcn.experiments.figure2 import full_batch_epochs
from jurygcn.models.receptive_field import ReceptiveField
from protocol import PLAIN

NODES, EDGES, FEATURES, CLASSES, RANK = 232_965, 114_615_892, 602, 41, 128
DECAY, HIDDEN, EPOCHS = PLAIN.weight_decay, PLAIN.hidden, PLAIN.epochs


def seconds(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


def peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(data: Data, n: int, epochs_timed: int) -> list[dict[str, Any]]:
    N = int(data.num_nodes)
    nodes = torch.randperm(N, generator=torch.Generator().manual_seed(0))[:n]
    model = GCN(FEATURES, HIDDEN, CLASSES)
    own, _ = seconds(lambda: train(model, data, nodes, epochs=EPOCHS, weight_decay=DECAY))
    ordinary = seconds(lambda: full_batch_epochs(data, nodes, epochs_timed))[0] / epochs_timed * EPOCHS
    test = torch.ones(N, dtype=torch.bool).index_fill_(0, nodes, False)
    votes, rows = Votes("linearized", rank=RANK), []
    for kind in ("newton", "influence"):
        fit, jury = seconds(lambda: Jury(model, data, nodes, leave_out=kind, votes=votes).fit())  # noqa: B023
        whole = jury.jurors
        ask, verdict = seconds(jury.verdict)
        sets = verdict.label_sets(0.1)[test]
        choose, rank = seconds(partial(smallest_rank, jury.engine, jury.positions, jury.jurors))
        jury._jurors = jury.jurors.in_fewer(rank)
        quick, few = seconds(jury.verdict)
        same = (few.label_sets(0.1) == verdict.label_sets(0.1)).all(dim=1)[test]
        rows.append(
            {
                "labels": n,
                "jurors": kind,
                "solver": jury.jurors.solver,
                "fit_s": fit,
                "verdict_s": ask,
                "own_juror_s": own,
                "ordinary_juror_s": ordinary,
                "speedup_own": n * own / (fit + ask),
                "speedup_ordinary": n * ordinary / (fit + ask),
                "auto_rank": rank,
                "auto_choice_s": choose,
                "auto_verdict_s": quick,
                "auto_same_sets": float(same.double().mean()),
                "auto_discarded": jury.jurors.discarded,
                "discarded": whole.discarded,
                "accuracy": float((verdict.predicted_class == data.y)[test].double().mean()),
                "coverage": float(sets.gather(1, data.y[test][:, None]).double().mean()),
                "set_size": float(sets.sum(dim=1).double().mean()),
                "peak_gb": peak_gb(),
            }
        )
        print(rows[-1], flush=True)
        del jury, verdict, sets, few
        gc.collect()
    return rows


def main() -> None:
    chosen = options(__doc__)
    share = 50 if chosen.quick else 1
    took, data = seconds(
        lambda: synthetic(
            num_nodes=NODES // share,
            num_edges=EDGES // share // 2 * 2,
            num_features=FEATURES,
            num_classes=CLASSES,
            separation=1.0,
            homophily=0.3,
            seed=0,
        )
    )
    print(f"graph drawn in {took:.0f} s, peak {peak_gb():.1f} GB", flush=True)
    everyone = torch.arange(int(data.num_nodes))
    took, _ = seconds(lambda: ReceptiveField.of(GCN(FEATURES, HIDDEN, CLASSES), data, everyone).inputs)
    print(f"propagated in {took:.0f} s, peak {peak_gb():.1f} GB", flush=True)
    counts = [200] if chosen.quick else [10_000, 1_000]
    rows = [row for n in counts for row in measure(data, n, 2 if chosen.quick else 3)]
    table(
        f"Jurors and verdicts of all {int(data.num_nodes):,} nodes, {int(data.num_edges):,} edges",
        [
            "labels, jurors",
            "fit",
            "verdict",
            "own juror",
            "speed-up",
            "full batch",
            "speed-up",
            "lost",
            "cover",
            "size",
        ],
        [
            [
                f"{r['labels']:,} {r['jurors']}",
                f"{r['fit_s']:.0f} s",
                f"{r['verdict_s']:.0f} s",
                f"{r['own_juror_s']:.1f} s",
                f"{r['speedup_own']:,.0f}",
                f"{r['ordinary_juror_s']:.0f} s",
                f"{r['speedup_ordinary']:,.0f}",
                f"{r['discarded']:.1%}",
                f"{r['coverage']:.3f}",
                f"{r['set_size']:.2f}",
            ]
            for r in rows
        ],
        note=f"speed-up: one retrained juror times the number of labels, over fit and verdict; peak {peak_gb():.1f} GB",
    )
    print(save("scale", rows, quick=chosen.quick, nodes=int(data.num_nodes), edges=int(data.num_edges)))


if __name__ == "__main__":
    main()
