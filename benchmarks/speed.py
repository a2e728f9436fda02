"""How long do all verdicts take, against retraining every juror, the dense route, and other libraries?

Everything is timed in one run, in CPU seconds of one thread, and compared as ratios: other work on the machine changes
these less than it changes the time of day. Fit and verdict of all nodes include building the Jury; the graph's
propagated features are cached, as they are in any second use of a graph. Extrapolated times say so.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy and torch load their libraries

import numpy as np
import scipy.sparse.linalg as spla
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from harness import options, save, table
from jurygcn import GCN, Jury, LeaveOut, Retraining, load_dataset, train
from jurygcn.allocator import keep_freed_memory
from jurygcn.data import paper_split, random_labels
from jurygcn.experiments.memory import peak_mb
from jurygcn.leave_one_out.retraining import retrained_parameters
from jurygcn.models.training import fit_gcn
from protocol import PLAIN

LABELS = {"cora": 100, "citeseer": 100, "pubmed": 50}
DECAY = PLAIN.weight_decay
TURNS = 20  # caches are shared with other work: the best of these is compared


class OrdinaryGCN(nn.Module):
    """What a PyG user writes."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(F, 16), GCNConv(16, C)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.second(torch.relu(self.first(x, edge_index)), edge_index)


def seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """The best of some runs."""
    took = []
    for _ in range(repeats):
        started = time.process_time()
        call()
        took.append(time.process_time() - started)
    return min(took)


def ordinary_training(data: Data, nodes: Tensor, epochs: int = PLAIN.epochs) -> None:
    model = OrdinaryGCN(data.num_features, int(data.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=PLAIN.lr, weight_decay=DECAY)
    for _ in range(epochs):
        optimizer.zero_grad()
        functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes]).backward()
        optimizer.step()


def setting(name: str, labels: int, hidden: int = PLAIN.hidden) -> tuple[Data, Tensor, GCN]:
    data = load_dataset(name)
    nodes = random_labels(paper_split(data, seed=0).pool, labels, seed=0)
    model, _ = fit_gcn(data, nodes, replace(PLAIN, hidden=hidden), seed=0)
    return data, nodes, model


def against_retraining(name: str, quick: bool) -> dict[str, Any]:
    n = LABELS[name]
    data, nodes, model = setting(name, n)
    row: dict[str, Any] = {"dataset": name, "labels": n}
    engine = Jury(model, data, nodes, weight_decay=DECAY).engine
    one = torch.ones(n).index_fill_(0, torch.tensor([0]), 0.0)
    juror = copy.deepcopy(model)
    calls: dict[str, tuple[Callable[[], Any], int, int]] = {  # how often in a turn, and by how much to multiply
        "newton": (lambda: Jury(model, data, nodes, weight_decay=DECAY).fit().verdict(advice=None), 5, 1),
        "influence": (
            lambda: Jury(model, data, nodes, weight_decay=DECAY, leave_out="influence").fit().verdict(advice=None),
            5,
            1,
        ),
        "ordinary_retraining": (lambda: ordinary_training(data, nodes[1:]), 1, n),  # one juror
        "own_retraining_stacked": (lambda: retrained_parameters(engine, Retraining()), 1, 1),
        "own_retraining_one_by_one": (lambda: train(juror, data, nodes, node_weights=one), 5, n),  # one juror
    }
    for _ in range(1 if quick else TURNS):  # by turns, for machines are faster at times
        for kind, (call, repeats, jurors) in calls.items():
            took = jurors * seconds(call, repeats)
            row[f"{kind}_s"] = min(took, row.get(f"{kind}_s", took))
    for kind in ("ordinary_retraining", "own_retraining_stacked", "own_retraining_one_by_one"):
        row[f"speedup_{kind}"] = row[f"{kind}_s"] / row["newton_s"]
    return row


