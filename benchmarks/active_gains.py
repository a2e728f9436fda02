"""Do closed-form gains rank labels as brute-force retraining does? On a graph with 300 nodes, and what they cost.

The gain of the label y at node v is the rise of the sum of the largest class probabilities of all nodes after it is
learned. For 12 candidates and every class it is computed by retraining and in closed form. "expected" is the mean gain
of a candidate over its label, with the probabilities that the learner gives its classes: changes of first order cancel
in it.

- GCN, one Newton step: a two-layer GCN without dropout. The step has the Gauss-Newton matrix with the new label, from
  one factorisation. Retraining is by the same epochs of Adam from the same initial weights.
- GCN, retrained twice: both gains are by retraining; the second time all initial weights differ by one part in a
  million. No estimate can be expected to agree better with retraining than retraining with itself.
- "to convergence": three times the epochs, with a learning rate that falls to zero. "continued": retraining starts at
  the trained weights, with a small learning rate that falls to zero, so it stays in the same valley. "continued, or
  retrained": how far that alone agrees with retraining from the initial weights.
- without ReLU: one weight matrix on features averaged over two hops, a convex objective, fitted to convergence.
- panel, its weights kept: the closed form is exact.
- panel, its weights chosen again after every new label: `jury-gain` keeps them.

Numbers are Spearman's correlations, mean over splits. Seconds are processor time: of all gains by Newton steps, of
retraining, and on Cora of one step of jury-gain beside an ordinary PyG training. Interrupted runs go on where they
stopped, and a row of an earlier publication stays where it has more splits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import mean, pstdev
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.func import vmap
from torch_geometric.data import Data

from active_learning import plain_training
from harness import earlier, longest, options, publish, save, table, with_published
from jurygcn import active
from jurygcn.active.gain import fitted
from jurygcn.active.tasks import scene_of
from jurygcn.active.windows import Windows
from jurygcn.data import random_labels, synthetic
from jurygcn.graph.propagation import Propagation
from protocol import Cells, graph

# the form of the step and of the training was chosen on seeds 0 to 2, so others are reported
FIRST_SEED, SPLITS, QUICK_SPLITS = 3, 10, 1
LABELS, CANDIDATES, FEATURES, HIDDEN, DECAY = 24, 12, 12, 8, 5e-3
EPOCHS, LONG, NEAR, TINY = 1000, 3000, 1e-8, 1e-6
RATE, CONTINUED_RATE = 0.01, 0.002
PLAIN, LONGER, LINEAR, PANEL = "GCN", "GCN to convergence", "without ReLU, to convergence", "panel"
PARTS = (PLAIN, LINEAR, LONGER, PANEL)
STAMP = f"1 {LABELS} labels, {CANDIDATES} candidates, decay {DECAY}, epochs {EPOCHS}, {LONG}, {CONTINUED_RATE}"


class DenseGCN:
    """A two-layer GCN as a function of its parameters, in float64; many of them side by side, theta (B, P)."""

    epochs, rate, falling = EPOCHS, RATE, False

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

    def slopes(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Derivatives of the logits, in closed form. Shapes: (P,), (r, N) -> (r, C, P)."""
        first, second = theta[: self.F * HIDDEN].view(self.F, HIDDEN), theta[self.F * HIDDEN :].view(HIDDEN, self.C)
        inner = self.X @ first
        outer = torch.einsum("ru,uf,uh->rfh", rows, self.X, (inner > 0).double())
        to_first = (outer[:, None] * second.T[None, :, None]).flatten(2)
        to_second = (rows @ inner.relu())[:, None, :, None] * torch.eye(self.C).double()[None, :, None]
        return torch.cat([to_first, to_second.flatten(2)], dim=2)

    def everywhere(self, thetas: Tensor) -> Tensor:
        """Class probabilities of all nodes, (B, N, C)."""
        return vmap(lambda theta: self.logits(theta, self.A))(thetas).softmax(dim=2)

    def trained(self, thetas: Tensor, nodes: Tensor, labels: Tensor) -> Tensor:
        """Some epochs of Adam. Shapes: thetas (B, P), nodes (B, n), labels (B, n) -> (B, P)."""
        rows, n = self.A[nodes], nodes.shape[1]
        thetas = thetas.clone().requires_grad_()
        adam = torch.optim.Adam([thetas], lr=self.rate)
        for epoch in range(self.epochs):
            adam.param_groups[0]["lr"] = self.rate * (1.0 - epoch / self.epochs if self.falling else 1.0)
            adam.zero_grad()
            logs = vmap(self.logits)(thetas, rows).log_softmax(dim=2).gather(2, labels.unsqueeze(2))
            (DECAY / 2 * thetas.square().sum() - logs.sum() / n).backward()
            adam.step()
        return thetas.detach()


