"""What teachers see of a graph: features averaged over hops, all of them or their principal components."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch_geometric.data import Data

from jurygcn.graph.propagation import Propagation

FAINT = 1e-6  # components with a smaller share of the first one's variance are rounding


@dataclass(frozen=True)
class Sight:
    """Over how many hops features are averaged, and how many principal components are left of them (None: all)."""

    hops: int
    components: int | None = None


def looks(data: Data, hops: Sequence[int], components: Sequence[int] = ()) -> Iterator[tuple[Sight, Data]]:
    """The same graph with features averaged over closed neighbourhoods, from few hops to many; each also compressed.

    Averages of many differ in little but their direction, so all rows are made equally long: as long as the graph's own
    are on average, for short ones are learnt slowly, and at least 1.
    """
    averaging = Propagation.of(data).averaging.astype(np.float32)
    x = data.x.detach().float().cpu().numpy()
    length = max(1.0, float(np.linalg.norm(x, axis=1).mean()))
    for step in range(max(hops) + 1):
        if step:
            x = averaging @ x
        if step in hops:
            yield Sight(step), with_features(data, rows_of(x, length))
            for view in compressed(rows_of(x, 1.0), components):
                yield Sight(step, view.shape[1]), with_features(data, view)


def compressed(rows: np.ndarray, components: Sequence[int]) -> Iterator[np.ndarray]:
    """Principal components, each scaled to the same variance, in rows of length 1: what sets groups of nodes apart
    counts as much as what all vary in. Where there are fewer than asked for, all there are.

    Shapes: (N, F) -> (N, components).
    """
    if not components:
        return
    found = PCA(min(*rows.shape, max(components)), whiten=True, iterated_power=4, random_state=0)
    with np.errstate(invalid="ignore", divide="ignore"):  # features without variance have no components
        coordinates = found.fit_transform(rows.astype(np.float64))  # squares of faint ones are lost in single precision
    variance = found.explained_variance_
    there = int((variance > FAINT * max(variance[0], FAINT)).sum())
    for count in sorted({min(count, there) for count in components} - {0}):
        yield rows_of(coordinates[:, :count], 1.0)


def rows_of(x: np.ndarray, length: float) -> np.ndarray:
    """The same directions with this length; rows of zeros stay."""
    scaled: np.ndarray = length * x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return scaled


def with_features(data: Data, x: np.ndarray) -> Data:
    """The same graph with these features."""
    graph = copy.copy(data)
    graph.x = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(data.x.device)
    graph.edge_index = data.edge_index.clone()  # what is remembered of the graph's propagation stays its own
    return graph
