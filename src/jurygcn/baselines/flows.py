"""Radial normalising flows: a density per class over a low-dimensional space."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALLEST_SQUARE = 1e-12  # the square root has no finite derivative at a distance of zero


class RadialFlows(nn.Module):
    r"""One density per class: a standard normal distribution after K radial transforms. Each class has its own.

    .. math::
        y = x + \beta h (x - x_0), \quad h = \frac{1}{a + r}, \quad r = \|x - x_0\|, \quad
        a = softplus(a'), \quad \beta = -a + softplus(\beta')

        \ln\left|\det \frac{\partial y}{\partial x}\right| = (H - 1) \ln(1 + \beta h) + \ln(1 + \beta h - \beta h^2 r)

    Shapes: z (N, H) -> log densities (N, C).
    """

    def __init__(self, classes: int, dimensions: int, *, length: int = 10) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.empty(length, classes, dimensions))
        self.radii = nn.Parameter(torch.empty(length, classes))
        self.strengths = nn.Parameter(torch.empty(length, classes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every parameter uniformly from +-1/sqrt(H)."""
        bound = 1.0 / math.sqrt(self.centres.shape[-1])
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, z: Tensor) -> Tensor:
        """Log density of every row under every class.

        A transform is x <- (1 + p) x - p x_0 with p = beta h. So the result needs only the squared length of x and its
        products with later centres. These are about five numbers per row instead of H.
        """
        length, classes, dimensions = self.centres.shape
        a = functional.softplus(self.radii).unsqueeze(-1)  # (K, C, 1)
        strength = functional.softplus(self.strengths).unsqueeze(-1) - a
        between = torch.einsum("kch,jch->kjc", self.centres, self.centres).unsqueeze(-1)  # (K, K, C, 1)
        products = (self.centres.view(-1, dimensions) @ z.T).view(length, classes, -1)  # <x, centre>, (K, C, N)
        square = (z**2).sum(dim=-1).expand(classes, -1)  # |x|^2, (C, N)
        log_det = torch.zeros_like(square)
        for k in range(length):
            own, size = products[0], between[k, k]
            r = (square - 2 * own + size).clamp_min(SMALLEST_SQUARE).sqrt()
            h = 1.0 / (a[k] + r)
            pull = strength[k] * h
            log_det = log_det + (dimensions - 1) * torch.log1p(pull) + torch.log1p(pull - pull * h * r)
            square = (1 + pull) ** 2 * square - 2 * pull * (1 + pull) * own + pull**2 * size
            products = (1 + pull) * products[1:] - pull * between[k, k + 1 :]
        return (log_det - 0.5 * square - 0.5 * dimensions * math.log(2 * math.pi)).T
