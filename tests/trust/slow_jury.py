"""A jury by dense matrices, automatic differentiation and plain loops: slow, and independent of the library's code.

Everything is in float64 and straight from the formulas: the Jacobian of every logit by autograd, the Gauss-Newton
matrix as a dense sum, one `solve` and one forward pass per juror, p-values and label sets by counting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from jurygcn.models import GCN

WELL_CONDITIONED = 1e10  # beyond, a dense solve in float64 is no reference


def neighbour_counts(data: Data) -> np.ndarray:
    """How many edges lead from column to row; every node has one loop, given or not."""
    N = int(data.num_nodes)
    A = np.zeros((N, N))
    for source, target in data.edge_index.T.tolist():
        A[target, source] += 1.0
    np.fill_diagonal(A, 1.0)
    return A


@dataclass(eq=False)
class SlowJury:
    """The jury of a GCN on ``data``. Shapes: steps (n, P), votes (n, N, C)."""

    model: GCN
    data: Data
    train_nodes: list[int]
    weight_decay: float
    leave_out: str

    def __post_init__(self) -> None:
        A = neighbour_counts(self.data)
        degree = A.sum(axis=1)
        self.A_hat = torch.from_numpy(A / np.sqrt(np.outer(degree, degree)))
        self.average = (A > 0) / (A > 0).sum(axis=1, keepdims=True)
        self.x = self.data.x.double()
        self.shapes = [tuple(W.shape) for W in self.model.weights]
        self.theta = torch.cat([W.detach().double().reshape(-1) for W in self.model.weights])
        self.labels = [int(self.data.y[i]) for i in self.train_nodes]
        self.outputs = self.logits(self.theta).softmax(dim=1).numpy()
        self.steps = self._steps()
        after = torch.stack([self.logits(self.theta + step) for step in self.steps])
        self.largest_logit = float(after.abs().max())
        self.votes = after.softmax(dim=2).numpy()

    def logits(self, theta: Tensor) -> Tensor:
        E, start = self.x, 0
        for layer, shape in enumerate(self.shapes, start=1):
            size = shape[0] * shape[1]
            E = self.A_hat @ E @ theta[start : start + size].reshape(shape)
            E = torch.relu(E) if layer < len(self.shapes) else E
            start += size
        return E

    def _steps(self) -> Tensor:
        n, P = len(self.train_nodes), len(self.theta)
        J = torch.autograd.functional.jacobian(lambda t: self.logits(t)[self.train_nodes], self.theta)  # (n, C, P)
        pi = self.logits(self.theta)[self.train_nodes].softmax(dim=1)
        S = torch.diag_embed(pi) - pi[:, :, None] * pi[:, None, :]
        terms = torch.einsum("ncp,ncd,ndq->npq", J, S, J) / n
        H = self.weight_decay * torch.eye(P, dtype=torch.float64) + terms.sum(dim=0)
        steps, self.condition = [], 0.0
        for i, label in enumerate(self.labels):
            residual = pi[i].clone()
            residual[label] -= 1.0
            kept = H - terms[i] if self.leave_out == "newton" else H
            condition = float(torch.linalg.cond(kept))  # NaN if there is no curvature at all
            self.condition = max(self.condition, condition) if condition == condition else np.inf
            step, singular = torch.linalg.solve_ex(kept, J[i].T @ residual)
            steps.append(torch.zeros_like(step) if singular else step / n)
        return torch.stack(steps)

    # --- what the verdict says of node u ------------------------------------------------------------------

    def speakers(self, u: int) -> list[int]:
        return [i for i, node in enumerate(self.train_nodes) if node != u]

    def smoothed(self, times: int) -> np.ndarray:
        votes = self.votes
        for _ in range(times):
            votes = np.einsum("uv,ivc->iuc", self.average, votes)
        return votes

    def log_score(self, times: int) -> float:
        votes = self.smoothed(times)
        own = [votes[i, u, self.labels[i]] for i, u in enumerate(self.train_nodes)]
        return float(np.mean(np.log(np.maximum(own, 1e-12))))

    def counts(self, times: int, score: str, *, slack: float) -> np.ndarray:
        """#{i != u : s_{-i}(i, y_i) >= s_{-i}(u, y)}; ``slack`` > 0 lets near misses in, < 0 puts near hits out."""
        votes = self.smoothed(times)
        own_scores, other_scores = scores(votes, score, slack=slack), scores(votes, score, slack=-slack)
        counts = np.zeros(votes.shape[1:], dtype=int)
        for u in range(len(counts)):
            for i in self.speakers(u):
                counts[u] += own_scores[i, self.train_nodes[i], self.labels[i]] >= other_scores[i, u] - slack
        return counts

    def errors(self) -> np.ndarray:
        one_hot = np.eye(self.votes.shape[2])[self.labels]
        return np.array([np.linalg.norm(one_hot[i] - self.votes[i, u]) for i, u in enumerate(self.train_nodes)])

    def interval(self, u: int, alpha: float, *, exact: bool) -> tuple[float, float]:
        who, errors = self.speakers(u), self.errors()
        if not who:
            return -math.inf, math.inf
        norms = np.array([np.linalg.norm(self.votes[i, u]) for i in who])
        low, high = np.sort(norms - errors[who]), np.sort(norms + errors[who])
        if not exact:
            return float(np.quantile(low, alpha)), float(np.quantile(high, 1 - alpha))
        rank = math.floor(Fraction(str(alpha)) * (len(who) + 1))
        return (-math.inf, math.inf) if rank < 1 else (float(low[rank - 1]), float(high[-rank]))

    def variance(self, u: int) -> float:
        theirs = self.votes[self.speakers(u), u]
        n = len(theirs)
        return 0.0 if n == 0 else float(((theirs - theirs.mean(axis=0)) ** 2).sum() * (n - 1) / n)


def scores(votes: np.ndarray, score: str, *, slack: float) -> np.ndarray:
    """1 - probability (LAC), or the mass of all classes at least as probable (APS), y itself included; shape kept."""
    if score == "lac":
        return 1.0 - votes
    at_least = (votes[..., None, :] >= votes[..., :, None] - slack) | np.eye(votes.shape[-1], dtype=bool)
    return (at_least * votes[..., None, :]).sum(axis=-1)
