r"""Batch normalisation of a retrained model, written with the running statistics of another.

A juror is a vector of parameters. A retrained one has running statistics of its own, which are no parameters. In eval
mode batch normalisation is an affine map, so other statistics only change its weight and bias:

.. math:: w \frac{x - \mu}{\sigma} + b = \frac{w \sigma_0}{\sigma} \frac{x - \mu_0}{\sigma_0}
    + b + \frac{w (\mu_0 - \mu)}{\sigma}
"""

from __future__ import annotations

import torch
from torch import nn

from jurygcn.errors import ModelError


@torch.no_grad()
def take_statistics(model: nn.Module, other: nn.Module) -> None:
    """Give ``model`` the running statistics of ``other``, in place, and leave its outputs in eval mode as they are.

    Raises ModelError where a layer with other statistics has no trainable weight and bias.
    """
    for name, layer in model.named_modules():
        mean, var = layer._buffers.get("running_mean"), layer._buffers.get("running_var")
        if mean is None or var is None:
            continue
        twin = other.get_submodule(name)
        mean_0, var_0 = twin.get_buffer("running_mean"), twin.get_buffer("running_var")
        if torch.equal(mean, mean_0) and torch.equal(var, var_0):
            continue
        weight, bias = (layer._parameters.get(key) for key in ("weight", "bias"))
        if weight is None or bias is None or not (weight.requires_grad and bias.requires_grad):
            raise ModelError(
                f"expected batch normalisation with a trainable weight and bias in retrained jurors, got none in "
                f"{name or type(layer).__name__}; train with affine=True, or use estimated jurors"
            )
        eps = float(layer.eps)
        slope = weight.double() * (var.double() + eps).rsqrt()
        bias.copy_(bias + slope * (mean_0 - mean))
        weight.copy_(slope * (var_0.double() + eps).sqrt())
        mean.copy_(mean_0)
        var.copy_(var_0)
