"""A validation set for free: accuracy, calibration, choice of a model and wrong labels from left-out labels.

60 random labels (140 for wrong labels), 1000 test nodes, 20 splits, a GCN with 16 hidden units and 100 epochs. Fewer
splits: 5 for CaGCN, GATS and the selection on amazon_photo and among PyG's models, 10 on Cora and 5 on PubMed for
PyG's models. amazon_photo has the learning rate 0.05, because 0.01 does not fit it.

All that was chosen was chosen on digits, synthetic graphs, webkb_texas, amazon_photo and classes of us_county_election,
on other splits (seeds from 100 on): how jurors for estimates are found, how much of a correction is applied, how often
the panel learns probable classes, the rule of the temperature, the measure of selection and whether folds or jurors are
its default. On Cora, Citeseer and PubMed earlier versions were measured, which showed what to improve; they had no
other part. The most important cells come first. Interrupted runs go on where they stopped; --finished publishes what is
there. Needs cleanlab.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import torch
from cleanlab.filter import find_label_issues
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch_geometric.data import Data

from free_validation_models import PYG, UNDERFIT, probabilities, train_pyg
from free_validation_selection import measure_selection
from free_validation_summary import LABELS, calibrations, errors, estimates, joined, selections
from harness import options, publish, save, table, with_published
from jurygcn import Jury
from jurygcn.baselines.posthoc import best_temperature
from jurygcn.data import cache_folder, paper_split, random_labels
from jurygcn.diagnostics.accuracy import ExpectedAccuracy, wilson
from jurygcn.diagnostics.calibration import calibration_of
from jurygcn.diagnostics.left_out import others_of, unlabelled
from jurygcn.evaluation import accuracy, ece, nll
from jurygcn.experiments.cells import Cells
from jurygcn.learning import GATS, CaGCN, GCNClassifier
from jurygcn.models import fit_gcn
from protocol import CITATION, PLAIN, extra, graph

# Increased by hand when more is measured, by part.
VERSION = {"estimates": "7", "held out": "1", "rivals": "3", "selection": "7", "errors": "5", "cleanlab": "1"}
FOLDS, MANY, FEW, SOME = 5, 140, 5, 10

# Trains a model on the labels of some nodes: data, nodes, seed -> model, and what Jury needs as weight_decay.
Train = Callable[[Data, Tensor, int], tuple[nn.Module, Any]]


def trainer(name: str, kind: str) -> Train:
    """The GCN with this graph's learning rate, or a PyG model as its examples train it."""
    if kind != "GCN":
        return lambda data, nodes, seed: train_pyg(kind, data, nodes, seed)
    recipe = replace(PLAIN, lr=UNDERFIT.get(name, PLAIN.lr))
    return lambda data, nodes, seed: (fit_gcn(data, nodes, recipe, seed=seed)[0], recipe.weight_decay)


def cross_validated(train: Train, data: Data, nodes: Tensor, seed: int) -> Tensor:
    """Predictions of each label by a model trained on the other folds, (n, C)."""
    order = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(seed))
    found = torch.empty(len(nodes), int(data.num_classes), dtype=torch.float64)
    for k in range(FOLDS):
        own, rest = order[k::FOLDS], order[torch.arange(len(order)) % FOLDS != k]
        found[own] = probabilities(train(data, nodes[rest].sort().values, seed)[0], data)[nodes[own]]
    return found


# --- 1 and 2: the accuracy, and the calibration ------------------------------------------------------------------


def estimated(found: ExpectedAccuracy) -> dict[str, float]:
    return {"accuracy": found.accuracy, "low": found.interval[0], "high": found.interval[1], "log_loss": found.log_loss}


def estimate(own: Tensor, labels: Tensor) -> dict[str, float]:
    right = int((own.argmax(dim=1) == labels).sum())
    low, high = wilson(right, len(labels), level=0.95)
    return {"accuracy": right / len(labels), "low": low, "high": high, "log_loss": nll(own, labels)}


