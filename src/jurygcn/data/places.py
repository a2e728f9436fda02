"""Sizes of the named graphs, and the folders in which their files are looked for. Nothing here needs torch."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_cache_dir

from jurygcn.errors import DataNotice

ENVIRONMENT = "JURYGCN_DATA"  # the environment variable that names the data folder
PARTS = ("x", "y", "tx", "ty", "allx", "ally", "graph", "test.index")  # of Cora, Citeseer and PubMed
REDDIT_FILES = ("reddit_data.npz", "reddit_graph.npz")


class Sizes(NamedTuple):
    """Nodes, undirected edges, features and classes (0 for regression or no labels)."""

    nodes: int
    edges: int
    features: int
    classes: int


CITATION_SIZES = {
    "cora": Sizes(2708, 5278, 1433, 7),
    "citeseer": Sizes(3327, 4552, 3703, 6),
    "pubmed": Sizes(19717, 44324, 500, 3),
}
REDDIT_SIZES = Sizes(232_965, 57_307_946, 602, 41)


def cache_folder(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder for data: `root` if given, else $JURYGCN_DATA, else the platform's cache folder."""
    chosen = root if root is not None else os.environ.get(ENVIRONMENT) or user_cache_dir("jurygcn")
    return Path(chosen).expanduser().absolute()


def file_name(name: str, part: str) -> str:
    """The name of one of the eight files of a citation graph."""
    return f"ind.{name}.{part}"


def find_raw_folder(name: str, folder: Path) -> Path | None:
    """The folder with all `ind.NAME.*` files, in the places where PyG puts them under `folder`."""
    named = [p for p in sorted(folder.iterdir()) if p.name.lower() == name] if folder.is_dir() else []
    inside = folder / "Planetoid"
    named += [p for p in sorted(inside.iterdir()) if p.name.lower() == name] if inside.is_dir() else []
    for place in [*(p / "raw" for p in named), *named, folder / "raw", folder]:
        missing = [part for part in PARTS if not (place / file_name(name, part)).is_file()]
        if not missing:
            return place
        if len(missing) < len(PARTS):
            files = ", ".join(file_name(name, part) for part in missing)
            warnings.warn(f"{place} is skipped, because it lacks {files}", DataNotice, stacklevel=4)
    return None


def find_reddit(folder: Path) -> Path | None:
    """The folder with both files, in the places where PyG puts them under `folder`."""
    places = (folder / "Reddit" / "raw", folder / "reddit" / "raw", folder / "reddit", folder / "raw", folder)
    return next((p for p in places if all((p / file).is_file() for file in REDDIT_FILES)), None)
