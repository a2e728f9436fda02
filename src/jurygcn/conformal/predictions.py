"""The jurors' predictions: forward passes of all leave-one-out models, in batches of jurors.

The n x m x C predictions are never all in memory: a batch is as large as the memory budget allows, and is freed before
the next one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil

import torch
from torch import Tensor

from jurygcn.checks import in_short
from jurygcn.engine import Engine
from jurygcn.errors import SettingError
from jurygcn.leave_one_out.jurors import CompressedJurors

MOST_VOTES = 3_000_000_000  # of linearised jurors on all nodes and classes, if they are computed to take advice
NUMBERS = 20_000_000  # in one array of derivatives along directions
UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class LeaveOneOutPredictions:
    """The jurors' predictions at ``nodes``, in batches over jurors.

    Float32 models vote in float32, float64 models in float64. The paper's GCN votes on the nodes' receptive
    field, all jurors of a batch in one dense and one sparse product per layer; any other model through ``vmap``.
    With ``keep``, batches are kept for the next pass over them.

    Shapes: steps (n, P); a batch yields (positions (b,), predictions (m, C, b)).
    """

    def __init__(
        self, engine: Engine, steps: Tensor, nodes: Tensor, *, memory: str = "1GB", keep: bool = False
    ) -> None:
        self.engine, self.nodes = engine, nodes
        self.dtype = engine.source_dtype
        self.steps = steps.to(self.dtype)
        self.theta = engine.theta.to(self.dtype)
        self.predictor = engine.predictor(nodes, self.dtype)
        self.batch_size = self._batch_size(parse_memory(memory))
        self._kept: dict[int, Tensor] | None = {} if keep else None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for positions in self.batches():
            yield positions, self.of(positions)

    def batches(self, *, start: int = 0) -> list[Tensor]:
        """The jurors from ``start`` on, in batches of about equal size."""
        left = torch.arange(start, len(self.steps))
        return list(left.split(ceil(len(left) / ceil(len(left) / self.batch_size)))) if len(left) else []

    def of(self, jurors: Tensor) -> Tensor:
        """Predictions of some consecutive jurors (positions), (m, C, b)."""
        first, last = int(jurors[0]), int(jurors[-1])
        if self._kept is not None and first in self._kept and self._kept[first].shape[2] == len(jurors):
            return self._kept[first]
        votes = self.of_parameters(self.steps[first : last + 1], around=self.theta)
        if self._kept is not None:
            self._kept[first] = votes
        return votes

    def trained(self) -> Tensor:
        """Predictions of the trained model, in the form of one vote, (m, C, 1)."""
        return self.of_parameters(self.engine.theta[None])

    @torch.no_grad()
    def of_parameters(self, thetas: Tensor, *, around: Tensor | None = None) -> Tensor:
        """Predictions of the models with these parameters, or with these steps from ``around``, (b, P) -> (m, C, b)."""
        return self.engine.loss.predict(self.predictor.outputs(thetas.to(self.dtype), around), dim=1)

    def _batch_size(self, budget: float) -> int:
        """As many jurors as the budget allows, up to the fastest batch size."""
        fitting = budget // (self.dtype.itemsize * self.predictor.numbers)
        return int(max(1, min(len(self.steps), self.predictor.most, fitting)))


class FirstOrderPredictions(LeaveOneOutPredictions):
    """The predictions of compressed jurors, to first order in the outputs, without forward passes.

    A juror's prediction at its own node comes from its whole step, not from the common directions.

    Shapes: own_nodes (n,); a batch yields (positions (b,), predictions (m, C, b)).
    """

    def __init__(
        self, engine: Engine, jurors: CompressedJurors, nodes: Tensor, own_nodes: Tensor, *, memory: str = "1GB"
    ) -> None:
        self.engine, self.nodes, self.dtype, self._kept = engine, nodes, engine.source_dtype, None
        self.steps = jurors.coefficients.to(self.dtype)
        self.outputs = engine.outputs_at(nodes)
        self.tangents = engine.tangents(nodes, jurors.directions.to(self.dtype))
        self.own = engine.loss.predict(jurors.own_outputs).to(self.dtype)
        places = torch.full((int(engine.data.num_nodes),), -1).index_put_((nodes,), torch.arange(len(nodes)))
        self.own_places = places[own_nodes]
        copies = 9 * self.outputs.numel() * self.dtype.itemsize  # votes, and what is computed from them
        self.batch_size = int(max(1, min(len(self.steps), parse_memory(memory) // copies)))

    @torch.no_grad()
    def of(self, jurors: Tensor) -> Tensor:
        """Predictions of some jurors (positions), (m, C, b)."""
        coefficients = self.steps[jurors].T  # (k, b)
        z = self.outputs.unsqueeze(2).repeat(1, 1, len(jurors))
        for rows in torch.arange(len(z)).split(max(1, NUMBERS // (z.shape[1] * len(coefficients)))):
            here = slice(int(rows[0]), int(rows[-1]) + 1)
            z[here] += self.tangents.at(here) @ coefficients
        votes = self.engine.loss.predict(z, dim=1)
        at = self.own_places[jurors]
        known = (at >= 0).nonzero().squeeze(1)
        votes[at[known], :, known] = self.own[jurors[known]]
        return votes

    def trained(self) -> Tensor:
        """Predictions of the trained model, in the form of one vote, (m, C, 1)."""
        return self.engine.loss.predict(self.outputs).unsqueeze(2)


def predictions_of(
    engine: Engine, jurors: Tensor | CompressedJurors, nodes: Tensor, own_nodes: Tensor, *, memory: str
) -> LeaveOneOutPredictions:
    """The predictions of jurors with these steps (n, P), or of compressed ones, at ``nodes``."""
    if isinstance(jurors, CompressedJurors):
        return FirstOrderPredictions(engine, jurors, nodes, own_nodes, memory=memory)
    return LeaveOneOutPredictions(engine, jurors, nodes, memory=memory)


def predictions_at(engine: Engine, nodes: Tensor) -> Tensor:
    """The trained model's predictions at ``nodes``, in the form of one vote, (m, C, 1)."""
    return engine.loss.predict(engine.outputs_at(nodes)).unsqueeze(2)


def parse_memory(memory: str) -> float:
    """The number of bytes in a text such as '2GB' or '500MB'."""
    written = r"\s*([0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]?)i?B?\s*"
    text = memory if isinstance(memory, str) else in_short(memory)
    match = re.fullmatch(written, text, flags=re.IGNORECASE | re.ASCII)
    if match is None or float(match[1]) <= 0:
        raise SettingError(f"expected memory as a text such as '2GB' or '500MB', got {in_short(memory)}; change it")
    return float(match[1]) * UNITS[match[2].upper()]
