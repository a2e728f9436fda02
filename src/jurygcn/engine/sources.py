"""What a jury was made from: a verdict is about the model and the graph as they are, or it is refused."""

from __future__ import annotations

from torch import Tensor, nn
from torch_geometric.data import Data

from jurygcn.data.contents import PARTS, contents
from jurygcn.engine import Engine
from jurygcn.errors import DataError, ModelError
from jurygcn.io.fingerprints import architecture, checksum, state


class Sources:
    """The caller's model and graph, and what they held when the jury was made.

    Jurors are found once and vote later. In between the caller may edit features through NumPy or train the model on;
    then the jurors belong to something that is no longer there.
    """

    def __init__(self, model: nn.Module, data: Data, engine: Engine) -> None:
        self.model, self.data, self.nodes = model, data, engine.train_nodes
        # a forward of the caller's may read anything of the graph
        further = {} if engine.forward is None else {name: f"`{name}`" for name in data.keys()}  # noqa: SIM118
        self.parts = {**further, **PARTS}
        self._graph = {**contents(data, parts=further), **contents(engine.data)}
        self._labels, self._model = checksum(self._own_labels()), self._model_contents()

    def check(self) -> None:
        """Refuse a graph or a model that is no longer what the jury was made from."""
        now = contents(self.data, parts=self.parts)
        changed = [words for name, words in self.parts.items() if now.get(name) != self._graph.get(name)]
        if not changed and checksum(self._own_labels()) != self._labels:
            changed = ["labels of training nodes"]
        if changed:
            raise DataError(
                f"The graph's {' and '.join(changed)} changed since this jury was made: make a new Jury for the graph "
                "as it is now, or undo the change."
            )
        if self._model_contents() != self._model:
            raise ModelError(
                "The model's parameters or buffers changed since this jury was made: make a new Jury for the model as "
                "it is now, or pass a copy of the model (copy.deepcopy) to Jury."
            )

    def _own_labels(self) -> Tensor:
        labels: Tensor = self.data.y[self.nodes.to(self.data.y.device)]
        return labels

    def _model_contents(self) -> bytes:
        return checksum(architecture(self.model), state(self.model))
