"""PyG models as people train them: how long a jury takes, how well its label sets cover, how true its jurors are.

Seven models with biases, dropout, weight decay on some layers, batch normalisation and early stopping, each trained for
200 epochs with Adam on labels drawn at random (Cora 140, PubMed 60), by a loop as PyG's examples have it. The jury gets
the optimizer and nothing else. "default" is the default call, in which jurors take advice; "alone" are the model's own
jurors (advice=None). Times are CPU times of one thread, of training and jury one after the other in the same process.
Memory is the peak of the process, imports and training included. With --agreement 20 jurors of the first split of Cora
are trained again in the same way: their predictions for their own labels are compared with those of jurors estimated
with the stated weight decay in eval mode ("plain"), with the stated decay and averages over dropout ("averaged"), with
the effective decay ("effective", the default), and by default but corrected by 8 retrained jurors ("corrected"); these
are among the 20 by chance only. Interrupted runs go on where they stopped; --finished publishes what is there.
"""

from __future__ import annotations

import copy
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric import nn as gnn
from torch_geometric.data import Data
from torch_geometric.nn import models as pyg

from harness import options, save, table
from jurygcn import GCN, Jury, LeaveOut, Retraining, load_dataset
from jurygcn.data import cache_folder
from jurygcn.diagnostics.fidelity import compare_jurors
from jurygcn.evaluation import error_auroc, mean_set_size, set_coverage
from jurygcn.experiments.cells import Cells
from jurygcn.leave_one_out.retraining import retrained_parameters

EPOCHS, VALIDATION, RETRAINED, CORRECTING, ALPHA = 200, 500, 20, 8, 0.1
LABELS = {"cora": 140, "pubmed": 60}
SPLITS = 5
VERSION = 3  # increased by hand when jurors cost less or more is measured
KEPT = cache_folder() / "benchmarks" / "real_models"
CALLS = {"default": "auto", "alone": None}  # the names of the two calls, and their advice