class LongGCN(DenseGCN):
    """Trained to convergence."""

    epochs, falling = LONG, True


class Continued(LongGCN):
    """Trained on from weights that have converged."""

    epochs, rate = EPOCHS, CONTINUED_RATE


class Convex(DenseGCN):
    """A GCN without ReLU is linear in features averaged over two hops: one weight matrix."""

    def start(self, seed: int) -> Tensor:
        """As the first of a GCN; the optimum does not depend on it."""
        return super().start(seed)[: self.F * self.C]

    def logits(self, theta: Tensor, rows: Tensor) -> Tensor:
        """Shapes: (P,), rows of A (r, N) -> (r, C)."""
        return rows @ self.X @ theta.view(self.F, self.C)

    def slopes(self, _: Tensor, rows: Tensor) -> Tensor:
        """Derivatives of the logits, the same everywhere. Shapes: (P,), (r, N) -> (r, C, P)."""
        return torch.einsum("rf,cd->rcfd", rows @ self.X, torch.eye(self.C).double()).flatten(2)

    def trained(self, thetas: Tensor, nodes: Tensor, labels: Tensor) -> Tensor:
        """Newton's method until the gradient vanishes; steps are halved where the objective would rise."""
        return torch.stack([self.optimum(*one) for one in zip(thetas, nodes, labels)])

    def optimum(self, theta: Tensor, nodes: Tensor, labels: Tensor) -> Tensor:
        """The optimum for these labels, from this start, (P,)."""
        rows, n = self.A[nodes], len(nodes)
        J, units = self.slopes(theta, rows), torch.eye(self.C).double()

        def objective(theta: Tensor) -> Tensor:
            logs = self.logits(theta, rows).log_softmax(dim=1).gather(1, labels[:, None])
            return DECAY / 2 * theta.square().sum() - logs.sum() / n

        for _ in range(100):
            p = self.logits(theta, rows).softmax(dim=1)
            gradient = DECAY * theta + torch.einsum("ncp,nc->p", J, p - units[labels]) / n
            if float(gradient.norm()) < NEAR:
                return theta
            step, size = torch.linalg.solve(gauss_newton(p[None], J[None], n)[0], gradient), 1.0
            while objective(theta - size * step) > objective(theta) and size > NEAR:
                size /= 2
            theta = theta - size * step
        raise RuntimeError(f"expected a gradient below {NEAR} after 100 steps, got {float(gradient.norm()):.1e}")


def gauss_newton(p: Tensor, J: Tensor, count: int) -> Tensor:
    """The Gauss-Newton matrix of the objective. Shapes: p (B, n, C), J (B, n, C, P) -> (B, P, P)."""
    S = torch.diag_embed(p) - p.unsqueeze(3) * p.unsqueeze(2)
    return DECAY * torch.eye(J.shape[3]).double() + torch.einsum("bncp,bncd,bndq->bpq", J, S, J) / count


def surest(probabilities: Tensor) -> Tensor:
    """The sum of the largest probabilities of all nodes."""
    return probabilities.amax(dim=-1).sum(dim=-1)


