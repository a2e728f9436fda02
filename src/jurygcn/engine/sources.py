"""Detect changes of the model and the graph after a jury was created."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from jurygcn.data.contents import PARTS, contents
from jurygcn.data.heterogeneous import layout_of, model_inputs, view_of
from jurygcn.engine import Engine
from jurygcn.errors import DataError, ModelError
from jurygcn.io.fingerprints import architecture, checksum, state


class Sources:
    """The caller's model and graph, with checksums from the time the jury was created.

    Jurors are computed once and vote later. If the caller edits the features or trains the model in between, the jurors
    no longer belong to them.
    """

    def __init__(self, model: nn.Module, data: Data | HeteroData, engine: Engine) -> None:
        self.model, self.data, self.nodes, self.forward = model, data, engine.train_nodes, engine.forward
        layout = layout_of(engine.data)
        self.node_type = None if layout is None else layout.node_type
        graph = self._graph_now()
        self._graph = {**contents(graph, parts=self._further(graph)), **contents(engine.data)}
        self._labels, self._model = checksum(self._own_labels(graph)), self._model_contents()

    def _graph_now(self) -> Data:
        """The graph as it is now; of a HeteroData the node type."""
        data = self.data
        return view_of(data, self.node_type) if isinstance(data, HeteroData) and self.node_type else data

    def _further(self, graph: Data) -> dict[str, str]:
        """Tensors of the graph beside the usual ones that the outputs may depend on, and their names in messages."""
        # the caller's forward function may read any tensor of the graph
        names = model_inputs(graph) if self.forward is None else list(graph.keys())
        return {name: f"`{name}`" for name in names if name not in PARTS}

    def check(self) -> None:
        """Raise an error if the graph or the model has changed since the jury was created."""
        graph = self._graph_now()
        parts = {**{name: f"`{name}`" for name in self._graph}, **self._further(graph), **PARTS}
        now = contents(graph, parts=parts)
        changed = [words for name, words in parts.items() if now.get(name) != self._graph.get(name)]
        if not changed and checksum(self._own_labels(graph)) != self._labels:
            changed = ["labels of training nodes"]
        if changed:
            raise DataError(
                f"expected the graph that this jury was created from, got other {' and '.join(changed)}; create a new "
                "Jury, or undo the change"
            )
        if self._model_contents() != self._model:
            raise ModelError(
                "expected the model that this jury was created from, got other parameters or buffers; create a new "
                "Jury, or pass a copy of the model (copy.deepcopy) to Jury"
            )

    def _own_labels(self, graph: Data) -> Tensor:
        labels: Tensor = graph.y[self.nodes.to(graph.y.device)]
        return labels

    def _model_contents(self) -> bytes:
        return checksum(architecture(self.model), state(self.model))