def measure_estimates(name: str, kind: str, seed: int) -> dict[str, Any]:
    data, train = graph(name), trainer(name, kind)
    split = paper_split(data, seed=seed)
    nodes = random_labels(split.pool, LABELS, seed=seed)
    started = time.process_time()
    model, decay = train(data, nodes, seed)
    training = time.process_time() - started
    pi, truth, labels = probabilities(model, data), data.y[split.test], data.y[nodes]
    started = time.process_time()
    jury = Jury(model, data, nodes, weight_decay=decay).fit()
    found = jury.expected_accuracy()
    cost = time.process_time() - started
    advised, logits = stacked_at(jury, split.test), pi.log()
    calibrated, alone = jury.calibrate(), calibration_of(jury.left_out())
    heated = best_temperature(logits[split.val], data.y[split.val])
    ends = {
        "none": pi,
        "left-out labels": torch.softmax(calibrated.calibrated(logits), dim=1),
        "left-out labels, log loss alone": torch.softmax(logits / alone.temperature + alone.bias, dim=1),
        "500 validation labels": torch.softmax(logits / heated, dim=1),
    }
    scaled = {words: p[split.test].double() for words, p in ends.items()} | {"stacked jury": advised}
    return {
        "test": {
            "accuracy": accuracy(pi[split.test].argmax(dim=1), truth),
            "jury_accuracy": accuracy(advised.argmax(dim=1), truth),
        },
        "estimates": {
            "jury": estimated(found) | {"cost": cost / training},
            "left-out labels alone": estimate(jury.left_out().probabilities, labels) | {"cost": cost / training},
            "training labels": estimate(pi[nodes], labels) | {"cost": 0},
            "stacked jury": estimated(jury.expected_accuracy(of="jury")),
        },
        "calibration": {words: {"ece": ece(p, truth), "nll": nll(p, truth)} for words, p in scaled.items()},
        "temperature": [calibrated.calibration.temperature if calibrated.calibration else 1.0, heated],
    }


