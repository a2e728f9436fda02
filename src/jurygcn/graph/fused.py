"""Message passing as one sparse product, for many models at once."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data
from torch_geometric.utils import to_torch_csr_tensor

from jurygcn.data.contents import EDGE_VALUES
from jurygcn.data.heterogeneous import COUNTS, EdgeType, Layout, layout_of
from jurygcn.graph.sparse import can_sum_rows, sum_rows


def with_sparse_adjacency(data: Data) -> Data:
    """The graph with its edges as a sparse matrix, as PyG's layers take it to sum messages without forming them.

    A view of a HeteroData has a matrix for each relation.
    """
    layout, N = layout_of(data), int(data.num_nodes)
    if layout is None:
        adjacency = _matrix(data.edge_index, getattr(data, "edge_weight", None), (N, N), data.x)
        return Data(x=data.x, edge_index=adjacency, num_nodes=N)
    sizes, fused = dict(zip(layout.node_types, data[COUNTS].tolist())), copy.copy(data)
    for key, (source, _, target) in _relations(layout).items():
        fused[key] = _matrix(data[key], None, (sizes[target], sizes[source]), data.x)
    return fused


def _relations(layout: Layout) -> dict[str, EdgeType]:
    """The entries of a view that hold edges, and their relations."""
    edges = {key: place for key, (place, name) in layout.entries.items() if name == "edge_index"}
    return {key: place for key, place in edges.items() if isinstance(place, tuple)}


def _matrix(edge_index: Tensor, weights: Tensor | None, size: tuple[int, int], like: Tensor) -> Tensor:
    """Rows are the receivers. Parallel edges stay apart: a mean over neighbours counts each of them."""
    if weights is None:
        weights = torch.ones(edge_index.shape[1], dtype=like.dtype, device=like.device)
    senders, receivers = edge_index
    order = (receivers * size[1] + senders).argsort(stable=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support|invariant checks)")
        matrix: Tensor = to_torch_csr_tensor(edge_index.flip(0)[:, order], weights[order], size, is_coalesced=True)
    return matrix


def has_values(data: Data) -> bool:
    """Whether edges have values that :func:`with_sparse_adjacency` does not hold."""
    layout = layout_of(data)
    if layout is None:
        return "edge_attr" in data or "edge_type" in data
    return any(name in EDGE_VALUES for _, name in layout.entries.values())


# What ``vmap`` would run for one model after the other.
UNBATCHED = {"segment_reduce", "_segment_reduce"}


class SparseProducts(TorchFunctionMode):
    """Runs sparse products in a way that can be batched over models and differentiated.

    With ``strict`` it refuses operations that cannot be batched: they would be slower than what they replace.
    """

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        self.strict = strict

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace products of a constant sparse matrix."""
        kwargs = kwargs or {}
        if self.strict and getattr(func, "__name__", "") in UNBATCHED:
            raise NotImplementedError(f"{func.__name__} cannot be batched")
        if func is torch.sparse.mm and not kwargs and args[0].layout == torch.sparse_csr:
            matrix, dense, reduce = (*args, "sum")[:3]
            if reduce in ("sum", "mean") and not matrix.requires_grad:
                return apply_product(matrix, dense, mean=reduce == "mean")
            if self.strict:
                raise NotImplementedError(f"a sparse product with {reduce} cannot be batched")
        return func(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class _Constant:
    """A sparse matrix that torch's function transforms leave alone; they cannot wrap one."""

    matrix: Tensor
    mean: bool

    def degree(self, like: Tensor) -> Tensor:
        """The entries of each row, at least 1, (rows, 1)."""
        return self.matrix.crow_indices().diff().clamp_min(1).to(like.dtype)[:, None]


class _Product(torch.autograd.Function):
    """Sparse constant times dense variable: the sum over each row, or its mean."""

    generate_vmap_rule = False

    @staticmethod
    def forward(constant: _Constant, dense: Tensor) -> Tensor:
        """Multiply."""
        product = multiply(constant.matrix, dense)
        return product.div_(constant.degree(product)) if constant.mean else product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[_Constant, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Keep the matrix."""
        ctx.constant = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Multiply by the transpose."""
        constant, (grad,) = ctx.constant, grads
        grad = grad / constant.degree(grad) if constant.mean else grad
        return None, apply_product(constant.matrix.t().to_sparse_csr(), grad)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Multiply the tangent."""
        return _apply(ctx.constant, tangents[1])

    @staticmethod
    def vmap(
        info: Any,  # noqa: ARG004
        in_dims: tuple[Any, Any],
        constant: _Constant,
        dense: Tensor,
    ) -> tuple[Tensor, int]:
        """All models in one product: their columns stand side by side."""
        wide = dense.movedim(in_dims[1], 1)
        product = _apply(constant, wide.flatten(1))
        return product.view(len(product), *wide.shape[1:]), 1


def multiply(matrix: Tensor, dense: Tensor) -> Tensor:
    """A sparse matrix times a dense one, by the fastest product there is."""
    values = matrix.values()
    if can_sum_rows(values) and dense.dtype == values.dtype:
        return sum_rows(matrix.crow_indices(), matrix.col_indices(), values, dense)
    product: Tensor = torch.sparse.mm(matrix, dense)
    return product


def apply_product(matrix: Tensor, dense: Tensor, *, mean: bool = False) -> Tensor:
    """The same under autograd, ``jvp`` and ``vmap``; with ``mean`` the mean over each row's entries."""
    return _apply(_Constant(matrix, mean), dense)


def _apply(constant: _Constant, dense: Tensor) -> Tensor:
    product: Tensor = _Product.apply(constant, dense)  # type: ignore[no-untyped-call]
    return product
