"""The weight decay of each parameter, however the caller states it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import nn

from jurygcn.checks import MOST_DECAY, check_real
from jurygcn.errors import JuryWarning, SettingError

WeightDecay = float | Mapping[str, float] | torch.optim.Optimizer

# Optimisers that add the decay to the gradient, so that they minimise the loss plus an L2 penalty.
COUPLED = (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adamax)


def decay_by_name(model: nn.Module, weight_decay: WeightDecay) -> dict[str, float]:
    """The weight decay of every trainable parameter, by name.

    Args:
        weight_decay: one number for all parameters; a mapping from the names of parameters or modules to numbers, with
            0 for what it does not name and the longest name deciding; or the optimiser that trained ``model``.
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    if isinstance(weight_decay, torch.optim.Optimizer):
        return _of_optimizer(model, weight_decay)
    if not isinstance(weight_decay, Mapping):
        return dict.fromkeys(names, float(check_real(weight_decay, "weight_decay", most=MOST_DECAY)))
    for value in weight_decay.values():
        check_real(value, "weight_decay", most=MOST_DECAY)
    unknown = sorted(key for key in weight_decay if not any(_holds(key, name) for name in names))
    if unknown:
        raise SettingError(
            f"expected weight_decay for the parameters {', '.join(names)}, or for modules that hold them, "
            f"got {', '.join(unknown)}; correct the names"
        )
    return {
        name: float(weight_decay[max(keys, key=len)]) if (keys := [k for k in weight_decay if _holds(k, name)]) else 0.0
        for name in names
    }


def _holds(key: str, name: str) -> bool:
    """Whether a key is the name of a parameter or of a module that contains it."""
    return name == key or name.startswith(f"{key}.")


def _of_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    given = {id(p): group.get("weight_decay", 0.0) for group in optimizer.param_groups for p in group["params"]}
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    untrained = [name for name, p in named.items() if id(p) not in given]
    if len(untrained) == len(named):
        raise SettingError(
            "expected weight_decay as the optimizer that trained this model, got one that holds no parameter of this "
            "model (a loaded or copied model has other parameters); pass the right one, or the weight decay as a number"
        )
    if untrained:
        raise SettingError(
            f"expected an optimizer of all trainable parameters, got one that does not hold {', '.join(untrained)}; "
            "freeze these with requires_grad_(False), or pass weight_decay as numbers"
        )
    decays = {name: float(given[id(p)]) for name, p in named.items()}
    if not isinstance(optimizer, COUPLED) or isinstance(optimizer, torch.optim.AdamW):
        kind = type(optimizer).__name__
        if any(decays.values()):
            warnings.warn(
                f"{kind} shrinks the weights apart from the gradient (decoupled decay), so it minimises no loss with "
                "an L2 penalty; the jury assumes an L2 penalty of the same size. Check it with jury.fidelity().",
                JuryWarning,
                stacklevel=4,
            )
    return decays
