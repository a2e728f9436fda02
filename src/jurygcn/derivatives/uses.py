"""Where a model uses its parameters, found by running it.

A layer's derivatives with respect to its weight are known from its input and from the derivatives with respect to its
output. So the parameters need not be differentiated one output at a time: it is enough to note, while the model runs,
which rows every parameter was applied to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LINEAR = functional.linear
PRODUCTS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
SUMS = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__)
FACTORS = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__)
GATHERS = (torch.index_select, Tensor.index_select)

# Questions about a parameter whose answers do not depend on its numbers.
HARMLESS = {
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.element_size, Tensor.__len__),
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_sparse")),
    *(getattr(Tensor, name).__get__ for name in ("layout", "is_cuda", "is_quantized", "is_nested", "grad_fn")),
}


@dataclass(eq=False)
class Use:
    """One place where rows meet a parameter.

    Attributes:
        name: the parameter.
        inputs: what a weight was multiplied with, (R, F); None for a parameter that acts on each row elementwise.
        output: the product, (R, h), or one copy of the parameter for each row, (R, ...): differentiate with respect
            to it.
        owner: the ego graph that each row belongs to, (R,).
        transposed: whether the weight is stored as (h, F), as linear layers do, or as (F, h).
        constant: whether the inputs depend on no parameter.
    """

    name: str
    inputs: Tensor | None
    output: Tensor
    owner: Tensor
    transposed: bool = False
    constant: bool = False


@dataclass(eq=False)
class Uses(TorchFunctionMode):
    """Runs a model on ego graphs and notes how its parameters act on rows; everything is computed as without it.

    ``owners`` say which ego graph each node belongs to, (R,) for each type of nodes, with numbers of rows that differ;
    without them all rows of any tensor belong to one. Which one an edge belongs to is noted when the model gathers the
    rows of its end points. A parameter that is used in any other way is noted in ``others``: its derivatives need
    another method.
    """

    parameters: Mapping[str, Tensor]
    owners: Sequence[Tensor] = ()
    found: list[Use] = field(default_factory=list)
    others: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._names = {id(p): name for name, p in self.parameters.items()}
        self._of_nodes = {len(owner): owner for owner in self.owners}
        self._owners: dict[int, Tensor | None] = {**self._of_nodes}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation of the model; with a parameter among its arguments, note it."""
        kwargs = kwargs or {}
        if func in GATHERS:
            self._note_gather(*_bound(("input", "dim", "index"), args, kwargs))
        names = self._named((*args, *kwargs.values()))
        if not names or func in HARMLESS:
            return func(*args, **kwargs)
        rewritten = self._rewritten(func, args, kwargs)
        if rewritten is None:
            self.others |= names
            return func(*args, **kwargs)
        return rewritten

    def _named(self, arguments: Iterable[Any]) -> set[str]:
        """The names of all parameters among the arguments of a call; it runs for every operation, so it is short."""
        found = set()
        for argument in arguments:
            if id(argument) in self._names:
                found.add(self._names[id(argument)])
            elif isinstance(argument, tuple | list):
                found |= self._named(argument)
            elif isinstance(argument, dict):
                found |= self._named(argument.values())
        return found

    def _note_gather(self, rows: Any, dim: Any, index: Any) -> None:
        """Which ego graph the gathered rows belong to; None where two gathers of as many rows disagree."""
        nodes = self._of_nodes.get(len(rows))
        if dim not in (0, -rows.dim()) or nodes is None or not isinstance(index, Tensor):
            return
        owner, known = nodes[index], self._owners.get(len(index), nodes[index])
        self._owners[len(index)] = owner if known is not None and torch.equal(owner, known) else None

    def _owner(self, rows: Any) -> Tensor | None:
        """The ego graph of each row of a tensor; None if it has no such rows."""
        if not isinstance(rows, Tensor) or rows.dim() == 0:
            return None
        if not self.owners:
            return torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        return self._owners.get(len(rows))

    def _name(self, value: Any) -> str | None:
        return self._names.get(id(value)) if isinstance(value, Tensor) else None

    def _rewritten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The operation's result as a function of noted tensors; None for an operation that is not known here."""
        if func is LINEAR:
            return self._linear(*_bound(("input", "weight", "bias"), args, kwargs))
        if func in PRODUCTS and len(args) == 2 and not kwargs:
            return self._weight(args[0], args[1], transposed=False)
        if func in SUMS and len(args) == 2 and not kwargs:
            return self._elementwise(torch.add, *args)
        if func in FACTORS and len(args) == 2 and not kwargs:
            return self._elementwise(torch.mul, *args)
        if func is functional.batch_norm:
            return self._batch_norm(*_bound(BATCH_NORM, args, kwargs))
        if func is functional.layer_norm:
            return self._layer_norm(*_bound(LAYER_NORM, args, kwargs))
        return None

    def _linear(self, rows: Any, weight: Any, bias: Any) -> Tensor | None:
        product = self._weight(rows, weight, transposed=True) if self._name(weight) else LINEAR(rows, weight)
        if product is None or bias is None:
            return product
        return self._elementwise(torch.add, product, bias) if self._name(bias) else product + bias

    def _weight(self, rows: Any, weight: Any, *, transposed: bool) -> Tensor | None:
        """Rows times a weight."""
        name, owner = self._name(weight), self._owner(rows)
        if name is None or self._name(rows) or owner is None or rows.dim() != 2 or weight.dim() != 2:
            return None
        constant = weight.detach()
        product: Tensor = rows @ (constant.T if transposed else constant)
        if not product.requires_grad:
            product.requires_grad_()
        self.found.append(Use(name, rows.detach(), product, owner, transposed, constant=not rows.requires_grad))
        return product

    def _elementwise(self, operation: Callable[[Tensor, Tensor], Tensor], left: Any, right: Any) -> Tensor | None:
        """A parameter that acts on all rows alike: each row gets a copy of its own."""
        if self._name(left):
            left, right = right, left
        name, owner = self._name(right), self._owner(left)
        if self._name(left) or name is None or owner is None:
            return None
        shape = (1,) * (left.dim() - right.dim()) + tuple(right.shape)
        if len(shape) != left.dim() or shape[0] != 1:  # it differs from row to row already
            return None
        copies = right.detach().view(shape).expand(len(left), *shape[1:]).clone().requires_grad_()
        self.found.append(Use(name, None, copies, owner))
        return operation(left, copies)

    def _scaled(self, normal: Tensor, weight: Any, bias: Any) -> Tensor | None:
        """The affine part of a normalisation."""
        for operation, parameter in ((torch.mul, weight), (torch.add, bias)):
            if parameter is None:
                continue
            new = self._elementwise(operation, normal, parameter) if self._name(parameter) else None
            if new is None:
                return None
            normal = new
        return normal

    def _batch_norm(
        self, rows: Any, mean: Any, var: Any, weight: Any, bias: Any, training: Any, momentum: Any, eps: Any
    ) -> Tensor | None:
        """Batch normalisation with its running statistics: each row is treated alike, whatever the others are."""
        if training or mean is None or rows.dim() != 2 or self._owner(rows) is None:
            return None
        normal = functional.batch_norm(rows, mean, var, None, None, False, momentum or 0.0, eps)
        return self._scaled(normal, weight, bias)

    def _layer_norm(self, rows: Any, shape: Any, weight: Any, bias: Any, eps: Any) -> Tensor | None:
        if rows.dim() != 2 or self._owner(rows) is None:
            return None
        return self._scaled(functional.layer_norm(rows, shape, None, None, eps), weight, bias)


MISSING = None
BATCH_NORM = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    ("training", False),
    ("momentum", 0.1),
    ("eps", 1e-5),
)
LAYER_NORM = ("input", "normalized_shape", "weight", "bias", ("eps", 1e-5))


def _bound(names: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments of a call in the order of ``names``; None, or the default given there, for those left out."""
    values = list(args)
    for entry in names[len(args) :]:
        name, default = entry if isinstance(entry, tuple) else (entry, MISSING)
        values.append(kwargs.get(name, default))
    return values
