"""Load the graph in the worker, and make the table of nodes for the server."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data

from jurygcn.active.graph_statistics import GraphStatistics
from jurygcn.active.labels import class_words, with_classes
from jurygcn.active.tasks import read_answer_origins, read_answers
from jurygcn.app.nodes import NodeTable
from jurygcn.app.rounds import Loaded, Source
from jurygcn.data import load_dataset
from jurygcn.data.csv_folder import read_texts
from jurygcn.data.names import Names
from jurygcn.errors import DataError, DataNotice

SHOWN_FEATURES = 8
BLOCK = 1 << 24  # numbers of the feature matrix in memory at once


def load(source: Source) -> tuple[Data, Loaded]:
    """The graph with its classes, and what the server needs of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", DataNotice)
        data = load_dataset(source.data)
    if data.y.is_floating_point():
        raise DataError(f"expected a graph with classes, got regression targets in {data.name}; give class labels")
    from_csv = source.labels if source.labels is not None and source.labels.suffix.lower() == ".csv" else None
    data = with_classes(data, from_csv, source.classes)
    labels, origins = dict[int, int](), dict[int, str]()
    if source.labels is not None:
        labels = read_answers(source.labels, data)
        origins = read_answer_origins(source.labels, data)
    folder = Path(source.data) if Path(source.data).is_dir() else None
    return data, Loaded(table_of(data, folder), labels, origins, tuple(str(entry.message) for entry in caught))


def table_of(data: Data, folder: Path | None = None) -> NodeTable:
    """The table of nodes. Texts and pictures come from the folder's nodes.csv, if there is one."""
    adjacency = GraphStatistics.of(data).adjacency
    adjacency.sort_indices()
    names = Names.of_nodes(data)
    strongest, values = strongest_features(data)
    features = data.get("feature_names")
    return NodeTable(
        graph=str(getattr(data, "name", "graph")),
        classes=class_words(data),
        names=names.names,
        written_by_name=names.numeric,
        first=adjacency.indptr.astype(np.int64),
        neighbours=adjacency.indices.astype(np.int32),
        features=[str(name) for name in features] if features is not None else None,
        strongest=strongest,
        values=values,
        texts=read_texts(folder) if folder is not None and (folder / "nodes.csv").is_file() else {},
        folder=folder,
    )


def strongest_features(data: Data, count: int = SHOWN_FEATURES) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    r"""The features of each node with the largest :math:`|x - \bar x| / s`, with :math:`x \neq 0`, and their values.

    Shapes: returns (N, k), (N, k); -1 fills rows with fewer features.
    """
    N, F = data.x.shape
    rows = max(1, BLOCK // max(1, F))
    mean = sum((part.sum(dim=0) for part in data.x.split(rows)), torch.zeros(F)).double() / N
    squares = sum((((part - mean) ** 2).sum(dim=0) for part in data.x.split(rows)), torch.zeros(F).double())
    spread = (squares / N).sqrt().clamp_min(1e-12)
    found, sizes = [], []
    for part in data.x.split(rows):
        unusual = torch.where(part != 0, ((part - mean) / spread).abs(), -1.0)
        best = unusual.topk(min(count, F), dim=1)
        found.append(torch.where(best.values > 1e-6, best.indices, -1))
        sizes.append(part.gather(1, best.indices))
    return torch.cat(found).int().numpy(), torch.cat(sizes).float().numpy()
