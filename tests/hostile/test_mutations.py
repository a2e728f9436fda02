"""Every reader on mutated files: what was written, or one sentence; never a raw exception, never a forgery believed."""

from __future__ import annotations

import io
import json
import pickle
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import mutators
import numpy as np
import pytest
import torch
from attacks import GRAPH, npy_bytes
from scipy import sparse

from cases import Case
from jurygcn import GCN, Jury, active, load_dataset
from jurygcn.active import History
from jurygcn.active.labels import read_labels
from jurygcn.active.tasks import label_studio_tasks, next_tasks, read_answers, tasks_csv
from jurygcn.cli.checkpoint import load_gcn
from jurygcn.cli.nodes import read_nodes, recorded_beside
from jurygcn.conformal import resuming as record
from jurygcn.data import package_index
from jurygcn.data.cache import store
from jurygcn.data.planetoid import PARTS, file_name, read_planetoid
from jurygcn.data.validate import sizes
from jurygcn.errors import JuryError
from jurygcn.experiments.cells import Cells
from jurygcn.io.archives import read_sealed, write_sealed
from jurygcn.io.fingerprints import fingerprint, sealed, state
from jurygcn.io.label_studio import as_json_text
from jurygcn.report import Report, report_on
from jurygcn.settings import Run

SAME, SEALED, FREE = "recomputed", "refused or the same", "refused or read"
ORDINARY, MANY = 40, 3_000  # mutated files: for each reader, and in all


@dataclass(frozen=True)
class Reader:
    """Files, how they are read, and what may come of each kind of change.

    A cache or record must give the same numbers whatever happens to it (SAME). A file with a digest or checksum
    gives the same or is refused (SEALED). Where nothing says what was there before, any content that is in order is
    as good as another (FREE).
    """

    files: dict[str, bytes]
    read: Callable[[Path], Any]
    changes: dict[mutators.Mutator, str] = field(default_factory=dict)

    def tried(self, folder: Path, count: int, seed: int) -> Counter[str]:
        """What came of so many mutated files."""
        rng, outcomes = np.random.default_rng(seed), Counter[str]()
        folder.mkdir()
        self._put(folder, {})
        truth = fingerprint(self.read(folder))
        for number in range(count):
            change, rule = list(self.changes.items())[number % len(self.changes)]
            name = sorted(self.files)[int(rng.integers(0, len(self.files)))]
            content = change(self.files[name], rng)
            self._put(folder, {name: content})
            what = f"{change.__name__} of {name}, number {number}, seed {seed}"
            try:
                found = fingerprint(self.read(folder))
            except JuryError as error:
                said = str(error)
                assert said, what
                assert "\n" not in said, f"{what}: {said}"
                assert rule != SAME, f"{what}: {said}"
                outcomes["refused"] += 1
                continue
            except Exception as error:
                raise AssertionError(f"a raw {type(error).__name__}: {what}") from error
            assert found == truth or rule == FREE, f"a forgery was believed: {what}"
            outcomes["same" if found == truth else "read"] += 1
        return outcomes

    def _put(self, folder: Path, changed: dict[str, bytes]) -> None:
        for name, content in {**self.files, **changed}.items():
            (folder / name).write_bytes(content)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def content(data: Any) -> dict[str, Any]:
    return {key: value for key, value in data.to_dict().items() if key != "name"}


# --- the readers ----------------------------------------------------------------------------------------------


def npz(_: Path) -> Reader:
    arrays = {**GRAPH, "num_classes": np.array(2), "class_names": np.array(["a", "b"]), "train_mask": np.ones(3, bool)}
    file = mutators.packed({f"{name}.npy": npy_bytes(array) for name, array in arrays.items()})
    changes = {mutators.any_bytes: SEALED, mutators.some_arrays: FREE, mutators.members: FREE}
    return Reader({"g.npz": file}, lambda folder: content(load_dataset(folder / "g.npz")), changes)


def csv_folder(_: Path) -> Reader:
    nodes = "id,a,b,label\n" + "".join(f"n{i},{i},{i % 3}.5,{'xy'[i % 2]}\n" for i in range(6))
    edges = "source,target,weight\n" + "".join(f"n{i},n{i + 1},1.5\n" for i in range(5))
    files = {"nodes.csv": nodes.encode(), "edges.csv": edges.encode()}
    changes = {mutators.any_bytes: FREE, mutators.table: FREE}
    return Reader(files, lambda folder: content(load_dataset(folder)), changes)