def measure_held_out(name: str, kind: str, seed: int) -> dict[str, Any]:
    """What trains further models: cross-validation, and 30 labels for validation."""
    data, train = graph(name), trainer(name, kind)
    split = paper_split(data, seed=seed)
    nodes, truth = random_labels(split.pool, LABELS, seed=seed), data.y[split.test]
    order = nodes[torch.randperm(LABELS, generator=torch.Generator().manual_seed(seed))]
    half, rest = order[: LABELS // 2].sort().values, order[LABELS // 2 :]
    by_half = probabilities(train(data, half, seed)[0], data)
    heated = best_temperature(by_half.log()[rest], data.y[rest])
    p = torch.softmax(by_half.log() / heated, dim=1)[split.test].double()
    return {
        "estimates": {
            "5-fold": estimate(cross_validated(train, data, nodes, seed), data.y[nodes]) | {"cost": FOLDS},
            "30/30": estimate(by_half[rest], data.y[rest]) | {"cost": 1},
        },
        "calibration": {"30/30": {"ece": ece(p, truth), "nll": nll(p, truth)}},
    }


def stacked_at(jury: Jury, nodes: Tensor) -> Tensor:
    """`verdict.calibrated` at nodes without a label, without counting votes, (m, C)."""
    found, everywhere = others_of(jury), torch.full((int(jury.data.num_nodes),), -1)
    everywhere[unlabelled(jury)] = torch.arange(len(unlabelled(jury)))
    assert found is not None
    assert int(everywhere[nodes].min()) >= 0
    return found.stacked[everywhere[nodes]]


def measure_rivals(name: str, seed: int) -> dict[str, Any]:
    """CaGCN and GATS with 500 validation labels."""
    data = graph(name)
    split = paper_split(data, seed=seed)
    nodes, truth = random_labels(split.pool, LABELS, seed=seed), data.y[split.test]
    network = GCNClassifier(dropout=0.0, lr=UNDERFIT.get(name, PLAIN.lr))
    decay = 0.0 if name in ("pubmed", "amazon_photo") else GATS.weight_decay
    found = {}
    for words, method in (("CaGCN", CaGCN(network)), ("GATS", GATS(network, weight_decay=decay))):
        p = method.fit(data, nodes, val_nodes=split.val, seed=seed).probabilities[split.test]
        found[words] = {"ece": ece(p, truth), "nll": nll(p, truth)}
    return {"calibration": found}


# --- 4: which labels are wrong ------------------------------------------------------------------------------------


@cache
def similar_class(name: str) -> Tensor:
    """For each class the one that its nodes' neighbours have most often, beside itself, (C,)."""
    data = graph(name)
    C = int(data.num_classes)
    ends = data.y[data.edge_index]
    source, target = ends[:, (ends >= 0).all(dim=0)]  # some nodes of Citeseer have no class
    joint = torch.bincount(source * C + target, minlength=C * C).view(C, C)
    return joint.fill_diagonal_(-1).argmax(dim=1)


def spoiled(name: str, nodes: Tensor, rate: float, kind: str, seed: int) -> tuple[Data, Tensor]:
    """The graph with some labels flipped, and which of the training labels those are, (n,) bool."""
    data = graph(name).clone()
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.zeros(len(nodes), dtype=torch.bool)
    wrong[torch.randperm(len(nodes), generator=generator)[: round(rate * len(nodes))]] = True
    at, C = nodes[wrong], int(data.num_classes)
    other = (data.y[at] + torch.randint(1, C, (len(at),), generator=generator)) % C
    data.y = data.y.clone()
    data.y[at] = other if kind == "uniform" else similar_class(name)[data.y[at]]
    return data, wrong


def measure_errors(name: str, kind: str, rate: float, flips: str, seed: int) -> dict[str, Any]:
    train = trainer(name, kind)
    split = paper_split(graph(name), seed=seed)
    nodes = random_labels(split.pool, MANY, seed=seed)
    data, wrong = spoiled(name, nodes, rate, flips, seed)
    labels, truth = data.y[nodes], graph(name).y[split.test]
    model, decay = train(data, nodes, seed)
    jury = Jury(model, data, nodes, weight_decay=decay).fit()
    found = jury.label_errors()
    by_node = found.table.set_index("node").loc[nodes.tolist()]
    pi, own = probabilities(model, data), jury.left_out().probabilities
    influence = (jury.engine.node_gradients() * jury.influences).sum(dim=1)
    scores = {
        "jury": torch.tensor(by_node["wrong"].to_numpy()),
        "model's jurors": -own.gather(1, labels[:, None]).squeeze(1),
        "self-influence": influence.detach(),
        "in-sample": -pi[nodes].gather(1, labels[:, None]).squeeze(1),
    }
    flagged = torch.tensor(by_node["flagged"].to_numpy())
    again = probabilities(train(data, nodes[~flagged], seed)[0], data)
    return {
        "auroc": {words: float(roc_auc_score(wrong, score)) for words, score in scores.items()},
        "jury": flags(flagged, wrong) | {"noise": found.noise, "estimated": found.false_discoveries},
        "accuracy": {
            "all labels": accuracy(pi[split.test].argmax(dim=1), truth),
            "without flagged": accuracy(again[split.test].argmax(dim=1), truth),
        },
    }


def measure_cleanlab(name: str, kind: str, rate: float, flips: str, seed: int) -> dict[str, Any]:
    """cleanlab with 5-fold cross-validation, and the model that no wrong label misled."""
    train = trainer(name, kind)
    split = paper_split(graph(name), seed=seed)
    nodes = random_labels(split.pool, MANY, seed=seed)
    data, wrong = spoiled(name, nodes, rate, flips, seed)
    labels, truth = data.y[nodes], graph(name).y[split.test]
    folds = cross_validated(train, data, nodes, seed)
    issues = torch.from_numpy(find_label_issues(labels.numpy(), folds.numpy()))
    score = -folds.gather(1, labels[:, None]).squeeze(1)
    return {
        "auroc": {"cleanlab, 5-fold": float(roc_auc_score(wrong, score))},
        "cleanlab": flags(issues, wrong),
        "accuracy": {
            words: accuracy(probabilities(train(data, kept, seed)[0], data)[split.test].argmax(dim=1), truth)
            for words, kept in (("without cleanlab's", nodes[~issues]), ("without wrong", nodes[~wrong]))
        },
    }


def flags(flagged: Tensor, wrong: Tensor) -> dict[str, float]:
    count = int(flagged.sum())
    return {
        "flagged": count,
        "false": float((flagged & ~wrong).sum()) / count if count else 0.0,
        "found": float((flagged & wrong).sum()) / int(wrong.sum()),
    }


# --- all of it ----------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "estimates": measure_estimates,
    "held out": measure_held_out,
    "rivals": measure_rivals,
    "selection": measure_selection,
    "errors": measure_errors,
    "cleanlab": measure_cleanlab,
}


