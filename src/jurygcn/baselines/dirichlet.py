r"""Dirichlet distributions over class probabilities: losses, divergences and uncertainty scores.

:math:`\alpha` has one positive entry per class, :math:`S = \sum_c \alpha_c`, and the expected probabilities are
:math:`\bar p = \alpha / S`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def squared_error(alpha: Tensor, y: Tensor) -> Tensor:
    r"""Expected squared error of probabilities drawn from Dir(alpha).

    .. math:: E\|p - y\|^2 = \sum_c (\bar p_c - y_c)^2 + \frac{\bar p_c (1 - \bar p_c)}{S + 1}

    Shapes: alpha (m, C), y (m,) classes -> (m,).
    """
    S = alpha.sum(dim=-1, keepdim=True)
    p = alpha / S
    truth = functional.one_hot(y, alpha.shape[-1]).to(alpha.dtype)
    return ((p - truth) ** 2 + p * (1 - p) / (S + 1)).sum(dim=-1)


def cross_entropy(alpha: Tensor, y: Tensor) -> Tensor:
    r"""Expected cross-entropy of probabilities drawn from Dir(alpha), :math:`\psi(S) - \psi(\alpha_y)`.

    Shapes: alpha (m, C), y (m,) classes -> (m,).
    """
    own = alpha.gather(-1, y[:, None]).squeeze(-1)
    return torch.digamma(alpha.sum(dim=-1)) - torch.digamma(own)


def divergence(alpha: Tensor, prior: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence :math:`KL(Dir(\alpha) \| Dir(\alpha^0))`.

    .. math::
        \ln\frac{\Gamma(S)}{\Gamma(S^0)} + \sum_c \ln\frac{\Gamma(\alpha^0_c)}{\Gamma(\alpha_c)}
        + \sum_c (\alpha_c - \alpha^0_c)(\psi(\alpha_c) - \psi(S))

    Shapes: (m, C), (m, C) -> (m,).
    """
    S, S0 = alpha.sum(dim=-1), prior.sum(dim=-1)
    gammas = torch.lgamma(S) - torch.lgamma(S0) + (torch.lgamma(prior) - torch.lgamma(alpha)).sum(dim=-1)
    slopes = torch.digamma(alpha) - torch.digamma(S).unsqueeze(-1)
    return gammas + ((alpha - prior) * slopes).sum(dim=-1)


def entropy(alpha: Tensor) -> Tensor:
    r"""Differential entropy of Dir(alpha); in float64, because its terms nearly cancel where the evidence is large.

    .. math:: \ln B(\alpha) + (S - C)\,\psi(S) - \sum_c (\alpha_c - 1)\,\psi(\alpha_c)

    Shapes: (m, C) -> (m,).
    """
    a = alpha.double()
    S = a.sum(dim=-1)
    beta = torch.lgamma(a).sum(dim=-1) - torch.lgamma(S)
    value = beta + (S - a.shape[-1]) * torch.digamma(S) - ((a - 1) * torch.digamma(a)).sum(dim=-1)
    return value.to(alpha.dtype)


def vacuity(alpha: Tensor) -> Tensor:
    """Lack of evidence, C / S; it is 1 without any evidence. Shapes: (m, C) -> (m,)."""
    return alpha.shape[-1] / alpha.sum(dim=-1)


def dissonance(alpha: Tensor) -> Tensor:
    r"""Conflict between the evidence for different classes.

    .. math::
        \sum_i b_i \frac{\sum_{j \ne i} b_j\, Bal(b_i, b_j)}{\sum_{j \ne i} b_j}, \quad
        b = \frac{\alpha - 1}{S}, \quad Bal(b_i, b_j) = 1 - \frac{|b_i - b_j|}{b_i + b_j}

    Shapes: (m, C) -> (m,).
    """
    b = (alpha - 1).clamp_min(0) / alpha.sum(dim=-1, keepdim=True)
    first, second = b.unsqueeze(-1), b.unsqueeze(-2)
    pair_sum = first + second
    balance = torch.where(pair_sum > 0, 1 - (first - second).abs() / pair_sum.clamp_min(1e-30), 0.0)
    balance = balance - torch.diag_embed(torch.diagonal(balance, dim1=-2, dim2=-1))
    others = b.sum(dim=-1, keepdim=True) - b
    conflict = (balance * second).sum(dim=-1)
    return (b * torch.where(others > 0, conflict / others.clamp_min(1e-30), 0.0)).sum(dim=-1)


def split_entropy(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Aleatoric and epistemic parts of the entropy of the mean probabilities of several models.

    The aleatoric part is the mean of the models' entropies. The epistemic part is the rest.

    Shapes: (T, m, C) -> (m,), (m,).
    """
    total = shannon(probabilities.mean(dim=0))
    aleatoric = shannon(probabilities).mean(dim=0)
    return aleatoric, (total - aleatoric).clamp_min(0)


def shannon(probabilities: Tensor) -> Tensor:
    """Entropy of class probabilities. Shapes: (..., C) -> (...)."""
    entropies: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return entropies
