"""Naive, independent computations: dense NumPy and plain loops, straight from the paper's formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data


def dense_adjacency(data: Data) -> np.ndarray:
    """A + I, renormalised, entry by entry; a self-loop that is already there is not doubled."""
    n = int(data.num_nodes)
    A = np.zeros((n, n))
    for a, b in data.edge_index.T.tolist():
        A[b, a] = 1.0
    for i in range(n):
        A[i, i] = 1.0
    degree = A.sum(axis=1)
    return A / np.sqrt(np.outer(degree, degree))


def gcn_forward(data: Data, weights: list[np.ndarray], activation: str = "relu") -> np.ndarray:
    A_hat, E = dense_adjacency(data), data.x.numpy()
    for layer, W in enumerate(weights, start=1):
        E = A_hat @ E @ W
        if layer < len(weights) and activation == "relu":
            E = np.maximum(E, 0)
    return E


def finite_differences(function: Callable[[Tensor], Tensor], theta: Tensor, *, step: float = 1e-6) -> Tensor:
    """Central differences of a vector function, one parameter at a time: (..., P)."""
    columns = []
    for p in range(len(theta)):
        e = torch.zeros_like(theta)
        e[p] = step
        columns.append((function(theta + e) - function(theta - e)) / (2 * step))
    return torch.stack(columns, dim=-1)


def theorem_1(data: Data, weights: list[np.ndarray], dR_dlogits: np.ndarray, l: int, i: int) -> np.ndarray:
    """Theorem 1's tensor H_{l,i}, read off the paper entry by entry on the whole graph (ReLU between layers).

    dR_dlogits (N, C) is the derivative of the overall loss at the logits, zero outside the training nodes.
    """
    L, A = len(weights), dense_adjacency(data)
    W = [np.empty(0), *weights]
    E, slope = [data.x.numpy()], [np.empty(0)]
    for k in range(1, L + 1):
        Z = A @ E[k - 1] @ W[k]
        slope.append((Z > 0).astype(float) if k < L else np.ones_like(Z))
        E.append(np.maximum(Z, 0) if k < L else Z)
    dR_dE = {L: dR_dlogits}
    for k in range(L - 1, 0, -1):
        dR_dE[k] = A.T @ (dR_dE[k + 1] * slope[k + 1]) @ W[k + 1].T
    H = np.zeros((*W[l].shape, *W[i].shape))
    N = len(A)
    for c in range(W[i].shape[0]):
        for d in range(W[i].shape[1]):
            if i == l:
                continue
            if i < l:
                D = np.zeros((N, W[i].shape[1]))
                for a in range(N):
                    for b in range(W[i].shape[1]):
                        D[a, b] = slope[i][a, b] * (A @ E[i - 1])[a, c] * float(b == d)
                for k in range(i + 1, l):
                    D = slope[k] * (A @ D @ W[k])
                H[:, :, c, d] = (A @ D).T @ (dR_dE[l] * slope[l])
            else:
                D = np.zeros((N, W[i].shape[0]))
                for a in range(N):
                    for b in range(W[i].shape[0]):
                        D[a, b] = float(b == c) * (A.T @ (dR_dE[i] * slope[i]))[a, d]
                for k in range(i - 1, l, -1):
                    D = A.T @ (D * slope[k]) @ W[k].T
                H[:, :, c, d] = (A @ E[l - 1]).T @ (D * slope[l])
    return H
