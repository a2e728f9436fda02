"""Features averaged over hops, and features projected on a few directions."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch_geometric.data import Data

from jurygcn.graph.propagation import SPARSE_DENSITY, Propagation

Array = np.ndarray[Any, Any]

FEW_FEATURES = 2000  # most features for which the Gram matrix is decomposed


def averaged_features(
    data: Data, hops: Collection[int], *, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[int, Array]]:
    """Each number of hops in ascending order, with the features averaged so many times over closed neighbourhoods.

    Shapes: each (N, F).
    """
    x = data.x.detach().cpu().to(dtype).numpy()
    averaging = Propagation.of(data).averaging.astype(x.dtype)
    for hop in range(max(hops) + 1):
        if hop:
            x = averaging @ x
        if hop in hops:
            yield hop, x


def leading_directions(rows: Any, dimensions: int) -> Array:
    """The leading right singular vectors of dense or sparse rows in float64, as columns. The largest comes first.

    With few features they come from the Gram matrix, else from an iteration with a fixed start.

    Shapes: (N, F) -> (F, d), d at most ``dimensions`` and the rank.
    """
    if dimensions >= min(rows.shape) or rows.shape[1] <= FEW_FEATURES or not abs(rows).max() > 0:
        gram = rows.T @ rows
        values, vectors = np.linalg.eigh(gram.toarray() if sp.issparse(gram) else gram)
        leading = np.argsort(-values)[:dimensions]
        return np.asarray(vectors[:, leading[values[leading] > 1e-10 * max(float(values.max()), 1e-300)]])
    start = np.random.default_rng(0).standard_normal(min(rows.shape))
    _, _, right = sp.linalg.svds(sp.csr_matrix(rows), k=dimensions, v0=start)
    return np.asarray(right[::-1].T)


def reduce_rows(features: Any, dimensions: int) -> Array:
    """Rows scaled to length 1, then projected on their leading directions, (N, d)."""
    if sp.issparse(features) and features.nnz > SPARSE_DENSITY * np.prod(features.shape):
        features = features.toarray()
    rows = features.astype(np.float64)
    norms = sp.linalg.norm(rows, axis=1) if sp.issparse(rows) else np.linalg.norm(rows, axis=1)
    scale = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    rows = sp.csr_matrix(sp.diags(scale) @ rows) if sp.issparse(rows) else scale[:, None] * rows
    return np.asarray(rows @ leading_directions(rows, dimensions))
