"""Copies of a caller's model that can be called on any part of the graph and inside function transforms."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, fx, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch_geometric.nn.to_hetero_transformer import get_dict

from jurygcn.errors import ModelError

# Prefix of the attributes in which PyG's convolutions with cached=True store the first graph they see.
CACHE = "_cached_"

# ``functional_call`` replaces the module's parameters while it runs, so only one thread at a time calls or copies it.
in_use = threading.RLock()


def independent_copy(model: nn.Module) -> nn.Module:
    """A deep copy without cached graphs and without autograd history; the model itself is not changed.

    A convolution with ``cached=True`` reuses the first graph for every later one, so the copy does not cache. A tensor
    that an earlier call has stored in a module (as pruning does) is copied by value.
    """
    try:
        with in_use:
            values = {id(tensor): _value(tensor) for module in model.modules() for tensor in _left_behind(module)}
            twin = copy.deepcopy(model, values)
    except Exception as error:  # the caller's model may raise anything
        raise ModelError(
            f"expected a model that can be copied, got {type(error).__name__}: {' '.join(str(error).split())}; keep no "
            "results of earlier calls, no locks and no open files in it"
        ) from error
    for module in twin.modules():
        kept = [name for name in vars(module) if name.startswith(CACHE)]
        if kept and getattr(module, "cached", False):
            module.cached = False  # type: ignore[assignment]
        for name in kept:
            setattr(module, name, None)
        if isinstance(module, fx.GraphModule):
            module._tracer_cls = KeepDictionaries
    return twin


def check_initialised(model: nn.Module) -> None:
    """Raise ModelError if a lazy layer does not know its sizes yet."""
    waiting = [name for name, p in [*model.named_parameters(), *model.named_buffers()] if is_lazy(p)]
    if waiting:
        raise ModelError(
            f"expected parameters with sizes, got lazy ones that were never run ({waiting[0]}); call the model once on "
            "the graph before it is trained, for example model(data.x_dict, data.edge_index_dict)"
        )


class KeepDictionaries(fx.Tracer):
    """Traces a ``to_hetero`` model when it is unpickled, without tracing through PyG's treatment of dictionaries.

    Without this the model fails in another process if one of its optional dictionaries is not given.
    """

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(get_dict,))


def undress(model: nn.Module) -> None:
    """Remove the classes that parametrisations create, in place: torch cannot pickle them."""
    for module in model.modules():
        if parametrize.is_parametrized(module):
            module.__class__ = type(module).__bases__[0]


def dress(model: nn.Module) -> None:
    """Undo :func:`undress`, in place."""
    for module in model.modules():
        if isinstance(getattr(module, "parametrizations", None), nn.ModuleDict):
            parametrize._inject_new_class(module)
            for name in module.parametrizations:  # type: ignore[union-attr]
                parametrize._inject_property(module, name)


def _left_behind(module: nn.Module) -> list[Tensor]:
    """The module's attributes that are results of a computation, so that ``deepcopy`` refuses them."""
    return [v for v in vars(module).values() if isinstance(v, Tensor) and (_wrapped(v) or not v.is_leaf)]


def _value(tensor: Tensor) -> Tensor:
    """The tensor's numbers; an empty tensor for what a function transform has left, which has no numbers."""
    return torch.empty(0) if _wrapped(tensor) else tensor.detach().clone()


def _wrapped(tensor: Tensor) -> bool:
    found: bool = is_functorch_wrapped_tensor(tensor)
    return found
