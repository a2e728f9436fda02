"""The paper's four graphs; a synthetic stand-in, named as such, if Reddit's files are missing."""

from __future__ import annotations

from functools import cache

from torch_geometric.data import Data

from jurygcn.data import cache_folder, load_dataset, synthetic
from jurygcn.data.places import REDDIT_SIZES, find_reddit

CITATION = ("cora", "citeseer", "pubmed")
REDDIT = "reddit"
STAND_IN = "reddit-like"
NAMES = {"cora": "Cora", "citeseer": "Citeseer", "pubmed": "PubMed", REDDIT: "Reddit", STAND_IN: "Reddit's stand-in"}
_SHARE, _DEGREE = 50, 50  # the stand-in has a fiftieth of Reddit's nodes and mean degree 50, a tenth of Reddit's


def fourth_graph() -> str:
    """Reddit if its files are there, else the name of the stand-in."""
    return REDDIT if find_reddit(cache_folder()) is not None else STAND_IN


@cache
def load(name: str) -> Data:
    """A graph by name, loaded once."""
    return stand_in(share=_SHARE, degree=_DEGREE) if name == STAND_IN else load_dataset(name)


def stand_in(*, share: int, degree: int | None = None, seed: int = 0) -> Data:
    """A synthetic graph with Reddit's features and classes, and its nodes divided by ``share``.

    ``degree`` is the mean number of neighbours, by default Reddit's.
    """
    nodes = REDDIT_SIZES.nodes // share
    mean_degree = 2 * REDDIT_SIZES.edges / REDDIT_SIZES.nodes if degree is None else degree
    data = synthetic(
        num_nodes=nodes,
        num_edges=int(nodes * mean_degree) // 2 * 2,
        num_features=REDDIT_SIZES.features,
        num_classes=REDDIT_SIZES.classes,
        separation=1.0,
        homophily=0.3,
        seed=seed,
    )
    data.name = STAND_IN
    return data


def counterpart(name: str) -> str:
    """The paper's graph that this one replaces."""
    return REDDIT if name == STAND_IN else name