def dense_route(rows_timed: int) -> dict[str, float]:
    """Cora, 10 labels, h=8: the whole Hessian row by row with autograd, and its inverse."""
    data, nodes, model = setting("cora", 10, hidden=8)
    parameters = list(model.parameters())
    P = sum(p.numel() for p in parameters)
    loss = functional.cross_entropy(model(data.x, data.edge_index)[nodes], data.y[nodes])
    loss = loss + 0.5 * DECAY * sum((p**2).sum() for p in parameters)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    hessian = torch.zeros(P, P)
    started = time.process_time()
    for i in np.linspace(0, P - 1, rows_timed).astype(int):
        row = torch.autograd.grad(gradient[i], parameters, retain_graph=True)
        hessian[i] = torch.cat([g.reshape(-1) for g in row])
    per_row = (time.process_time() - started) / rows_timed
    hessian += torch.eye(P)
    inversion = seconds(lambda: torch.linalg.inv(hessian))
    return {"seconds": per_row * P + inversion, "inversion_s": inversion, "parameters": P, "rss_mb": peak_mb()}


def our_route() -> dict[str, float]:
    data, nodes, model = setting("cora", 10, hidden=8)
    before = peak_mb()
    took = seconds(lambda: Jury(model, data, nodes, weight_decay=DECAY).fit().verdict(advice=None), 10)
    return {"seconds": took, "rss_mb": peak_mb(), "rss_before_mb": before}


def idle() -> dict[str, float]:
    """The memory that graph, model and libraries take anyway."""
    setting("cora", 10, hidden=8)
    return {"rss_mb": peak_mb()}


def in_a_process(call: str, *arguments: object) -> dict[str, float]:
    """Peak memory is a property of a process: each route gets its own."""
    code = "import speed, json, torch; torch.set_num_threads(1); "
    code += f"print(json.dumps(speed.{call}({', '.join(map(str, arguments))})))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=sys.path[0])
    import json

    found: dict[str, float] = json.loads(out.stdout.strip().splitlines()[-1])
    return found


class AtNodes(nn.Module):
    """A GCN as a function of node indices, which is how other libraries want their data."""

    def __init__(self, model: GCN, data: Data) -> None:
        super().__init__()
        self.model, self.x, self.edge_index = model, data.x.double(), data.edge_index

    def forward(self, nodes: Tensor) -> Tensor:
        """Logits of the nodes."""
        return self.model(self.x, self.edge_index)[nodes]


def against_curvlinops(name: str, timed: int) -> dict[str, Any]:
    """The same influences of 100 training nodes: curvlinops' GGN with SciPy's CG, one node at a time."""
    import curvlinops

    data, nodes, model = setting(name, 100)
    ours = Jury(model, data, nodes, weight_decay=DECAY, leave_out="influence")
    took = seconds(lambda: Jury(model, data, nodes, weight_decay=DECAY, leave_out="influence").fit(), 5)
    reference = ours.fit().influences
    wrapped = AtNodes(copy.deepcopy(model).double(), data)
    parameters = list(wrapped.parameters())
    operator = curvlinops.GGNLinearOperator(
        wrapped, nn.CrossEntropyLoss(), parameters, [(nodes, data.y[nodes])], check_deterministic=False
    ).to_scipy()
    P = reference.shape[1]
    damped = spla.LinearOperator((P, P), matvec=lambda v: operator @ v + DECAY * v, dtype=float)
    errors = []
    started = time.process_time()
    for i in range(timed):
        loss = functional.cross_entropy(wrapped(nodes[i : i + 1]), data.y[nodes[i : i + 1]])
        g = torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, parameters)]).numpy()
        solution, _ = spla.cg(damped, g, rtol=1e-5)
        errors.append(np.linalg.norm(solution - reference[i].numpy()) / np.linalg.norm(solution))
    theirs = (time.process_time() - started) / timed * 100
    return {
        "dataset": name,
        "library": "curvlinops + SciPy CG",
        "ours_s": took,
        "theirs_s": theirs,
        "speedup": theirs / took,
        "difference": max(errors),
    }


