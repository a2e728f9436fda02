"""What every juror predicts: forward passes of all leave-one-out models, streamed in batches of jurors.

Nothing here ever holds all n x m x C predictions: a batch of jurors is as large as the memory budget allows, and is
counted and forgotten before the next one.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import cache, cached_property

import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.checks import in_short
from jurygcn.derivatives.autodiff import outputs_of_many
from jurygcn.errors import SettingError
from jurygcn.models.receptive_field import ReceptiveField
from jurygcn.objective import Objective

# So many jurors are counted together that their outputs take this many bytes, but at least a few.
ARRAY, FEW = 12_000_000, 8

# Freed memory that a process keeps, and the largest array it keeps (glibc takes no more), by their numbers in malloc.h.
KEPT, LARGEST = 256 * 2**20, 32 * 2**20
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3

UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Ballots:
    """The jurors' predictions at ``nodes``, in batches over jurors.

    Float32 models vote in float32, float64 models in float64. The paper's GCN votes on the nodes' receptive
    field, all jurors of a batch in one dense and one sparse product per layer; any other model through ``vmap``.

    Shapes: steps (n, P); a batch yields (positions (b,), predictions (m, C, b)).
    """

    def __init__(self, objective: Objective, steps: Tensor, nodes: Tensor, *, memory: str = "1GB") -> None:
        keep_freed_memory()
        self.objective, self.nodes = objective, nodes
        self.dtype = objective.source_dtype
        self.steps = steps.to(self.dtype)
        self.theta = objective.theta.to(self.dtype)
        self.batch_size = self._batch_size(parse_memory(memory))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for positions in torch.arange(len(self.steps)).split(self.batch_size):
            yield positions, self.of(positions)

    def of(self, jurors: Tensor) -> Tensor:
        """Predictions of some consecutive jurors (positions), (m, C, b)."""
        return self.predictions(self.theta + self.steps[int(jurors[0]) : int(jurors[-1]) + 1])

    @torch.no_grad()
    def predictions(self, thetas: Tensor) -> Tensor:
        """Predictions of the models with these parameters, (b, P) -> (m, C, b)."""
        parameters = thetas.to(self.dtype)
        if self.objective.gcn is not None:
            stacks = list(self.objective.unflatten(parameters).values())
            logits = self._field.stacked_logits(stacks)
        else:
            logits = self._generic_logits(parameters)
        return self.objective.loss.predict(logits, dim=1)

    @property
    def _field(self) -> ReceptiveField:
        if not hasattr(self, "_cached_field"):
            assert self.objective.gcn is not None
            self._cached_field = ReceptiveField.of(
                self.objective.gcn, self.objective.data, self.nodes, dtype=self.dtype
            )
        return self._cached_field

    @cached_property
    def _part(self) -> tuple[Objective, Data, Tensor]:
        """The objective in the voters' precision, with the part of the graph that decides the outputs at the nodes."""
        objective = self.objective.cast(self.dtype)
        return objective, *objective.local(self.nodes)

    def _generic_logits(self, parameters: Tensor) -> Tensor:
        objective, graph, rows = self._part
        return outputs_of_many(lambda theta: objective.outputs(theta, rows, graph), parameters)

    def _batch_size(self, budget: float) -> int:
        """As many jurors as fit: hidden rows (twice, for the product's copy) and a few copies of the outputs."""
        m, C = len(self.nodes), self.objective.num_outputs
        if self.objective.gcn is not None:
            widths = [W.shape[1] for W in self.objective.gcn.weights]
            numbers = 3 * sum(self._field.hidden_sizes(widths)) + 9 * m * C + self.objective.num_parameters
            most = max(FEW, ARRAY // (self.dtype.itemsize * m * C))
        else:
            edges, nodes = int(self.objective.data.num_edges), int(self.objective.data.num_nodes)
            widest = max((p.shape[0] for p in self.objective.parameters.values() if p.dim()), default=C)
            numbers = (edges + 3 * nodes) * 2 * widest + 6 * m * C
            most = len(self.steps)
        return int(max(1, min(len(self.steps), most, budget // (self.dtype.itemsize * numbers))))


@cache
def keep_freed_memory() -> None:
    """Have the GNU C library keep freed arrays: memory that is fetched anew for every one costs more than arithmetic.

    It hands back what lies free at the end of its heap, by default above 128 KiB to 64 MiB, depending on what it has
    seen; whoever has set that in the environment has it their way.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt(TRIM_THRESHOLD, KEPT)
        mallopt(MMAP_THRESHOLD, LARGEST)


def predictions_at(objective: Objective, nodes: Tensor) -> Tensor:
    """What the trained model predicts at ``nodes``, as a vote of one, (m, C, 1)."""
    return Ballots(objective, objective.theta[None], nodes).predictions(objective.theta[None])


def parse_memory(memory: str) -> float:
    """Bytes from words such as '2GB' or '500MB'."""
    written = r"\s*([0-9]{1,18}(?:\.[0-9]*)?|\.[0-9]+)\s*([KMGT]?)i?B?\s*"
    text = memory if isinstance(memory, str) else in_short(memory)
    match = re.fullmatch(written, text, flags=re.IGNORECASE | re.ASCII)
    if match is None or float(match[1]) <= 0:
        raise SettingError(f"memory must read like '2GB' or '500MB', got {in_short(memory)}.")
    return float(match[1]) * UNITS[match[2].upper()]
