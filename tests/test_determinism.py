"""The same seed gives the same bytes in every process; with another number of threads, the same up to rounding."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gnn_zoo import ZOO
from jurygcn import GCN, Jury, active, load_dataset, train
from jurygcn.data import paper_split, random_labels

# What docs/reliability.md promises for another number of threads: nothing differs by more, relative to 1 or to itself.
TOLERANCE = 1e-6
FIELDS = ("outputs", "lower", "upper", "p_values", "loo_errors", "loo_variance", "label_flips", "neighbour_doubt")
SHORT = {"initial": 4, "budget": 10, "step": 3, "recipe": active.Recipe(epochs=20)}


def everything() -> dict[str, np.ndarray]:
    """Graphs, splits, models, verdicts of every kind, and active learning, as arrays."""
    torch.manual_seed(3)
    graphs = {name: load_dataset(name) for name in ("karate", "digits", "synthetic")}
    found = {f"{name}.{key}": data[key] for name, data in graphs.items() for key in ("x", "y", "edge_index")}
    kinds = {
        "newton": ("digits", GCN(64, 16, 10), {}),
        "linearized": ("digits", GCN(64, 16, 10), {"votes": "linearized"}),
        "dropout": ("karate", GCN(34, 16, 4, dropout=0.5), {"leave_out": "influence"}),
        "autodiff": ("karate", ZOO["gat"](34, 4), {}),
    }
    for kind, (name, model, settings) in kinds.items():
        data = graphs[name]
        nodes = random_labels(paper_split(data, seed=3).pool, 15, seed=3)
        train(model, data, nodes, epochs=40, weight_decay=5e-4, seed=3)
        verdict = Jury(model, data, nodes, weight_decay=5e-4, **settings).fit().verdict()
        found |= {f"{kind}.{part}": weight.detach() for part, weight in model.state_dict().items()}
        found |= {f"{kind}.{field}": getattr(verdict, field) for field in FIELDS}
        found |= {f"{kind}.nodes": nodes, f"{kind}.ranking": verdict.ranking()}
    for strategy in ("jury-design", "age"):
        found[f"chosen by {strategy}"] = active.run(graphs["karate"], strategy, seed=3, **SHORT).labelled
    return {name: tensor.numpy() for name, tensor in found.items()}


def save(path: str, threads: str) -> None:
    torch.set_num_threads(int(threads))
    np.savez(path, **everything())


def elsewhere(path: Path, *, threads: int, hash_seed: int) -> dict[str, np.ndarray]:
    """The same in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    environment |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "PYTHONHASHSEED": str(hash_seed)}
    environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    code = f"import test_determinism as t; t.save({str(path)!r}, '{threads}')"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(scope="module")
def once(tmp_path_factory) -> dict[str, np.ndarray]:
    return elsewhere(tmp_path_factory.mktemp("once") / "found.npz", threads=1, hash_seed=0)


def test_another_process_says_the_same_bytes(once, tmp_path: Path):
    again = elsewhere(tmp_path / "found.npz", threads=1, hash_seed=12345)
    assert again.keys() == once.keys()
    assert [name for name in once if once[name].tobytes() != again[name].tobytes()] == []


def test_another_number_of_threads_says_the_same_up_to_rounding(once, tmp_path: Path):
    other = elsewhere(tmp_path / "found.npz", threads=2, hash_seed=0)
    for name, array in once.items():
        np.testing.assert_allclose(other[name], array, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)


def test_the_digits_are_one_graph():
    """Its ties are broken by number, not by rounding: the graph is part of what results depend on."""
    edges = load_dataset("digits").edge_index.numpy()
    assert hashlib.sha256(edges.tobytes()).hexdigest()[:16] == "8c0021322541360c"
