r"""LSCALE's choice: medoids of clusters in a latent space that moves from unsupervised to learned features.

A point is :math:`[\alpha\, h / \lVert h \rVert_1,\ (1 - \alpha)\, u / \lVert u \rVert_1]` with
:math:`\alpha = 0.99^n` for n labels. h is the embedding of Deep Graph Infomax, which reads no label. u = W h + b is
learned from the labels, with one vector per class: a node's class is that of the nearest vector. Medoids of labelled
nodes are fixed; the others are the batch.

Three things differ from the released code: W is trained for a fixed number of epochs, where the code stops at the best
of 500 validation labels; classes are predicted by the negative distance, where the code has the distance itself; and
all labelled nodes are fixed medoids, where the code leaves out the first, random ones. The embedding is found once per
graph, not once per run.
"""

from __future__ import annotations

import copy

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import DeepGraphInfomax

from jurygcn.active.graph_statistics import Array, GraphStatistics
from jurygcn.active.scene import Choice, Scene
from jurygcn.graph.propagation import SPARSE_DENSITY, normalized_adjacency
from jurygcn.graph.sparse import SparseMatrix

# of the embedding: 512 on Cora and Citeseer, 256 on PubMed and Amazon, as the authors set it; told by size here
WIDTH, NARROW, MANY = 512, 256, 5000
INFOMAX = {"epochs": 1000, "lr": 1e-3, "patience": 20}
LATENT = {"width": 100, "epochs": 300, "lr": 0.2, "weight_decay": 5e-6}
DECAY = 0.99  # of the embedding's weight, per label
ITERATIONS = 50  # of k-medoids, at most
BLOCK = 2000  # rows whose distances are computed at a time


def lscale(scene: Scene) -> Choice:
    """The medoids of the clusters without a labelled medoid. The score of a node is the size of its cluster."""
    known = scene.labelled.cpu().numpy()
    embedding = infomax(scene.data)
    weight = DECAY ** len(known)
    parts = [weight * functional.normalize(embedding, p=1.0)]
    if len(known):
        learned = latent(embedding, scene.labelled, scene.data.y[scene.labelled], scene.num_classes, scene.draw_seed())
        parts.append((1.0 - weight) * functional.normalize(learned, p=1.0))
    nodes = np.concatenate([known, scene.pool])
    points = torch.cat(parts, dim=1).double().numpy()[nodes]
    medoids, sizes = k_medoids(points, len(known), scene.batch, scene.generator)
    return scene.choice(nodes[medoids], sizes)


class _Encoder(nn.Module):
    r"""One graph convolution, :math:`\mathrm{PReLU}(\hat A X_\pi W + b)`, with rows of X in the order :math:`\pi`."""

    def __init__(self, data: Data, width: int) -> None:
        super().__init__()
        here = torch.device("cpu")
        self._adjacency = SparseMatrix(normalized_adjacency(data), dtype=torch.float32, device=here)
        x = data.x.detach().cpu().float()
        dense = bool((x != 0).sum() > SPARSE_DENSITY * x.numel())
        self._x = x if dense else SparseMatrix(sp.csr_matrix(x.numpy()), dtype=torch.float32, device=here)
        self.weight = nn.Parameter(torch.empty(x.shape[1], width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.activation = nn.PReLU()
        nn.init.xavier_uniform_(self.weight)

    def forward(self, order: Tensor) -> Tensor:
        """Embeddings of all nodes. Shapes: (N,) -> (N, width)."""
        found: Tensor = self.activation(self._adjacency @ (self._x @ self.weight)[order] + self.bias)
        return found


def infomax(data: Data) -> Tensor:
    """The embedding of Deep Graph Infomax at its lowest loss, kept with the graph, (N, d)."""

    def compute() -> Tensor:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(0)
            model = trained_infomax(data, NARROW if int(data.num_nodes) > MANY else WIDTH)
        with torch.no_grad():
            embedding: Tensor = model.encoder(torch.arange(int(data.num_nodes)))
        return embedding

    return GraphStatistics.of(data).kept("infomax", compute)


def trained_infomax(data: Data, width: int) -> DeepGraphInfomax:
    """Deep Graph Infomax with the parameters of its lowest loss; the global random state is used."""
    everything = torch.arange(int(data.num_nodes))
    model = DeepGraphInfomax(
        hidden_channels=width,
        encoder=_Encoder(data, width),
        summary=lambda embedding, *_: embedding.mean(dim=0).sigmoid(),
        corruption=lambda order: order[torch.randperm(len(order))],
    )
    nn.init.xavier_uniform_(model.weight)
    optimizer = torch.optim.Adam(model.parameters(), lr=INFOMAX["lr"])
    lowest, best, waited = float("inf"), copy.deepcopy(model.state_dict()), 0
    for _ in range(int(INFOMAX["epochs"])):
        optimizer.zero_grad()
        loss = model.loss(*model(everything))
        if float(loss.detach()) < lowest:
            lowest, best, waited = float(loss.detach()), copy.deepcopy(model.state_dict()), 0
        else:
            waited += 1
            if waited == INFOMAX["patience"]:
                break
        loss.backward()
        optimizer.step()
    model.load_state_dict(best)
    return model


@torch.enable_grad()
def latent(embedding: Tensor, nodes: Tensor, labels: Tensor, num_classes: int, seed: int) -> Tensor:
    """u = W h + b of all nodes, such that labelled ones are near their class's vector, (N, 100)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linear, classes = (
            nn.Linear(embedding.shape[1], int(LATENT["width"])),
            nn.Embedding(num_classes, int(LATENT["width"])),
        )
    parameters = [*linear.parameters(), *classes.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=LATENT["lr"], weight_decay=LATENT["weight_decay"])
    for _ in range(int(LATENT["epochs"])):
        optimizer.zero_grad()
        distances = torch.linalg.vector_norm(linear(embedding[nodes])[:, None] - classes.weight, dim=2)
        functional.cross_entropy(-distances, labels).backward()
        optimizer.step()
    with torch.no_grad():
        found: Tensor = linear(embedding)
    return found


def k_medoids(points: Array, fixed: int, more: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Medoids beside the first ``fixed`` points, which stay medoids, and the size of each one's cluster.

    Every point belongs to its nearest medoid; the new medoid of a cluster has the least sum of distances to it.

    Shapes: points (m, d) -> (more,), (more,).
    """
    medoids = np.concatenate([np.arange(fixed), fixed + generator.choice(len(points) - fixed, more, replace=False)])
    for _ in range(ITERATIONS):
        owner = distances(points, points[medoids]).argmin(axis=1)
        owner[medoids] = np.arange(len(medoids))
        moved = medoids.copy()
        for cluster in range(fixed, len(medoids)):
            members = np.flatnonzero(owner == cluster)
            members = members[members >= fixed]
            costs = np.concatenate(
                [
                    distances(points[members[start : start + BLOCK]], points[owner == cluster]).sum(axis=1)
                    for start in range(0, len(members), BLOCK)
                ]
            )
            moved[cluster] = members[costs.argmin()]
        if (moved == medoids).all():
            break
        medoids = moved
    owner = distances(points, points[medoids]).argmin(axis=1)
    owner[medoids] = np.arange(len(medoids))
    return medoids[fixed:], np.bincount(owner, minlength=len(medoids))[fixed:]


def distances(rows: Array, others: Array) -> Array:
    """Euclidean distances. Shapes: (m, d), (k, d) -> (m, k)."""
    squares = (rows**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2.0 * rows @ others.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))
