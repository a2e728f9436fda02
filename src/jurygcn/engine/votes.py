"""Outputs of many parameter vectors of any model: what sees constants is computed outside the model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import jvp, vmap
from torch.overrides import TorchFunctionMode
from torch_geometric.data import Data

from jurygcn.data.heterogeneous import all_edges
from jurygcn.derivatives.autodiff import CHUNK, UNBATCHED
from jurygcn.derivatives.lifted import sparse_if_worth, times
from jurygcn.derivatives.uses import LINEAR, PRODUCTS, Use, Uses
from jurygcn.models.copies import in_use

if TYPE_CHECKING:
    from jurygcn.engine.generic import GenericEngine

# The most numbers in the derivatives along some directions at once.
MOST_ALONG = 200_000_000

# A batch of models takes at most about so many bytes: larger ones are not faster.
BATCH_BYTES = 3e8


class Substitute(TorchFunctionMode):
    """Hands a model the products of its constant layers instead of letting it compute them."""

    def __init__(self, weights: Mapping[str, Tensor], products: list[tuple[str, Tensor]]) -> None:
        super().__init__()
        self._names = {id(weight): name for name, weight in weights.items()}
        self._products = {name: [p for n, p in products if n == name] for name in weights}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace a product with a lifted weight."""
        kwargs = kwargs or {}
        if func is LINEAR:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            if id(weight) in self._names:
                bias = args[2] if len(args) > 2 else kwargs.get("bias")
                product = self._products[self._names[id(weight)]].pop(0)
                return product if bias is None else product + bias
        elif func in PRODUCTS and id(args[1]) in self._names:
            return self._products[self._names[id(args[1])]].pop(0)
        return func(*args, **kwargs)


class LiftedPredictor:
    """Forward passes of many parameter vectors of any model at ``nodes``."""

    def __init__(self, engine: GenericEngine, nodes: Tensor, dtype: torch.dtype) -> None:
        self.engine = engine.cast(dtype)
        self.graph, self.rows = self.engine.local(nodes)
        with in_use:  # while another thread calls the model, its parameters are others
            self.parameters = dict(self.engine.model.named_parameters())
        self.constant = self._constant_uses()
        names = {use.name for use in self.constant}
        self.weights = {n: p for n, p in self.parameters.items() if n in names}
        self.inputs = [sparse_if_worth(use.inputs) for use in self.constant if use.inputs is not None]
        sparse = self.engine.summing(self.graph)
        self.fused = None if sparse is self.graph else sparse
        all_pairs, reached = all_edges(self.graph)
        widest = max((p.shape[0] for p in engine.parameters.values() if p.dim()), default=engine.num_outputs)
        # Per layer a message on every edge, unless they are summed at once, and a few rows on every node.
        self._messages = all_pairs.shape[1] * 2 * widest
        self._rows = 3 * reached * 2 * widest + 6 * len(nodes) * engine.num_outputs
        self.numbers = self._rows + (self._messages if self.fused is None else 0)
        self.most = max(1, int(BATCH_BYTES // (dtype.itemsize * self.numbers)))

    def _constant_uses(self) -> list[Use]:
        """The products with weights whose inputs depend on no parameter, at the trained and at other parameters."""
        engine = self.engine
        if engine.forward is not None:
            return []
        runs = []
        for theta in engine.probed[:2]:
            moved = {n: v.detach().requires_grad_() for n, v in engine.unflatten(theta).items()}
            with in_use, torch.enable_grad(), Uses(moved) as uses:
                engine.called(moved, self.graph)
            varying = uses.others | {use.name for use in uses.found if use.inputs is None or not use.constant}
            runs.append([use for use in uses.found if use.name not in varying])
        if [use.name for use in runs[0]] != [use.name for use in runs[1]]:
            return []
        same = {
            name: all(_equal(a, b) for a, b in zip(*runs, strict=True) if a.name == name) for name in engine.parameters
        }
        return [use for use in runs[0] if same[use.name]]

    def outputs(self, thetas: Tensor, around: Tensor | None = None) -> Tensor:
        """(b, P) -> (m, C, b); with ``around``, (P,), they are steps from there."""
        thetas = thetas if around is None else around + thetas
        graph = self.graph if self.fused is None else self.fused
        try:
            return self._batched(thetas, graph)
        except UNBATCHED:
            return torch.stack([self.engine.outputs(theta, self.rows, self.graph) for theta in thetas], dim=-1)

    def along(self, directions: Tensor) -> Tensor:
        """Derivatives of the outputs at the trained parameters along directions, (k, P) -> (k, m, C)."""
        rest, products = self._split(self.engine.theta[None])
        trained = ({name: value[0] for name, value in rest.items()}, [product[:, 0] for product in products])

        def derivatives(graph: Data, numbers: int) -> Tensor:
            along = vmap(lambda *moved: jvp(partial(self._one, graph), trained, moved)[1], in_dims=(0, 1))
            parts = directions.split(max(1, min(CHUNK, MOST_ALONG // numbers)))
            with in_use:  # torch's count of nested jvp levels is global, not per thread
                return torch.cat([along(*self._split(part)) for part in parts])

        if self.fused is not None:
            with suppress(*UNBATCHED):  # some layers read the entries of the sparse adjacency, which jvp cannot
                return derivatives(self.fused, self._rows)
        return derivatives(self.graph, self._rows + self._messages)

    def _batched(self, thetas: Tensor, graph: Data) -> Tensor:
        """All models in one pass."""
        rest, products = self._split(thetas)
        with in_use:
            out: Tensor = vmap(partial(self._one, graph), in_dims=(0, 1), out_dims=-1)(rest, products)
        return out

    def _split(self, thetas: Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The parameters that are not lifted, (b, ...) each, and the products of those that are, (R, b, h) each."""
        values, b = self.engine.unflatten(thetas), len(thetas)
        products = []
        for use, constants in zip(self.constant, self.inputs, strict=True):
            weight = values[use.name].movedim(0, 1) if not use.transposed else values[use.name].permute(2, 0, 1)
            product = times(constants, weight.reshape(weight.shape[0], -1))  # (R, b h)
            products.append(product.view(len(product), b, -1))
        return {name: value for name, value in values.items() if name not in self.weights}, products

    def _one(self, graph: Data, rest: dict[str, Tensor], products: list[Tensor]) -> Tensor:
        """The outputs at the nodes, from the parameters of one model, (m, C)."""
        named = [(use.name, product) for use, product in zip(self.constant, products, strict=True)]
        with Substitute(self.weights, named):
            return self.engine.called(rest, graph)[self.rows]


def _equal(first: Use, second: Use) -> bool:
    return first.inputs is not None and second.inputs is not None and torch.equal(first.inputs, second.inputs)
