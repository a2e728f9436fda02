"""What a set of nodes can see of the graph through an L-layer GCN, and the forward pass on just that.

Training, retraining, closed-form derivatives and ballots all run on this one structure: the features are
propagated once, and only the rows that reach the asked nodes are kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.data import Data

from jurygcn.models.gcn import ACTIVATIONS, GCN

# Below this share of non-zeros a sparse product beats a dense one on CPUs.
SPARSE_DENSITY = 0.25


def normalized_adjacency(data: Data, *, dtype: Any = np.float32) -> sp.csr_matrix:
    r"""Renormalised adjacency :math:`\hat A = \tilde D^{-1/2}(A + I)\tilde D^{-1/2}` of ``data``.

    Shapes: (N, N) sparse; row v holds what node v receives.
    """
    num_nodes = int(data.num_nodes)
    source, target = data.edge_index.cpu().numpy()
    loops = source == target
    weight = getattr(data, "edge_weight", None)
    values = np.ones(len(source), dtype=dtype) if weight is None else weight.cpu().numpy().astype(dtype)
    self_weight = np.ones(num_nodes, dtype=dtype)
    if loops.any():  # a given self-loop replaces the added one, as in PyG
        self_weight[source[loops]] = values[loops]
        source, target, values = source[~loops], target[~loops], values[~loops]
    adjacency = sp.csr_matrix((values, (target, source)), shape=(num_nodes, num_nodes)) + sp.diags(self_weight)
    degree = np.asarray(adjacency.sum(axis=1)).ravel()
    scale = np.zeros_like(degree)
    np.power(degree, -0.5, out=scale, where=degree > 0)
    return sp.csr_matrix(sp.diags(scale) @ adjacency @ sp.diags(scale), dtype=dtype)


class _SparseProduct(torch.autograd.Function):
    """Sparse constant times dense variable, with a backward pass that stays sparse."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: Tensor) -> Tensor:
        """Multiply."""
        ctx.matrix = matrix
        return matrix.csr @ dense

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Multiply by the transpose."""
        return None, ctx.matrix.T.csr @ grads[0]


class SparseMatrix:
    """A constant sparse matrix in torch's CSR form that multiplies dense blocks, also under autograd."""

    def __init__(self, matrix: sp.csr_matrix, *, dtype: torch.dtype, device: torch.device) -> None:
        self._source = matrix
        self.shape = matrix.shape
        self.dtype, self.device = dtype, device
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
            self.csr = torch.sparse_csr_tensor(
                torch.from_numpy(matrix.indptr.astype(np.int64)),
                torch.from_numpy(matrix.indices.astype(np.int64)),
                torch.from_numpy(matrix.data).to(dtype),
                size=matrix.shape,
                check_invariants=False,  # SciPy made it: it is well formed
            ).to(device)
        self._transpose: SparseMatrix | None = None

    @property
    def T(self) -> SparseMatrix:
        """The transpose, built once."""
        if self._transpose is None:
            transpose = sp.csr_matrix(self._source.T)
            self._transpose = SparseMatrix(transpose, dtype=self.dtype, device=self.device)
            self._transpose._transpose = self
        return self._transpose

    def __matmul__(self, dense: Tensor) -> Tensor:
        if dense.requires_grad:
            out: Tensor = _SparseProduct.apply(self, dense)  # type: ignore[no-untyped-call]
            return out
        return self.csr @ dense

    def to_dense(self) -> Tensor:
        """The same matrix, dense."""
        return self.csr.to_dense()

    def to_scipy(self) -> sp.csr_matrix:
        """The same matrix for SciPy, in this matrix's dtype."""
        return self._source.astype(np.float64 if self.dtype == torch.float64 else np.float32, copy=False)


