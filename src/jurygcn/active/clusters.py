"""Strategies that spread the batch over clusters of representations."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans

from jurygcn.active.graph_statistics import Array
from jurygcn.active.scene import Choice, Scene

STARTS = 10  # random starts of k-means; the best result is kept


def coreset(scene: Scene) -> Choice:
    """One node per k-means cluster (k = batch) of the candidates' hidden layer: the node nearest to the centre.

    If one node is nearest to two centres, the first centre takes it and the second takes its next nearest node.
    """
    points = scene.hidden[scene.pool]
    centres = kmeans(points, scene.batch, seed=scene.draw_seed())[0]
    free = np.ones(len(points), dtype=bool)
    picked, distances = [], []
    for centre in centres:
        distance = np.where(free, ((points - centre) ** 2).sum(axis=1), np.inf)
        nearest = int(distance.argmin())
        free[nearest] = False
        picked.append(nearest)
        distances.append(np.sqrt(distance[nearest]))
    return scene.choice(scene.pool[picked], -np.array(distances))


def coreset_greedy(scene: Scene) -> Choice:
    """Greedy k-centre on the hidden layer: each pick is the candidate farthest from all labelled and chosen nodes."""
    hidden = scene.hidden
    points = hidden[scene.pool]
    nearest = np.full(len(points), np.inf)
    for row in hidden[scene.labelled.cpu().numpy()]:
        nearest = np.minimum(nearest, ((points - row) ** 2).sum(axis=1))
    picked, scores = [], []
    for _ in range(scene.batch):
        new = int(nearest.argmax())
        picked.append(new)
        scores.append(np.sqrt(nearest[new]))
        nearest = np.minimum(nearest, ((points - points[new]) ** 2).sum(axis=1))
        nearest[picked] = -np.inf
    return scene.choice(scene.pool[picked], scores)


def density(scene: Scene) -> Choice:
    """AGE's density alone: 1 / (1 + distance to the nearest of C k-means centres of the softmax outputs)."""
    return scene.top(1.0 / (1.0 + centre_distances(scene)))


def featprop(scene: Scene) -> Choice:
    r"""K-medoids on propagated features: medoids of the clusters without a labelled node.

    There are n + b clusters for n labels and a batch of b, so at least b of them have no label. The b largest of these
    are chosen. Under squared distances the medoid is the member nearest to the mean.
    """
    known = scene.labelled.cpu().numpy()
    points = scene.statistics.propagated[np.concatenate([scene.pool, known])]
    centres, owner = kmeans(points, len(known) + scene.batch, seed=scene.draw_seed(), starts=1)
    distance = ((points - centres[owner]) ** 2).sum(axis=1)
    taken = set(owner[len(scene.pool) :].tolist())
    sizes = np.bincount(owner, minlength=len(centres))
    free = [c for c in np.argsort(-sizes, kind="stable") if c not in taken and sizes[c]][: scene.batch]
    picked = [int(np.where(owner == c, distance, np.inf)[: len(scene.pool)].argmin()) for c in free]
    scores = [float(sizes[c]) for c in free]
    if len(picked) < scene.batch:  # some clusters are empty: add the candidates farthest from their centres
        rest = np.setdiff1d(np.arange(len(scene.pool)), picked)
        more = rest[np.argsort(-distance[rest], kind="stable")][: scene.batch - len(picked)]
        picked, scores = [*picked, *more], [*scores, *np.zeros(len(more))]
    return scene.choice(scene.pool[picked], scores)


def badge(scene: Scene) -> Choice:
    r"""K-means++ seeding on the last layer's gradients, computed as if the predicted labels were true.

    .. math:: g_v = (\pi_v - e_{\hat y_v}) \otimes h_v
    """
    residual = scene.probabilities[scene.pool].copy()
    residual[np.arange(len(residual)), residual.argmax(axis=1)] -= 1.0
    gradients = np.einsum("nc,nh->nch", residual, scene.hidden[scene.pool]).reshape(len(residual), -1)
    return scene.choice(*_seeding(gradients, scene))


def _seeding(points: Array, scene: Scene) -> tuple[Array, list[float]]:
    """K-means++ seeding: first the longest point, then points drawn in proportion to their squared distance."""
    lengths = (points**2).sum(axis=1)
    picked, scores = [int(lengths.argmax())], [float(np.sqrt(lengths.max()))]
    nearest = np.full(len(points), np.inf)
    while len(picked) < scene.batch:
        nearest = np.minimum(nearest, ((points - points[picked[-1]]) ** 2).sum(axis=1))
        nearest[picked] = 0.0
        weights = nearest if nearest.sum() > 0 else np.isin(np.arange(len(points)), picked, invert=True).astype(float)
        new = int(scene.generator.choice(len(points), p=weights / weights.sum()))
        picked.append(new)
        scores.append(float(np.sqrt(nearest[new])))
    return scene.pool[picked], scores


def centre_distances(scene: Scene) -> Array:
    """Distance of every node's softmax output to the nearest of C k-means centres, (N,)."""
    centres, owner = kmeans(scene.probabilities, scene.num_classes, seed=0)
    return np.asarray(np.sqrt(((scene.probabilities - centres[owner]) ** 2).sum(axis=1)))


def kmeans(points: Array, clusters: int, *, seed: int, starts: int = STARTS) -> tuple[Array, Array]:
    """The centres, and the number of the centre of each point.

    There are at most as many centres as points. Points without coordinates (d = 0) have one centre.

    Shapes: points (m, d) -> (k, d), (m,).
    """
    if not points.shape[1]:
        return np.zeros((1, 0)), np.zeros(len(points), dtype=np.int64)
    found = KMeans(min(clusters, len(points)), n_init=starts, random_state=seed).fit(points)
    return np.asarray(found.cluster_centers_), np.asarray(found.labels_)