def against_captum(name: str) -> dict[str, Any]:
    """captum forms the exact Hessian densely, so a graph with few features, and the same curvature from us."""
    from captum.influence._core.influence_function import NaiveInfluenceFunction
    from torch.utils.data import TensorDataset

    data, nodes, model = setting(name, 100)
    settings = {"leave_out": LeaveOut("influence", curvature="hessian", damping=0.1)}
    took = seconds(lambda: Jury(model, data, nodes, weight_decay=DECAY, **settings).fit(), 3)
    reference = Jury(model, data, nodes, weight_decay=DECAY, **settings).fit().influences
    wrapped = AtNodes(copy.deepcopy(model).double(), data)
    started = time.process_time()
    theirs = NaiveInfluenceFunction(
        wrapped,
        TensorDataset(nodes, data.y[nodes]),
        checkpoint="",
        checkpoints_load_func=lambda *_: 1.0,
        loss_fn=nn.CrossEntropyLoss(reduction="none"),
        batch_size=len(nodes),
        projection_dim=reference.shape[1],
        hessian_reg=len(nodes) * (DECAY + 0.1),
        hessian_inverse_tol=1e-9,
    )
    gradients = torch.stack(
        [
            torch.cat(
                [
                    p.reshape(-1)
                    for p in torch.autograd.grad(
                        functional.cross_entropy(wrapped(v[None]), y[None]), list(wrapped.parameters())
                    )
                ]
            )
            for v, y in zip(nodes, data.y[nodes])
        ]
    )
    found = len(nodes) * (theirs.R @ (theirs.R.T @ gradients.T)).T
    spent = time.process_time() - started
    difference = float((found - reference).norm() / reference.norm())
    return {
        "dataset": name,
        "library": "captum (dense exact Hessian)",
        "ours_s": took,
        "theirs_s": spent,
        "speedup": spent / took,
        "difference": difference,
    }


def main() -> None:
    chosen = options(__doc__)
    torch.set_num_threads(1)
    keep_freed_memory()  # for all contestants, as the command line does
    names = ["cora"] if chosen.quick else list(LABELS)
    rows = [against_retraining(name, chosen.quick) for name in names]
    table(
        "Fit and verdict of all nodes against retraining every juror",
        [
            "dataset",
            "newton",
            "influence",
            "ordinary PyG x n",
            "speed-up",
            "own, stacked",
            "speed-up",
            "own, one by one",
            "speed-up",
        ],
        [
            [
                f"{r['dataset']}, {r['labels']} labels",
                f"{1000 * r['newton_s']:.0f} ms",
                f"{1000 * r['influence_s']:.0f} ms",
                f"{r['ordinary_retraining_s']:.0f} s",
                f"{r['speedup_ordinary_retraining']:,.0f}",
                f"{r['own_retraining_stacked_s']:.1f} s",
                f"{r['speedup_own_retraining_stacked']:,.0f}",
                f"{r['own_retraining_one_by_one_s']:.1f} s",
                f"{r['speedup_own_retraining_one_by_one']:,.0f}",
            ]
            for r in rows
        ],
        note="ordinary PyG and one by one: one juror timed, multiplied by the number of labels. By turns, the best.",
    )
    base, ours, dense = (
        in_a_process("idle"),
        in_a_process("our_route"),
        in_a_process("dense_route", 50 if chosen.quick else 300),
    )
    extra = {"ours": ours["rss_mb"] - base["rss_mb"], "dense": dense["rss_mb"] - base["rss_mb"]}
    table(
        "Against the dense route: Cora, 10 labels, h=8 (some Hessian rows timed, extrapolated to all)",
        ["route", "seconds", "peak memory above graph and libraries"],
        [
            ["jury", f"{ours['seconds']:.3f}", f"{extra['ours']:.0f} MB"],
            ["dense Hessian and inverse", f"{dense['seconds']:.0f}", f"{extra['dense']:.0f} MB"],
            ["ratio", f"{dense['seconds'] / ours['seconds']:,.0f}", f"{extra['dense'] / max(extra['ours'], 1):.0f}"],
        ],
    )
    libraries = [against_curvlinops("cora", 1 if chosen.quick else 5)]
    if not chosen.quick:
        libraries.append(against_captum("digits"))
    table(
        "The same influences of 100 training nodes by other libraries",
        ["library", "graph", "theirs", "ours", "speed-up", "relative difference"],
        [
            [
                r["library"],
                r["dataset"],
                f"{r['theirs_s']:.1f} s",
                f"{r['ours_s']:.3f} s",
                f"{r['speedup']:,.0f}",
                f"{r['difference']:.1e}",
            ]
            for r in libraries
        ],
        note="curvlinops: a few nodes timed, multiplied to 100",
    )
    print(
        save("speed", rows, quick=chosen.quick, dense={"ours": ours, "dense": dense, "base": base}, libraries=libraries)
    )


if __name__ == "__main__":
    main()
