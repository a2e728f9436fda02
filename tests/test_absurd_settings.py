"""Settings in Python that are no numbers, or absurd ones: one sentence, as on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from jurygcn import GCN, Jury, Retraining, active, learning, load_dataset, train
from jurygcn.data import paper_split
from jurygcn.errors import SettingError
from jurygcn.experiments import reproduce
from jurygcn.experiments.comparison import evaluate
from jurygcn.settings import LeaveOut, Run

NODES = torch.arange(8)
FLOATS = (-1.0, math.nan, math.inf, -math.inf, 1e300, 10**400, -(10**400), "1", None)
COUNTS = (-1, 10**20, -(10**20), 10**5000, 1.5, math.nan, math.inf, "1", True)


@cache
def karate() -> Data:
    return load_dataset("karate")


def small() -> GCN:
    return GCN(34, 2, 4)


def trained(**settings: Any) -> object:
    return train(small(), karate(), NODES, **{"epochs": 1, **settings})


@cache
def jury() -> Jury:
    model = small()
    train(model, karate(), NODES, epochs=5)
    return Jury(model, karate(), NODES, weight_decay=5e-4).fit()


def run(**settings: Any) -> object:
    recipe = active.Recipe(hidden=2, epochs=1)
    return active.run(karate(), "random", **{"initial": 2, "budget": 4, "step": 2, "recipe": recipe, **settings})


def fitted(method: Callable[..., Any], **settings: Any) -> object:
    held_out = paper_split(karate(), seed=0).val
    return method(**settings).fit(karate(), NODES, val_nodes=held_out[~torch.isin(held_out, NODES)])


def of(function: Callable[..., Any], name: str) -> Callable[[Any], Any]:
    return lambda value: function(**{name: value})


CALLS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "hidden_channels": (lambda value: GCN(34, value, 4), (0, *COUNTS)),
    "num_layers": (lambda value: GCN(34, 2, 4, num_layers=value), (0, *COUNTS)),
    "dropout": (lambda value: GCN(34, 2, 4, dropout=value), (1.0, *FLOATS)),
    "size": (lambda value: GCN(*value), ((34, 65_536, 4, 1_000), (10**9, 65_536, 4))),
    "epochs": (of(trained, "epochs"), (0, *COUNTS)),
    "lr": (of(trained, "lr"), (0.0, *FLOATS)),
    "weight_decay": (of(trained, "weight_decay"), FLOATS),
    "one weight_decay": (lambda value: trained(weight_decay={"weights.0": value}), FLOATS),
    "seed": (of(trained, "seed"), COUNTS),
    "jury weight_decay": (lambda value: Jury(small(), karate(), NODES, weight_decay=value), FLOATS[:-1]),
    "jury memory": (
        lambda value: Jury(small(), karate(), NODES, run=Run(memory=value)),
        ("1.2.3GB", "", ".", "1K\N{KELVIN SIGN}", "٣GB", "9" * 400, "inf", "nan", "-1GB", 10**5000, None),
    ),
    "jury parallel": (
        lambda value: Jury(small(), karate(), NODES, run=value),
        (99999999999, 10**5000, 0, -2, 1.5, True, "٣", "processes:0", "processes:9999999", "dask://host:٣"),
    ),
    "jury jurors": (lambda value: Jury(small(), karate(), NODES, leave_out=LeaveOut(max_jurors=value)), (0, *COUNTS)),
    "retraining epochs": (of(Retraining, "epochs"), (0, *COUNTS)),
    "retraining lr": (of(Retraining, "lr"), (0.0, *FLOATS)),
    "retraining seed": (of(Retraining, "seed"), COUNTS),
    "alpha": (lambda value: jury().verdict(alpha=value), (0.0, 0.5, *FLOATS)),
    "diffusion": (lambda value: jury().verdict(diffusion=value), (101, 10**23, *COUNTS, None, "two")),
    "budget": (of(run, "budget"), (10**9, 10**20, -1, 0)),
    "budget on top": (partial(lambda value: run(budget=value, count_initial=False)), (10**9, 10**20, -1, 0)),
    "recipe hidden": (lambda value: run(recipe=active.Recipe(hidden=value, epochs=1)), (0, *COUNTS)),
    "stop at": (active.reached, (0.0, -1.0, math.nan, math.inf, 1e300)),
    "GAT hidden": (lambda value: fitted(learning.GATClassifier, hidden=value), (0, *COUNTS)),
    "GAT dropout": (lambda value: fitted(learning.GATClassifier, dropout=value), (1.0, *FLOATS)),
    "GPN hidden": (lambda value: fitted(learning.GPNClassifier, hidden=value), (0, *COUNTS)),
    "GPN dropout": (lambda value: fitted(learning.GPNClassifier, dropout=value), (1.0, *FLOATS)),
    "GCN lr": (lambda value: fitted(learning.GCNClassifier, lr=value), (0.0, *FLOATS)),
    "GCN weight_decay": (lambda value: fitted(learning.GCNClassifier, weight_decay=value), FLOATS),
    "splits": (lambda value: evaluate(karate(), splits=value, methods=["jury"]), (0, 10_001, *COUNTS)),
    "labels": (lambda value: evaluate(karate(), labels=value, methods=["jury"]), (1, 10**9, *COUNTS)),
    "runs": (lambda value: reproduce("table1", out="nowhere", runs=value), (0, 10_001, *COUNTS)),
}


@pytest.mark.parametrize("name", CALLS)
def test_absurd_settings_are_one_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, values = CALLS[name]
    for value in values:
        with pytest.raises(SettingError) as caught:
            call(value)
        assert len(str(caught.value)) < 300
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_bounds_themselves_are_fine():
    trained(lr=1e6, weight_decay=1e6, seed=2**63 - 1)
    assert jury().verdict(diffusion=100).diffusion == 100
    Jury(small(), karate(), NODES, run=Run(parallel=1024, memory="999999TB"))
