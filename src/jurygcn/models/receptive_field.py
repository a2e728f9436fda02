"""The receptive field of a set of nodes in an L-layer GCN, and the forward pass restricted to it.

Training, retraining, closed-form derivatives and the jurors' predictions all use this class. The features are
propagated once, and only the rows that influence the nodes are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data

from jurygcn.data.checked_input import check_graph
from jurygcn.graph.propagation import Propagation, graph_cache, is_everything, reached_rows
from jurygcn.graph.sparse import SparseMatrix
from jurygcn.models.gcn import ACTIVATIONS, GCN

# Up to this many hidden columns, one block-diagonal product is faster than one product per model.
BLOCK_DIAGONAL = 128

# SIMD width in float32: products whose width is a multiple of it are up to three times as fast.
LANES = 16

# Columns of the dense factor in one sparse product: a row is then a few cache lines long. With few rows, more columns
# are used, up to NUMBERS numbers in an array.
COLUMNS, NUMBERS = 96, 100_000


class ReceptiveField:
    r"""The part of a graph that determines a GCN's outputs at ``nodes``.

    Layer l is computed only on :math:`V_l`, where :math:`V_L` are ``nodes`` and :math:`V_{l-1}` is the
    closed neighbourhood of :math:`V_l`. ``inputs`` holds the rows :math:`(\hat A X)[V_1]`, ``hops[l]`` the
    slice :math:`\hat A[V_{l+2}, V_{l+1}]` for the layers after the first.
    """

    def __init__(
        self,
        data: Data,
        nodes: Tensor,
        num_layers: int,
        *,
        activation: str = "relu",
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        self.graph = Propagation.of(data)
        self.place: dict[str, Any] = {"dtype": dtype, "device": device or data.x.device}
        self.nodes = nodes
        self.sigma, self.sigma_prime = ACTIVATIONS[activation]
        self.levels = [nodes.cpu().numpy()]  # V_L, ..., V_1
        self.hops: list[SparseMatrix] = []
        everything = is_everything(nodes, int(data.num_nodes))
        for _ in range(num_layers - 1):
            if everything and self.hops:
                self.hops.append(self.hops[0])
            else:
                rows, below = reached_rows(self.graph.adjacency, self.levels[-1], everything=everything)
                self.hops.insert(0, SparseMatrix(rows, **self.place))
            self.levels.append(self.levels[0] if everything else below)
        self.everything = everything

    @classmethod
    def of(cls, model: GCN, data: Data, nodes: Tensor, *, dtype: torch.dtype | None = None) -> ReceptiveField:
        """The receptive field of ``nodes`` through ``model``, in the model's dtype unless another is given."""
        data = check_graph(data)
        first, layers = model.weights[0], len(model.weights)
        place: dict[str, Any] = {"dtype": dtype or first.dtype, "device": first.device}
        if not is_everything(nodes, int(data.num_nodes)):
            return cls(data, nodes, layers, activation=model.activation, **place)
        known = graph_cache(data).whole
        key = (layers, model.activation, *place.values())
        if key not in known:
            known[key] = cls(data, nodes, layers, activation=model.activation, **place)
        found: ReceptiveField = known[key]
        return found

    @cached_property
    def inputs(self) -> SparseMatrix | Tensor:
        r"""The rows :math:`(\hat A X)[V_1]`."""
        rows = self.graph.inputs if self.everything else self.graph.inputs[self.levels[-1]]
        return SparseMatrix(rows, **self.place) if sp.issparse(rows) else torch.from_numpy(rows).to(**self.place)

    @cached_property
    def _first_factors(self) -> list[SparseMatrix | Tensor]:
        r"""The left factors of the first weights: :math:`\hat A X`, or :math:`\hat A` and X where that is less work."""
        if self.graph.features is None:
            return [self.inputs]
        rows, below = reached_rows(self.graph.adjacency, self.levels[-1], everything=self.everything)
        features = self.graph.features if self.everything else self.graph.features[below]
        inputs = self.graph.inputs if self.everything else self.graph.inputs[self.levels[-1]]
        # a dense product does about four times as many operations per second
        work = inputs.size // 4 if isinstance(inputs, np.ndarray) else inputs.nnz
        if rows.nnz + features.nnz < work:
            return [SparseMatrix(rows, **self.place), SparseMatrix(features, **self.place)]
        return [self.inputs]

    def pre_activations(self, weights: Sequence[Tensor]) -> list[Tensor]:
        r"""All :math:`\hat A E^{(l-1)} W^{(l)}` on :math:`V_l`, l = 1..L; the last one holds the logits."""
        Z = [self.inputs @ weights[0]]
        for hop, W in zip(self.hops, weights[1:]):
            Z.append(hop @ (self.sigma(Z[-1]) @ W))
        return Z

    def logits(self, weights: Sequence[Tensor]) -> Tensor:
        """Logits at the nodes, (m, C), for one model; differentiable in the weights."""
        return self.pre_activations(weights)[-1]

    def stacked_logits(self, weights: Sequence[Tensor], around: Sequence[Tensor] | None = None) -> Tensor:
        """Logits of b models at once, by one dense and one sparse product per layer.

        Hidden rows are computed for :meth:`together` models at a time. With ``around`` the weights are steps from
        there: the sums of a few models stay in the processor's cache.

        Shapes: weights (b, in, out) and around (in, out) per layer -> (m, C, b); models come last, so that counting
        over them is fast.
        """
        stack = len(weights[0])
        groups = -(-stack // self.together([W.shape[2] for W in weights]))
        parts = zip(*(W.tensor_split(groups) for W in weights))
        rows = [self._last_rows(part if around is None else _moved(around, part)) for part in parts]
        Z = rows[0] if len(rows) == 1 else torch.cat(rows, dim=2)
        if self.hops and not widens(weights[-1]):
            Z = self.hops[-1] @ Z.flatten(1)
        return Z.view(len(Z), -1, stack)

    def together(self, widths: Sequence[int]) -> int:
        """The number of models with layers of these widths whose hidden rows are computed at a time.

        The number that makes sparse products fastest, or one less if the outputs then fill SIMD lanes better.
        """
        most = max(1, COLUMNS // max(widths[:-1], default=1), NUMBERS // max(self.hidden_sizes(widths), default=1))
        return min(range(most, most - 1 - (most > 1), -1), key=lambda b: to_lanes(b * widths[-1]))

    def hidden_sizes(self, widths: Sequence[int]) -> list[int]:
        """The size of one model's activations in every layer but the last."""
        return [len(level) * width for level, width in zip(reversed(self.levels), widths[:-1])]

    def _last_rows(self, weights: Sequence[Tensor]) -> Tensor:
        """The last layer's rows of some models, before the last sparse product where that comes last, (rows, C, b)."""
        Z = side_by_side(weights[0])
        for factor in reversed(self._first_factors):
            Z = factor @ Z
        for layer, (hop, W) in enumerate(zip(self.hops, weights[1:]), start=2):
            E = Z.relu_() if self.sigma is torch.relu and not Z.requires_grad else self.sigma(Z)
            last = layer == len(weights)
            if widens(W):
                Z = times(hop @ E, W, models_last=last)
            else:
                Z = times(E, W, models_last=last)
                Z = Z if last else hop @ Z
        if not self.hops:
            return Z.view(len(Z), len(weights[0]), -1).transpose(1, 2)
        return Z.view(len(Z), -1, len(weights[0]))

    def tangents(self, weights: Sequence[Tensor], directions: Sequence[Tensor]) -> Tangents:
        r"""Derivatives of the logits along k directions in parameter space, :math:`J_u v_j`, in one forward sweep.

        Shapes: weights (in, out), directions (k, in, out) per layer.
        """
        Z = self.pre_activations(weights)
        carried = [hop @ self.sigma(z) for hop, z in zip(self.hops, Z)]
        # a product is fastest if a row of its right factor is a few cache lines long
        width = max(1, COLUMNS // directions[0].shape[2])
        k, (h, C) = len(directions[0]), weights[-1].shape
        apart = bool(self.hops) and h < C
        inner = torch.empty(len(self.nodes), k, h if apart else C, **self.place)
        for start in range(0, k, width):
            part = [layer[start : start + width] for layer in directions]
            swept = self._sweep(weights, Z, carried, part)
            if self.hops and not apart:
                swept = swept @ weights[-1] + (carried[-1] @ side_by_side(part[-1])).view(len(swept), -1, C)
            inner[:, start : start + width] = swept
        return Tangents(inner, weights[-1], carried[-1], directions[-1]) if apart else Tangents(inner)

    def unit_tangents(self, weights: Sequence[Tensor], directions: Tensor, mixing: Tensor) -> tuple[Tensor, Tensor]:
        r"""Of two layers: derivatives of :math:`(\hat A E)_q` along directions in W1 of unit q alone, for all units.

        They are mixed into m' numbers where these are fewer.

        Shapes: directions (k, F, h), mixing (k, h, m') -> (k, m, h) or (k, m, m'), and :math:`\hat A E`, (m, h).
        """
        Z = self.pre_activations(weights)
        carried = [self.hops[0] @ self.sigma(Z[0])]
        width, narrows = max(1, COLUMNS // directions.shape[2]), not widens(mixing)
        parts = []
        for some, mixed in zip(directions.split(width), mixing.split(width)):
            swept = self._sweep(weights, Z, carried, [some]).transpose(0, 1)
            parts.append(torch.bmm(swept, mixed) if narrows else swept.contiguous())
        return torch.cat(parts), carried[0]

    def _sweep(self, weights: Sequence[Tensor], Z: list[Tensor], carried: list[Tensor], dW: list[Tensor]) -> Tensor:
        """Derivatives of the last layer's input along some directions, (m, k, h); of the logits if there is one
        layer."""
        stack = dW[0].shape[0]
        D = side_by_side(dW[0])
        for factor in reversed(self._first_factors):
            D = factor @ D
        D = D.view(len(D), stack, -1)
        for layer, (hop, z) in enumerate(zip(self.hops, Z)):
            D = D * self.sigma_prime(z).unsqueeze(1)
            D = (hop @ D.flatten(1)).view(hop.shape[0], stack, -1)
            if layer + 2 < len(weights):
                D = D @ weights[layer + 1] + torch.einsum("uh,khj->ukj", carried[layer], dW[layer + 1])
        return D


@dataclass(frozen=True, eq=False)
class Tangents:
    r"""Derivatives of logits along k directions, expanded only for requested nodes.

    The derivative of the last layer :math:`\hat A E W` is :math:`(\hat A E)' W + (\hat A E) W'`. The factors are stored
    instead of the sum where the hidden width h is below C.

    Shapes: inner (m, k, h), weight (h, C), carried (m, h), directions (k, h, C); or inner (m, k, C) alone.
    """

    inner: Tensor
    weight: Tensor | None = None
    carried: Tensor | None = None
    directions: Tensor | None = None

    def at(self, rows: Tensor | slice) -> Tensor:
        """The derivatives at some of the nodes, (r, C, k)."""
        D = self.inner[rows]
        if self.weight is not None:
            assert self.carried is not None
            assert self.directions is not None
            D = D @ self.weight + torch.einsum("uh,khc->ukc", self.carried[rows], self.directions)
        return D.transpose(1, 2).contiguous()


def widens(weights: Tensor) -> bool:
    """Whether the output is wider than the input; the sparse product is applied on the narrower side."""
    return weights.shape[1] < weights.shape[2]


def times(stacked: Tensor, weights: Tensor, *, models_last: bool) -> Tensor:
    """Each model's rows times its own weights, (m, b * h), (b, h, C) -> (m, b * C), or (m, C * b) with models last."""
    b, h, C = weights.shape
    if b * h <= BLOCK_DIAGONAL:
        # mostly zeros, but one large product instead of many small ones, and no large result to rearrange
        blocks: Tensor = torch.block_diag(*weights)  # (b h, b C)
        blocks = blocks.view(-1, b, C).transpose(1, 2).flatten(1) if models_last else blocks
        return (stacked @ functional.pad(blocks, (0, to_lanes(b * C) - b * C)))[:, : b * C]
    products = torch.bmm(stacked.view(-1, b, h).transpose(0, 1), weights)  # (b, m, C)
    return products.permute(1, 2, 0).flatten(1) if models_last else side_by_side(products)


def _moved(weights: Sequence[Tensor], steps: Sequence[Tensor]) -> list[Tensor]:
    """Each model's weights from its steps, (b, in, out) per layer, laid out as ``side_by_side`` wants them."""
    sums = [W.new_empty(len(W), len(step), W.shape[1]).transpose(0, 1) for W, step in zip(weights, steps)]
    return [torch.add(W, step, out=out) for W, step, out in zip(weights, steps, sums)]


def to_lanes(width: int) -> int:
    """The smallest multiple of LANES that is at least ``width``."""
    return -(-width // LANES) * LANES


def side_by_side(blocks: Tensor) -> Tensor:
    """(b, rows, columns) -> (rows, b * columns), so that one product covers all blocks."""
    return blocks.transpose(0, 1).reshape(blocks.shape[1], -1)