def planetoid(_: Path) -> Reader:
    rows, labels = sparse.csr_matrix(np.eye(3, dtype=np.float32)), np.eye(3, 2, dtype=np.int32)
    parts = {"x": rows, "tx": rows, "allx": rows, "y": labels, "ty": labels, "ally": labels, "graph": {0: [1], 5: [2]}}
    files = {key: pickle.dumps(value, protocol=2) for key, value in parts.items()} | {"test.index": b"3\n4\n5\n"}

    def read(folder: Path) -> Any:
        found = {part: (folder / file_name("cora", part)).read_bytes() for part in PARTS}
        return content(read_planetoid("cora", found))

    return Reader({file_name("cora", key): v for key, v in files.items()}, read, {mutators.any_bytes: FREE})


def checkpoint(_: Path) -> Reader:
    stream, karate = io.BytesIO(), load_dataset("karate")
    torch.save(trained_model().state_dict(), stream)
    changes = {mutators.any_bytes: SEALED, mutators.members: FREE}
    return Reader({"m.pt": stream.getvalue()}, lambda folder: state(load_gcn(folder / "m.pt", karate)), changes)


def trained_model() -> GCN:
    torch.manual_seed(0)
    return GCN(34, 4, 4)


@cache
def small_jury(mode: str = "exact") -> Jury:
    engine = Case("two_block", 2, "cross_entropy").engine(weight_decay=0.05, trained=True)
    settings = {"weight_decay": 0.05, "votes": mode, "run": Run(memory="1B")}
    return Jury(engine.model, engine.data, engine.train_nodes, **settings).fit()


def resealed(content: bytes, rng: np.random.Generator, scratch: Path) -> bytes:
    scratch.write_bytes(content)
    about, arrays = read_sealed(scratch)
    if rng.random() < 0.5:
        about = mutators.altered_json(about, rng)
    else:
        arrays = mutators.altered_arrays(arrays, rng)
    write_sealed(scratch, about if isinstance(about, dict) else {"about": about}, arrays)
    return scratch.read_bytes()


def saved_jury(scratch: Path, mode: str = "exact") -> Reader:
    jury = small_jury(mode)

    def read(folder: Path) -> Any:
        back = Jury.load(folder, jury.engine.model, jury.data)
        return [vars(back.jurors), back.train_nodes, back.leave_out, back.chosen, back.verdict(diffusion=0).p_values]

    def forged(content: bytes, rng: np.random.Generator) -> bytes:
        return resealed(content, rng, scratch / "forged.npz")

    changes = {mutators.any_bytes: SEALED, mutators.some_arrays: SEALED, mutators.members: SEALED, forged: FREE}
    return Reader(files_of(jury.save(scratch / "jury")), read, changes)


def linearized_jury(scratch: Path) -> Reader:
    return saved_jury(scratch, "linearized")


def counts(scratch: Path) -> Reader:
    jury = small_jury()

    def read(folder: Path) -> Any:
        verdict = jury.verdict(resume=folder)
        return [verdict.p_values, verdict.lower, verdict.upper, verdict.label_flips, verdict.loo_variance]

    jury.verdict(resume=scratch / "counts")
    changes = {mutators.any_bytes: SAME, mutators.some_arrays: SAME, mutators.members: SAME}
    return Reader(files_of(scratch / "counts"), read, changes)


def history(scratch: Path) -> Reader:
    karate = load_dataset("karate")
    recipe = active.Recipe(epochs=3)

    def read(folder: Path) -> Any:
        path = folder / "history.json"
        found = active.run(karate, "anrmab", initial=4, budget=10, step=2, recipe=recipe, resume=path)
        return [found.labelled, found.labels, found.stopped, [step.accuracy for step in found.steps]]

    def tired(history: History) -> str:
        if len(history.steps) == 3:
            raise KeyboardInterrupt
        return ""

    (scratch / "history").mkdir()
    path = scratch / "history" / "history.json"
    with pytest.raises(KeyboardInterrupt):  # what is left to do needs the strategy's notes
        active.run(karate, "anrmab", initial=4, budget=10, step=2, recipe=recipe, resume=path, stop=[tired])
    assert History.load(path).memory
    changes = {mutators.any_bytes: SEALED, mutators.some_json: SEALED, mutators.sealed_json: FREE}
    return Reader(files_of(scratch / "history"), read, changes)


def run_file(scratch: Path) -> Reader:
    karate, model = load_dataset("karate"), trained_model()
    run = {"command": "train", "data": {"name": "karate"}, "train_nodes": [3, 1, 7], "settings": {"weight_decay": 0.01}}
    file = json.dumps(sealed({**run, "parameters": fingerprint(state(model))})).encode()

    def read(folder: Path) -> Any:
        found = recorded_beside(folder / "model.pt", karate, model)
        if found.train_nodes is None:  # then the command says that it does not know
            raise JuryError("the training nodes of the checkpoint are unknown")
        return [found.train_nodes, found.weight_decay]

    changes = {mutators.any_bytes: SEALED, mutators.some_json: SEALED, mutators.sealed_json: FREE}
    return Reader({"run.json": file}, read, changes)