def measure(part: str, **cell: Any) -> dict[str, Any]:
    return PARTS[part](**cell)


def cells(*, quick: bool) -> list[dict[str, Any]]:
    """What is measured, the most important first."""
    graphs = ("cora",) if quick else (*CITATION, *extra("amazon_photo"))
    few = graphs[:3]
    splits = 2 if quick else 20
    wanted = [estimates_cell(name, seed) for seed, name in product(range(splits), graphs)]
    wanted += [errors_cell(name, 0.2, "uniform", seed) for seed, name in product(range(splits), few)]
    wanted += [selection_cell(name, seed) for seed, name in product(range(splits), few)]
    if not quick:
        for name, count in (("cora", SOME), ("pubmed", FEW)):
            wanted += [estimates_cell(name, seed, kind) for seed, kind in product(range(count), PYG)]
        wanted += [errors_cell("cora", 0.2, "uniform", seed, kind) for seed, kind in product(range(FEW), PYG)]
        wanted += [{**selection_cell("cora", seed), "kind": "PyG"} for seed in range(FEW)]
        others = [("uniform", 0.1), ("uniform", 0.3), ("similar", 0.2), ("similar", 0.1), ("similar", 0.3)]
        wanted += [
            errors_cell(name, rate, kind, seed) for seed in range(splits) for kind, rate in others for name in few
        ]
        wanted += [errors_cell(name, 0.2, "uniform", seed) for seed, name in product(range(splits), graphs[3:])]
        wanted += [selection_cell(name, seed) for seed, name in product(range(FEW), graphs[3:])]
    parts = {"estimates": "held out", "errors": "cleanlab"}
    wanted += [{**cell, "part": parts[cell["part"]]} for cell in wanted if cell["part"] in parts]
    rivals = product(range(1 if quick else FEW), graphs)
    return wanted + [{"part": "rivals", "name": name, "seed": seed} for seed, name in rivals]


def estimates_cell(name: str, seed: int, kind: str = "GCN") -> dict[str, Any]:
    return {"part": "estimates", "kind": kind, "name": name, "seed": seed}


def selection_cell(name: str, seed: int) -> dict[str, Any]:
    return {"part": "selection", "name": name, "seed": seed}


def errors_cell(name: str, rate: float, flips: str, seed: int, kind: str = "GCN") -> dict[str, Any]:
    return {"part": "errors", "name": name, "kind": kind, "rate": rate, "flips": flips, "seed": seed}


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is measured")
    wanted = cells(quick=chosen.quick)
    folder = cache_folder() / "benchmarks" / "free_validation"
    kept = with_published(Cells("free_validation", lambda cell: VERSION[cell["part"]], folder=folder))
    kept.measure([] if chosen.finished else wanted, measure, what="Measuring", show=True)
    rows = joined(kept.rows(wanted))
    summary = [*estimates(rows), *calibrations(rows), *selections(rows), *errors(rows)]
    for part in ("accuracy", "calibration", "selection", "errors"):
        some = [row for row in summary if row["part"] == part]
        if some:
            columns = list(dict.fromkeys(key for row in some for key in row))[1:]
            body = [
                [f"{row[c]:.3f}" if isinstance(row.get(c), float) else row.get(c, "") for c in columns] for row in some
            ]
            table(part, columns, body)
    if not chosen.quick:
        publish(kept, wanted)
    print(save("free_validation", summary, quick=chosen.quick))


if __name__ == "__main__":
    main()
