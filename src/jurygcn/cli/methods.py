"""`jurygcn train --method`: every method except the plain GCN, through the interface of jurygcn.learning."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.console import Console
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.cli.nodes import Recorded
from jurygcn.cli.output import check_out, say_written, write_csv, write_run
from jurygcn.cli.reporting import print_json
from jurygcn.cli.tables import facts_table, in_words
from jurygcn.cli.trained_model import Settings, choose_nodes, load_graph, stopwatch, versions, with_labels_from
from jurygcn.data import labelled, paper_split, sizes
from jurygcn.errors import SettingError
from jurygcn.evaluation import accuracy, error_auroc, micro_f1
from jurygcn.learning import METHODS, Fitted, Method
from jurygcn.progress import progress_bar


def fit_method(
    name: str,
    method: str,
    settings: Settings,
    stated: dict[str, Any],
    out: Path | None,
    *,
    preset: str | None,
    as_json: bool,
) -> None:
    """Fit, score, write and print."""
    check_out(out)
    data, loading = load_graph(name)
    data, seconds = with_labels_from(settings.train_nodes, data), {"data": loading}
    train_nodes, test_nodes = choose_nodes(data, settings, Recorded())
    chosen = adjusted(METHODS[method](preset), method, stated)
    with stopwatch(seconds, "training"), progress_bar("Training"):
        validation = paper_split(data, seed=settings.seed).val
        fitted = chosen.fit(data, train_nodes, val_nodes=validation, seed=settings.seed)
    run = {
        "command": "train",
        "method": method,
        "data": {"name": data.name, **sizes(data)._asdict()},
        "settings": {"labels": len(train_nodes), "seed": settings.seed, **plain(chosen)},
        "details": dict(fitted.details),
        "test": scores(fitted, data, test_nodes),
        "versions": versions(),
        "seconds": {stage: round(spent, 3) for stage, spent in seconds.items()},
        "train_nodes": train_nodes.tolist(),
    }
    files = []
    if out is not None:
        state, table = fitted.model.state_dict(), predictions(fitted, data, train_nodes)
        writers = {"predictions.csv": write_csv(table), "state.pt": lambda path: torch.save(state, path)}
        files = write_run(out, run, writers)
    if as_json:
        print_json({**run, "files": [str(path) for path in files]})
        return
    console = Console()
    console.print(facts_table(facts(run, data) | {"time": in_words(seconds)}, title=f"{method} on {data.name}"))
    say_written(console, files)


def adjusted(method: Method, name: str, stated: dict[str, Any]) -> Method:
    """The method with the user's settings; raise SettingError for settings that it does not have."""
    known = {f.name for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    strange = [f"--{key.replace('_', '-')}" for key in stated if key not in known]
    if strange:
        raise SettingError(f"expected options that --method {name} has, got {', '.join(strange)}; drop them")
    changed: Method = dataclasses.replace(method, **stated)  # type: ignore[type-var]
    return changed


def plain(method: Method) -> dict[str, Any]:
    """The method's settings as plain values."""
    return dataclasses.asdict(method)  # type: ignore[call-overload, no-any-return]


def scores(fitted: Fitted, data: Data, nodes: Tensor) -> dict[str, Any]:
    """Accuracy, micro-F1 and the AUROC of detecting errors by the uncertainty; None without test nodes."""
    if not len(nodes):
        return {"nodes": 0, "accuracy": None, "micro_f1": None, "error_auroc": None}
    predicted, truth = fitted.predict(nodes), data.y[nodes]
    return {
        "nodes": len(nodes),
        "accuracy": accuracy(predicted, truth),
        "micro_f1": micro_f1(predicted, truth),
        "error_auroc": error_auroc(fitted.uncertainty(nodes=nodes), predicted != truth),
    }


def predictions(fitted: Fitted, data: Data, train_nodes: Tensor) -> pd.DataFrame:
    """One row per node: prediction, probability, every uncertainty, the true label (empty if unknown)."""
    columns: dict[str, Any] = {"node": range(int(data.num_nodes))}
    if getattr(data, "node_names", None):
        columns["name"] = [str(name) for name in data.node_names]
    known = labelled(data).tolist()
    columns["true_class"] = pd.Series([y if there else None for y, there in zip(data.y.tolist(), known)], dtype="Int64")
    trained = torch.zeros(int(data.num_nodes), dtype=torch.bool)
    trained[train_nodes] = True
    columns["trained_on"] = trained.tolist()
    columns["predicted_class"] = fitted.predict().tolist()
    columns["probability"] = fitted.predict_proba().amax(dim=1).tolist()
    columns |= {kind: score.tolist() for kind, score in fitted.uncertainties.items()}
    return pd.DataFrame(columns)


def facts(run: dict[str, Any], data: Data) -> dict[str, str]:
    """The run as rows of a table."""
    test = run["test"]
    rows = {
        "graph": f"{data.num_nodes:,} nodes, {data.num_edges // 2:,} edges, {data.num_classes} classes",
        "labels": f"{run['settings']['labels']:,}, seed {run['settings']['seed']}",
        "details": ", ".join(f"{key.replace('_', ' ')} {value:g}" for key, value in run["details"].items()) or "none",
    }
    if not test["nodes"]:
        return rows | {"test": "no labelled nodes left to test on"}
    return rows | {
        "test accuracy": f"{100 * test['accuracy']:.1f} % of {test['nodes']:,} nodes",
        "micro-F1": f"{test['micro_f1']:.3f}",
        "errors detected": f"AUROC {test['error_auroc']:.3f} of the method's own uncertainty",
    }
