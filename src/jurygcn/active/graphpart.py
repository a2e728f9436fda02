r"""GraphPart: the graph is cut into parts, and each part contributes the nodes nearest to its k-means centres.

Parts are communities of greedy modularity (Clauset, Newman, Moore), merged by Ward's criterion on their mean features
until K are left. Points are the rows of :math:`\hat A^2 X`. "Far" prefers nodes far from those already chosen: it
subtracts that distance from the distance to the centre, if there are more nodes to choose than parts.

The authors choose the whole budget at once. Here labelled nodes count as chosen: the budget of a step is the labels so
far and the batch together, and clusters that have a labelled node choose none, as for FeatProp. Two things differ from
the released code: Ward's criterion has squared distances, and "far" subtracts nothing before the first node is chosen,
where the code subtracts infinity.
"""

from __future__ import annotations

from functools import partial

import networkx as nx
import numpy as np
from torch_geometric.data import Data

from jurygcn.active.clusters import kmeans
from jurygcn.active.graph_statistics import Array, GraphStatistics
from jurygcn.active.scene import Choice, Scene

# K as the authors set it; other graphs have one part per class, which is the authors' default
PARTS = {"cora": 7, "citeseer": 14, "pubmed": 8, "coauthor_cs": 6, "coauthor_physics": 5}


def graphpart(scene: Scene, *, far: bool = False) -> Choice:
    """In each part the candidates nearest to the centres of its largest clusters without a labelled node."""
    known = scene.labelled.cpu().numpy()
    most = PARTS.get(str(getattr(scene.data, "catalog_name", "")), scene.num_classes)
    budget = len(known) + scene.batch
    owner = parts_of(scene.statistics, scene.data, min(most, budget))
    points, seed = scene.statistics.propagated_rows, scene.draw_seed()
    count = int(owner.max()) + 1
    found = []
    for part, share in enumerate(shares(budget, count)):
        members = np.flatnonzero(owner == part)
        centres, cluster = kmeans(points[members], share, seed=seed)
        taken = set(cluster[np.isin(members, known)].tolist())
        sizes = np.bincount(cluster, minlength=len(centres))
        found += [(int(sizes[c]), part, centres[c]) for c in range(len(centres)) if c not in taken and sizes[c]]
    found = sorted(found, key=lambda cluster: -cluster[0])[: scene.batch]  # the largest; part by part below
    subtract = far and budget > count
    free = np.zeros(len(owner), dtype=bool)
    free[scene.pool] = True
    chosen: list[int] = []
    scores: list[float] = []
    before = nearest(points, known)
    for part in range(count):
        for _, _, centre in (cluster for cluster in found if cluster[1] == part):
            there = np.flatnonzero(free & (owner == part))
            if not len(there):
                break
            distance = np.linalg.norm(points[there] - centre, axis=1)
            if subtract and np.isfinite(before[there]).all():
                distance = distance - before[there]
            chosen.append(int(there[distance.argmin()]))
            scores.append(-float(distance.min()))
            free[chosen[-1]] = False
        # as in the released code, only nodes chosen in earlier parts, not in this one, push "far" away
        before = np.minimum(before, nearest(points, np.array([v for v in chosen if owner[v] == part], dtype=int)))
    more = scene.generator.choice(np.flatnonzero(free), scene.batch - len(chosen), replace=False)
    return scene.choice([*chosen, *more], [*scores, *np.zeros(len(more))])


graphpart_far = partial(graphpart, far=True)


def shares(budget: int, parts: int) -> list[int]:
    """The budget of each part: all alike, the first parts one more if it does not divide."""
    return [budget // parts + (part < budget % parts) for part in range(parts)]


def nearest(points: Array, chosen: Array) -> Array:
    """The distance of every point to the nearest chosen one; infinite if there is none, (N,)."""
    found = np.full(len(points), np.inf)
    for node in chosen:
        found = np.minimum(found, np.linalg.norm(points - points[node], axis=1))
    return found


def parts_of(statistics: GraphStatistics, data: Data, most: int) -> Array:
    """The part of each node, at most so many parts, the largest first, (N,)."""

    def compute() -> list[Array]:
        return [np.array(sorted(found)) for found in communities(nx.from_scipy_sparse_array(statistics.adjacency))]

    merged = ward(statistics.kept("communities", compute), data.x.detach().cpu().double().numpy(), most)
    owner = np.empty(statistics.adjacency.shape[0], dtype=np.int64)
    for part, members in enumerate(sorted(merged, key=len, reverse=True)):
        owner[members] = part
    return owner


def communities(graph: nx.Graph) -> list[frozenset[int]]:
    """Communities of greedy modularity; every node is one if there are no edges."""
    if not graph.number_of_edges():
        return [frozenset([node]) for node in graph]
    return list(nx.algorithms.community.greedy_modularity_communities(graph))


def ward(groups: list[Array], x: Array, most: int) -> list[Array]:
    r"""Merge two groups at a time until ``most`` are left: those with the least
    :math:`\frac{|a| |b|}{|a| + |b|} \lVert \bar x_a - \bar x_b \rVert^2`.

    Shapes: groups of nodes, x (N, F).
    """
    groups = list(groups)
    means = np.stack([x[group].mean(axis=0) for group in groups])
    sizes = np.array([len(group) for group in groups], dtype=float)
    squares = (means**2).sum(axis=1)
    cost = np.maximum(squares[:, None] + squares - 2 * means @ means.T, 0.0)
    cost *= sizes[:, None] * sizes / (sizes[:, None] + sizes)
    np.fill_diagonal(cost, np.inf)
    left = np.ones(len(groups), dtype=bool)
    while left.sum() > most:
        a, b = sorted(np.unravel_index(int(cost.argmin()), cost.shape))
        means[a] = (sizes[a] * means[a] + sizes[b] * means[b]) / (sizes[a] + sizes[b])
        groups[a], left[b] = np.concatenate([groups[a], groups[b]]), False
        sizes[a] += sizes[b]
        row = ((means - means[a]) ** 2).sum(axis=1) * sizes * sizes[a] / (sizes + sizes[a])
        row[~left], row[a] = np.inf, np.inf
        cost[a], cost[:, a] = row, row
        cost[b], cost[:, b] = np.inf, np.inf
    return [group for group, there in zip(groups, left) if there]
