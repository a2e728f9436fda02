"""Detect changes of the model and the graph after a jury was created."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.data.contents import PARTS, contents
from jurygcn.engine import Engine
from jurygcn.errors import DataError, ModelError
from jurygcn.io.fingerprints import architecture, checksum, state


class Sources:
    """The caller's model and graph, with checksums from the time the jury was created.

    Jurors are computed once and vote later. If the caller edits the features or trains the model in between, the jurors
    no longer belong to them.
    """

    def __init__(self, model: nn.Module, data: Data, engine: Engine) -> None:
        self.model, self.data, self.nodes = model, data, engine.train_nodes
        # the caller's forward function may read any tensor of the graph
        further = {} if engine.forward is None else {name: f"`{name}`" for name in data.keys()}  # noqa: SIM118
        self.parts = {**further, **PARTS}
        self._graph = {**contents(data, parts=further), **contents(engine.data)}
        self._labels, self._model = checksum(self._own_labels()), self._model_contents()

    def check(self) -> None:
        """Raise an error if the graph or the model has changed since the jury was created."""
        now = contents(self.data, parts=self.parts)
        changed = [words for name, words in self.parts.items() if now.get(name) != self._graph.get(name)]
        if not changed and checksum(self._own_labels()) != self._labels:
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

    def _own_labels(self) -> Tensor:
        labels: Tensor = self.data.y[self.nodes.to(self.data.y.device)]
        return labels

    def _model_contents(self) -> bytes:
        return checksum(architecture(self.model), state(self.model))
