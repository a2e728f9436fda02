"""Full conformal prediction by retraining: every bag to convergence, from the trained parameters.

The reference of `full_conformal.py`. It shares no formula with the library: the two-layer GCN is written out, and all
bags of one node are trained at once by L-BFGS in float64. Features are rotated into the span of the rows that the
bag's nodes reach, which changes neither the outputs nor the length of the weights at a minimum.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.utils import to_dense_adj

PAIRS, HALVINGS, ENOUGH = 12, 25, 1e-4


@dataclass(frozen=True)
class Bags:
    """The GCN on the nodes of some bags: logits = B relu(AX W1) W2.

    Shapes: AX (R, F'), B (s, R).
    """

    AX: Tensor
    B: Tensor
    hidden: int
    classes: int
    decay: float

    @classmethod
    def of(
        cls, A_hat: Tensor, x: Tensor, nodes: Tensor, hidden: int, classes: int, decay: float
    ) -> tuple[Bags, Tensor]:
        """The bags on some nodes, and the rotation of the features, (F, F')."""
        reached = (A_hat[nodes] != 0).any(dim=0).nonzero().squeeze(1)
        AX = A_hat[reached] @ x
        basis = torch.linalg.qr(AX.T)[0]
        return cls(AX @ basis, A_hat[nodes][:, reached], hidden, classes, decay), basis

    def split(self, thetas: Tensor) -> tuple[Tensor, Tensor]:
        """W1 (b, F', h) and W2 (b, h, C)."""
        wide = self.AX.shape[1] * self.hidden
        return thetas[:, :wide].view(-1, self.AX.shape[1], self.hidden), thetas[:, wide:].view(
            -1, self.hidden, self.classes
        )

    def logits(self, thetas: Tensor) -> Tensor:
        """(b, P) -> (b, s, C)."""
        W1, W2 = self.split(thetas)
        b = len(thetas)
        Z = (self.AX @ W1.transpose(0, 1).reshape(self.AX.shape[1], -1)).view(-1, b, self.hidden)
        E = (self.B @ Z.relu().flatten(1)).view(-1, b, self.hidden).transpose(0, 1)
        return E @ W2

    def loss(self, thetas: Tensor, labels: Tensor, weights: Tensor, count: int) -> Tensor:
        """Mean loss over the members of each bag plus weight decay, (b,)."""
        z = self.logits(thetas)
        each = functional.cross_entropy(z.flatten(0, 1), labels.flatten(), reduction="none").view(labels.shape)
        return (each * weights).sum(dim=1) / count + 0.5 * self.decay * thetas.square().sum(dim=1)

    def settled(self, start: Tensor, labels: Tensor, weights: Tensor, count: int, *, steps: int = 150) -> Tensor:
        """Parameters of every bag at a minimum, by L-BFGS with halved steps; (b, P) -> (b, P).

        A bag is done when its gradient is below 1e-4 of the mean length of a member's: `ENOUGH`.
        """

        def value_and_slope(at: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            at = at.detach().requires_grad_(True)
            value = self.loss(at, labels[rows], weights[rows], count)
            (slope,) = torch.autograd.grad(value.sum(), at)
            return value.detach(), slope

        result, rows = start.clone(), torch.arange(len(start))
        theta, (f, g) = start.clone(), value_and_slope(start, rows)
        past: list[tuple[Tensor, Tensor]] = []
        scale = None
        for _ in range(steps):
            scale = g.norm(dim=1).amax() if scale is None else scale
            active = g.norm(dim=1) > ENOUGH * scale
            if not bool(active.all()):
                result[rows[~active]] = theta[~active]
                rows, theta, f, g = rows[active], theta[active], f[active], g[active]
                past = [(s[active], y[active]) for s, y in past]
                if not len(rows):
                    return result
            step = -_two_loops(g, past)
            slope = (step * g).sum(dim=1)
            wrong = slope >= 0
            step[wrong], slope[wrong] = -g[wrong], -g[wrong].square().sum(dim=1)
            t = torch.ones(len(rows), dtype=theta.dtype)
            if not past:
                t = (1.0 / g.norm(dim=1)).clamp_max(1.0)
            for _ in range(HALVINGS):
                new_f, new_g = value_and_slope(theta + t[:, None] * step, rows)
                bad = new_f > f + 1e-4 * t * slope
                if not bool(bad.any()):
                    break
                t = torch.where(bad, t / 2, t)
            s, y = t[:, None] * step, new_g - g
            curved = (s * y).sum(dim=1) > 1e-12 * s.norm(dim=1) * y.norm(dim=1)
            past = [*past, (torch.where(curved[:, None], s, 0.0), torch.where(curved[:, None], y, 0.0))][-PAIRS:]
            theta, f, g = theta + s, new_f, new_g
        result[rows] = theta
        return result


def _two_loops(g: Tensor, past: list[tuple[Tensor, Tensor]]) -> Tensor:
    """L-BFGS: the approximate inverse Hessian times the gradient; pairs of zeros are skipped."""
    q, kept = g.clone(), []
    for s, y in reversed(past):
        sy = (s * y).sum(dim=1, keepdim=True)
        rho = torch.where(sy > 0, 1.0 / sy, 0.0)
        a = rho * (s * q).sum(dim=1, keepdim=True)
        q = q - a * y
        kept.append((s, y, rho, a))
    if past:
        s, y = past[-1]
        yy = y.square().sum(dim=1, keepdim=True)
        q = torch.where(yy > 0, (s * y).sum(dim=1, keepdim=True) / yy.clamp_min(1e-300), 1.0) * q
    for s, y, rho, a in reversed(kept):
        q = q + (a - rho * (y * q).sum(dim=1, keepdim=True)) * s
    return q


def normalised_adjacency(data: Data) -> Tensor:
    """D^-1/2 (A + I) D^-1/2, dense, (N, N)."""
    A = to_dense_adj(data.edge_index, max_num_nodes=int(data.num_nodes))[0].double()
    A = A + torch.eye(len(A), dtype=A.dtype)
    scale = A.sum(dim=1).rsqrt()
    return scale[:, None] * A * scale


def train_to_convergence(
    data: Data, train: Tensor, *, hidden: int, classes: int, decay: float, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """W1 and W2 of a GCN at a minimum of its objective."""
    generator = torch.Generator().manual_seed(seed)
    bags, basis = Bags.of(normalised_adjacency(data), data.x.double(), train, hidden, classes, decay)
    sizes = (data.x.shape[1], hidden), (hidden, classes)
    W1, W2 = ((6.0 / sum(s)) ** 0.5 * (2 * torch.rand(*s, generator=generator, dtype=torch.float64) - 1) for s in sizes)
    start = torch.cat([(basis.T @ W1).flatten(), W2.flatten()])[None]
    n = len(train)
    for _ in range(20):
        start = bags.settled(start, data.y[train][None], torch.ones(1, n, dtype=torch.float64), n, steps=1000)
    W1, W2 = bags.split(start)
    return basis @ W1[0], W2[0]


def full_scores(
    data: Data, train: Tensor, nodes: Tensor, W1: Tensor, W2: Tensor, *, decay: float, show: bool = False
) -> tuple[Tensor, Tensor]:
    """Probabilities that leave-one-out models of every bag give to the left-out label.

    Returns the trained model's at (u, y), (m, C), and those of the model without i but with (u, y) at (i, y_i),
    (m, C, n).
    """
    A_hat, x, n, C = normalised_adjacency(data), data.x.double(), len(train), W2.shape[1]
    at_u, at_i = [], []
    for u in nodes.tolist():
        bags, basis = Bags.of(A_hat, x, torch.cat([train, torch.tensor([u])]), W2.shape[0], C, decay)
        start = torch.cat([(basis.T @ W1).flatten(), W2.flatten()])[None]
        labels = data.y[train].repeat(C * n, 1)
        labels = torch.cat([labels, torch.arange(C).repeat_interleave(n)[:, None]], dim=1)  # bags (y, i)
        weights = torch.cat([1.0 - torch.eye(n).repeat(C, 1), torch.ones(C * n, 1)], dim=1).double()
        thetas = bags.settled(start.repeat(C * n, 1), labels, weights, n)
        with torch.no_grad():
            p = bags.logits(thetas).softmax(dim=2)[:, :n].gather(2, labels[:, :n, None]).squeeze(2)
            at_i.append(p.view(C, n, n).diagonal(dim1=1, dim2=2))
            at_u.append(bags.logits(start)[0, n].softmax(dim=0))
        if show:
            print(f"  node {u}", flush=True)
    return torch.stack(at_u), torch.stack(at_i)