def node_list(_: Path) -> Reader:
    karate = load_dataset("karate")
    changes = {mutators.any_bytes: FREE, mutators.table: FREE}
    return Reader({"nodes.csv": b"node\n3\n1\n7\n"}, lambda f: read_nodes(f / "nodes.csv", karate), changes)


def labels(_: Path) -> Reader:
    karate = load_dataset("karate")
    changes = {mutators.any_bytes: FREE, mutators.table: FREE}
    file = b"node,label\n0,1\n5,2\n33,0\n"
    return Reader({"labels.csv": file}, lambda f: read_labels(f / "labels.csv", karate), changes)


def tasks(_: Path) -> Reader:
    karate = load_dataset("karate")
    given = next_tasks(karate, {0: 1, 33: 0}, "random", batch=3, recipe=active.Recipe(epochs=2))
    text = tasks_csv(given).replace(",,", ",1,")
    changes = {mutators.any_bytes: FREE, mutators.table: FREE}
    return Reader({"tasks.csv": text.encode()}, lambda f: read_answers(f / "tasks.csv", karate), changes)


def label_studio(_: Path) -> Reader:
    karate = load_dataset("karate")
    given = label_studio_tasks(next_tasks(karate, {0: 1, 33: 0}, "random", batch=3, recipe=active.Recipe(epochs=2)))
    for task in given:
        task["annotations"] = [{"result": task["predictions"][0]["result"], "was_cancelled": False}]
    changes = {mutators.any_bytes: FREE, mutators.some_json: FREE}
    return Reader({"a.json": as_json_text(given).encode()}, lambda f: read_answers(f / "a.json", karate), changes)


def report(scratch: Path) -> Reader:
    jury = small_jury()
    report_on(jury, jury.verdict(), test_nodes=[1, 3, 5, 7]).save(scratch / "report")
    changes = {mutators.any_bytes: SEALED, mutators.some_json: SEALED, mutators.sealed_json: FREE}
    return Reader(files_of(scratch / "report"), lambda folder: Report.load(folder).to_html(), changes)


def cells(scratch: Path) -> Reader:
    wanted = [{"x": x, "y": "a"} for x in range(4)]

    def read(folder: Path) -> Any:
        kept = Cells("cells", lambda _: "1", folder=folder)
        kept.measure(wanted, lambda x, y: {"double": 2 * x, "nested": {"y": [y, x / 3]}})
        return kept.rows(wanted)

    read(scratch)
    file = (scratch / "cells.jsonl").read_bytes()
    return Reader({"cells.jsonl": file}, read, {mutators.any_bytes: SAME, mutators.json_line: SAME})


def package_cache(scratch: Path) -> Reader:
    karate = load_dataset("karate")
    store(scratch / "cora.npz", karate)
    changes = {mutators.any_bytes: SAME, mutators.some_arrays: SAME}

    def read(folder: Path) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(package_index, "CITATION_SIZES", {"cora": sizes(karate)})
            patch.setattr(package_index, "fetch_graphs", lambda: {"cora": karate})
            found = package_index.load_from_index("cora", folder)
        return [found.x, found.edge_index, found.y, found.num_classes]

    return Reader({"cora.npz": (scratch / "cora.npz").read_bytes()}, read, changes)


READERS = (npz, csv_folder, planetoid, checkpoint, saved_jury, linearized_jury, counts, history, run_file, node_list)
READERS += (labels, tasks, label_studio, report, cells, package_cache)


@contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(record, "SHARE", 1.0)  # keep every batch, however short
        yield


def tried(make: Callable[[Path], Reader], folder: Path, count: int, seed: int) -> Counter[str]:
    (folder / "scratch").mkdir(parents=True)
    with quietly():
        return make(folder / "scratch").tried(folder / "files", count, seed)


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_mutated_files_are_refused_or_recomputed(tmp_path: Path, make: Callable[[Path], Reader]):
    outcomes = tried(make, tmp_path, ORDINARY, seed=0)
    assert outcomes.total() == ORDINARY
    assert outcomes["refused"] + outcomes["same"] > 0


@pytest.mark.slow
def test_thousands_of_mutated_files(tmp_path: Path):
    each = -(-MANY // len(READERS))
    outcomes = {make.__name__: tried(make, tmp_path / make.__name__, each, seed=1) for make in READERS}
    for name, found in outcomes.items():
        print(name, dict(found))
    assert sum(found.total() for found in outcomes.values()) >= MANY
