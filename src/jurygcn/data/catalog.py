"""Dataset names and their loaders: `load_dataset` is the entry point for all data.

A loader is imported when a graph is loaded, so that `jurygcn data list` does not wait for torch.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jurygcn.data.places import CITATION_SIZES, REDDIT_SIZES, Sizes, cache_folder
from jurygcn.errors import DataError

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class Dataset:
    """One named graph: how to load it from a data folder, its sizes, and where it comes from."""

    name: str
    load: Callable[[Path], Data]
    sizes: Sizes
    source: str
    about: str


def _function(module: str, name: str) -> Callable[..., Data]:
    """A function of a module of this package, imported at its first call."""
    return lambda *given: getattr(import_module(f"jurygcn.data.{module}"), name)(*given)


def _citation(name: str, about: str) -> Dataset:
    load = _function("citation", "load_citation")
    return Dataset(name, lambda folder: load(name, folder), CITATION_SIZES[name], "pip index", about)


def _made(name: str, module: str, size: Sizes, about: str) -> Dataset:
    make = _function(module, name)
    return Dataset(name, lambda _: make(), size, "embedded", about)


_ENTRIES = (
    _citation("cora", "papers on machine learning and their citations"),
    _citation("citeseer", "papers on computer science and their citations"),
    _citation("pubmed", "papers on diabetes and their citations"),
    Dataset("reddit", _function("reddit", "load_reddit"), REDDIT_SIZES, "two files", "posts with common commenters"),
    _made("digits", "embedded", Sizes(1797, 12339, 64, 10), "8×8 images, joined to the 10 nearest"),
    _made("karate", "embedded", Sizes(34, 78, 34, 4), "Zachary's karate club"),
    _made("synthetic", "block_model", Sizes(3000, 9000, 32, 5), "degree-corrected block model, generated"),
)
DATASETS: dict[str, Dataset] = {entry.name: entry for entry in _ENTRIES}


def load_dataset(
    name_or_path: str | os.PathLike[str] | Any,
    *,
    root: str | os.PathLike[str] | None = None,
    normalize_features: bool = True,
) -> Data:
    """Load a graph by name, from the user's files, or from memory.

    Args:
        name_or_path: a name from `DATASETS` in any case; a path to an `.npz` file (see `jurygcn.data.npz`)
            or to a folder with `nodes.csv` and `edges.csv` (see `jurygcn.data.csv_folder`); or a PyG `Data`,
            NetworkX graph or SciPy adjacency with what `as_data` expects.
        root: the data folder to use in place of the cache folder ($JURYGCN_DATA, else the platform's): raw
            files are looked for and fetched graphs are kept there.
        normalize_features: scale each row of `x` to sum 1. Features with negative entries are left as they
            are, because their row sums have no meaning.

    Returns:
        A `Data` on the CPU: `x` float32 (N, F); `edge_index` int64 (2, E), both directions, sorted, without
        self-loops and duplicates; `y` int64 with -1 for no label, or float32 with NaN for no target;
        `num_classes` (0 for regression), `name`, `catalog_name` if it is a known data set, and where the source
        has them `train_mask`, `val_mask`,
        `test_mask`, `edge_weight`, `class_names`, `node_names`.

    Raises:
        DataError: the name is unknown, the source cannot be reached, or the content is not a graph.
    """
    from jurygcn.data.validate import announce_scaling, announce_sizes, normalize_rows

    own = False  # whether its columns can be anything, as in a table or in memory
    if not isinstance(name_or_path, str | os.PathLike):
        from jurygcn.data.convert import as_data

        data, own = as_data(name_or_path), True
    elif isinstance(name_or_path, str) and name_or_path.lower() in DATASETS:
        data = DATASETS[name_or_path.lower()].load(cache_folder(root))
        data.name = data.catalog_name = name_or_path.lower()
    else:
        path = Path(name_or_path).expanduser()
        data, own = _load_path(path, os.fspath(name_or_path)), path.is_dir()
    if own:
        announce_sizes(data.x, data.get("feature_names"))
    if normalize_features:
        given, data.x = data.x, normalize_rows(data.x)
        if own:
            announce_scaling(given, data.x)
    return data


def find_dataset(name: str) -> Dataset:
    """The dataset with this name; an unknown name raises DataError and suggests similar names."""
    if name.lower() in DATASETS:
        return DATASETS[name.lower()]
    near = difflib.get_close_matches(name.lower(), DATASETS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else "use one of these or a path."
    raise DataError(f"expected a dataset name out of {', '.join(DATASETS)}, got {name!r}; {hint}")


def _load_path(path: Path, given: str) -> Data:
    if path.is_dir():
        from jurygcn.data import csv_folder
        from jurygcn.data.validate import clean

        return clean(csv_folder.read_folder(path))
    if path.suffix == ".npz":
        from jurygcn.data import npz
        from jurygcn.data.validate import clean

        return clean(npz.read_npz(path))
    if path.exists():
        raise DataError(
            f"expected an .npz file or a folder with edges.csv and nodes.csv, got the file {path}; convert it"
        )
    if path.suffix or len(path.parts) > 1 or given.endswith(("/", os.sep)):
        raise DataError(f"expected a file or folder at {path}, got nothing; check the path")
    find_dataset(given)
    raise AssertionError("unreachable: known names are loaded before")
