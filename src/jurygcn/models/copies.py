"""Copies of a caller's model that can be called on any part of the graph and inside function transforms."""

from __future__ import annotations

import copy
import threading

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.utils import parametrize

from jurygcn.errors import ModelError

# What PyG's convolutions keep of the graph they saw first, where they were made with cached=True.
CACHE = "_cached_"

# ``functional_call`` writes other parameters into the module while it runs: one thread at a time calls or copies one.
in_use = threading.RLock()


def independent_copy(model: nn.Module) -> nn.Module:
    """A deep copy that remembers no graph and no computation; the model itself is not changed.

    A convolution with ``cached=True`` takes every graph for the first one it saw, so the copy does not cache. A tensor
    that an earlier call has left in a module (pruning does so) is copied by its value alone.
    """
    try:
        with in_use:
            values = {id(tensor): _value(tensor) for module in model.modules() for tensor in _left_behind(module)}
            twin = copy.deepcopy(model, values)
    except Exception as error:  # anything may go wrong in a model of the caller's
        raise ModelError(
            f"The model cannot be copied ({type(error).__name__}: {' '.join(str(error).split())}): keep no results of "
            "earlier calls, no locks and no open files in it."
        ) from error
    for module in twin.modules():
        kept = [name for name in vars(module) if name.startswith(CACHE)]
        if kept and getattr(module, "cached", False):
            module.cached = False  # type: ignore[assignment]
        for name in kept:
            setattr(module, name, None)
    return twin


def undress(model: nn.Module) -> None:
    """Take the classes away that parametrisations have made, in place: torch refuses to send those to a process."""
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
    """The numbers alone. What a function transform has left behind has none: whoever needs it makes it anew."""
    return torch.empty(0) if _wrapped(tensor) else tensor.detach().clone()


def _wrapped(tensor: Tensor) -> bool:
    found: bool = is_functorch_wrapped_tensor(tensor)
    return found
