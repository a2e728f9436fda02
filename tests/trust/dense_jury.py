"""A jury of any model by dense matrices, one backward pass per logit, one forward pass per juror, and plain loops.

Nothing of the library's is used. The model is run on the whole graph in float64; parameters are moved by writing
them into the module, and derivatives are plain autograd, so no function transform is involved either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import numpy as np
import torch
from slow_jury import scores
from torch import Tensor, nn
from torch_geometric.data import Data


def gcn_logits(weights: list[Tensor], data: Data, activation: str) -> Tensor:
    """The paper's GCN with a dense adjacency; a given self-loop replaces the one that is added."""
    N = int(data.num_nodes)
    A = torch.eye(N, dtype=torch.float64)
    given = [1.0] * data.edge_index.shape[1] if data.edge_weight is None else data.edge_weight.tolist()
    for (source, target), weight in zip(data.edge_index.T.tolist(), given):
        A[target, source] = weight if source == target else A[target, source] + weight
    scale = A.sum(dim=1)
    scale = torch.where(scale > 0, scale, torch.inf).rsqrt()
    E = data.x
    for layer, W in enumerate(weights, start=1):
        E = (scale[:, None] * A * scale) @ E @ W
        E = torch.relu(E) if layer < len(weights) and activation == "relu" else E
    return E


def neighbourhood_mean(data: Data) -> np.ndarray:
    """The mean over a node and all it hears from by an edge of some weight, each once, (N, N)."""
    heard = np.eye(int(data.num_nodes))
    given = [1.0] * data.edge_index.shape[1] if data.edge_weight is None else data.edge_weight.tolist()
    for (source, target), weight in zip(data.edge_index.T.tolist(), given):
        if weight != 0:
            heard[target, source] = 1.0
    return heard / heard.sum(axis=1, keepdims=True)


