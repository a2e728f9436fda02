"""Which nodes the messages of some nodes reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch_geometric.data import Data


def reached_by(data: Data, sources: Sequence[Tensor], hops: int) -> list[Tensor]:
    """For each set of sources, the nodes within ``hops`` along edges, the sources included."""
    N = int(data.num_nodes)
    sender, receiver = data.edge_index.cpu().numpy()
    adjacency = sp.csr_matrix((np.ones(len(sender), dtype=bool), (sender, receiver)), shape=(N, N))
    indptr = np.concatenate([[0], np.cumsum([len(s) for s in sources])])
    indices = torch.cat(list(sources)).cpu().numpy() if len(sources) else np.zeros(0, dtype=np.int64)
    reached = sp.csr_matrix((np.ones(len(indices), dtype=bool), indices, indptr), shape=(len(sources), N))
    for _ in range(hops):
        reached = reached + reached @ adjacency
    reached.sort_indices()
    return [torch.from_numpy(reached.indices[a:b].astype(np.int64)) for a, b in zip(reached.indptr, reached.indptr[1:])]