class Layers(nn.Module):
    """Two layers with dropout before each, as in PyG's examples."""

    def __init__(self, first: nn.Module, second: nn.Module, dropout: float, activation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.first, self.second, self.dropout, self.activation = first, second, dropout, activation

    def reset_parameters(self) -> None:
        """Draw new weights."""
        self.first.reset_parameters()
        self.second.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        x = functional.dropout(x, self.dropout, self.training)
        x = self.activation(self.first(x, edge_index))
        x = functional.dropout(x, self.dropout, self.training)
        return self.second(x, edge_index)


class PredictThenPropagate(nn.Module):
    """An MLP followed by personalised PageRank propagation (APPNP)."""

    def __init__(self, F: int, C: int) -> None:
        super().__init__()
        self.predict = pyg.MLP([F, 64, C], dropout=0.5, norm=None)
        self.propagate = gnn.APPNP(K=10, alpha=0.1)

    def reset_parameters(self) -> None:
        """Draw new weights."""
        self.predict.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.propagate(self.predict(x), edge_index)


@dataclass(frozen=True)
class Case:
    """A model and how it is trained; ``decayed`` are the modules that have weight decay, all of them if empty."""

    make: Callable[[int, int], nn.Module]
    lr: float = 0.01
    decayed: tuple[str, ...] = ()
    best_epoch: bool = False

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam with weight decay 5e-4 on what is decayed."""
        named = list(model.named_parameters())
        decayed = [p for name, p in named if not self.decayed or name.startswith(self.decayed)]
        held = {id(p) for p in decayed}
        groups = [
            {"params": decayed, "weight_decay": 5e-4},
            {"params": [p for _, p in named if id(p) not in held], "weight_decay": 0.0},
        ]
        return torch.optim.Adam([group for group in groups if group["params"]], lr=self.lr)


CASES = {
    "jurygcn.GCN 16": Case(lambda F, C: GCN(F, 16, C)),
    "GCN 16, best epoch": Case(
        lambda F, C: Layers(gnn.GCNConv(F, 16), gnn.GCNConv(16, C), 0.5, torch.relu),
        decayed=("first",),
        best_epoch=True,
    ),
    "GAT 8x8": Case(
        lambda F, C: Layers(
            gnn.GATConv(F, 8, heads=8, dropout=0.6), gnn.GATConv(64, C, dropout=0.6), 0.6, functional.elu
        ),
        lr=0.005,
    ),
    "GraphSAGE 64": Case(lambda F, C: pyg.GraphSAGE(F, 64, 2, C, dropout=0.5)),
    "GIN 64, BatchNorm": Case(lambda F, C: pyg.GIN(F, 64, 2, C, dropout=0.5, norm="batch_norm")),
    "GCN 64, 3 layers, BatchNorm, JK": Case(
        lambda F, C: pyg.GCN(F, 64, 3, C, dropout=0.5, norm="batch_norm", jk="cat")
    ),
    "APPNP 64": Case(PredictThenPropagate),
    "SGC": Case(lambda F, C: gnn.SGConv(F, C, K=2, cached=True), lr=0.1),
}


def fit(case: Case, model: nn.Module, data: Data, nodes: Tensor, weights: Tensor, held_out: Tensor) -> Any:
    """Train as PyG's examples do, from seed 0; returns the optimizer."""
    torch.manual_seed(0)
    model.reset_parameters()
    optimizer, best, state = case.optimizer(model), -1.0, None
    for _ in range(EPOCHS):
        model.train()
        optimizer.zero_grad()
        logits = model(data.x, data.edge_index)[nodes]
        (functional.cross_entropy(logits, data.y[nodes], reduction="none") * weights).mean().backward()
        optimizer.step()
        if case.best_epoch:
            model.eval()
            with torch.no_grad():
                hits = model(data.x, data.edge_index)[held_out].argmax(1) == data.y[held_out]
            if float(hits.float().mean()) > best:
                best, state = float(hits.float().mean()), copy.deepcopy(model.state_dict())
    if state is not None:
        model.load_state_dict(state)
    model.eval()
    return optimizer


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with its split."""

    case: Case
    model: nn.Module
    data: Data
    nodes: Tensor
    held_out: Tensor
    test: Tensor
    optimizer: Any
    seconds: float

    def jury(self, **settings: Any) -> Jury:
        """The jury, given the optimizer."""
        return Jury(self.model, self.data, self.nodes, weight_decay=self.optimizer, **settings).fit()

    def about(self, verdict: Any) -> dict[str, float]:
        """Label sets and found errors at the test nodes."""
        sets, truth = verdict.label_sets(ALPHA)[self.test], self.data.y[self.test]
        wrong = verdict.predicted_class[self.test] != truth
        return {
            "coverage": set_coverage(sets, truth),
            "size": mean_set_size(sets),
            "auroc": error_auroc(verdict.uncertainty()[self.test], wrong),
        }


def trained(graph: str, name: str, split: int) -> Trained:
    """A model, trained on one split."""
    data, case, n = load_dataset(graph), CASES[name], LABELS[graph]
    order = torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(split))
    nodes, held_out, test = order[:n].sort().values, order[n : n + VALIDATION], order[n + VALIDATION :]
    model = case.make(data.num_features, int(data.y.max()) + 1)
    start = time.process_time()
    optimizer = fit(case, model, data, nodes, torch.ones(n), held_out)
    return Trained(case, model, data, nodes, held_out, test, optimizer, time.process_time() - start)


def peak_gb() -> float:
    """The peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def measure(graph: str, model: str, split: int) -> dict[str, Any]:
    """The jury of one model on one split, called in both ways."""
    torch.set_num_threads(1)
    t = trained(graph, model, split)
    row: dict[str, Any] = {"training_seconds": t.seconds, "training_gb": peak_gb()}
    start = time.process_time()
    jury = t.jury()
    fitted = time.process_time() - start
    for call, advice in CALLS.items():
        start = time.process_time()
        verdict = jury.verdict(alpha=ALPHA, advice=advice)
        seconds = fitted + time.process_time() - start
        row[call] = {**t.about(verdict), "seconds": seconds, "ratio": seconds / t.seconds, "peak_gb": peak_gb()}
        if verdict.advice is not None:
            row["model_share"] = verdict.advice.model_share
    wrong = verdict.predicted_class[t.test] != t.data.y[t.test]
    return {
        **row,
        "accuracy": 1.0 - float(wrong.float().mean()),
        "auroc_max_probability": error_auroc(1 - verdict.probabilities.max(dim=1).values[t.test], wrong),
    }


def remembered(t: Trained, folder: Path) -> Retraining:
    """Retraining as the model was trained; every juror is kept, because it takes long."""

    def again(copied: nn.Module, data: Data, nodes: Tensor, weights: Tensor) -> None:
        path = folder / f"{int(nodes[weights == 0])}.pt"
        if path.exists():
            copied.load_state_dict(torch.load(path, weights_only=True))
            return
        fit(t.case, copied, data, nodes, weights, t.held_out)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(copied.state_dict(), path)

    return Retraining(fit=again, processes=1)


def agree(graph: str, model: str) -> dict[str, Any]:
    """Jurors of four kinds beside 20 retrained ones, on the first split."""
    torch.set_num_threads(1)
    t = trained(graph, model, 0)
    recipe = remembered(t, KEPT / "retrained" / f"{graph} {model}")
    kinds = {
        "plain": LeaveOut(decay="stated", dropout_masks=0),
        "averaged": LeaveOut(decay="stated"),
        "effective": LeaveOut(decay="effective"),
        "corrected": LeaveOut(decay="effective", corrected_by=CORRECTING),
    }
    chosen = torch.randperm(len(t.nodes), generator=torch.Generator().manual_seed(1))[:RETRAINED].sort().values
    retrained, found = None, {}
    for kind, leave_out in kinds.items():
        jury = t.jury(retraining=recipe, leave_out=leave_out)
        if retrained is None:
            retrained = retrained_parameters(jury.engine, recipe, jury.positions[chosen].tolist())
        both = compare_jurors(jury, chosen, retrained).frame
        found[kind] = {
            "mean": float(both["estimated"].mean()),
            "correlation": float(np.corrcoef(both["estimated"], both["retrained"])[0, 1]),
            "rmse": float(np.sqrt(((both["estimated"] - both["retrained"]) ** 2).mean())),
            **t.about(jury.verdict(alpha=ALPHA, advice=None)),
        }
        found["retrained_mean"] = float(both["retrained"].mean())
        if jury.correction is not None:
            found["step_length"] = jury.correction.length
    return found


def mean_of(values: list[Any]) -> Any:
    """Means of numbers, also inside dictionaries."""
    if isinstance(values[0], dict):
        return {key: mean_of([value[key] for value in values]) for key in values[0]}
    return float(np.mean(values))


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One model on one graph: means over splits, the range of the coverage, the largest memory."""
    told = ("graph", "model", "split", "stamp")
    means = mean_of([{key: value for key, value in row.items() if key not in told} for row in rows])
    for call in CALLS:
        covered = [row[call]["coverage"] for row in rows]
        means[call] |= {"least_coverage": min(covered), "most_coverage": max(covered)}
        means[call]["peak_gb"] = max(row[call]["peak_gb"] for row in rows)
    return {"graph": rows[0]["graph"], "model": rows[0]["model"], "splits": len(rows), **means}


def in_child(run: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The measurement in a new process, so that memory is that of one model."""

    def measured(**cell: Any) -> dict[str, Any]:
        with multiprocessing.get_context("spawn").Pool(1) as child:
            row: dict[str, Any] = child.apply(run, (), cell)
        print(cell, row, flush=True)
        return row

    return measured


def main() -> None:
    """Measure, print, save."""
    given = options(
        __doc__,
        agreement="one split of Cora, beside retrained jurors",
        finished="run nothing; publish what is measured",
    )
    if given.agreement:
        agreement(finished=given.finished)
    else:
        everything(quick=given.quick, finished=given.finished)


def everything(*, quick: bool, finished: bool) -> None:
    """All models on all graphs."""
    splits = range(1 if quick else SPLITS)
    wanted = [
        {"graph": graph, "model": model, "split": split}
        for split in splits
        for graph in list(LABELS)[: 1 if quick else None]
        for model in CASES
    ]
    kept = Cells("jury", lambda _: str(VERSION), folder=KEPT)
    kept.measure([] if finished else wanted, in_child(measure))
    rows = kept.rows(wanted)
    kinds = dict.fromkeys((row["graph"], row["model"]) for row in rows)
    of_kinds = [[row for row in rows if (row["graph"], row["model"]) == kind] for kind in kinds]
    summary = [summary_of(found) for found in of_kinds if len(found) == len(splits)]  # all splits are measured
    save("real_models", summary, quick=quick)
    body = [
        [
            f"{r['model']}, {r['graph']}, {call}",
            *(f"{r[call][key]:.3f}" for key in ("coverage", "size", "auroc")),
            f"{r['auroc_max_probability']:.3f}",
            *(f"{r[call][key]:.2f}" for key in ("ratio", "peak_gb")),
        ]
        for r in summary
        for call in CALLS
    ]
    head = ["model", "coverage", "labels per set", "AUROC", "AUROC max-prob.", "jury / training", "GB"]
    table("Juries of PyG models", head, body, note="Target 0.9. Mean over splits; labels drawn at random.")


def agreement(*, finished: bool) -> None:
    """The comparison with retrained jurors."""
    wanted = [{"graph": "cora", "model": model} for model in CASES]
    kept = Cells("agreement", lambda _: "2", folder=KEPT)
    kept.measure([] if finished else wanted, in_child(agree))
    rows = [{key: value for key, value in row.items() if key != "stamp"} for row in kept.rows(wanted)]
    save("real_models_agreement", rows)
    kinds = ("plain", "averaged", "effective", "corrected")
    body = [
        [
            r["model"],
            f"{r['retrained_mean']:.3f}",
            *(f"{r[kind]['mean']:.3f} {r[kind]['correlation']:.3f}" for kind in kinds),
        ]
        for r in rows
    ]
    table("Own-label probability: mean, correlation with retraining", ["model", "retrained", *kinds], body)


if __name__ == "__main__":
    main()
