"""Load graphs: named datasets, the user's files and objects, and splits. Every loader returns a PyG `Data`."""

from jurygcn.data.cache import cache_folder
from jurygcn.data.catalog import DATASETS, Dataset, find_dataset, load_dataset
from jurygcn.data.checked_input import check_graph, check_nodes, check_targets, known_classes
from jurygcn.data.convert import as_data
from jurygcn.data.dtypes import ordinary
from jurygcn.data.heterogeneous import graph_of
from jurygcn.data.labels import labelled
from jurygcn.data.splits import Split, paper_split, per_class_labels, public_split, random_labels
from jurygcn.data.synthetic import synthetic
from jurygcn.data.validate import Sizes, clean, normalize_rows, sizes

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
