"""Load graphs: named datasets, the user's files and objects, and splits. Every loader returns a PyG `Data`.

Names are imported at first use, so that `jurygcn data list` and `--help` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jurygcn.data.block_model import synthetic
    from jurygcn.data.catalog import DATASETS, Dataset, find_dataset, load_dataset
    from jurygcn.data.checked_input import check_graph, check_nodes, check_targets, known_classes
    from jurygcn.data.convert import as_data
    from jurygcn.data.dtypes import ordinary
    from jurygcn.data.heterogeneous import graph_of
    from jurygcn.data.labels import labelled
    from jurygcn.data.places import Sizes, cache_folder
    from jurygcn.data.splits import Split, paper_split, per_class_labels, public_split, random_labels
    from jurygcn.data.validate import clean, normalize_rows, sizes

_HOMES = {
    "DATASETS": "catalog",
    "Dataset": "catalog",
    "Sizes": "places",
    "Split": "splits",
    "as_data": "convert",
    "cache_folder": "places",
    "check_graph": "checked_input",
    "check_nodes": "checked_input",
    "check_targets": "checked_input",
    "clean": "validate",
    "find_dataset": "catalog",
    "graph_of": "heterogeneous",
    "known_classes": "checked_input",
    "labelled": "labels",
    "load_dataset": "catalog",
    "normalize_rows": "validate",
    "ordinary": "dtypes",
    "paper_split": "splits",
    "per_class_labels": "splits",
    "public_split": "splits",
    "random_labels": "splits",
    "sizes": "validate",
    "synthetic": "block_model",
}
__all__ = [
    "DATASETS",
    "Dataset",
    "Sizes",
    "Split",
    "as_data",
    "cache_folder",
    "check_graph",
    "check_nodes",
    "check_targets",
    "clean",
    "find_dataset",
    "graph_of",
    "known_classes",
    "labelled",
    "load_dataset",
    "normalize_rows",
    "ordinary",
    "paper_split",
    "per_class_labels",
    "public_split",
    "random_labels",
    "sizes",
    "synthetic",
]


def __getattr__(name: str) -> Any:
    """A public name, from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'jurygcn.data' has no attribute {name!r}")
    value = getattr(import_module(f"jurygcn.data.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
