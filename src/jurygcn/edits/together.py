"""Edges that determine an output together: an order of edges, not the effect of each one alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import MessagePassing

from jurygcn.data.contents import EDGE_VALUES
from jurygcn.graph.ego import ego_graphs
from jurygcn.graph.neighbourhood import num_hops

if TYPE_CHECKING:
    from jurygcn.engine import Engine

# Chosen on BA-shapes, digits and synthetic, on splits that no benchmark reports.
POINTS = 16  # of the integral along the weights of all messages
MOST = 20  # edges that are put in order together; the others follow by their integrated gradients
CANDIDATES = 40  # edges that are tried at each place
NUMBERS = 20_000_000  # numbers in the features of all copies of the neighbourhood in one pass


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The neighbourhood of a node, as part of a model's input.

    Attributes:
        model: a model whose layers are PyG's, so that messages can be weighted.
        graph: the neighbourhood.
        centre: the row of the node.
        output: the explained class, or output of a regression.
        classify: whether outputs are logits of classes.
        messages: the places of the edges that can be silenced, (E,).
    """

    model: nn.Module
    graph: Data
    centre: int
    output: int
    classify: bool
    messages: Tensor

    def values(self, weights: Tensor) -> Tensor:
        """The log-probability of the class, or the output, if messages have these weights: (b, E) -> (b,)."""
        most = max(1, NUMBERS // max(1, self.graph.x.numel()))
        return torch.cat([self._values(part) for part in weights.split(most)])

    def _values(self, weights: Tensor) -> Tensor:
        rows, copies = len(self.graph.x), len(weights)
        offsets = rows * torch.arange(copies)
        edge_index = (self.graph.edge_index[:, None, :] + offsets[None, :, None]).flatten(1)
        mask = weights.new_ones(copies, self.graph.edge_index.shape[1])
        mask[:, self.messages] = weights
        set_masks(self.model, mask.flatten(), edge_index, apply_sigmoid=False)
        try:
            z = self.model(self.graph.x.repeat(copies, 1), edge_index)[offsets + self.centre]
        finally:
            clear_masks(self.model)
        found: Tensor = (z.log_softmax(dim=1) if self.classify else z)[:, self.output]
        return found

    def integrated(self) -> Tensor:
        """Integrated gradients of the output along the weights of all messages from 0 to 1, (E,)."""
        points = (torch.arange(POINTS, dtype=self.graph.x.dtype) + 0.5) / POINTS
        weights = points[:, None].repeat(1, len(self.messages)).requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self.values(weights).sum(), weights)
        return gradient.mean(dim=0)

    @torch.no_grad()
    def ordered(self) -> Tensor:
        r"""Scores of the edges, (E,); the first edge has 1.

        At each place the edge e is taken with the largest f(only S and e) - f(all but S and e), S those before it. The
        first term asks whether the edges suffice, the second whether they are needed.
        """
        single = self.integrated()
        order = single.argsort(descending=True)
        pool = order[:CANDIDATES].tolist()
        chosen: list[int] = []
        for _ in range(min(MOST, len(pool))):
            tried = torch.zeros(len(pool), len(single), dtype=single.dtype)
            tried[:, chosen] = 1.0
            tried[torch.arange(len(pool)), torch.tensor(pool)] = 1.0
            kept, without = self.values(torch.cat([tried, 1.0 - tried])).chunk(2)
            chosen.append(pool.pop(int((self._gain(kept) - self._gain(without)).argmax())))
        rest = [e for e in order.tolist() if e not in set(chosen) and float(single[e]) > 0]
        scores = torch.zeros(len(single), dtype=single.dtype)
        ranked = torch.tensor([*chosen, *rest], dtype=torch.long)
        scores[ranked] = 1.0 - torch.arange(len(ranked), dtype=scores.dtype) / max(1, len(ranked))
        return scores

    def _gain(self, values: Tensor) -> Tensor:
        return values.exp() if self.classify else values


def edge_scores(engine: Engine, model: nn.Module, x: Tensor, node: int, output: int) -> Tensor | None:
    """Scores of all edges for an output of a node, (E,); None if messages cannot be weighted one by one."""
    data = engine.data
    if not engine.separable or not any(isinstance(module, MessagePassing) for module in model.modules()):
        return None
    plain = Data(x=x, edge_index=data.edge_index, num_nodes=data.num_nodes)
    found = ego_graphs(plain, torch.tensor([node]), num_hops(model), most_rows=NUMBERS // max(1, x.shape[1]))
    if found is None or any(getattr(data, key, None) is not None for key in EDGE_VALUES):
        return None
    N, ends = int(data.num_nodes), found.rows[0].nodes[found.graph.edge_index]
    messages = (ends[0] < N).nonzero()[:, 0]
    known, order = (data.edge_index[0] * N + data.edge_index[1]).sort(stable=True)
    places = order[torch.searchsorted(known, (ends[0] * N + ends[1])[messages])]
    classify = engine.loss.name == "cross_entropy"
    near = Neighbourhood(model, found.graph, int(found.centres[0]), output, classify, messages)
    scores = x.new_zeros(data.edge_index.shape[1])
    scores[places] = near.ordered()
    return scores
