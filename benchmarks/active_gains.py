"""Do closed-form gains rank candidates as brute-force retraining does? On a graph with 300 nodes, and what they cost.

The gain of a candidate is the rise of the sum of the largest class probabilities of all nodes after its label is
learned, on average over the label, with the probabilities that the learner gives its classes. For 40 candidates and
every class it is computed by retraining and in closed form:

- GCN, one Newton step: a two-layer GCN without dropout, trained to its optimum. The step has the Gauss-Newton matrix
  with the new label, from one factorisation. Retraining goes on from the optimum until the objective falls no more.
- the same, retrained from the initial weights, first by Adam: another local optimum is possible.
- panel, its weights kept: the closed form is exact.
- panel, its weights chosen again after every new label: `jury-gain` keeps them.

Numbers are Spearman's correlations, mean over splits. Seconds are processor time: of all 40 gains, of retraining, and
of one step of jury-gain on Cora beside an ordinary PyG training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import mean, pstdev

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.func import jacrev, vmap
from torch_geometric.data import Data

from active_learning import plain_training
from harness import options, save, table
from jurygcn import active
from jurygcn.active.gain import fitted
from jurygcn.active.scene import Scene
from jurygcn.data import random_labels, synthetic
from jurygcn.graph.propagation import Propagation
from protocol import graph

SPLITS, QUICK_SPLITS = 5, 1
LABELS, CANDIDATES, FEATURES, HIDDEN, DECAY = 24, 40, 12, 8, 5e-3
EPOCHS, STEPS, NEAR = 300, 100, 1e-7  # of Adam; most Newton steps; the fall of the objective that ends them


class DenseGCN:
    """A two-layer GCN as a function of its parameters, in float64; many of them side by side, theta (B, P)."""

    def __init__(self, data: Data) -> None:
        propagation = Propagation.of(data)
        self.A = torch.from_numpy(propagation.adjacency.toarray()).double()
        self.X = self.A @ data.x.double()
        self.F, self.C = self.X.shape[1], int(data.num_classes)

    def start(self, seed: int) -> Tensor:
        """Random parameters, (P,)."""
        generator = torch.Generator().manual_seed(seed)
        sizes = ((self.F, HIDDEN), (HIDDEN, self.C))
        parts = [(2 * torch.rand(s, generator=generator).double() - 1) * (6 / sum(s)) ** 0.5 for s in sizes]
        return torch.cat([part.flatten() for part in parts])

    def logits(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Shapes: (P,), rows of A (r, N) -> (r, C)."""
        first, second = theta[: self.F * HIDDEN], theta[self.F * HIDDEN :]
        return rows @ (self.X @ first.view(self.F, HIDDEN)).relu() @ second.view(HIDDEN, self.C)

    def everywhere(self, thetas: Tensor) -> Tensor:
        """Class probabilities of all nodes, (B, N, C)."""
        return vmap(lambda theta: self.logits(theta, self.A))(thetas).softmax(dim=2)

    def trained(self, thetas: Tensor, nodes: Tensor, labels: Tensor, *, epochs: int = 0) -> Tensor:
        """Epochs of Adam, then damped Gauss-Newton steps until the objective falls no more. Shapes: nodes, labels (B, n)."""
        rows, n = self.A[nodes], nodes.shape[1]
        targets = torch.nn.functional.one_hot(labels, self.C).double()
        thetas = thetas.clone().requires_grad_()
        adam = torch.optim.Adam([thetas], lr=0.01)

        def value(thetas: Tensor) -> Tensor:
            logs = vmap(self.logits)(thetas, rows).log_softmax(dim=2)
            return DECAY / 2 * thetas.square().sum(dim=1) - (targets * logs).sum(dim=(1, 2)) / n

        for _ in range(epochs):
            adam.zero_grad()
            value(thetas).sum().backward()
            adam.step()
        thetas = thetas.detach()
        length = torch.ones(len(thetas)).double()
        for _ in range(STEPS):
            p = vmap(self.logits)(thetas, rows).softmax(dim=2)
            J = vmap(jacrev(self.logits))(thetas, rows)
            gradient = DECAY * thetas + torch.einsum("bnc,bncp->bp", p - targets, J) / n
            step = torch.linalg.solve(gauss_newton(p, J, n), gradient)
            now = value(thetas)
            for _ in range(12):
                moved = thetas - length[:, None] * step
                worse = value(moved) > now + 1e-14
                length = torch.where(worse, length / 2, length)
                if not bool(worse.any()):
                    break
            thetas, length = moved, (2 * length).clamp_max(1.0)
        raise ValueError(
            f"expected an optimum after {STEPS} steps, got a gradient of {float(gradient.abs().max()):.1e}"
        )


