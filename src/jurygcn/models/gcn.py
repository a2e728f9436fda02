"""The paper's graph convolutional network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import MessagePassing
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.inits import glorot

from jurygcn.checks import MOST_HIDDEN, MOST_LAYERS, check_count, check_dropout
from jurygcn.errors import ModelError, SettingError
from jurygcn.io.archives import room

# The activation between layers, and its derivative as a function of the pre-activation.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu": (torch.relu, lambda Z: (Z > 0).to(Z.dtype)),
    "linear": (lambda Z: Z, torch.ones_like),
}


def check_parameters(count: int) -> None:
    """Raise SettingError if training would not fit into memory; Adam needs four numbers per parameter."""
    needed = 4 * count * torch.get_default_dtype().itemsize
    if needed > room():
        raise SettingError(
            f"expected a model that trains in {room() / 2**30:.3g} GiB, got {count:.3g} parameters, which need "
            f"{needed / 2**30:.3g} GiB; use fewer hidden units or layers"
        )


class Propagate(MessagePassing):
    r"""Multiply by the renormalised adjacency: :math:`\hat A E`, one message per edge."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, x: Tensor, edge_index: Tensor, norm: Tensor) -> Tensor:
        """Sum the neighbours' rows of ``x``, weighted by ``norm``."""
        out: Tensor = self.propagate(edge_index, x=x, norm=norm)
        return out

    def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
        """Weight each edge's message."""
        return norm.unsqueeze(-1) * x_j


class GCN(nn.Module):
    r"""L-layer graph convolutional network that returns logits.

    .. math::
        E^{(0)} = X, \quad E^{(l)} = \sigma(\hat A E^{(l-1)} W^{(l)}), \quad
        \hat A = \tilde D^{-1/2} (A + I) \tilde D^{-1/2}

    with ReLU (or no activation) between the layers, a linear last layer, no bias and Glorot initialisation.
    Dropout acts on the input of every layer, as in Kipf and Welling's code; the default is none.

    Shapes: x (N, F), edge_index (2, E), edge_weight (E,) or None -> logits (N, C).
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        dropout: float = 0.0,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ModelError(
                f"expected activation to be one of {', '.join(ACTIVATIONS)}, got {activation!r}; choose one"
            )
        check_count(num_layers, "num_layers", most=MOST_LAYERS)
        check_count(hidden_channels, "hidden_channels", most=MOST_HIDDEN)
        check_count(in_channels, "in_channels")
        check_count(out_channels, "out_channels")
        check_dropout(dropout)
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        check_parameters(sum(fan_in * fan_out for fan_in, fan_out in pairwise(widths)))
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.empty(fan_in, fan_out)) for fan_in, fan_out in pairwise(widths)]
        )
        self.dropout = dropout
        self.activation = activation
        self.propagate = Propagate()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise every weight (Glorot uniform)."""
        for W in self.weights:
            glorot(W)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Logits of all nodes."""
        dtype = self.weights[0].dtype
        edge_index, norm = gcn_norm(edge_index, edge_weight, x.size(0), add_self_loops=True, dtype=dtype)
        sigma, _ = ACTIVATIONS[self.activation]
        E = x
        for layer, W in enumerate(self.weights, start=1):
            E = functional.dropout(E, self.dropout, training=self.training)
            E = self.propagate(E @ W, edge_index, norm)
            if layer < len(self.weights):
                E = sigma(E)
        return E

    def extra_repr(self) -> str:
        """Widths and dropout, for ``print(model)``."""
        widths = [self.weights[0].shape[0], *[W.shape[1] for W in self.weights]]
        return f"{' -> '.join(map(str, widths))}, dropout={self.dropout}"


# Where torch keeps hooks that run in every module; its own function for this question is newer than torch 2.4.
GLOBAL_HOOKS = tuple(f"_global_{kind}_hooks" for kind in ("forward", "forward_pre", "backward", "backward_pre"))

# Attributes that may differ between two GCNs that compute the same formula.
FREE = {"training", "dropout", "activation", "_size"}


def is_plain(model: nn.Module) -> bool:
    """Whether a model computes exactly the GCN's formula from its weights, so that closed forms apply.

    False with hooks, parametrisations, shared weights, or replaced submodules or methods; they are found by comparing
    the model with a new GCN.
    """
    if type(model) is not GCN or any(getattr(nn.modules.module, hooks) for hooks in GLOBAL_HOOKS):
        return False
    weights = list(model.weights.parameters(recurse=False))  # a shared weight appears once
    if len(weights) != len(model.weights) or any(W.dim() != 2 for W in weights):
        return False
    found, expected = dict(model.named_modules()), dict(_template().named_modules())
    return found.keys() == expected.keys() and all(_is_like(found[name], expected[name]) for name in expected)


@cache
def _template() -> GCN:
    return GCN(1, 1, 1)


def _is_like(module: nn.Module, template: nn.Module) -> bool:
    """Whether a module has the template's type, attributes and settings, and no hook on what it computes."""
    mine, theirs = vars(module), vars(template)
    if type(module) is not type(template) or mine.keys() != theirs.keys():
        return False
    hooked = any(mine[name] for name in mine if name.endswith("_hooks") and "state_dict" not in name)
    settings = [name for name in theirs.keys() - FREE if isinstance(theirs[name], str | int | None)]
    return not hooked and all(mine[name] == theirs[name] for name in settings)