def newton_gains(gcn: DenseGCN, theta: Tensor, nodes: Tensor, candidates: Tensor) -> Tensor:
    """The gain of each candidate's labels by one Newton step of the objective, from one factorisation, (m, C).

    The new label's residual is that after the step: an improbable label would else move the parameters too far.
    """
    p, n, units = gcn.everywhere(theta[None])[0], len(nodes) + 1, torch.eye(gcn.C).double()
    J = gcn.slopes(theta, gcn.A[torch.cat([nodes, candidates])])
    factor = torch.linalg.cholesky(gauss_newton(p[nodes][None], J[None, : len(nodes)], n)[0])
    rest = torch.cholesky_solve(DECAY * theta[:, None], factor) / n  # theta was trained on n labels, not on n + 1
    z, gains = gcn.logits(theta, gcn.A[candidates]), []
    for slopes, own in zip(J[len(nodes) :], z):
        away = torch.cholesky_solve(slopes.T, factor) / n
        kernel, start = slopes @ away, own - (slopes @ rest).squeeze(1)
        thetas = []
        for y in range(gcn.C):
            after = start.clone()
            for _ in range(50):
                q = after.softmax(dim=0)
                error = after - start + kernel @ (q - units[y])
                turn = torch.linalg.solve(units + kernel @ (torch.diag(q) - torch.outer(q, q)), error)
                after = after - turn * min(1.0, 2.0 / float(turn.abs().max().clamp_min(1e-300)))
                if float(error.abs().max()) < NEAR:
                    break
            thetas.append(theta - rest.squeeze(1) - away @ (after.softmax(dim=0) - units[y]))
        gains.append(surest(gcn.everywhere(torch.stack(thetas))) - surest(p))
    return torch.stack(gains)


def retrained_gains(
    gcn: DenseGCN, theta: Tensor, nodes: Tensor, labels: Tensor, candidates: Tensor, *, start: Tensor
) -> Tensor:
    """The same gains, with a training for each candidate and class, (m, C)."""
    m, C = len(candidates), gcn.C
    more = torch.cat([nodes.expand(m * C, -1), candidates.repeat_interleave(C)[:, None]], dim=1)
    theirs = torch.cat([labels.expand(m * C, -1), torch.arange(C).repeat(m)[:, None]], dim=1)
    after = gcn.everywhere(gcn.trained(start.expand(m * C, -1), more, theirs))
    return (surest(after) - surest(gcn.everywhere(theta[None]))).view(m, C)


def panel_gains(seed: int) -> Iterator[Gains]:
    """The panel's gains in closed form, and by refitting, with the same weights and with weights chosen again."""
    data, nodes, labels, candidates = labelled_graph(seed)
    known = dict(zip(nodes.tolist(), labels.tolist()))
    scene = scene_of(data, known, batch=1, candidates=None, recipe=active.Recipe(), seed=seed)
    gains = fitted(scene, nodes, labels)
    before = surest(gains.scores.softmax(dim=1))
    moved, pull = gains.moved(candidates)
    classes = range(scene.num_classes)
    units = torch.eye(scene.num_classes).double()
    closed = torch.stack([surest((moved + pull[..., None] * units[y]).softmax(2).transpose(0, 1)) for y in classes], 1)
    p = gains.scores.softmax(dim=1)[candidates]
    for name, weights in (("kept", gains.weights), ("chosen again", None)):
        brute = torch.empty(len(candidates), scene.num_classes).double()
        for row, v in enumerate(candidates.tolist()):
            for y in classes:
                theirs = torch.cat([labels, torch.tensor([y])])
                again = fitted(scene, torch.cat([nodes, torch.tensor([v])]), theirs, weights)
                brute[row, y] = surest(again.scores.softmax(dim=1)) - before
        yield f"{PANEL}, its weights {name}", p, closed - before, brute


def timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


Gains = tuple[str, Tensor, Tensor, Tensor]  # what is compared, class probabilities at the candidates, both gains


def model_gains(part: str, seed: int) -> Iterator[Gains]:
    """The gains of one kind of GCN."""
    data, nodes, labels, candidates = labelled_graph(seed)
    model = {PLAIN: DenseGCN, LONGER: LongGCN, LINEAR: Convex}[part](data)
    start = model.start(seed)
    theta = model.trained(start[None], nodes[None], labels[None])[0]
    p = model.everywhere(theta[None])[0][candidates]
    newton = newton_gains(model, theta, nodes, candidates)
    again = retrained_gains(model, theta, nodes, labels, candidates, start=start)
    yield f"{part}, one Newton step", p, newton, again
    if part == PLAIN:
        generator = torch.Generator().manual_seed(seed)
        near = start * (1.0 + TINY * torch.randn(start.shape, generator=generator).double())
        other = model.trained(near[None], nodes[None], labels[None])[0]
        yield f"{part}, retrained twice", p, retrained_gains(model, other, nodes, labels, candidates, start=near), again
    if part == LONGER:
        going = retrained_gains(Continued(data), theta, nodes, labels, candidates, start=theta)
        yield f"{part}, one Newton step, continued", p, newton, going
        yield f"{part}, continued, or retrained", p, going, again


