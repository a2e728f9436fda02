r"""Jurors that learn one more label: what they need of every node, from the curvature that is factorised already.

Juror i of the bag with the label (u, y) left out i and learned (u, y). Both models are trained on n labels, so the mean
in the objective stays one over n. With the residual a of the new label after it was learned, the juror's parameters are
:math:`\theta_{-i} - \frac1n H_{-i}^{-1} J_u^T a`, so that all follows from the kernels

.. math::
    K_{uu} = \tfrac1n J_u H^{-1} J_u^T, \qquad
    \bar A_{ui} = n^{-1/2} J_u H^{-1} U_i^T (I - M_{ii})^{-1/2}, \qquad
    K^{-i}_{uu} = K_{uu} + \bar A_{ui} \bar A_{ui}^T

They cost one forward derivative for each row of U, whatever the number of nodes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jurygcn.curvature.factor import GGNFactor
from jurygcn.engine import Engine
from jurygcn.engine.ways import DIRECTIONS, along
from jurygcn.errors import SettingError
from jurygcn.graph.propagation import Propagation
from jurygcn.leave_one_out.estimated import LeaveOneOut
from jurygcn.linalg import undetermined_directions
from jurygcn.losses import FLOOR

# Parameters without weight decay that are allowed: each needs a forward derivative of its own.
MOST_UNDECAYED = 5_000

# Units in the last place that differences of kernels are off by.
ROUNDING = 8

# The most numbers in the derivatives of some nodes.
TEMPORARY_NUMBERS = 5_000_000

# Derivatives along all directions are kept for many nodes, because every group of nodes needs its whole neighbourhood
# again: they take one part in ALONG_SHARE of the memory. Kernels of more numbers leave the processor's cache.
ALONG_SHARE, KERNEL_NUMBERS = 2, 8_000_000


@dataclass(frozen=True, eq=False)
class Kernels:
    """What adding a label at r nodes changes at the jurors' own nodes.

    Shapes: outputs (r, C) the trained model's logits; own (r, C, C) K_uu; cross (n, r, C, K) A_ui; through (n, C, K)
    what follows from A_ui at i; read (r, C, n, C) what else does if predictions are averages, else None.
    """

    outputs: Tensor
    own: Tensor
    cross: Tensor
    through: Tensor
    read: Tensor | None = None

    @property
    def reading(self) -> Tensor:
        """What a residual at u changes of the logarithms of juror i's prediction at i, (r, n, C, C).

        Of the prediction itself, for a regression.
        """
        change = -self.through @ self.cross.permute(1, 0, 3, 2)
        return change if self.read is None else change - self.read.permute(0, 2, 3, 1)


class AddedLabels:
    """The kernels of nodes without a label, and the jurors' own predictions before a label is added.

    ``diffusion`` is the number of averages over neighbourhoods of the predictions that are read at the jurors' nodes.

    Shapes: jumps (n, K), the whitened residual of each juror's node under its own curvature: what leaving i out moved.
    """

    def __init__(self, many: LeaveOneOut, *, diffusion: int = 0) -> None:
        self.engine = many.engine
        factor, positions, n = many.prepared.factor, many.positions, many.engine.num_train
        assert isinstance(factor, GGNFactor)  # newton jurors have no other
        diagonal, K = many.operator.diagonal, factor.block
        free = (diagonal == 0).nonzero().squeeze(1)
        if len(free) > MOST_UNDECAYED:
            raise SettingError(
                f"expected at most {MOST_UNDECAYED:,} parameters without weight decay for full conformal sets, got "
                f"{len(free):,}; use method='jackknife+'"
            )
        self._scale = torch.where(diagonal == 0, 0.0, diagonal.reciprocal())
        self._kept = many.prepared.remainder()  # I - U H^-1 U^T
        self._toward = self.engine.toward(factor.jacobian, factor.scaled_root, self._scale)  # J_u diag(1 / d) U^T
        directions = [diagonal.new_zeros(len(diagonal), 0)]
        if len(free):
            units = torch.zeros(len(diagonal), len(free), dtype=diagonal.dtype)
            units[free, torch.arange(len(free))] = 1.0
            columns = factor.matmul(units)
            idle = undetermined_directions(columns.T @ columns)  # a juror does not move along them
            through = many.prepared.solve(units - units @ idle @ idle.T).value
            self._free_rows, self._free_corner = factor.matmul(through), through[free]  # U H^-1 E, E^T H^-1 E
            directions.append(units)
        else:
            self._free_rows, self._free_corner = diagonal.new_zeros(factor.rows, 0), diagonal.new_zeros(0, 0)
        self._rows, self._free, self._block, self.count = factor.rows, len(free), K, n
        self.positions = positions
        self._find_roots(many)
        reading = self._readings(many, diffusion)
        if reading is not None:
            directions.append(reading)
        # jurors vote in the precision of the model, and so do they with an added label
        self._directions = torch.cat([part.to(self.engine.source_dtype).T for part in directions]).contiguous()
        self._root /= math.sqrt(self.count)
        self._rounded = self.engine.cast(self.engine.source_dtype)
        for name in ("_kept", "_root", "_through", "jumps"):
            setattr(self, name, getattr(self, name).to(self.engine.source_dtype))

    def _at_roots(self, rows: Tensor) -> Tensor:
        r"""The columns of the jurors' nodes times :math:`n^{-1/2} (I - M_{ii})^{-1/2}`, (r, C, nK) -> (n', r, C, K)."""
        r, C, _ = rows.shape
        blocks = rows.view(r * C, self.count, self._block).transpose(0, 1)
        if len(self.positions) < self.count:
            blocks = blocks[self.positions]
        return torch.bmm(blocks, self._root).view(-1, r, C, self._block)

    def _find_roots(self, many: LeaveOneOut) -> None:
        r""":math:`(I - M_{ii})^{-1/2}` of every juror, (n, K, K)."""
        retention, least = many.retention()
        stretched = many.downdated(retention, least)
        values, vectors = torch.linalg.eigh(retention)
        self._root: Tensor = (
            vectors * values.clamp_min(torch.finfo(values.dtype).tiny).rsqrt().unsqueeze(1)
        ) @ vectors.mT
        self.jumps: Tensor = torch.linalg.solve(self._root, stretched.unsqueeze(-1)).squeeze(-1)

    def _readings(self, many: LeaveOneOut, diffusion: int) -> Tensor | None:
        """How predictions at the jurors' nodes follow the parameters: directions of their own if they are averages."""
        engine, at, K = self.engine, self.positions, self._block
        z, C = many.outputs[at], engine.num_outputs
        self.averaged = diffusion > 0
        if not self.averaged:  # logits follow from the rows of U
            units = torch.eye(K, dtype=z.dtype, device=z.device)
            change = [engine.loss.change(z, units[k].expand(len(z), K)) for k in range(K)]
            self._through = torch.stack(change, dim=2) @ self._root  # (n, C, K)
            return None
        slopes = log_average_slopes(engine, engine.train_nodes[at], diffusion)  # (n, C, P)
        block = many.prepared.precondition(slopes.flatten(0, 1).T.contiguous())
        mine = at[:, None] * K + torch.arange(K)
        through = many.prepared.factor.matmul(block).view(-1, len(at), C)  # U H^-1 B^T, (nK, n, C)
        mine = through[mine, torch.arange(len(at))[:, None]]  # (n, K, C)
        self._through = mine.mT @ self._root / self.count**0.5
        return block

    @property
    def numbers(self) -> int:
        """The numbers that the kernels of one node need at a time."""
        k, n, C = self._rows + len(self._directions), len(self.positions), self.engine.num_outputs
        return 4 * k * C + n * C * (self._block + C)

    def at(self, nodes: Tensor, *, memory: float) -> Iterator[tuple[Tensor, Kernels]]:
        """The kernels of some nodes after the other, in so many bytes: their places in ``nodes`` and the kernels."""
        size, C = self._directions.element_size(), self.engine.num_outputs
        held = self._toward.numbers + C * len(self._directions) + self.engine.tangent_numbers(1) * DIRECTIONS
        many, few = (max(1, int(memory / ALONG_SHARE / (size * numbers))) for numbers in (held, self.numbers))
        few = min(few, max(1, KERNEL_NUMBERS // self.numbers))
        N = int(self.engine.data.num_nodes)
        everything = many >= N and 2 * len(nodes) > N  # what all nodes share is kept with the graph
        for group in torch.arange(len(nodes)).split(many):
            there = torch.arange(N) if everything else nodes[group]
            seen, rest = self._toward(there), self._along(there)
            with torch.enable_grad():
                grams = self._rounded.own_grams(
                    there, self._scale.to(self._directions)
                ).detach()  # J_u diag(1 / d) J_u^T
            with torch.no_grad():
                outputs = self.engine.at(there).train_outputs.to(rest)
            for some in group.split(few):
                rows = nodes[some] if everything else some - group[0]
                yield some, self._kernels(outputs[rows], seen.at(rows), rest[rows], grams[rows])

    def _along(self, nodes: Tensor) -> Tensor:
        """Derivatives of the logits along undecayed parameters and readings, (r, C, k)."""
        if not len(self._directions):
            return self._directions.new_zeros(len(nodes), self.engine.num_outputs, 0)
        return along(self.engine, nodes, self._directions)

    def _kernels(self, outputs: Tensor, seen: Tensor, rest: Tensor, grams: Tensor) -> Kernels:
        n, (r, C) = self.count, outputs.shape
        units, read = rest.split([self._free, rest.shape[2] - self._free], dim=2)
        inner = seen @ self._kept  # J_u H^-1 U^T
        wide = seen.to(self._free_rows.dtype)
        own = grams - wide @ inner.mT.to(wide)
        if self._free:
            units = units.to(wide)
            more = units @ self._free_rows.T
            own = own - wide @ more.mT + units @ (units @ self._free_corner - wide @ self._free_rows).mT
            inner = inner + more.to(inner)
        own = (own + own.mT) / (2 * n)
        slack = ROUNDING * torch.finfo(inner.dtype).eps * grams.diagonal(dim1=1, dim2=2).mean(dim=1) / n
        own.diagonal(dim1=1, dim2=2).add_(slack[:, None])  # a difference: rounding must not make it indefinite
        averages = read.view(r, C, -1, C) / n if self.averaged else None
        return Kernels(outputs, own.to(inner), self._at_roots(inner), self._through, averages)


@torch.enable_grad()
def log_average_slopes(engine: Engine, nodes: Tensor, diffusion: int) -> Tensor:
    r"""Derivatives of the logarithms of probabilities that are averaged over neighbourhoods.

    .. math:: \frac{\partial \log \bar\pi_{ic}}{\partial\theta}
        = \frac{1}{\bar\pi_{ic}} \sum_v W_{iv} \big(S_v J_v\big)_c, \qquad S_v = diag(\pi_v) - \pi_v \pi_v^T

    Shapes: nodes (n,) -> (n, C, P).
    """
    average = Propagation.of(engine.data).averaging
    rows = average[nodes.cpu().numpy()]
    for _ in range(diffusion - 1):
        rows = rows @ average
    reach = np.unique(rows.indices)
    rows = rows[:, reach].astype(np.float64)
    (n, C), near = (len(nodes), engine.num_outputs), engine.at(torch.from_numpy(reach).long())
    with torch.no_grad():
        p = engine.loss.predict(near.train_outputs)
    mean = (torch.from_numpy(rows.toarray()).to(p) @ p).clamp_min(FLOOR**2)
    S = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    out = torch.zeros(n, C, engine.num_parameters, dtype=engine.dtype)
    for some in torch.arange(len(reach)).split(max(1, TEMPORARY_NUMBERS // engine.num_parameters)):
        jacobian, part = engine.at(near.train_nodes[some]).jacobian(), rows[:, some.numpy()].tocsr()
        for i, (start, stop) in enumerate(itertools.pairwise(part.indptr.tolist())):
            if stop > start:  # a label has few neighbours
                mine = torch.from_numpy(part.indices[start:stop]).long()
                weights = torch.from_numpy(part.data[start:stop]).to(p)
                block = weights[:, None, None] * S[some[mine]] / mean[i]
                out[i] += jacobian.subset(mine).pull(block).T
    return out.detach()
