"""Features that teachers are trained on: averages over hops, or principal components of these averages."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch_geometric.data import Data

from jurygcn.graph.features import averaged_features

MIN_VARIANCE_SHARE = 1e-6  # a component with less variance, relative to the first component, is rounding error


@dataclass(frozen=True)
class FeatureView:
    """One version of the features: averaged over ``hops``, then reduced to ``components`` (None keeps all features)."""

    hops: int
    components: int | None = None


def feature_views(
    data: Data, hops: Sequence[int], components: Sequence[int] = ()
) -> Iterator[tuple[FeatureView, Data]]:
    """The graph with averaged features, for each number of hops, in ascending order.

    One average is taken over a closed neighbourhood. For each number of hops the averaged features come first, and
    their principal components follow. Averages over many nodes differ mainly in direction, so all rows are scaled to
    one length. This length is the mean length of the original rows, because a GCN learns slowly from short rows. It is
    at least 1.
    """
    length = max(1.0, float(np.linalg.norm(data.x.detach().float().cpu().numpy(), axis=1).mean()))
    for hop, x in averaged_features(data, hops):
        yield FeatureView(hop), with_features(data, scale_rows(x, length))
        for reduced in principal_components(scale_rows(x, 1.0), components):
            yield FeatureView(hop, reduced.shape[1]), with_features(data, reduced)


def principal_components(rows: np.ndarray, components: Sequence[int]) -> Iterator[np.ndarray]:
    """The first principal components, one array for each number in ``components``.

    Each component is scaled to the same variance, so that components with little variance count as much as the first.
    Each row is then scaled to length 1. If there are fewer components than requested, all of them are returned.

    Shapes: (N, F) -> (N, components).
    """
    if not components:
        return
    pca = PCA(min(*rows.shape, max(components)), whiten=True, iterated_power=4, random_state=0)
    with np.errstate(invalid="ignore", divide="ignore"):  # features without variance have no components
        coordinates = pca.fit_transform(rows.astype(np.float64))  # float32 loses the squares of small components
    variance = pca.explained_variance_
    available = int((variance > MIN_VARIANCE_SHARE * max(variance[0], MIN_VARIANCE_SHARE)).sum())
    for count in sorted({min(count, available) for count in components} - {0}):
        yield scale_rows(coordinates[:, :count], 1.0)


def scale_rows(x: np.ndarray, length: float) -> np.ndarray:
    """Rows with the same direction and the given length. A row of zeros stays zero."""
    scaled: np.ndarray = length * x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    return scaled


def with_features(data: Data, x: np.ndarray) -> Data:
    """A copy of the graph with these features."""
    graph = copy.copy(data)
    graph.x = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)).to(data.x.device)
    graph.edge_index = data.edge_index.clone()  # the copy does not share the original's cached propagation
    return graph