@dataclass(frozen=True)
class Propagation:
    r"""A graph's :math:`\hat A` and :math:`\hat A X`, computed once and shared.

    ``inputs`` stays sparse where the propagated features are mostly zeros (bags of words).
    """

    adjacency: sp.csr_matrix
    inputs: sp.csr_matrix | np.ndarray[Any, Any]

    @staticmethod
    def of(data: Data) -> Propagation:
        """The propagation of ``data``; remembered until its features or edges change."""
        stamp = tuple(
            (tensor.data_ptr(), tensor._version, tuple(tensor.shape))
            for tensor in (data.x, data.edge_index, getattr(data, "edge_weight", None))
            if tensor is not None
        )
        remembered = _propagations.get(data.edge_index)
        if remembered is None or remembered[0] != stamp:
            remembered = (stamp, Propagation._compute(data))
            _propagations[data.edge_index] = remembered
        propagation: Propagation = remembered[1]
        return propagation

    @staticmethod
    def _compute(data: Data) -> Propagation:
        # float64 features (tests, careful users) keep their precision; everything else is float32
        dtype = np.float64 if data.x.dtype == torch.float64 else np.float32
        adjacency = normalized_adjacency(data, dtype=dtype)
        x = data.x.detach().cpu().numpy().astype(dtype, copy=False)
        if np.count_nonzero(x) > SPARSE_DENSITY * x.size:
            return Propagation(adjacency, adjacency @ x)
        inputs = sp.csr_matrix(adjacency @ sp.csr_matrix(x))
        dense_enough = inputs.nnz > SPARSE_DENSITY * x.size
        return Propagation(adjacency, inputs.toarray() if dense_enough else inputs)


# forgotten together with the graph's edge_index
_propagations: WeakIdKeyDictionary = WeakIdKeyDictionary()


class ReceptiveField:
    r"""The part of a graph that decides a GCN's outputs at ``nodes``.

    Layer l is computed only on :math:`V_l`, where :math:`V_L` are the asked nodes and :math:`V_{l-1}` the
    closed neighbourhood of :math:`V_l`. ``inputs`` holds the rows :math:`(\hat A X)[V_1]`, ``hops[l]`` the
    slice :math:`\hat A[V_{l+2}, V_{l+1}]` for the layers after the first.

    Shapes: logits of b stacked models: weights (b, in, out) per layer -> (b, m, C).
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
        graph = Propagation.of(data)
        place: dict[str, Any] = {"dtype": dtype, "device": device or data.x.device}
        self.nodes = nodes
        self.sigma, self.sigma_prime = ACTIVATIONS[activation]
        self.levels = [nodes.cpu().numpy()]  # V_L, ..., V_1
        self.hops: list[SparseMatrix] = []
        for _ in range(num_layers - 1):
            rows = graph.adjacency[self.levels[-1]]
            below = np.unique(rows.indices)
            self.hops.insert(0, SparseMatrix(rows[:, below], **place))
            self.levels.append(below)
        rows = graph.inputs[self.levels[-1]]
        self.inputs: SparseMatrix | Tensor = (
            SparseMatrix(rows, **place) if sp.issparse(rows) else torch.from_numpy(rows).to(**place)
        )

    @classmethod
    def of(cls, model: GCN, data: Data, nodes: Tensor, *, dtype: torch.dtype | None = None) -> ReceptiveField:
        """The receptive field of ``nodes`` through ``model``, in the model's dtype unless another is given."""
        first = model.weights[0]
        return cls(
            data,
            nodes,
            len(model.weights),
            activation=model.activation,
            dtype=dtype or first.dtype,
            device=first.device,
        )

    def pre_activations(self, weights: Sequence[Tensor]) -> list[Tensor]:
        r"""All :math:`\hat A E^{(l-1)} W^{(l)}` on :math:`V_l`, l = 1..L; the last one holds the logits."""
        Z = [self.inputs @ weights[0]]
        for hop, W in zip(self.hops, weights[1:]):
            Z.append(hop @ (self.sigma(Z[-1]) @ W))
        return Z

    def logits(self, weights: Sequence[Tensor]) -> Tensor:
        """Logits at the asked nodes, (m, C), for one model; differentiable in the weights."""
        return self.pre_activations(weights)[-1]

    def stacked_logits(self, weights: Sequence[Tensor]) -> Tensor:
        """Logits of b models at once: one dense and one sparse product per layer, (b, m, C)."""
        stack = weights[0].shape[0]
        Z = self.inputs @ side_by_side(weights[0])
        for hop, W in zip(self.hops, weights[1:]):
            E = self.sigma(Z).view(Z.shape[0], stack, -1).transpose(0, 1)  # (b, |V_{l-1}|, h)
            Z = hop @ side_by_side(torch.bmm(E, W))
        return Z.view(Z.shape[0], stack, -1).transpose(0, 1)


def side_by_side(blocks: Tensor) -> Tensor:
    """(b, rows, columns) -> (rows, b * columns), so that one product serves the whole stack."""
    return blocks.transpose(0, 1).reshape(blocks.shape[1], -1)
