"""Small graphs and models that the tests share: float64, hand-sized, every awkward shape once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.engine import Engine, engine_of
from jurygcn.models import GCN, train


def undirected(pairs: list[tuple[int, int]]) -> Tensor:
    both = pairs + [(b, a) for a, b in pairs if a != b]
    return torch.tensor(sorted(set(both)), dtype=torch.long).reshape(-1, 2).T.contiguous()


def two_block(size: int, generator: torch.Generator) -> list[tuple[int, int]]:
    """A stochastic block model with two blocks."""
    side = torch.arange(size) % 2
    return [
        (a, b)
        for a in range(size)
        for b in range(a + 1, size)
        if torch.rand((), generator=generator) < (0.6 if side[a] == side[b] else 0.15)
    ]


def graph(name: str, *, features: int = 4, classes: int = 3, seed: int = 0, regression: bool = False) -> Data:
    generator = torch.Generator().manual_seed(seed)
    size, pairs = {
        "path": (6, [(i, i + 1) for i in range(5)]),
        "star": (7, [(0, i) for i in range(1, 7)]),
        "two_block": (12, two_block(12, generator)),
        "isolated": (7, [(0, 1), (1, 2), (2, 3), (4, 5)]),
        "self_loops": (6, [(i, i + 1) for i in range(5)] + [(2, 2), (4, 4)]),
    }[name]
    x = torch.randn(size, features, generator=generator, dtype=torch.float64)
    y = torch.arange(size) % classes
    if regression:
        y = torch.randn(size, classes, generator=generator, dtype=torch.float64)
    return Data(x=x, edge_index=undirected(pairs), y=y, num_nodes=size)


GRAPHS = ("path", "star", "two_block", "isolated", "self_loops")


@dataclass(frozen=True)
class Case:
    graph: str
    layers: int
    loss: str
    activation: str = "relu"

    def __str__(self) -> str:
        return f"{self.graph}-L{self.layers}-{self.loss}-{self.activation}"

    def data(self) -> Data:
        return graph(self.graph, regression=self.loss == "mse")

    def engine(self, *, weight_decay: float = 0.0, seed: int = 0, trained: bool = False) -> Engine:
        data = self.data()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = GCN(4, 3, 3, num_layers=self.layers, activation=self.activation).double()
        train_nodes = torch.arange(data.num_nodes)[:: 2 if data.num_nodes > 6 else 1][:5]
        if trained:
            train(model, data, train_nodes, epochs=300, weight_decay=weight_decay, loss=self.loss, seed=seed)
        return engine_of(model, data, train_nodes, loss=self.loss, weight_decay=weight_decay)


CASES = [Case(g, layers, loss) for g in GRAPHS for layers in (1, 2, 3) for loss in ("cross_entropy", "mse")]
CASES += [Case("two_block", layers, "cross_entropy", "linear") for layers in (2, 3)]
