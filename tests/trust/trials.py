"""Graphs, labels and settings at the edge of what makes sense, drawn by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from jurygcn import GCN, train
from jurygcn.errors import JuryError

EDGES = ("none", "path", "hub", "components", "complete", "random", "duplicates", "self_loops", "one_way")
FEATURES = ("normal", "zero", "constant", "one_hot", "mostly_zero", "large", "tiny")
LABELS = ("all", "some_missing", "one_class", "two_classes")


def pairs_of(kind: str, N: int, generator: torch.Generator) -> list[tuple[int, int]]:
    drawn = torch.randint(0, N, (N, 2), generator=generator).tolist()
    proper = [(a, b) for a, b in drawn if a != b]
    pairs = {
        "none": [],
        "path": [(i, i + 1) for i in range(N - 1)],
        "hub": [(0, i) for i in range(1, N)],
        "components": [(2 * i, 2 * i + 1) for i in range(N // 2)],
        "complete": [(a, b) for a in range(N) for b in range(a + 1, N)],
        "random": list({(min(p), max(p)) for p in proper}),
        "duplicates": proper * 2,
        "self_loops": [(i, i) for i in range(0, N, 2)] + list({(min(p), max(p)) for p in proper}),
        "one_way": proper,
    }[kind]
    return pairs if kind == "one_way" else pairs + [(b, a) for a, b in pairs if a != b]


def features_of(kind: str, N: int, F: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(N, F, generator=generator, dtype=torch.float64)
    return {
        "normal": normal,
        "zero": torch.zeros_like(normal),
        "constant": torch.ones_like(normal),
        "one_hot": torch.eye(N, F, dtype=torch.float64),
        "mostly_zero": normal * (normal > 1.2),
        "large": 1e4 * normal,
        "tiny": 1e-8 * normal,
    }[kind]


@dataclass(frozen=True)
class Trial:
    """A graph with a model and settings; everything random follows from ``seed``."""

    nodes: int
    features: int
    classes: int
    edges: str
    values: str
    labels: str
    labelled: int
    layers: int
    scale: float
    trained: bool
    double: bool
    weight_decay: float
    leave_out: str
    solver: str
    alpha: float
    exact: bool
    score: str
    diffusion: int | str
    seed: int

    @cached_property
    def _parts(self) -> tuple[Data, list[int]]:
        g = torch.Generator().manual_seed(self.seed)
        dtype = torch.float64 if self.double else torch.float32
        N, C = self.nodes, self.classes
        edge_index = torch.tensor(pairs_of(self.edges, N, g), dtype=torch.long).reshape(-1, 2).T.contiguous()
        x = features_of(self.values, N, self.features, g).to(dtype)
        most = {"one_class": 1, "two_classes": min(2, C)}.get(self.labels, C)
        y = torch.randint(0, most, (N,), generator=g)
        train_nodes = torch.randperm(N, generator=g)[: min(self.labelled, N)].sort().values
        if self.labels == "some_missing":
            hidden = torch.ones(N, dtype=torch.bool).index_fill_(0, train_nodes, value=False)
            y[hidden] = -1
        return Data(x=x, edge_index=edge_index, y=y, num_nodes=N, num_classes=C), train_nodes.tolist()

    @property
    def data(self) -> Data:
        return self._parts[0]

    @property
    def train_nodes(self) -> list[int]:
        return self._parts[1]

    @cached_property
    def model(self) -> GCN:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = GCN(self.features, 3, self.classes, num_layers=self.layers).to(self.data.x.dtype)
        with torch.no_grad():
            for W in model.weights:
                W *= self.scale
        if self.trained:
            train(model, self.data, torch.tensor(self.train_nodes), epochs=15, weight_decay=self.weight_decay)
        return model


@st.composite
def trials(draw: Any) -> Trial:
    one_of = lambda *values: draw(st.sampled_from(values))  # noqa: E731
    return Trial(
        nodes=one_of(6, 1, 2, 3, 9, 13),
        features=one_of(3, 1, 2, 30),
        classes=one_of(3, 1, 2, 8),
        edges=one_of(*EDGES),
        values=one_of(*FEATURES),
        labels=one_of(*LABELS),
        labelled=one_of(4, 1, 2, 13),
        layers=one_of(2, 1, 3),
        scale=one_of(1.0, 0.1, 10.0, 100.0),
        trained=one_of(False, True),
        double=one_of(True, False),
        weight_decay=one_of(1e-3, 0.0, 1e-6, 0.05, 1.0),
        leave_out=one_of("newton", "influence"),
        solver=one_of("auto", "direct", "cg", "dual"),
        alpha=one_of(0.1, 0.025, 0.3, 0.499),
        exact=one_of(False, True),
        score=one_of("lac", "aps"),
        diffusion=one_of("auto", 0, 1, 2),
        seed=draw(st.integers(0, 10_000)),
    )


def is_one_sentence(error: JuryError) -> bool:
    """Whether people can read it: one line, not too long, with something said."""
    words = str(error)
    return "\n" not in words and 20 < len(words) < 400