def gauss_newton(p: Tensor, J: Tensor, count: int) -> Tensor:
    """The Gauss-Newton matrix of the objective. Shapes: p (B, n, C), J (B, n, C, P) -> (B, P, P)."""
    S = torch.diag_embed(p) - p.unsqueeze(3) * p.unsqueeze(2)
    return DECAY * torch.eye(J.shape[3]).double() + torch.einsum("bncp,bncd,bndq->bpq", J, S, J) / count


def surest(probabilities: Tensor) -> Tensor:
    """The sum of the largest probabilities of all nodes."""
    return probabilities.amax(dim=-1).sum(dim=-1)


def newton_gains(gcn: DenseGCN, theta: Tensor, nodes: Tensor, candidates: Tensor) -> Tensor:
    """The gain of each candidate by one Newton step of the objective with its label, from one factorisation."""
    p, n = gcn.everywhere(theta[None])[0], len(nodes) + 1
    J = jacrev(gcn.logits)(theta, gcn.A[torch.cat([nodes, candidates])])
    factor = torch.linalg.cholesky(gauss_newton(p[nodes][None], J[None, : len(nodes)], n)[0])
    rest = torch.cholesky_solve(DECAY * theta[:, None], factor)  # the optimum was one of n labels, not of n + 1
    gains = []
    for slopes, v in zip(J[len(nodes) :], candidates.tolist()):
        S = torch.diag(p[v]) - torch.outer(p[v], p[v])
        away = torch.cholesky_solve(slopes.T, factor)
        inner = torch.linalg.solve(torch.eye(gcn.C).double() + S @ (slopes @ away) / n, S)
        right = (away @ (p[v][:, None] - torch.eye(gcn.C).double()) + rest) / n  # a column for each label
        after = gcn.everywhere(theta - (right - away @ (inner @ (slopes @ right)) / n).T)
        gains.append(float(p[v] @ (surest(after) - surest(p))))
    return torch.tensor(gains)


def retrained_gains(
    gcn: DenseGCN, theta: Tensor, nodes: Tensor, labels: Tensor, candidates: Tensor, *, start: Tensor, epochs: int
) -> Tensor:
    """The same gain, with a training for each candidate and class."""
    p, m, C = gcn.everywhere(theta[None])[0], len(candidates), gcn.C
    more = torch.cat([nodes.expand(m * C, -1), candidates.repeat_interleave(C)[:, None]], dim=1)
    theirs = torch.cat([labels.expand(m * C, -1), torch.arange(C).repeat(m)[:, None]], dim=1)
    after = surest(gcn.everywhere(gcn.trained(start.expand(m * C, -1), more, theirs, epochs=epochs))).view(m, C)
    return (p[candidates] * (after - surest(p))).sum(dim=1)


