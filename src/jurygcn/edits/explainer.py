"""Explanations in PyG's form: ``torch_geometric.explain.Explainer(..., algorithm=JuryExplainer(jury))``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.explain import ExplainerConfig, Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import MaskType, ModelMode, ModelTaskLevel

from jurygcn.checks import check_choice
from jurygcn.edits.base import base_of
from jurygcn.edits.edit import is_undirected
from jurygcn.edits.influences import edges_away, edges_near, effects_on, node_away, sources_of
from jurygcn.edits.together import edge_scores
from jurygcn.errors import DataError
from jurygcn.graph.neighbourhood import num_hops
from jurygcn.graph.reach import reached_by

if TYPE_CHECKING:
    from jurygcn.jury import Jury

EFFECTS = ("together", "direct", "parameters", "both")


class JuryExplainer(ExplainerAlgorithm):
    """Masks from edits, between 0 and 1. The explained node gets 1; what cannot reach it gets 0.

    Args:
        jury: a jury of the explained model on the explained graph.
        effect: "together" puts edges in the order in which they determine the output as a set, see ``together``; it
            silences their messages, as PyG's metrics do. With the others an edge weighs as much as the output drops
            without it, over the largest drop: "direct" (message passing with the model as it is), "parameters" (what
            the edge did in training), or "both". Masks of nodes, and models without PyG's layers, get "direct" in
            place of "together".
    """

    def __init__(self, jury: Jury, *, effect: str = "together") -> None:
        super().__init__()
        check_choice(effect, "effect", EFFECTS)
        self.jury, self.together = jury, effect == "together"
        self.effect = "direct" if self.together else effect

    def supports(self) -> bool:
        """Node-level tasks of homogeneous graphs, with masks of edges and of whole nodes."""
        config: ExplainerConfig = self.explainer_config
        return (
            self.model_config.task_level == ModelTaskLevel.node
            and self.model_config.mode != ModelMode.binary_classification
            and config.node_mask_type in (None, MaskType.object)
            and config.edge_mask_type in (None, MaskType.object)
        )

    def forward(
        self,
        model: torch.nn.Module,
        x: Tensor,
        edge_index: Tensor,
        *,
        target: Tensor,
        index: int | Tensor | None = None,
        **kwargs: Any,  # noqa: ARG002
    ) -> Explanation:
        """The masks of one node or of several, whose drops are added."""
        data = self.jury.data
        if x.shape != data.x.shape or not torch.equal(edge_index, data.edge_index):
            raise DataError("expected the graph of the jury to explain, got another; make a jury of it first")
        asked = torch.arange(len(x)) if index is None else torch.as_tensor(index).reshape(-1)
        nodes = asked.nonzero()[:, 0] if asked.dtype == torch.bool else asked
        config = self.explainer_config
        edge_mask = torch.zeros(edge_index.shape[1]) if config.edge_mask_type is not None else None
        node_mask = torch.zeros(len(x), 1) if config.node_mask_type is not None else None
        for node in nodes.tolist():
            output = int(target[node]) if self.model_config.mode == ModelMode.multiclass_classification else 0
            if edge_mask is not None:
                scores = edge_scores(self.jury.engine, model, x, node, output) if self.together else None
                edge_mask += self._edges(node, output) if scores is None else scores.to(edge_mask)
            if node_mask is not None:
                node_mask[:, 0] += self._nodes(node, output)
        if node_mask is not None:
            node_mask = _scaled(node_mask)
            node_mask[nodes] = 1.0
        return Explanation(node_mask=node_mask, edge_mask=None if edge_mask is None else _scaled(edge_mask))

    def _edges(self, node: int, output: int) -> Tensor:
        pairs, data = edges_near(self.jury, node), self.jury.data
        both = is_undirected(data)
        drops = self._drops(edges_away(self.jury, pairs), node, output)
        span = int(data.num_nodes)
        values = torch.zeros(data.edge_index.shape[1])
        keys = data.edge_index[0] * span + data.edge_index[1]
        order = keys.argsort()
        directions = [(a, b) for a, b in pairs], [(b, a) for a, b in pairs]
        for ends in directions if both else directions[:1]:
            if ends:
                wanted = torch.tensor([a * span + b for a, b in ends])
                values[order[torch.searchsorted(keys[order], wanted)]] = drops
        if self.effect == "direct":
            backwards = Data(edge_index=data.edge_index.flip(0), num_nodes=span)
            hops = num_hops(self.jury.engine.model) - 1
            arriving = reached_by(backwards, [torch.tensor([node])], hops)[0]
            values[~torch.isin(data.edge_index[1], arriving)] = 0.0  # messages in this direction never arrive
        return values

    def _nodes(self, node: int, output: int) -> Tensor:
        near = sources_of(self.jury, node)
        drops = self._drops([node_away(self.jury, other) for other in near], node, output)
        values = torch.zeros(int(self.jury.data.num_nodes))
        values[torch.tensor(near, dtype=torch.long)] = drops
        return values

    def _drops(self, edits: list[Any], node: int, output: int) -> Tensor:
        if not edits:
            return torch.zeros(0)
        effects = effects_on(base_of(self.jury), edits, [node] * len(edits), retrain=self.effect != "direct")
        direct, through, both = effects.supports(torch.full((len(edits),), output))
        drop = {"direct": direct, "parameters": through, "both": both}[self.effect]
        return drop.clamp_min(0.0).float()


def _scaled(mask: Tensor) -> Tensor:
    largest = float(mask.max()) if mask.numel() else 0.0
    return mask / largest if largest > 0 else mask
