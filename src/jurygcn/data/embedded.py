"""Two small graphs that need no network: digits and the karate club."""

from __future__ import annotations

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.datasets import KarateClub

from jurygcn.data.validate import clean

NEIGHBOURS = 10  # edges that each image starts


def digits() -> Data:
    """scikit-learn's 8×8 digits; each image is joined to its 10 nearest neighbours, with ties broken by index.

    Pixels are whole numbers, so the distances are exact and the graph is the same on every machine. Library
    searches round, and break the 62 ties differently for each number of threads.
    """
    from sklearn.datasets import load_digits  # here, because it takes most of a second to import

    images = load_digits()
    squares = (images.data**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * images.data @ images.data.T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.argsort(axis=1, kind="stable")[:, :NEIGHBOURS]
    edges = np.stack([np.repeat(np.arange(len(nearest)), NEIGHBOURS), nearest.reshape(-1)])
    data = Data(
        x=torch.from_numpy(images.data.astype(np.float32)),
        edge_index=torch.from_numpy(edges),
        y=torch.from_numpy(images.target.astype(np.int64)),
        class_names=[str(name) for name in images.target_names],
        name="digits",
    )
    return clean(data, quiet=True)


def karate() -> Data:
    """Zachary's karate club, 34 nodes, four modularity classes as in the GCN paper, identity features."""
    club = KarateClub()[0]
    return clean(Data(x=club.x, edge_index=club.edge_index, y=club.y, name="karate"), quiet=True)