def labelled_graph(seed: int) -> tuple[Data, Tensor, Tensor, Tensor]:
    """A graph, the labelled nodes with their labels, and the candidates."""
    data = synthetic(
        num_nodes=300, num_edges=900, num_features=FEATURES, num_classes=4, homophily=0.7, seed=1000 + seed
    )
    nodes = random_labels(torch.arange(300), LABELS, seed=seed)
    others = np.setdiff1d(np.arange(300), nodes.numpy())
    chosen = np.random.default_rng(seed).choice(others, CANDIDATES, replace=False)
    return data, nodes, data.y[nodes], torch.from_numpy(np.sort(chosen))


def one_split(part: str, seed: int) -> dict[str, dict[str, float]]:
    """Rank correlations."""
    found = {}
    for name, p, a, b in panel_gains(seed) if part == PANEL else model_gains(part, seed):
        found[f"{name}: each label"] = correlation(a, b)
        found[f"{name}: expected"] = correlation((p * a).sum(dim=1), (p * b).sum(dim=1))
    return {"ranks": found}


def costs() -> dict[str, float]:
    """Seconds of processor time: of all gains on one graph, and on Cora of a step and of a training."""
    data, nodes, labels, candidates = labelled_graph(FIRST_SEED)
    gcn = DenseGCN(data)
    start = gcn.start(FIRST_SEED)
    theta = gcn.trained(start[None], nodes[None], labels[None])[0]
    return {
        "Newton steps": timed(lambda: newton_gains(gcn, theta, nodes, candidates)),
        "retraining": timed(lambda: retrained_gains(gcn, theta, nodes, labels, candidates, start=start)),
        "jury-gain, one step on Cora": gain_step("cora"),
        "training a plain PyG GCN on Cora": timed(lambda: plain_training(graph("cora"))),
    }


def correlation(a: Tensor, b: Tensor) -> float:
    return float(spearmanr(a.flatten().numpy(), b.flatten().numpy()).statistic)


def gain_step(name: str) -> float:
    """Seconds of processor time of one step of jury-gain: 20 nodes after 40 labels, with all that is kept known."""
    data = graph(name)
    nodes = random_labels(torch.arange(int(data.num_nodes)), 40, seed=0)
    known = dict(zip(nodes.tolist(), data.y[nodes].tolist()))
    scene = scene_of(data, known, batch=20, candidates=None, recipe=active.Recipe(), seed=0)
    Windows.of(scene)
    return timed(lambda: active.STRATEGIES["jury-gain"].choose(scene))


def main() -> None:
    chosen = options(__doc__, finished="run nothing; publish what is finished")
    count = QUICK_SPLITS if chosen.quick else SPLITS
    cells = with_published(Cells("active_gains_quick" if chosen.quick else "active_gains", lambda _: STAMP))
    wanted = [{"part": part, "seed": FIRST_SEED + k} for part in PARTS for k in range(count)]
    if not chosen.finished:
        cells.measure(wanted, one_split)
    runs, before = cells.rows(wanted), {} if chosen.quick else earlier("active_gains")
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, value in run["ranks"].items():
            found.setdefault(name, []).append(value)
    rows: list[dict[str, Any]] = [
        {"learner": k, "correlation": mean(v), "sd": pstdev(v), "splits": len(v), "stamp": STAMP}
        for k, v in found.items()
    ]
    kept = [row for row in before.get("rows", []) if row["stamp"] == STAMP]
    rows = longest(rows, kept, "learner", by="splits")
    rows.sort(key=lambda row: next(k for k, part in enumerate(PARTS) if row["learner"].startswith(f"{part},")))
    seconds = before.get("seconds") if chosen.finished else costs()
    table(
        "gains",
        ["learner", "rank correlation", "splits"],
        [[r["learner"], f"{r['correlation']:.3f} ± {r['sd']:.3f}", r["splits"]] for r in rows],
    )
    print(seconds)
    if not chosen.quick:
        publish(cells, wanted)
    save(
        "active_gains",
        rows,
        quick=chosen.quick,
        before=before,
        seconds=seconds,
        labels=LABELS,
        candidates=CANDIDATES,
        weight_decay=DECAY,
    )


if __name__ == "__main__":
    main()