class DenseJury:
    """Every juror's votes on all nodes.

    ``logits()`` runs the model as its parameters are at the moment. Juror k left out training node ``seats[k]``.

    Shapes: steps (k, P), votes (k, N, C), own (k, C) a juror's prediction at its own node.
    """

    def __init__(
        self,
        model: nn.Module,
        logits: Callable[[], Tensor],
        data: Data,
        train_nodes: list[int],
        *,
        decay: dict[str, float],
        damping: float,
        leave_out: str,
        linear: bool,
        seats: list[int],
    ) -> None:
        self.logits, self.classify, self.linear = logits, not data.y.is_floating_point(), linear
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(named.values())
        decays = [torch.full((p.numel(),), decay[name], dtype=torch.float64) for name, p in named.items()]
        self.own_nodes = [train_nodes[k] for k in seats]
        self.targets = data.y[self.own_nodes].tolist() if self.classify else data.y.reshape(len(data.y), -1)
        if not self.classify:
            self.targets = self.targets[self.own_nodes].numpy()
        self.average = neighbourhood_mean(data)
        z = logits()
        self.outputs = self.predict(z).detach().numpy()
        J = self._jacobian(z, range(len(z)) if linear else train_nodes)
        self.steps = self._steps(z.detach(), J, train_nodes, data.y, torch.cat(decays) + damping, leave_out)[seats]
        if linear:
            self._linear_votes(z.detach(), J)
        else:
            self._exact_votes()

    def predict(self, z: Tensor) -> Tensor:
        return z.softmax(dim=-1) if self.classify else z

    def _jacobian(self, z: Tensor, nodes: object) -> dict[int, Tensor]:
        """Derivatives of each logit of each node, (C, P) per node."""
        rows = {}
        for u in nodes:
            row = []
            for c in range(z.shape[1]):
                parts = torch.autograd.grad(z[u, c], self.parameters, retain_graph=True, allow_unused=True)
                parts = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, parts)]
                row.append(torch.cat([g.reshape(-1) for g in parts]))
            rows[int(u)] = torch.stack(row)
        return rows

    def _steps(self, z: Tensor, J: dict, train_nodes: list, y: Tensor, diagonal: Tensor, leave_out: str) -> Tensor:
        n, C = len(train_nodes), z.shape[1]
        terms, gradients = [], []
        for u in train_nodes:
            if self.classify:
                p = z[u].softmax(dim=0)
                S, e = torch.diag(p) - torch.outer(p, p), p - torch.eye(C, dtype=p.dtype)[int(y[u])]
            else:
                S, e = 2.0 / C * torch.eye(C, dtype=z.dtype), 2.0 / C * (z[u] - y[u].reshape(-1).double())
            terms.append(J[u].T @ S @ J[u] / n)
            gradients.append(J[u].T @ e)
        H = torch.diag(diagonal) + sum(terms)
        steps, self.condition = [], 0.0
        for term, gradient in zip(terms, gradients):
            values, vectors = torch.linalg.eigh(H - term if leave_out == "newton" else H)
            low, high = float(values[0]), float(values[-1])
            self.condition = max(self.condition, high / low if low > 0 else math.inf)
            step = vectors @ ((vectors.T @ gradient) / values) / n
            steps.append(step if bool(torch.isfinite(step).all()) else torch.zeros_like(step))
        return torch.stack(steps)

    def _exact_votes(self) -> None:
        votes = []
        for step in self.steps:
            with self._moved(step), torch.no_grad():
                votes.append(self.logits())
        self.largest_logit = max(float(z.abs().max()) for z in votes)
        self.votes = np.stack([self.predict(z).numpy() for z in votes])
        self.own = np.stack([self.votes[k, u] for k, u in enumerate(self.own_nodes)])
        self.quantity = np.linalg.norm(self.votes, axis=2, keepdims=True) if self.classify else self.votes

    def _linear_votes(self, z: Tensor, J: dict[int, Tensor]) -> None:
        """Probabilities, and their length, to first order; at a juror's own node only the logits are."""
        p = self.predict(z)
        votes, own, quantity = [], [], []
        for step, mine in zip(self.steps, self.own_nodes):
            dz = torch.stack([J[u] @ step for u in range(len(z))])
            dp = p * (dz - (p * dz).sum(dim=1, keepdim=True)) if self.classify else dz
            votes.append(p + dp)
            own.append(self.predict(z[mine] + dz[mine]))
            length = p.norm(dim=1, keepdim=True)
            quantity.append(length + (p * dp).sum(dim=1, keepdim=True) / length if self.classify else p + dp)
        self.votes, self.own, self.quantity = (torch.stack(v).numpy() for v in (votes, own, quantity))
        self.largest_logit = float(z.abs().max()) + float(np.abs(self.votes).max())

    @contextmanager
    def _moved(self, step: Tensor) -> Iterator[None]:
        before = [p.detach().clone() for p in self.parameters]
        pieces = step.split([p.numel() for p in self.parameters])
        with torch.no_grad():
            for p, piece in zip(self.parameters, pieces):
                p += piece.reshape(p.shape)
        yield
        with torch.no_grad():
            for p, old in zip(self.parameters, before):
                p.copy_(old)

    # --- what is said of node u ---------------------------------------------------------------------------

    def speakers(self, u: int) -> list[int]:
        return [k for k, node in enumerate(self.own_nodes) if node != u]

    def errors(self) -> np.ndarray:
        """(k, 1) the length of the error in probabilities, or (k, C) absolute errors."""
        if not self.classify:
            return np.abs(self.targets - self.own)
        one_hot = np.eye(self.own.shape[1])[self.targets]
        return np.linalg.norm(one_hot - self.own, axis=1, keepdims=True)

    def interval(self, u: int, method: str, alpha: float, *, exact: bool) -> np.ndarray:
        """Both ends for every quantity, (2, K)."""
        who, errors = self.speakers(u), self.errors()
        K = errors.shape[1]
        if not who:
            return np.array([[-math.inf] * K, [math.inf] * K])
        rank = math.floor(Fraction(str(alpha)) * (len(who) + 1))
        ends = []
        for q in range(K):
            values, err = self.quantity[who, u, q], errors[who, q]
            half = np.sort(err)[-rank] if rank >= 1 else math.inf
            low, high = np.sort(values - err), np.sort(values + err)
            if method == "minmax":
                ends.append((values.min() - half, values.max() + half))
            elif method == "jackknife":
                p = self.outputs[u]
                middle = np.linalg.norm(p) if self.classify else p[q]
                ends.append((middle - half, middle + half))
            elif exact:
                ends.append((low[rank - 1], high[-rank]) if rank >= 1 else (-math.inf, math.inf))
            else:
                ends.append((np.quantile(low, alpha), np.quantile(high, 1 - alpha)))
        return np.array(ends).T

    def variance(self, u: int) -> float:
        theirs = self.votes[self.speakers(u), u]
        n = len(theirs)
        return 0.0 if n == 0 else float(((theirs - theirs.mean(axis=0)) ** 2).sum() * (n - 1) / n)

    def flips(self, u: int, *, slack: float) -> int:
        """How many jurors prefer another class than the model's by more than minus ``slack``."""
        theirs, label = self.votes[self.speakers(u), u], int(self.outputs[u].argmax())
        return sum(bool((np.delete(v, label) - v[label] > -slack).any()) for v in theirs)

    def smoothed(self, times: int) -> tuple[np.ndarray, np.ndarray]:
        """Votes on all nodes and at the jurors' own, after some averages."""
        if times == 0:
            return self.votes, self.own
        votes = self.votes
        for _ in range(times):
            votes = np.einsum("uv,kvc->kuc", self.average, votes)
        return votes, np.stack([votes[k, u] for k, u in enumerate(self.own_nodes)])

    def log_score(self, times: int) -> float:
        own = self.smoothed(times)[1]
        return float(np.mean([math.log(max(own[k, y], 1e-12)) for k, y in enumerate(self.targets)]))

    def counts(self, times: int, score: str, *, slack: float) -> np.ndarray:
        """#{i != u : s_{-i}(i, y_i) >= s_{-i}(u, y)}; ``slack`` > 0 lets near misses in, < 0 puts near hits out."""
        votes, own = self.smoothed(times)
        own_scores, other_scores = scores(own, score, slack=slack), scores(votes, score, slack=-slack)
        counts = np.zeros(votes.shape[1:], dtype=int)
        for u in range(len(counts)):
            for k in self.speakers(u):
                counts[u] += own_scores[k, self.targets[k]] >= other_scores[k, u] - slack
        return counts

    def neighbour_share(self) -> np.ndarray:
        return self.average @ self.average @ self.outputs