def panel_gains(scene: Scene, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The panel's gains in closed form, by refitting with the same weights, and with weights chosen again."""
    nodes, labels = scene.labelled, scene.data.y[scene.labelled]
    gains = fitted(scene, nodes, labels)
    p, brute = torch.softmax(gains.scores, dim=1), ([], [])
    for v in candidates.tolist():
        more = torch.cat([nodes, torch.tensor([v])])
        for found, weights in zip(brute, (gains.weights, None)):
            scores = [
                fitted(scene, more, torch.cat([labels, torch.tensor([y])]), weights).scores
                for y in range(scene.num_classes)
            ]
            found.append(float(p[v] @ (surest(torch.stack(scores).softmax(dim=2)) - surest(p))))
    return gains.expected(candidates), torch.tensor(brute[0]), torch.tensor(brute[1])


def timed(work: Callable[[], Tensor]) -> tuple[Tensor, float]:
    started = time.process_time()
    return work(), time.process_time() - started


def one_split(seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Rank correlations, and seconds."""
    data = synthetic(
        num_nodes=300, num_edges=900, num_features=FEATURES, num_classes=4, homophily=0.7, seed=1000 + seed
    )
    nodes = random_labels(torch.arange(300), LABELS, seed=seed)
    labels, rng = data.y[nodes], np.random.default_rng(seed)
    others = np.setdiff1d(np.arange(300), nodes.numpy())
    candidates = torch.from_numpy(np.sort(rng.choice(others, CANDIDATES, replace=False)))
    gcn = DenseGCN(data)
    start = gcn.start(seed)
    theta = gcn.trained(start[None], nodes[None], labels[None], epochs=EPOCHS)[0]
    newton, closed = timed(lambda: newton_gains(gcn, theta, nodes, candidates))
    warm, again = timed(lambda: retrained_gains(gcn, theta, nodes, labels, candidates, start=theta, epochs=0))
    cold = retrained_gains(gcn, theta, nodes, labels, candidates, start=start, epochs=EPOCHS)
    scene = Scene.of(
        data, nodes, labels, candidates=candidates, batch=1, model=None, weight_decay=0.0,
        generator=np.random.default_rng(0),
    )  # fmt: skip
    panel, kept, chosen = panel_gains(scene, candidates)
    pairs = {
        "GCN, one Newton step": (newton, warm),
        "GCN, retrained from the initial weights": (newton, cold),
        "panel, its weights kept": (panel, kept),
        "panel, its weights chosen again": (panel, chosen),
    }
    ranks = {name: float(spearmanr(a.numpy(), b.numpy()).statistic) for name, (a, b) in pairs.items()}
    return ranks, {"closed form": closed, "retraining": again}


def gain_step(name: str) -> float:
    """Seconds of processor time of one step of jury-gain: the mean over a run's steps after the first two."""
    found = []

    def chooser(scene: Scene) -> active.Choice:
        started = time.process_time()
        choice = active.STRATEGIES["jury-gain"].choose(scene)
        found.append(time.process_time() - started)
        return choice

    active.run(graph(name), chooser, seed=1000)
    return mean(found[1:])


def main() -> None:
    chosen = options(__doc__)
    results = [one_split(seed) for seed in range(QUICK_SPLITS if chosen.quick else SPLITS)]
    rows = [
        {
            **{"learner": name, "correlation": mean(ranks[name] for ranks, _ in results)},
            **{"sd": pstdev([ranks[name] for ranks, _ in results]), "splits": len(results)},
        }
        for name in results[0][0]
    ]
    seconds = {key: mean(times[key] for _, times in results) for key in results[0][1]}
    seconds["jury-gain, one step on Cora"] = gain_step("cora")
    started = time.process_time()
    plain_training(graph("cora"))
    seconds["training a plain PyG GCN on Cora"] = time.process_time() - started
    table(
        "gains",
        ["learner", "rank correlation", "splits"],
        [[r["learner"], f"{r['correlation']:.3f} ± {r['sd']:.3f}", r["splits"]] for r in rows],
    )
    print(seconds)
    save(
        "active_gains",
        rows,
        quick=chosen.quick,
        seconds=seconds,
        labels=LABELS,
        candidates=CANDIDATES,
        weight_decay=DECAY,
    )


if __name__ == "__main__":
    main()
