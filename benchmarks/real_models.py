"""PyG models as people train them: how long a jury takes, how well its label sets cover, how true its jurors are.

Seven models with biases, dropout, weight decay on some layers, batch normalisation and early stopping, each trained for
200 epochs with Adam on labels drawn at random (Cora 140, PubMed 60), by a loop as PyG's examples have it. The jury gets
the optimizer and nothing else. Training and jury are timed one after the other in the same run. With --agreement 20
jurors of the first split of Cora are trained again in the same way: their predictions for their own labels are compared
with those of jurors estimated with the stated weight decay in eval mode ("plain"), with the stated decay and averages
over dropout ("averaged"), with the effective decay ("effective", the default), and by default but corrected by 8 other
retrained jurors ("corrected"). All verdicts are those of the model's own jurors, without advice.
"""

from __future__ import annotations

import copy
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
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
from jurygcn.diagnostics.fidelity import compare_jurors
from jurygcn.evaluation.ranking import error_auroc
from jurygcn.leave_one_out.retraining import retrained_parameters

EPOCHS, VALIDATION, RETRAINED, CORRECTING, ALPHA = 200, 500, 20, 8, 0.1
LABELS = {"cora": 140, "pubmed": 60}


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
    "SGC": Case(lambda F, C: gnn.SGConv(F, C, K=2)),
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


def measure(graph: str, name: str, split: int, *, retrain: bool, threads: int) -> dict[str, Any]:
    """One model on one split."""
    torch.set_num_threads(threads)
    data, case, n = load_dataset(graph), CASES[name], LABELS[graph]
    order = torch.randperm(int(data.num_nodes), generator=torch.Generator().manual_seed(split))
    nodes, held_out, test = order[:n].sort().values, order[n : n + VALIDATION], order[n + VALIDATION :]
    model = case.make(data.num_features, int(data.y.max()) + 1)
    start = time.perf_counter()
    optimizer = fit(case, model, data, nodes, torch.ones(n), held_out)
    training = time.perf_counter() - start
    start = time.perf_counter()
    jury = Jury(model, data, nodes, weight_decay=optimizer).fit()
    fitted = time.perf_counter() - start
    verdict = jury.verdict(alpha=ALPHA, advice=None)
    seconds = time.perf_counter() - start
    right = (verdict.predicted_class == data.y)[test]
    row = {
        "graph": graph,
        "model": name,
        "split": split,
        "accuracy": float(right.float().mean()),
        "training_seconds": training,
        "fit_seconds": fitted,
        "jury_seconds": seconds,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,  # of training and jury together
        **coverage(verdict, data, test),
        "auroc_ambiguity": error_auroc(verdict.uncertainty("ambiguity")[test], ~right),
        "auroc_max_probability": error_auroc(1 - verdict.probabilities.max(dim=1).values[test], ~right),
    }
    return {**row, **against_retraining(case, model, data, nodes, held_out, test, optimizer)} if retrain else row


def coverage(verdict: Any, data: Data, test: Tensor) -> dict[str, float]:
    """How often label sets hold the truth at the test nodes, and how many labels they hold."""
    sets = verdict.label_sets(ALPHA)[test]
    return {
        "coverage": float(sets.gather(1, data.y[test][:, None]).float().mean()),
        "size": float(sets.float().sum(dim=1).mean()),
    }


def against_retraining(
    case: Case, model: nn.Module, data: Data, nodes: Tensor, held_out: Tensor, test: Tensor, optimizer: Any
) -> dict[str, Any]:
    """Jurors of three kinds beside 20 retrained ones."""

    def again(copied: nn.Module, data: Data, nodes: Tensor, weights: Tensor) -> None:
        fit(case, copied, data, nodes, weights, held_out)

    recipe = Retraining(fit=again, processes=1)
    kinds = {
        "plain": LeaveOut(decay="stated", dropout_masks=0),
        "averaged": LeaveOut(decay="stated"),
        "effective": LeaveOut(decay="effective"),
        "corrected": LeaveOut(decay="effective", corrected_by=CORRECTING),
    }
    chosen = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(1))[:RETRAINED].sort().values
    retrained, found = None, {}
    for kind, leave_out in kinds.items():
        jury = Jury(model, data, nodes, weight_decay=optimizer, retraining=recipe, leave_out=leave_out).fit()
        if retrained is None:
            retrained = retrained_parameters(jury.engine, recipe, jury.positions[chosen].tolist())
        agreement = compare_jurors(jury, chosen, retrained).frame
        found[f"{kind}_mean"] = float(agreement["estimated"].mean())
        found[f"{kind}_correlation"] = float(np.corrcoef(agreement["estimated"], agreement["retrained"])[0, 1])
        found[f"{kind}_rmse"] = float(np.sqrt(((agreement["estimated"] - agreement["retrained"]) ** 2).mean()))
        found["retrained_mean"] = float(agreement["retrained"].mean())
        found.update(
            {
                f"{kind}_{key}": value
                for key, value in coverage(jury.verdict(alpha=ALPHA, advice=None), data, test).items()
            }
        )
        if jury.correction is not None:
            found["step_length"] = jury.correction.length
    return found


MEANS = (
    "accuracy",
    "coverage",
    "size",
    "training_seconds",
    "jury_seconds",
    "peak_gb",
    "auroc_ambiguity",
    "auroc_max_probability",
)


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """One model on one graph: means over splits, and the first split's comparison with retraining."""
    covered = [row["coverage"] for row in rows]
    means = {key: float(np.mean([row[key] for row in rows])) for key in MEANS}
    others = {key: value for key, value in rows[0].items() if key not in (*MEANS, "split", "fit_seconds")}
    return {**others, **means, "least_coverage": min(covered), "most_coverage": max(covered)}


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each graph and model."""
    kinds = dict.fromkeys((row["graph"], row["model"]) for row in rows)
    return [summary_of([row for row in rows if (row["graph"], row["model"]) == kind]) for kind in kinds]


def main() -> None:
    """Measure, print, save."""
    given = options(__doc__, agreement="one split of Cora, beside retrained jurors")
    splits = range(1 if given.quick or given.agreement else 5)
    graphs = ("cora",) if given.quick or given.agreement else ("cora", "pubmed")
    rows = []
    for graph in graphs:
        for name in CASES:
            with multiprocessing.get_context("spawn").Pool(1) as child:  # so that memory is that of one model
                for split in splits:
                    retrain = given.agreement
                    rows.append(
                        child.apply(measure, (graph, name, split), {"retrain": retrain, "threads": given.threads})
                    )
                    print(rows[-1], flush=True)
    summary = summarize(rows)
    name = "real_models_agreement" if given.agreement else "real_models"
    save(name, summary, quick=given.quick, runs=rows, splits=len(splits))
    table(
        "Juries of PyG models",
        (
            "model",
            "graph",
            "accuracy",
            "coverage",
            "labels per set",
            "training s",
            "jury s",
            "AUROC",
            "AUROC max-prob.",
        ),
        (
            (
                r["model"],
                r["graph"],
                f"{r['accuracy']:.3f}",
                f"{r['coverage']:.3f}",
                f"{r['size']:.2f}",
                f"{r['training_seconds']:.1f}",
                f"{r['jury_seconds']:.1f}",
                f"{r['auroc_ambiguity']:.3f}",
                f"{r['auroc_max_probability']:.3f}",
            )
            for r in summary
        ),
        note="Target 0.9. Mean over splits; labels drawn at random; the jury is given the optimizer only.",
    )


if __name__ == "__main__":
    main()
